"""Draw the graph of a choreography as a sequence picture. Services are lanes; events are rows in causal order. Pure
functions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from saga.choreography.graph import (
    OTHERS,
    ChoreographyGraph,
    EventLink,
    GraphEvent,
    GraphReaction,
    Outcome,
    is_outside,
    list_sections,
)
from saga.choreography.sequence_drawing import (
    MarkForm,
    RowForm,
    SequenceLane,
    SequenceMark,
    SequencePicture,
    SequenceRow,
    SequenceSection,
    SequenceTrouble,
    sort_lanes,
)
from saga.support.durations import describe_duration
from saga.support.printable import count_noun

HEADINGS: Mapping[Outcome | None, str] = {None: "", "success": "After success", "failure": "If it fails"}
"""Heading of each section."""


@dataclass(frozen=True, slots=True)
class LiveNumbers:
    """Texts from the monitor about the services and reactions of a graph, to be shown in its picture."""

    services: Mapping[str, str] = field(default_factory=dict)
    """Text below the name of each service."""
    troubles: frozenset[str] = frozenset()
    """Services whose text reports a problem."""
    rates: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """Text about the rate of each reaction, by the names of service and reaction."""
    errors: Mapping[tuple[str, str], str] = field(default_factory=dict)
    stuck: Mapping[tuple[str, str, str], str] = field(default_factory=dict)
    """Text about sagas that are stuck because a reaction waits for an event, by the names of service, reaction and
    event."""


@dataclass(frozen=True, slots=True)
class GraphLinks:
    """Link targets in the picture: functions that return the address for a name, and the address for all failures. If
    an address is empty, no link is drawn."""

    service: Callable[[str], str] = lambda _: ""
    event: Callable[[GraphEvent], str] = lambda _: ""
    stuck: Callable[[str], str] = lambda _: ""
    """Address of the stuck sagas of a service."""
    errors: str = ""


@dataclass(frozen=True, slots=True)
class _DrawnGraph:
    """A graph and everything else that its picture shows: the order of the events, texts of the monitor, and links."""

    graph: ChoreographyGraph
    order: Mapping[str, int]
    """Position of each event in causal order."""
    live: LiveNumbers
    links: GraphLinks


def make_picture(
    graph: ChoreographyGraph, title: str, live: LiveNumbers | None = None, links: GraphLinks | None = None
) -> SequencePicture:
    """Make the picture of a graph."""
    live, links = live or LiveNumbers(), links or GraphLinks()
    sections = list_sections(graph)
    order = {name: at for at, name in enumerate(name for section in sections for name in section.events)}
    drawn = _DrawnGraph(graph, order, live, links)
    return SequencePicture(
        title,
        f"{count_noun(len(graph.services), 'service')}, {count_noun(len(order), 'event')}",
        lanes=tuple(
            SequenceLane(
                name,
                is_outside(name),
                href="" if is_outside(name) else links.service(name),
                note=live.services.get(name, ""),
                is_bad=name in live.troubles,
            )
            for name in list_participants(graph, list(order))
        ),
        sections=tuple(
            SequenceSection(
                HEADINGS[section.outcome], tuple(_make_row(drawn, graph.events[name]) for name in section.events)
            )
            for section in sections
        ),
    )


def list_participants(graph: ChoreographyGraph, events: Sequence[str]) -> list[str]:
    """Return the participants that get a lane in the picture, from left to right: first those that are not services,
    then the services in an order that keeps arrows short.

    External consumers get no lane, because arrows to them would cross all others.
    """
    rows: dict[str, list[str]] = {name: [] for name in events}
    for link in sorted(graph.links, key=lambda each: each.role != "emits"):
        if link.participant != OTHERS:
            rows[link.event].append(link.participant)
    names = dict.fromkeys([*graph.services, *(name for row in rows.values() for name in row)])
    ends = {name: -1 for name in names if is_outside(name)}
    return sort_lanes(list(names), list(rows.values()), ends)


def _make_row(drawn: _DrawnGraph, event: GraphEvent) -> SequenceRow:
    graph = drawn.graph
    producers, consumers = graph.list_producers(event.name), graph.list_consumers(event.name)
    inside = [each for each in consumers if each.participant != OTHERS]
    tags = ["starts a saga"] if event.starts else []
    tags += [event.outcome] if event.outcome else []
    return SequenceRow(
        f"change in {event.collection}" if event.collection else event.name,
        _choose_form(graph, event, producers),
        tuple(tags),
        begins=tuple(_make_mark(drawn, link) for link in producers),
        ends=tuple(_make_mark(drawn, link) for link in inside),
        leaves=len(inside) < len(consumers),
        href=drawn.links.event(event),
    )


def _choose_form(graph: ChoreographyGraph, event: GraphEvent, producers: Sequence[EventLink]) -> RowForm:
    if event.outcome is not None:
        return event.outcome
    if event.starts:
        return "start"
    kinds = {_get_kind(graph, link) for link in producers}
    return "undo" if kinds == {"compensation"} else "plain"


def _get_kind(graph: ChoreographyGraph, link: EventLink) -> MarkForm:
    reaction = graph.reactions.get((link.participant, link.reaction))
    return "outside" if reaction is None else reaction.kind


def _make_mark(drawn: _DrawnGraph, link: EventLink) -> SequenceMark:
    reaction, live = drawn.graph.reactions.get((link.participant, link.reaction)), drawn.live
    if reaction is None:
        return SequenceMark(link.participant, "outside")
    rate, troubles = "", list[SequenceTrouble]()
    if link.role in ("takes", "may take"):
        rate = live.rates.get(reaction.key, "")
        troubles = [
            SequenceTrouble(live.errors.get(reaction.key, ""), drawn.links.errors),
            SequenceTrouble(live.stuck.get((*reaction.key, link.event), ""), drawn.links.stuck(reaction.service)),
        ]
    return SequenceMark(
        link.participant,
        "stop" if link.role == "is stopped by" else reaction.kind,
        label=tuple(_describe_end(reaction, link, drawn.order)),
        bar=reaction.name,
        notes=(rate,) if rate else (),
        troubles=tuple(each for each in troubles if each.text),
    )


def _describe_end(reaction: GraphReaction, link: EventLink, order: Mapping[str, int]) -> list[str]:
    """Return the lines of text at an end of an arrow that belongs to a reaction."""
    after = [] if reaction.within_s is None else [f"after {describe_duration(reaction.within_s)}"]
    match link.role:
        case "emits":
            return [reaction.name, *after]
        case "is stopped by":
            return [reaction.name, "does not run then"]
        case "may take":
            return [reaction.name, "does not need it"]
        case "takes":
            name = f"{reaction.name}{describe_fan_in(reaction, link.event, order)}"
            undoes = [] if reaction.undoes is None else [f"undoes {reaction.undoes}"]
            later = ["may continue later"] if reaction.later else []
            return [name, *after, *undoes, *later, *(["cannot be undone"] if reaction.irreversible else [])]


def describe_fan_in(reaction: GraphReaction, event: str, order: Mapping[str, int]) -> str:
    """Return which part of a fan-in an event is, such as ` (1 of 3)`; empty if the reaction needs only one event.

    `order`: positions of the events. The parts are numbered in the order of their first events.
    """
    parts = sorted(reaction.takes, key=lambda part: min(order.get(name, len(order)) for name in part))
    at = next(number for number, part in enumerate(parts, 1) if event in part)
    return "" if len(parts) == 1 else f" ({at} of {len(parts)})"
