"""`saga manifest` and `saga docs`: the manifest of each service, and documents generated from manifests and
contracts.
"""

from dataclasses import asdict
from pathlib import Path

import click
import msgspec

from saga.choreography import docs as documents
from saga.choreography import releases as files
from saga.choreography.manifest import format_manifest, make_manifest
from saga.choreography.releases import ComparedManifest, manifest_folder, read_manifests
from saga.cli.printing import print_json, print_lines
from saga.configuration import wiring
from saga.contracts.library import find_library
from saga.errors import DeclarationError
from saga.support.printable import count_noun


@click.command()
@click.argument("modules", nargs=-1, required=True)
@click.option("--check", "to_check", is_flag=True, help="Compare with the committed manifests: the last release.")
@click.option("--write", "to_write", is_flag=True, help="Compare, then write manifests/<service>.json.")
@click.option(
    "--anyway", is_flag=True, help="With --write: write even what would be refused, because you have taken care of it."
)
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the manifests of all services, including other repositories. Default: manifests/ beside "
    "contracts/.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on one line.")
def manifest(  # one parameter for each option
    modules: tuple[str, ...], to_check: bool, to_write: bool, anyway: bool, folder: Path | None, as_json: bool
) -> None:
    """Print, write or check the manifest of each service.

    It lists what a service consumes, and which fields of it the code may read; what it emits, compensates and waits
    for; the names that ids are made of; its state, resources and documents. Fields are found in the source of the
    handlers. Where the code cannot be followed it says "all", with the reason.

    \b
    saga manifest services.payment
        print it
    saga manifest --write services.payment
        write manifests/payment.json. Commit it: the next release is compared with it
    saga manifest --check services.payment
        refuse what would strand open sagas or other services, each with a way out: a handler that was renamed or
        removed, an event that is no longer emitted while another service consumes it, a state that was changed without
        migration

    \b
    Exit code 0: printed or written; or the release is harmless; its changes are listed.
    Exit code 1: a change is refused, its line says why; or there is no manifest to compare with.
    Exit code 2: wrong usage; a module or a manifest cannot be used.
    """
    if to_check and to_write:
        raise click.UsageError("--check compares, --write compares and writes: give one of them")
    if anyway and not to_write:
        raise click.UsageError("--anyway goes with --write")
    services = wiring.load_services(modules)
    if to_write:
        _write(files.compare_with_released(services, folder), anyway, as_json)
    elif to_check:
        _check(files.compare_with_released(services, folder), as_json)
    elif as_json:
        print_json([msgspec.to_builtins(make_manifest(each)) for each in services])
    else:
        for each in services:
            print_lines(*format_manifest(make_manifest(each)).rstrip("\n").split("\n"))


def _write(compared: list[ComparedManifest], anyway: bool, as_json: bool) -> None:
    refused = not anyway and any(each.is_refused for each in compared)
    done = [each.path.name for each in compared if not refused and files.save_manifest(each)]
    if as_json:
        print_json({"written": done, "services": _releases_to_json(compared)})
    else:
        _print(compared)
        for each in compared:
            is_written = each.path.name in done
            print_lines(
                f"{_shown(each.path)} {'written' if is_written else 'is not written' if refused else 'is unchanged'}"
            )
    if refused:
        raise click.exceptions.Exit(1)


def _check(compared: list[ComparedManifest], as_json: bool) -> None:
    is_whole = not any(each.is_refused or each.is_new for each in compared)
    if as_json:
        print_json({"harmless": is_whole, "services": _releases_to_json(compared)})
    else:
        _print(compared)
        for each in compared:
            if each.is_new:
                print_lines(f"{_shown(each.path)} does not exist: write it with saga manifest --write, and commit it")
            elif not each.differences:
                print_lines(f"{_shown(each.path)} is up to date")
            elif not each.is_refused:
                print_lines(f"{_shown(each.path)} differs harmlessly: run saga manifest --write when this is released")
    if not is_whole:
        raise click.exceptions.Exit(1)


def _print(compared: list[ComparedManifest]) -> None:
    for each in compared:
        for found in each.differences:
            print_lines(f"{found.verdict:<8}  {found.service}  {found.where}: {found.what}")
            if found.way_out:
                print_lines(f"          {found.way_out}")


def _releases_to_json(compared: list[ComparedManifest]) -> list[dict[str, object]]:
    return [
        {
            "service": each.manifest.service,
            "is_new": each.is_new,
            "differences": [{**asdict(found), "verdict": found.verdict} for found in each.differences],
        }
        for each in compared
    ]


def _shown(path: Path) -> str:
    """Return a path for display: relative to the current folder if it is inside that folder."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


# -------------------------------------------------------------------- docs


@click.group()
def docs() -> None:
    """Generate pages and an AsyncAPI document from contracts and manifests.

    \b
    Exit code 0: written.
    Exit code 1: the contracts cannot be used.
    Exit code 2: wrong usage.
    """


@docs.command()
@click.argument("out", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--manifests",
    "folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of the manifests of all services. Default: manifests/ beside contracts/.",
)
@click.option("--title", default="Choreography", show_default=True, help="Title of the pages.")
@click.option("--api-version", default="1.0.0", show_default=True, help="Version of the AsyncAPI document.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
def build(out: Path, folder: Path | None, title: str, api_version: str, as_json: bool) -> None:
    """Write an AsyncAPI 3 document, and a page for each event and service, into the folder OUT.

    The contracts are those of the current folder. OUT/asyncapi.json has topics as channels, contracts as messages with
    their Avro schemas, and what each service sends and receives. The pages, from OUT/index.html on, show who emits each
    event, who consumes it and which fields it may read, what is compensated when the saga fails, and which versions are
    compatible. They load nothing from other hosts, and need no script.

    Pages of events and services that no longer exist are removed. A folder with files that this command did not
    write is refused; files added later to its own folder stay.

    \b
    Exit code 0: written.
    Exit code 1: the contracts cannot be used; each line says why.
    Exit code 2: wrong usage: no contracts, unusable manifests, a folder with other files, or no Jinja2 (pip install
    'saga-choreography[docs]').
    """
    try:
        library = find_library()
    except DeclarationError as why:
        raise click.UsageError(str(why)) from why
    manifests = read_manifests(folder or manifest_folder(library))
    built = documents.build_docs(library, manifests, out, title, api_version)
    if as_json:
        print_json(
            {"out": str(built.out), "events": built.events, "services": built.services, "removed": built.removed}
        )
        return
    print_lines(
        f"{built.out / 'index.html'}: {count_noun(built.events, 'event')}, {count_noun(built.services, 'service')}"
    )
    print_lines(f"{built.out / documents.ASYNCAPI_FILE}: AsyncAPI 3")
    if built.removed:
        print_lines(f"removed {count_noun(built.removed, 'old page')}")
