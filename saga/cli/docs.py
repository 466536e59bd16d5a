"""`saga docs`: documents about a choreography, out of contracts and manifests."""

from pathlib import Path

import click

from saga.choreography import docs as documents
from saga.choreography.folder import folder_beside, manifests_in
from saga.cli.printing import tell, tell_json
from saga.contracts.library import find_library
from saga.errors import DeclarationError
from saga.support.printable import counted


@click.group()
def docs() -> None:
    """Generate pages and an AsyncAPI document from contracts and manifests.

    \b
    Exit code 0: written.
    Exit code 1: the contracts cannot be used.
    Exit code 2: asked wrongly.
    """


@docs.command()
@click.argument("out", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--manifests",
    "folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of the manifests of all services. By default manifests/ beside contracts/.",
)
@click.option("--title", default="Choreography", show_default=True, help="Name of the whole, above each page.")
@click.option("--api-version", default="1.0.0", show_default=True, help="Version that the AsyncAPI document carries.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of text.")
def build(out: Path, folder: Path | None, title: str, api_version: str, as_json: bool) -> None:
    """Write an AsyncAPI 3 document, and a page for each event and service, into the folder OUT.

    The contracts are those of the current folder. OUT/asyncapi.json has topics as channels, contracts as messages with
    their Avro schemas, and what each service sends and receives. The pages, from OUT/index.html, say who says each
    event, who hears it and which fields it may read, what is undone when the saga fails, and what is promised. They ask
    no other host for anything, and need no script.

    Pages of events and services that are no more are removed. A folder that holds something else is left alone.

    \b
    Exit code 0: written.
    Exit code 1: the contracts cannot be used; each line says why.
    Exit code 2: asked wrongly: no contracts, manifests that cannot be used, another folder, or no Jinja2 (pip install
    'saga-choreography[docs]').
    """
    try:
        library = find_library()
    except DeclarationError as why:
        raise click.UsageError(str(why)) from why
    manifests = manifests_in(folder or folder_beside(library))
    built = documents.build(library, manifests, out, title, api_version)
    if as_json:
        tell_json({"out": str(built.out), "events": built.events, "services": built.services, "removed": built.removed})
        return
    tell(f"{built.out / 'index.html'}: {counted(built.events, 'event')}, {counted(built.services, 'service')}")
    tell(f"{built.out / documents.ASYNCAPI}: AsyncAPI 3")
    if built.removed:
        tell(f"removed {counted(built.removed, 'page')} of what is no more")
