"""`saga graph`: a picture of the choreography, made from manifests."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from saga.choreography.graph import ChoreographyGraph, make_graph, select_neighbours, select_reached
from saga.choreography.graph_drawing import make_picture
from saga.choreography.graph_formats import format_dot, format_graph_json, format_mermaid
from saga.choreography.sequence_drawing import draw_sequence
from saga.cli.options import pack_options
from saga.cli.printing import print_lines
from saga.cli.sources import load_manifests
from saga.support.printable import quote_text


def _format_svg(graph: ChoreographyGraph, title: str) -> str:
    return draw_sequence(make_picture(graph, title))


FORMATS: Final[Mapping[str, Callable[[ChoreographyGraph, str], str]]] = {
    "svg": _format_svg,
    "mermaid": format_mermaid,
    "dot": format_dot,
    "json": format_graph_json,
}


@dataclass(frozen=True, slots=True)
class GraphPart:
    """Selects the part of a graph that is drawn."""

    start: str | None
    """Event: only what can follow from it is drawn. `None` draws everything."""
    services: tuple[str, ...]
    """Services: only these and their neighbours are drawn. Empty draws all services."""

    def select(self, graph: ChoreographyGraph) -> ChoreographyGraph:
        """Return the selected part of a graph."""
        if self.start is not None:
            _refuse_unknown("event", [self.start], graph.events)
            graph = select_reached(graph, self.start)
        if self.services:
            _refuse_unknown("service", self.services, graph.services)
            graph = select_neighbours(graph, self.services)
        return graph


@click.command()
@click.argument("sources", nargs=-1, metavar="[MANIFEST|MODULE]...")
@click.option("--format", "form", type=click.Choice(list(FORMATS)), default="svg", show_default=True)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File to write. Default: standard output.",
)
@pack_options(
    "part",
    GraphPart,
    click.option("--from", "start", metavar="EVENT", help="Draw only what can follow from this event."),
    click.option(
        "--service",
        "services",
        metavar="NAME",
        multiple=True,
        help="Draw only this service and its neighbours; repeatable.",
    ),
)
@click.option(
    "--manifests",
    "folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of the manifests of all services. Default, without arguments: manifests/ beside contracts/.",
)
@click.option("--title", default="Choreography", show_default=True, help="Title of the picture.")
def graph(
    sources: tuple[str, ...], form: str, output: Path | None, part: GraphPart, folder: Path | None, title: str
) -> None:
    """Draw which service emits and which consumes each event.

    Services are lanes, and events are arrows in causal order. What is possible before the outcome comes first; below it
    comes what follows a success, and what follows a failure, with its compensations. Deadlines are clocks with their
    duration. The picture is made only from manifests. Arguments are manifests, folders of manifests, or modules of
    services.

    \b
    saga graph --output choreography.svg
        draw the services whose manifests are in manifests/
    saga graph --from OrderPlaced --format mermaid
        what can follow from one event, as a diagram for a Markdown file
    saga graph --service payment --output payment.svg
        one service, who sends it events, and who gets its events
    saga graph services.order services.payment
        services as they are in the code, whether or not their manifests are written

    \b
    Exit code 0: printed or written.
    Exit code 2: wrong usage: no manifests, an unusable manifest or module, or an unknown event or service.
    """
    drawn = part.select(make_graph(load_manifests(sources, folder).manifests.values()))
    text = FORMATS[form](drawn, title)
    if output is None:
        print_lines(*text.rstrip("\n").split("\n"))
    else:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text, "utf-8")


def _refuse_unknown(what: str, names: Iterable[str], known: Iterable[str]) -> None:
    for name in names:
        if name not in known:
            raise click.UsageError(f"there is no {what} {quote_text(name)}; there are {', '.join(sorted(known))}")
