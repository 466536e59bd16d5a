"""`saga manifest`: what services say of themselves, as files, and a release beside the one before."""

from dataclasses import asdict
from pathlib import Path

import click
import msgspec

from saga.choreography import folder as files
from saga.choreography.declared import manifest_of
from saga.choreography.folder import Compared
from saga.choreography.manifest import written
from saga.cli.printing import tell, tell_json
from saga.configuration import wiring


@click.command()
@click.argument("modules", nargs=-1, required=True)
@click.option("--check", "to_check", is_flag=True, help="Compare with the committed manifests: the last release.")
@click.option("--write", "to_write", is_flag=True, help="Compare, and commit to it: write manifests/<service>.json.")
@click.option("--anyway", is_flag=True, help="With --write: also what is refused, for you have seen to it.")
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the manifests of all services, those of other repositories too. By default manifests/ beside "
    "contracts/.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on one line.")
def manifest(  # an argument for each option
    modules: tuple[str, ...], to_check: bool, to_write: bool, anyway: bool, folder: Path | None, as_json: bool
) -> None:
    """Print, write or check the manifest of each service.

    It says what a service consumes, and which fields of it its code may read; what it emits, undoes and waits for; the
    names that ids are made of; its state, resources and documents. Fields are found in the source of the handlers, and
    careful on one side: "all" where the code cannot be followed, and because of what.

    \b
    saga manifest services.payment
        prints it
    saga manifest --write services.payment
        writes manifests/payment.json, to be committed: it is what the next release is compared with
    saga manifest --check services.payment
        refuses what would strand open sagas or other services, each with the way out: a handler renamed or taken
        away, an event said no more while another manifest hears it, a state changed without migration

    \b
    Exit code 0: printed or written; or the release is harmless, and what is new in it is told.
    Exit code 1: something is refused, each line says why; or there is no manifest to compare with.
    Exit code 2: asked wrongly; a module or a manifest cannot be used.
    """
    if to_check and to_write:
        raise click.UsageError("--check compares, --write compares and writes: give one of them")
    if anyway and not to_write:
        raise click.UsageError("--anyway goes with --write")
    services = wiring.load_services(modules)
    if to_write:
        _write(files.compared(services, folder), anyway, as_json)
    elif to_check:
        _check(files.compared(services, folder), as_json)
    elif as_json:
        tell_json([msgspec.to_builtins(manifest_of(each)) for each in services])
    else:
        for each in services:
            tell(*written(manifest_of(each)).rstrip("\n").split("\n"))


def _write(compared: list[Compared], anyway: bool, as_json: bool) -> None:
    refused = not anyway and any(each.is_refused for each in compared)
    done = [each.path.name for each in compared if not refused and files.save(each)]
    if as_json:
        tell_json({"written": done, "services": _told(compared)})
    else:
        _print(compared)
        for each in compared:
            is_written = each.path.name in done
            tell(f"{_shown(each.path)} {'written' if is_written else 'is not written' if refused else 'is as it was'}")
    if refused:
        raise click.exceptions.Exit(1)


def _check(compared: list[Compared], as_json: bool) -> None:
    is_whole = not any(each.is_refused or each.is_new for each in compared)
    if as_json:
        tell_json({"harmless": is_whole, "services": _told(compared)})
    else:
        _print(compared)
        for each in compared:
            if each.is_new:
                tell(f"{_shown(each.path)} is not there: have saga manifest --write make it, and commit it")
            elif not each.differences:
                tell(f"{_shown(each.path)} is as the service says")
            elif not each.is_refused:
                tell(f"{_shown(each.path)} is older, harmlessly: saga manifest --write when this is released")
    if not is_whole:
        raise click.exceptions.Exit(1)


def _print(compared: list[Compared]) -> None:
    for each in compared:
        for found in each.differences:
            tell(f"{found.verdict:<7}  {found.service}  {found.where}: {found.what}")
            if found.way_out:
                tell(f"         {found.way_out}")


def _told(compared: list[Compared]) -> list[dict[str, object]]:
    return [
        {
            "service": each.manifest.service,
            "is_new": each.is_new,
            "differences": [{**asdict(found), "verdict": found.verdict} for found in each.differences],
        }
        for each in compared
    ]


def _shown(path: Path) -> str:
    """Path as people type it: from the current folder, if it is in there."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
