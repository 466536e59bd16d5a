"""The page with the graph of the choreography."""

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from saga.choreography.graph import (
    ChoreographyGraph,
    list_sections,
    make_graph,
    select_event,
    select_neighbours,
)
from saga.choreography.graph_drawing import LiveNumbers
from saga.choreography.sequence_drawing import STYLE
from saga.monitor.web.live_graph import draw_live_graph, list_troubles, read_live_numbers, select_troubled
from saga.monitor.web.renewal import read_renewal
from saga.monitor.web.site import get_site


async def choreography(request: Request) -> Response:
    """Show the graph of the events between services. It is made from manifests.

    If there is a read model, the graph also shows rates, errors and stuck sagas. A filter selects one service, one
    event, or only what has problems.
    """
    site, asked = get_site(request), request.query_params
    chosen = {name: asked.get(name, "") for name in ("service", "event", "trouble")}
    found = await site.desk.overview()
    whole = make_graph(found.value.manifests.values() if found.value is not None else ())
    live = read_live_numbers(whole, site.views, site.clock.now_ms())
    shown = draw_live_graph(filter_graph(whole, live, chosen), "Choreography", live)
    rates = site.views.rates() if site.views is not None else None
    return site.render(
        request,
        "graph.html.j2",
        found=found,
        overview=found.value,
        graph=shown.graph,
        events=[name for section in list_sections(shown.graph) for name in section.events],
        shown=shown,
        chosen=chosen,
        is_narrow=any(chosen.values()),
        services=whole.services,
        all_events=sorted(whole.events),
        trouble=_select_shown(list_troubles(rates), shown.graph) if rates is not None else {},
        newest_ms=rates.newest_ms if rates is not None else 0,
        renewal=read_renewal(request),
    )


def _select_shown(troubles: Mapping[str, str], graph: ChoreographyGraph) -> Mapping[str, str]:
    return {service: what for service, what in troubles.items() if service in graph.services}


def filter_graph(graph: ChoreographyGraph, live: LiveNumbers | None, chosen: Mapping[str, str]) -> ChoreographyGraph:
    """Return the part of a graph that the filter selects. An unknown name selects nothing."""
    if service := chosen["service"]:
        graph = select_neighbours(graph, [service])
    if event := chosen["event"]:
        graph = select_event(graph, event)
    if chosen["trouble"] and live is not None:
        graph = select_troubled(graph, live)
    return graph


async def picture_style(request: Request) -> Response:
    """Return the style sheet of the graph."""
    return Response(STYLE, media_type="text/css")


GRAPH_ROUTES = [Route("/graph", choreography), Route("/assets/graph.css", picture_style)]
