"""Page with the graph of the choreography."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from saga.choreography.graph import list_sections, make_graph
from saga.choreography.sequence_drawing import STYLE
from saga.monitor.web.live_graph import draw_live_graph, list_troubles
from saga.monitor.web.site import get_site


async def choreography(request: Request) -> Response:
    """Show a graph of the events between services, built from manifests, with rates, errors and stuck sagas where they
    are known.
    """
    site = get_site(request)
    found = await site.desk.overview()
    graph = make_graph(found.value.manifests.values() if found.value is not None else ())
    return site.render(
        request,
        "graph.html.j2",
        found=found,
        overview=found.value,
        graph=graph,
        events=[name for section in list_sections(graph) for name in section.events],
        picture=draw_live_graph(graph, "Choreography", site.views, site.clock.now_ms()),
        trouble=list_troubles(site.views.rates()) if site.views is not None else {},
    )


async def picture_style(request: Request) -> Response:
    """Return the style sheet of the graph."""
    return Response(STYLE, media_type="text/css")


GRAPH_ROUTES = [Route("/graph", choreography), Route("/assets/graph.css", picture_style)]
