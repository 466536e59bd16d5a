"""Write the graph of a choreography in the formats of other tools: Mermaid, Graphviz DOT and JSON. Pure functions."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from saga.choreography.graph import (
    OTHERS,
    ChoreographyGraph,
    EventLink,
    GraphEvent,
    GraphReaction,
    is_outside,
    list_sections,
)
from saga.choreography.graph_drawing import HEADINGS, list_participants
from saga.support.durations import describe_duration
from saga.support.printable import printable

# -------------------------------------------------------------------- mermaid

_ARROWS: Final = {"plain": "->>", "compensation": "-->>"}


def format_mermaid(graph: ChoreographyGraph, title: str) -> str:
    """Return the graph as a Mermaid sequence diagram. Arrows to and from compensations are dashed."""
    sections = list_sections(graph)
    names = list_participants(graph, [name for section in sections for name in section.events])
    ids = {name: f"p{number}" for number, name in enumerate(names)}
    lines = ["---", f"title: {json.dumps(printable(title))}", "---", "sequenceDiagram"]
    lines += [f"    participant {id_} as {name}" for name, id_ in ids.items()]
    for section in sections:
        heading = HEADINGS[section.outcome]
        indent = "        " if heading else "    "
        lines += [f"    opt {heading}"] if heading else []
        lines += [f"{indent}{line}" for name in section.events for line in _list_messages(graph, name, ids)]
        lines += ["    end"] if heading else []
    return "\n".join(lines) + "\n"


def _list_messages(graph: ChoreographyGraph, name: str, ids: Mapping[str, str]) -> Iterator[str]:
    """Yield the Mermaid lines for one event: an arrow from each producer to each consumer. Consumers include deadlines
    that the event starts or cancels."""
    event = graph.events[name]
    consumers = [each for each in graph.list_consumers(name) if each.participant != OTHERS]
    text = f"{_get_title(event)}{f' ({event.outcome})' if event.outcome else ''}"
    for producer in _one_each(graph.list_producers(name)):
        is_undo = (made := _find_reaction(graph, producer)) is not None and made.kind == "compensation"
        if not consumers:
            yield f"Note over {ids[producer.participant]}: {text}"
        for link in consumers:
            reaction = _find_reaction(graph, link)
            assert reaction is not None
            dashed = is_undo or reaction.kind == "compensation"
            arrow = _ARROWS["compensation" if dashed else "plain"]
            yield f"{ids[producer.participant]}{arrow}{ids[link.participant]}: {text}, {_describe_use(reaction, link)}"


def _one_each(links: list[EventLink]) -> list[EventLink]:
    """Return one link for each participant, because links of several functions of one service would give the same
    arrow."""
    return list({each.participant: each for each in reversed(links)}.values())[::-1]


def _find_reaction(graph: ChoreographyGraph, link: EventLink) -> GraphReaction | None:
    return graph.reactions.get((link.participant, link.reaction))


def _get_title(event: GraphEvent) -> str:
    return f"change in {event.collection}" if event.collection else event.name


def _describe_use(reaction: GraphReaction, link: EventLink) -> str:
    if link.role == "is stopped by":
        return f"stops {reaction.name}"
    after = "" if reaction.within_s is None else f" after {describe_duration(reaction.within_s)}"
    undoes = "" if reaction.undoes is None else f" undoes {reaction.undoes}"
    return f"{reaction.name}{after}{undoes}"


# -------------------------------------------------------------------- DOT

_SHAPES: Final = {"handler": "box", "compensation": "octagon", "deadline": "Mdiamond"}


def format_dot(graph: ChoreographyGraph, title: str) -> str:
    """Return the graph as Graphviz DOT: each service is a cluster of its functions, and events are edges."""
    lines = [
        "digraph choreography {",
        f"  graph [label={_quote(title)}, labelloc=t, rankdir=LR, newrank=true, fontname=sans];",
        "  node [fontname=monospace, fontsize=11]; edge [fontname=monospace, fontsize=10];",
    ]
    for number, service in enumerate(graph.services):
        lines += [f"  subgraph cluster_{number} {{", f"    label={_quote(service)}; style=rounded;"]
        for reaction in graph.reactions.values():
            if reaction.service == service:
                lines.append(f"    {_node(*reaction.key)} [{_describe_node(reaction)}];")
        lines.append("  }")
    outside = dict.fromkeys(each.participant for each in graph.links if is_outside(each.participant))
    lines += [f"  {_node(name, '')} [label={_quote(name)}, shape=plaintext];" for name in outside]
    loose = [name for name in graph.events if not graph.list_consumers(name)]
    lines += [f"  {_node('', name)} [label={_quote('no consumer')}, shape=point];" for name in loose]
    for section in list_sections(graph):
        for name in section.events:
            lines += [f"  {edge}" for edge in _list_edges(graph, graph.events[name])]
    return "\n".join([*lines, "}"]) + "\n"


def _describe_node(reaction: GraphReaction) -> str:
    after = [] if reaction.within_s is None else [f"after {describe_duration(reaction.within_s)}"]
    undoes = [] if reaction.undoes is None else [f"undoes {reaction.undoes}"]
    label = "\n".join([reaction.name, *after, *undoes])
    return f"label={_quote(label)}, shape={_SHAPES[reaction.kind]}"


def _list_edges(graph: ChoreographyGraph, event: GraphEvent) -> Iterator[str]:
    """Yield the edges of one event. Edges of outcomes are thick. Edges of failures, and of events that compensations
    emit, are dashed."""
    title = _get_title(event)
    ends = [
        (_node(each.participant, each.reaction), ["arrowhead=tee"] if each.role == "is stopped by" else [])
        for each in graph.list_consumers(event.name)
    ]
    for producer in graph.list_producers(event.name):
        reaction = _find_reaction(graph, producer)
        is_undo = reaction is not None and reaction.kind == "compensation"
        style = ["bold"] if event.outcome else []
        style += ["dashed"] if event.outcome == "failure" or is_undo else []
        label = f"{title} ({event.outcome})" if event.outcome else title
        shown = [f"label={_quote(label)}", *([f"style={_quote(','.join(style))}"] if style else [])]
        begin = _node(producer.participant, producer.reaction)
        for end, head in ends or [(_node("", event.name), [])]:
            yield f"{begin} -> {end} [{', '.join([*shown, *head])}];"


def _node(participant: str, reaction: str) -> str:
    return _quote(f"{participant}.{reaction}")


def _quote(text: str) -> str:
    """Quote a string for DOT, in which a line break is a backslash followed by `n`."""
    shown = "\n".join(map(printable, text.split("\n")))
    return '"' + shown.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


# -------------------------------------------------------------------- JSON


def format_graph_json(graph: ChoreographyGraph, title: str) -> str:
    """Return the graph as JSON: services, events in causal order, and reactions, with the links of each event."""
    sections = list_sections(graph)
    value = {
        "title": title,
        "services": list(graph.services),
        "events": [
            {**_describe_event(graph, graph.events[name]), "section": section.outcome or "before"}
            for section in sections
            for name in section.events
        ],
        "reactions": [_describe_reaction(each) for each in graph.reactions.values()],
    }
    return json.dumps(value, indent=2) + "\n"


def _describe_event(graph: ChoreographyGraph, event: GraphEvent) -> dict[str, Any]:
    return {
        "name": event.name,
        "topic": event.topic or None,
        "collection": event.collection or None,
        "outcome": event.outcome,
        "starts": event.starts,
        "producers": [
            {"participant": each.participant, "reaction": each.reaction or None}
            for each in graph.list_producers(event.name)
        ],
        "consumers": [
            {"participant": each.participant, "reaction": each.reaction or None, "role": each.role}
            for each in graph.list_consumers(event.name)
        ],
    }


def _describe_reaction(reaction: GraphReaction) -> dict[str, Any]:
    return {
        "service": reaction.service,
        "name": reaction.name,
        "kind": reaction.kind,
        "takes": [list(part) for part in reaction.takes],
        "optional": list(reaction.optional),
        "stopped_by": list(reaction.stopped_by),
        "emits": list(reaction.emits),
        "within_s": reaction.within_s,
        "undoes": reaction.undoes,
        "later": reaction.later,
        "irreversible": reaction.irreversible,
    }
