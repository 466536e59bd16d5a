"""The graph of a choreography with numbers from the monitor next to the arrows: rates, errors and stuck sagas.
Pure functions."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from markupsafe import Markup

from saga.choreography.graph import ChoreographyGraph, GraphEvent, is_outside, keep_links
from saga.choreography.graph_drawing import GraphLinks, LiveNumbers, make_picture
from saga.choreography.sequence_drawing import draw_heads, draw_sequence
from saga.monitor.views import ErrorClass, HandlerRates, StuckSagas, Views
from saga.support.printable import count_noun


@dataclass(frozen=True, slots=True)
class LiveGraph:
    """A graph that is drawn for the page."""

    graph: ChoreographyGraph
    picture: Markup
    """The picture of the graph. It needs the style sheet of `sequence_drawing`."""
    heads: Markup
    """Headings of the lanes, which stay in sight while the picture is scrolled."""


def draw_live_graph(graph: ChoreographyGraph, title: str, live: LiveNumbers | None) -> LiveGraph:
    """Draw a graph for the page. If there are numbers from the read model, it also has links.

    A service links to its sagas, and an event to the sagas that it concerns.
    """
    links = GraphLinks(
        service=link_service, event=lambda event: link_event(graph, event), stuck=link_stuck, errors="/rates"
    )
    picture = make_picture(graph, title) if live is None else make_picture(graph, title, live, links)
    return LiveGraph(
        graph, Markup(draw_sequence(picture, has_style=False, has_heads=False)), Markup(draw_heads(picture))
    )


def read_live_numbers(graph: ChoreographyGraph, views: Views | None, now_ms: int) -> LiveNumbers | None:
    """Read rates, errors and stuck sagas for a graph. Return `None` if there is no read model."""
    return None if views is None else make_live_numbers(graph, views.rates(), views.errors(), views.stuck(now_ms))


def select_troubled(graph: ChoreographyGraph, live: LiveNumbers) -> ChoreographyGraph:
    """Return the part of a graph that has problems.

    It contains the events at which a consumer has errors or stuck sagas, the events that a service with problems
    consumes, and all services that emit or consume one of these events.
    """
    failing = {*live.errors, *(key[:2] for key in live.stuck)}
    events = {
        link.event
        for link in graph.links
        if link.role != "emits" and ((link.participant, link.reaction) in failing or link.participant in live.troubles)
    }
    return keep_links(graph, lambda link: link.event in events)


def make_live_numbers(
    graph: ChoreographyGraph, rates: HandlerRates, errors: Iterable[ErrorClass], stuck: StuckSagas
) -> LiveNumbers:
    """Return the numbers that the picture shows, as texts."""
    services, failures = dict[str, float](), Counter[tuple[str, str]]()
    for rate in rates.handlers:
        services[rate.service] = services.get(rate.service, 0.0) + rate.per_s
    for error in errors:
        failures[error.service, error.handler] += error.count
    alike = Counter((each.awaited.service, each.awaited.handler, each.awaited.for_) for each in stuck.sagas)
    waiting = Counter[tuple[str, str, str]]()
    for awaited, count in alike.items():
        for key in _find_stuck_links(graph, *awaited):
            waiting[key] += count
    more = " or more" if stuck.more else ""
    return LiveNumbers(
        services={service: f"{per_s:.2f} a second" for service, per_s in services.items()},
        troubles=frozenset(list_troubles(rates)),
        rates={(rate.service, rate.handler): f"{rate.per_s:.2f} a second" for rate in rates.handlers},
        errors={key: count_noun(count, "error") for key, count in failures.items()},
        stuck={key: f"{count}{more} stuck" for key, count in waiting.items()},
    )


def list_troubles(rates: HandlerRates) -> dict[str, str]:
    """Describe the problem of each service that has one, by service."""
    troubles: dict[str, str] = {}
    for rate in rates.handlers:
        if rate.storm:
            troubles[rate.service] = "retries more often than it finishes"
        elif rate.dead:
            troubles.setdefault(rate.service, "has had dead letters")
    return troubles


def _find_stuck_links(
    graph: ChoreographyGraph, service: str, handler: str, events: Sequence[str]
) -> list[tuple[str, str, str]]:
    """Return the arrows at which a saga is stuck: service, handler and event of each.

    These are the arrows of the events that the handler waits for. If it waits for a time or a person, these are all
    arrows that lead to the handler. If the handler is not known, these are all arrows of the events that were emitted
    last.
    """
    links = [each for each in graph.links if each.role in ("takes", "may take") and each.reaction]
    if handler:
        links = [each for each in links if (each.participant, each.reaction) == (service, handler)]
    awaited = [each for each in links if each.event in events]
    return [(each.participant, each.reaction, each.event) for each in (awaited or links if handler else awaited)]


def link_service(service: str) -> str:
    """Return the address of the list of sagas in which a service takes part."""
    return f"/sagas?{urlencode({'service': service})}"


def link_stuck(service: str) -> str:
    """Return the address of the list of stuck sagas in which a service takes part."""
    return f"/sagas?{urlencode({'service': service, 'state': 'stuck'})}"


def link_event(graph: ChoreographyGraph, event: GraphEvent) -> str:
    """Return the address of the list of sagas that an event concerns.

    An outcome concerns the sagas with the same result. Any other event concerns the sagas of the service that emits it.
    If it comes from outside, it concerns the sagas of a service that consumes it.
    """
    if event.outcome is not None:
        return f"/sagas?{urlencode({'outcome': event.outcome})}"
    links = [*graph.list_producers(event.name), *graph.list_consumers(event.name)]
    service = next((each.participant for each in links if not is_outside(each.participant)), "")
    return link_service(service) if service else ""
