"""Manifests as files: one for each service, in `manifests/` beside `contracts/`. They are those of the last release."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from saga.choreography import manifest
from saga.choreography.declared import manifest_of
from saga.choreography.manifest import Manifest
from saga.choreography.releases import Difference, differences, new
from saga.contracts.library import Library
from saga.declarations.changes import library_of
from saga.declarations.values import Declared
from saga.errors import ConfigurationError

FOLDER = "manifests"


@dataclass(frozen=True, slots=True)
class Compared:
    """Manifest of a service as it is now, beside that of its last release."""

    manifest: Manifest
    path: Path
    """File of the last release."""
    replaces: Path | None
    """File that is there of it: of the last release, which may have had another name for it; `None`: it is new."""
    differences: Sequence[Difference]

    @property
    def is_new(self) -> bool:
        """True if there is no manifest of it yet."""
        return self.replaces is None

    @property
    def is_refused(self) -> bool:
        """True if something of it strands open sagas or other services."""
        return any(each.verdict == "refused" for each in self.differences)


def compared(services: Sequence[Declared], folder: Path | None = None) -> list[Compared]:
    """Compare services with their last releases. `folder`: of all manifests; left out, the one beside the contracts of
    each service. Raises `ConfigurationError` for manifests that cannot be used."""
    found = []
    for declared in services:
        library = library_of(declared.reactions[0].takes[0])
        place = folder or folder_beside(library)
        released, made = manifests_in(place), manifest_of(declared)
        old = next((each for each in released.values() if each.stored == made.stored), None)
        others = [each for each in released.values() if each is not old]
        consumed_externally = {name for name, contract in library.contracts.items() if contract.consumed_externally}
        found.append(
            Compared(
                manifest=made,
                path=place / f"{made.service}.json",
                replaces=None if old is None else place / f"{old.service}.json",
                differences=new(made, others) if old is None else differences(old, made, others, consumed_externally),
            )
        )
    return found


def folder_beside(library: Library) -> Path:
    """Folder of the manifests that go with these contracts."""
    return library.folder.parent / FOLDER


def manifests_in(folder: Path) -> Mapping[str, Manifest]:
    """Manifests of a folder, by service. Raises `ConfigurationError` with all files that cannot be used; a folder that
    is not there has none."""
    found: dict[str, Manifest] = {}
    problems: list[str] = []
    for path in sorted(folder.glob("*.json")):
        try:
            read = manifest.read(path.read_text("utf-8"), path.name)
        except ConfigurationError as why:
            problems += [f"{path.name}: {problem}" for problem in why.problems]
            continue
        except (OSError, ValueError) as why:
            problems.append(f"{path.name}: cannot be read: {why}")
            continue
        if f"{read.service}.json" != path.name:
            problems.append(f"{path.name}: is of the service {read.service!r}; call it {read.service}.json")
        found[read.service] = read
    if problems:
        raise ConfigurationError(f"the manifests in {folder} cannot be used:", problems)
    return found


def save(made: Compared) -> bool:
    """Write a manifest as that of the last release; return whether its file is another than before."""
    text = manifest.written(made.manifest)
    if made.path.exists() and made.path.read_text("utf-8") == text:
        return False
    made.path.parent.mkdir(parents=True, exist_ok=True)
    made.path.write_text(text, "utf-8")
    if made.replaces is not None and made.replaces != made.path:
        made.replaces.unlink(missing_ok=True)
    return True
