"""Make the graph of a choreography from manifests: events, and the reactions that emit and take them. Pure functions.

Each link connects an event with a reaction. A part of the graph, such as the events of one service, is a graph with
fewer links; `keep_links` also drops the events, reactions and services that have no link left.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, Literal, TypeAlias

from saga.choreography.manifest import DeclaredReaction, EmittedContract, Manifest
from saga.declarations.values import ReactionKind

CLIENTS: Final = "external clients"
"""Participant that emits events that are produced externally."""
DOCUMENTS: Final = "documents"
"""Prefix of a participant's name. There is one such participant for each collection whose document changes are
consumed."""
UNKNOWN: Final = "other services"
"""Participant that emits the events for which no manifest names a producer."""
OTHERS: Final = "external consumers"
"""Participant that takes events that are consumed externally."""
# Names of services contain no space, so no service has the same name as one of these participants.

LinkRole: TypeAlias = Literal["emits", "takes", "may take", "is stopped by"]
Outcome: TypeAlias = Literal["success", "failure"]


@dataclass(frozen=True, slots=True)
class GraphEvent:
    """An event or a document change that is passed between participants."""

    name: str
    topic: str = ""
    """Topic of the event; empty for a document change."""
    outcome: Outcome | None = None
    starts: bool = False
    produced_externally: bool = False
    consumed_externally: bool = False
    collection: str = ""
    """Collection whose document changes are consumed; empty for an event."""


@dataclass(frozen=True, slots=True)
class GraphReaction:
    """A handler, compensation or deadline of a service, with the events that it takes and emits."""

    service: str
    name: str
    kind: ReactionKind
    takes: tuple[tuple[str, ...], ...]
    """Events that trigger the reaction. It needs one event of each tuple; several tuples are a fan-in. Events that the
    service takes from its own progress are left out, unless nothing else triggers the reaction."""
    optional: tuple[str, ...] = ()
    """Events that the reaction takes, or waits for, but does not need."""
    stopped_by: tuple[str, ...] = ()
    """Events that cancel the deadline."""
    emits: tuple[str, ...] = ()
    within_s: float | None = None
    undoes: str | None = None
    later: bool = False
    """True if the reaction may return `Later` and continue in another turn."""
    irreversible: bool = False

    @property
    def key(self) -> tuple[str, str]:
        """Return the names of the service and of the reaction."""
        return self.service, self.name


@dataclass(frozen=True, slots=True)
class EventLink:
    """Connection of an event with a participant that emits or takes it."""

    event: str
    participant: str
    """Name of a service, or of a participant outside of the services."""
    reaction: str
    """Name of the reaction; empty for a participant outside of the services."""
    role: LinkRole


@dataclass(frozen=True, slots=True)
class ChoreographyGraph:
    """The events and reactions of a choreography, and the links between them."""

    services: tuple[str, ...]
    events: Mapping[str, GraphEvent]
    reactions: Mapping[tuple[str, str], GraphReaction]
    """Reactions by the names of service and reaction."""
    links: tuple[EventLink, ...]

    def list_producers(self, event: str) -> list[EventLink]:
        """Return the links from the reactions that emit an event."""
        return [each for each in self.links if each.event == event and each.role == "emits"]

    def list_consumers(self, event: str) -> list[EventLink]:
        """Return the links to the reactions that take an event, and to the deadlines that it cancels."""
        return [each for each in self.links if each.event == event and each.role != "emits"]


@dataclass(frozen=True, slots=True)
class GraphSection:
    """Events of one part of a saga: before its outcome, or after its success or failure."""

    outcome: Outcome | None
    events: tuple[str, ...]
    """Names of the events, in causal order."""


# -------------------------------------------------------------------- made of manifests


def make_graph(manifests: Iterable[Manifest]) -> ChoreographyGraph:
    """Make the graph of the services with these manifests."""
    known = sorted(manifests, key=lambda each: each.service)
    events = _collect_events(known)
    reactions = [_make_reaction(manifest, reaction, events) for manifest in known for reaction in manifest.reactions]
    inside = list(chain.from_iterable(map(_link_reaction, reactions)))
    links = [*_link_outside(events.values(), inside), *inside]
    return ChoreographyGraph(
        services=tuple(each.service for each in known),
        events=events,
        reactions={each.key: each for each in reactions},
        links=tuple(dict.fromkeys(links)),
    )


def _collect_events(manifests: Sequence[Manifest]) -> dict[str, GraphEvent]:
    """Return all events by name. Manifests may be of different ages, so an attribute counts if any manifest states
    it."""
    uses: dict[str, list[EmittedContract]] = {}
    for use in chain.from_iterable((*each.emits, *each.consumes) for each in manifests):
        uses.setdefault(use.contract, []).append(use)
    events = {
        name: GraphEvent(
            name,
            topic=found[0].topic,
            outcome=next((each.outcome for each in found if each.outcome), None),
            starts=any(each.starts for each in found),
            produced_externally=any(each.produced_externally for each in found),
            consumed_externally=any(each.consumed_externally for each in found),
        )
        for name, found in sorted(uses.items())
    }
    for manifest in manifests:
        for name, collection in sorted(manifest.changes.items()):
            events[name] = GraphEvent(name, collection=collection)
    return events


def _make_reaction(manifest: Manifest, reaction: DeclaredReaction, events: Mapping[str, GraphEvent]) -> GraphReaction:
    own = {name for name in manifest.emitted if not events[name].produced_externally}
    return GraphReaction(
        manifest.service,
        reaction.name,
        reaction.kind,
        takes=_find_triggers(reaction, own, events),
        optional=tuple(name for name in dict.fromkeys((*reaction.optional, *reaction.until)) if name not in own),
        stopped_by=reaction.unless,
        emits=reaction.emits,
        within_s=reaction.within_s,
        undoes=reaction.undoes,
        later=reaction.later,
        irreversible=reaction.irreversible,
    )


def _find_triggers(
    reaction: DeclaredReaction, own: set[str], events: Mapping[str, GraphEvent]
) -> tuple[tuple[str, ...], ...]:
    """Return the events that trigger a reaction: for a compensation its failure outcomes; for other reactions the
    events from other participants, or all of its events if there are no such events."""
    parts = tuple(part for part in reaction.takes if part)
    if reaction.kind == "compensation":
        failures = [tuple(name for name in part if _is_failure(events, name)) for part in parts]
        if any(failures):
            return tuple(part for part in failures if part)
    return tuple(part for part in parts if not own.issuperset(part)) or parts


def _is_failure(events: Mapping[str, GraphEvent], name: str) -> bool:
    return name in events and events[name].outcome == "failure"


def _link_reaction(reaction: GraphReaction) -> Iterator[EventLink]:
    roles: Mapping[LinkRole, Iterable[str]] = {
        "takes": chain.from_iterable(reaction.takes),
        "may take": reaction.optional,
        "is stopped by": reaction.stopped_by,
        "emits": reaction.emits,
    }
    for role, names in roles.items():
        for name in names:
            yield EventLink(name, *reaction.key, role)


def _link_outside(events: Iterable[GraphEvent], inside: Sequence[EventLink]) -> Iterator[EventLink]:
    """Yield the links to participants outside of the services."""
    emitted = {each.event for each in inside if each.role == "emits"}
    for event in events:
        if event.collection:
            yield EventLink(event.name, f"{DOCUMENTS}: {event.collection}", "", "emits")
        elif event.produced_externally:
            yield EventLink(event.name, CLIENTS, "", "emits")
        elif event.name not in emitted:
            yield EventLink(event.name, UNKNOWN, "", "emits")
        if event.consumed_externally:
            yield EventLink(event.name, OTHERS, "", "takes")


def is_outside(participant: str) -> bool:
    """Return whether a participant is outside of the services."""
    return " " in participant


# -------------------------------------------------------------------- parts


def keep_links(graph: ChoreographyGraph, is_kept: Callable[[EventLink], bool]) -> ChoreographyGraph:
    """Return the part of a graph with the links for which `is_kept` returns True, and with the events, reactions and
    services that these links connect."""
    links = tuple(each for each in graph.links if is_kept(each))
    reactions = {(each.participant, each.reaction) for each in links}
    events = {each.event for each in links}
    return ChoreographyGraph(
        services=tuple(name for name in graph.services if any(each.participant == name for each in links)),
        events={name: event for name, event in graph.events.items() if name in events},
        reactions={key: reaction for key, reaction in graph.reactions.items() if key in reactions},
        links=links,
    )


def select_reached(graph: ChoreographyGraph, start: str) -> ChoreographyGraph:
    """Return the part of a graph with one event, its producers, and everything that can follow from it. A fan-in counts
    as reached if one of its events is."""
    reached = _find_reached(graph, {start})
    reactions = {(each.participant, each.reaction) for each in graph.links if _triggers(each) and each.event in reached}
    return keep_links(
        graph,
        lambda link: (
            link.event in reached
            and (link.role != "emits" or (link.participant, link.reaction) in reactions or link.event == start)
        ),
    )


def select_neighbours(graph: ChoreographyGraph, services: Iterable[str]) -> ChoreographyGraph:
    """Return the part of a graph with the events that these services emit or take, and with the producers and consumers
    of these events."""
    chosen = set(services)
    emitted = {each.event for each in graph.links if each.participant in chosen and each.role == "emits"}
    taken = {each.event for each in graph.links if each.participant in chosen and each.role != "emits"}
    return keep_links(
        graph,
        lambda link: (
            link.participant in chosen
            or (link.event in emitted and link.role != "emits")
            or (link.event in taken and link.role == "emits")
        ),
    )


def select_event(graph: ChoreographyGraph, event: str) -> ChoreographyGraph:
    """Return the part of a graph around one event: the reactions that emit it, with the events that they take, and the
    reactions that take it, with the events that they emit."""
    takes = {(each.participant, each.reaction) for each in graph.links if each.event == event and each.role != "emits"}
    emits = {(each.participant, each.reaction) for each in graph.links if each.event == event and each.role == "emits"}
    return keep_links(
        graph,
        lambda link: (
            link.event == event
            or ((link.participant, link.reaction) in takes and link.role == "emits")
            or ((link.participant, link.reaction) in emits and link.role != "emits")
        ),
    )


def _triggers(link: EventLink) -> bool:
    return link.role in ("takes", "may take")


def _find_reached(graph: ChoreographyGraph, begin: Iterable[str], ends: frozenset[str] = frozenset()) -> frozenset[str]:
    """Return the events in `begin` and all events that can follow from them. The search does not continue beyond the
    events in `ends`."""
    emitted: dict[tuple[str, str], list[str]] = {}
    triggered: dict[str, list[tuple[str, str]]] = {}
    for link in graph.links:
        key = link.participant, link.reaction
        if link.role == "emits":
            emitted.setdefault(key, []).append(link.event)
        elif _triggers(link):
            triggered.setdefault(link.event, []).append(key)
    reached, left = set[str](), list(begin)
    while left:
        event = left.pop()
        if event not in reached:
            reached.add(event)
            for key in triggered.get(event, ()) if event not in ends else ():
                left += emitted.get(key, ())
    return frozenset(reached)


# -------------------------------------------------------------------- causal order


def list_sections(graph: ChoreographyGraph) -> list[GraphSection]:
    """Return the events in causal order, in sections: before the outcome, after a success, after a failure.

    An event that may come before the outcome is in the first section. Each outcome is in the section that begins with
    it."""
    outcomes = {name: event.outcome for name, event in graph.events.items() if event.outcome is not None}
    emitted = {each.event for each in graph.links if each.role == "emits" and not is_outside(each.participant)}
    roots = [name for name, event in graph.events.items() if event.starts or name not in emitted]
    before = _find_reached(graph, (name for name in roots if name not in outcomes), frozenset(outcomes))
    after: dict[Outcome | None, set[str]] = {}
    kinds: Sequence[Outcome] = ("success", "failure")
    for kind in kinds:
        own = [name for name, outcome in outcomes.items() if outcome == kind]
        others = frozenset(outcomes) - frozenset(own)
        after[kind] = {*own, *(_find_reached(graph, own, others) - before - outcomes.keys())}
    after["failure"] -= after["success"]
    first = graph.events.keys() - after["success"] - after["failure"]
    parts: Mapping[Outcome | None, Iterable[str]] = {None: first, **after}
    ordered: list[str] = []
    sections = []
    for outcome, names in parts.items():
        if found := _sort_by_cause(graph, sorted(names), ordered):
            sections.append(GraphSection(outcome, tuple(found)))
            ordered += found
    return sections


def _sort_by_cause(graph: ChoreographyGraph, names: Sequence[str], earlier: Sequence[str]) -> list[str]:
    """Return the events in an order in which each comes after the events that cause it. Events that follow from the
    newest one come first, so that a chain of events stays together. In a cycle, any event may come first.

    `earlier`: events that are already in place before these."""
    position = {name: at for at, name in enumerate(earlier)}
    emitters: dict[tuple[str, str], list[str]] = {}
    emitted = set()
    for link in graph.links:
        if link.role == "emits" and link.event in names and not is_outside(link.participant):
            emitters.setdefault((link.participant, link.reaction), []).append(link.event)
            emitted.add(link.event)
    left = dict.fromkeys(sorted(names, key=lambda name: (name in emitted, name)))
    while left:
        ready = [
            (cause, graph.reactions[key].kind != "deadline", key)
            for key, events in emitters.items()
            if any(name in left for name in events) and (cause := _find_cause(graph, key, position)) is not None
        ]
        # roots come last, so that everything that follows from one root is placed before the next root
        chosen = emitters[max(ready, key=lambda each: each[:2])[2]] if ready else [next(iter(left))]
        for name in chosen:
            if name in left:
                del left[name]
                position[name] = len(position)
    return list(position)[len(earlier) :]


def _find_cause(graph: ChoreographyGraph, key: tuple[str, str], position: Mapping[str, int]) -> int | None:
    """Return the position of the last event that a reaction needs before it can run; `None` if a needed event has no
    position yet. Events that are not in the graph do not count."""
    parts = [[name for name in part if name in graph.events] for part in graph.reactions[key].takes]
    known = [min((position[name] for name in part if name in position), default=None) for part in parts if part]
    return None if None in known else max((at for at in known if at is not None), default=-1)
