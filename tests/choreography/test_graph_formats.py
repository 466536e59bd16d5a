"""The graph in other formats: each is what its tool reads, and has the same content."""

import json
import re
import shutil
import subprocess

import pytest

from saga.choreography.graph import ChoreographyGraph, make_graph, select_neighbours
from saga.choreography.graph_formats import format_dot, format_graph_json, format_mermaid
from tests.choreography.drawn_domains import parse_choreography
from tests.choreography.test_graph_drawing import ALL

_ID = r"p\d+"
_MERMAID = re.compile(
    rf"(participant {_ID} as [\w: -]+|{_ID}(->>|-->>){_ID}: [\w(), .*-]+|Note over {_ID}: [\w() -]+|opt [\w ]+|end)"
)
_QUOTED = r'"(?:[^"\\\n]|\\.)*"'
_ATTRIBUTES = rf"\[\w+=({_QUOTED}|\w+)(, \w+=({_QUOTED}|\w+))*\]"
_DOT = re.compile(
    rf"(digraph choreography {{|(graph|node|edge) {_ATTRIBUTES};( edge {_ATTRIBUTES};)?|subgraph cluster_\d+ {{"
    rf"|label={_QUOTED}; style=rounded;|{_QUOTED} {_ATTRIBUTES};|{_QUOTED} -> {_QUOTED} {_ATTRIBUTES};|}})"
)
GRAPHS = {
    **{name: make_graph(manifests.values()) for name, manifests in ALL.items()},
    "part": select_neighbours(make_graph(ALL["travel"].values()), ["payment"]),
}


@pytest.fixture(params=[*GRAPHS])
def graph(request: pytest.FixtureRequest) -> ChoreographyGraph:
    return GRAPHS[request.param]


def test_mermaid_is_a_sequence_diagram(graph: ChoreographyGraph) -> None:
    text = format_mermaid(graph, 'The "order" saga')
    head, body = text.split("sequenceDiagram\n")
    assert head == '---\ntitle: "The \\"order\\" saga"\n---\n'
    depth, known = 0, set[str]()
    for line in map(str.strip, body.splitlines()):
        assert _MERMAID.fullmatch(line), line
        depth += line.startswith("opt ") - (line == "end")
        assert depth in (0, 1)
        if line.startswith("participant"):
            known.add(line.split()[1])
        else:
            assert set(re.findall(rf"\b{_ID}\b(?=->|-->|:)", line)) <= known
    assert depth == 0
    for event in graph.events.values():
        assert f"change in {event.collection}" if event.collection else event.name in body


def test_dot_is_a_graph_of_functions(graph: ChoreographyGraph) -> None:
    text = format_dot(graph, 'The "order" saga')
    depth, nodes, edges = 0, set[str](), set[str]()
    for line in map(str.strip, text.splitlines()):
        assert _DOT.fullmatch(line), line
        depth += line.endswith("{") - (line == "}")
        if found := re.fullmatch(rf"({_QUOTED}) \[.*", line):
            nodes.add(found[1])
        if found := re.fullmatch(rf"({_QUOTED}) -> ({_QUOTED}) .*", line):
            edges |= {found[1], found[2]}
    assert depth == 0
    assert edges <= nodes
    assert {f'"{service}.{name}"' for service, name in graph.reactions} <= nodes


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
def test_graphviz_draws_it(graph: ChoreographyGraph) -> None:
    done = subprocess.run(["dot", "-Tplain"], input=format_dot(graph, "x"), text=True, capture_output=True, check=True)
    assert done.stderr == ""
    assert done.stdout.startswith("graph ")


def test_json_has_everything(graph: ChoreographyGraph) -> None:
    read = json.loads(format_graph_json(graph, "The order saga"))
    assert read["title"] == "The order saga"
    assert tuple(read["services"]) == graph.services
    assert {each["name"] for each in read["events"]} == set(graph.events)
    assert {(each["service"], each["name"]) for each in read["reactions"]} == set(graph.reactions)
    links = {
        (event["name"], end["participant"], end["reaction"] or "", end.get("role", "emits"))
        for event in read["events"]
        for end in (*event["producers"], *event["consumers"])
    }
    assert links == {(each.event, each.participant, each.reaction, each.role) for each in graph.links}


def test_failures_and_compensations_are_dashed() -> None:
    mermaid, dot = format_mermaid(GRAPHS["order"], "x"), format_dot(GRAPHS["order"], "x")
    dashed = [line for line in mermaid.splitlines() if "-->>" in line]
    assert len(dashed) == 3
    assert all("OrderCancelled (failure)" in line and " undoes " in line for line in dashed)
    assert '"order.cancel" -> "payment.release" [label="OrderCancelled (failure)", style="bold,dashed"];' in dot
    assert '"order.confirm" -> "payment.capture" [label="OrderConfirmed (success)", style="bold"];' in dot
    assert '"order.expire" [label="expire\\nafter 15 minutes", shape=Mdiamond];' in dot


def test_events_of_compensations_are_dashed_and_stopped_deadlines_have_another_arrow() -> None:
    text = "event Failed failure\na.fail: Asked -> Failed\nb.undo undoes do: Failed -> Undone\nc.take: Undone"
    graph = make_graph(parse_choreography(text).values())
    assert "-->>p3: Undone, take" in format_mermaid(graph, "x")
    assert '"b.undo" -> "c.take" [label="Undone", style="dashed"];' in format_dot(graph, "x")
    assert '"payment.charge_deposit" -> "trip.give_up" [label="DepositCharged", arrowhead=tee];' in format_dot(
        GRAPHS["travel"], "x"
    )
