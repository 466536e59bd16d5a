"""Load the manifests that a command is about, from files, from folders, or from modules that declare services."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import click

from saga.choreography.manifest import Manifest, make_manifest
from saga.choreography.releases import manifest_folder, read_manifest, read_manifests
from saga.configuration import wiring
from saga.contracts.library import find_library
from saga.errors import ConfigurationError, DeclarationError


class ManifestSources(NamedTuple):
    """The manifests that a command is about."""

    manifests: Mapping[str, Manifest]
    """Manifests by service."""
    files: Mapping[str, str]
    """Path of each manifest's file, by service. Manifests that were made from modules have none."""
    folder: Path | None
    """The folder from which manifests were read; `None` if there was none, or more than one."""


def load_manifests(sources: Sequence[str], folder: Path | None) -> ManifestSources:
    """Return the manifests of these sources: files, folders of files, and modules that declare services.

    Without sources the manifests are read from `folder` or, if that is `None`, from `manifests/` next to `contracts/`.
    If several sources have the same service, modules take precedence over folders, and folders over files. Raises
    `ConfigurationError` if a file or module cannot be used, or if there is no manifest.
    """
    if folder is None and not sources:
        try:
            folder = manifest_folder(find_library())
        except DeclarationError as why:
            raise click.UsageError(f"{why}; or name manifests or modules") from why
    found: dict[str, Manifest] = {}
    files: dict[str, str] = {}
    folders = [folder] if folder is not None else []
    modules = []
    for source in sources:
        path = Path(source)
        if path.suffix == ".json":
            read = read_manifest(path)
            found[read.service], files[read.service] = read, path.as_posix()
        elif path.is_dir() and not (path / "__init__.py").exists():
            folders.append(path)
        else:
            modules.append(source)
    for each in folders:
        there = read_manifests(each)
        if not there and each != folder:  # else a misspelled folder would be left out silently
            raise _no_manifest(each)
        found |= there
        files |= {service: (each / f"{service}.json").as_posix() for service in there}
    found |= {each.title: make_manifest(each) for each in wiring.load_services(modules)}
    if not found:
        raise _no_manifest(folder or ", ".join(sources))
    return ManifestSources(found, files, folders[0] if len(folders) == 1 else None)


def _no_manifest(where: object) -> ConfigurationError:
    return ConfigurationError("there is no manifest:", [f"{where} has none: write it with saga manifest --write"])
