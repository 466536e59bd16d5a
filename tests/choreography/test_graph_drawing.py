"""Drawing of a choreography: labels never overlap, and no meaning depends on colour alone."""

import re
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise, takewhile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from saga.choreography.graph import GraphEvent, make_graph, select_neighbours, select_reached
from saga.choreography.graph_drawing import GraphLinks, LiveNumbers, make_picture
from saga.choreography.manifest import Manifest
from saga.choreography.releases import read_manifests
from saga.choreography.sequence_drawing import (
    STYLE,
    SequenceLane,
    SequenceMark,
    SequencePicture,
    SequenceRow,
    SequenceSection,
    draw_sequence,
    place_sequence,
    sort_lanes,
)
from tests.choreography.drawn_domains import DOMAINS, generate_choreography, parse_choreography

ROOT = Path(__file__).parents[2]
SVG = "{http://www.w3.org/2000/svg}"
ALL: Mapping[str, Mapping[str, Manifest]] = {
    "order": read_manifests(ROOT / "manifests"),
    **DOMAINS,
    "large": generate_choreography(25, 120),
}


@dataclass(frozen=True)
class Box:
    """Place of a text, with the widths that characters have in fonts with fixed width."""

    text: str
    left: float
    top: float
    right: float
    bottom: float

    def contains(self, other: "Box") -> bool:
        return (
            self.left <= other.left
            and other.right <= self.right
            and self.top <= other.top
            and other.bottom <= self.bottom
        )

    def covers(self, other: "Box") -> bool:
        return (
            self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom
        )


@cache
def drawn(name: str) -> str:
    return draw_sequence(make_picture(make_graph(ALL[name].values()), name))


def list_boxes(svg: str) -> list[Box]:
    sizes = {"title": 22, "subtitle": 13, "heading": 14, "who": 13, "event": 13}
    boxes = []
    for each in ET.fromstring(svg).iter(f"{SVG}text"):
        size = next((sizes[word] for word in each.attrib["class"].split() if word in sizes), 11)
        x, y, text = float(each.attrib["x"]), float(each.attrib["y"]), each.text or ""
        boxes.append(Box(text, x, y - 0.8 * size, x + 0.602 * size * len(text), y + 0.2 * size))
    return boxes


@pytest.mark.parametrize("name", [*ALL])
def test_no_label_covers_another_one_or_is_cut_off(name: str) -> None:
    svg = drawn(name)
    root = ET.fromstring(svg)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    boxes = list_boxes(svg)
    assert len(boxes) > 20
    for number, box in enumerate(boxes):
        assert Box("picture", 0, 0, width, height).contains(box), box
        for other in boxes[:number]:
            assert not box.covers(other), (box, other)


@pytest.mark.parametrize("name", [*ALL])
def test_every_service_event_and_function_is_written(name: str) -> None:
    texts = {box.text for box in list_boxes(drawn(name))}
    graph = make_graph(ALL[name].values())
    assert texts >= {*graph.services, *graph.events}
    first_words = {text.split()[0] for text in texts}
    assert first_words >= {reaction for _, reaction in graph.reactions}


NAMES = st.lists(st.sampled_from("ABCDEFGH"), min_size=1, max_size=3, unique=True)
REACTIONS = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c-d", "long-name-of-a-service"]), NAMES, NAMES, st.booleans()),
    min_size=1,
    max_size=12,
)


@given(REACTIONS, st.sampled_from(["|", "+"]))
def test_any_choreography_can_be_drawn(reactions: list[tuple[str, list[str], list[str], bool]], joined: str) -> None:
    lines = ["event A starts", "event G success external", "event H failure"]
    for number, (service, takes, emits, is_deadline) in enumerate(reactions):
        after = " after 90061 unless B" if is_deadline else ""
        lines.append(f"{service}.do_{number}{after}: {f' {joined} '.join(takes)} -> {' | '.join(emits)}")
    graph = make_graph(parse_choreography("\n".join(lines)).values())
    svg = draw_sequence(make_picture(graph, "any"))
    boxes = list_boxes(svg)
    assert {*graph.events, *graph.services} <= {box.text for box in boxes}
    width, height = (float(ET.fromstring(svg).attrib[name]) for name in ("width", "height"))
    for number, box in enumerate(boxes):
        assert Box("picture", 0, 0, width, height).contains(box), box
        assert not [other for other in boxes[:number] if box.covers(other)], box


def test_a_label_as_long_as_names_may_be_makes_its_lane_wide() -> None:
    name, event = "a_handler_with_a_very_long_name_" * 2, "AnEventWithAVeryLongName" * 3
    text = f"event {event} starts\nshort.{name}: {event} -> B\nother.b: B\nother.{name}: {event}"
    svg = draw_sequence(make_picture(make_graph(parse_choreography(text).values()), "long"))
    boxes = list_boxes(svg)
    assert not [(box, other) for at, box in enumerate(boxes) for other in boxes[:at] if box.covers(other)]


@pytest.mark.parametrize("name", [*ALL])
def test_arrows_side_by_side_share_no_lane_and_pass_none(name: str) -> None:
    layout = place_sequence(make_picture(make_graph(ALL[name].values()), name))
    order = [*layout.lanes]
    by_top: dict[float, set[int]] = {}
    for placed in layout.rows:
        at = [order.index(mark.lane) for mark in (*placed.row.begins, *placed.row.ends)]
        lanes = set(range(min(at), max(at) + 1))
        assert lanes.isdisjoint(by_top.get(placed.top, ())), placed.row.name
        by_top[placed.top] = by_top.get(placed.top, set()) | lanes
    assert len(by_top) < len(layout.rows) or name == "parcel", "something is side by side, but not in a chain"


def test_each_event_is_drawn_below_its_cause() -> None:
    for name in ALL:
        graph = make_graph(ALL[name].values())
        layout = place_sequence(make_picture(graph, name))
        top = {placed.row.name: placed.top for placed in layout.rows}
        for reaction in graph.reactions.values():
            for event in reaction.emits:
                if len(graph.list_producers(event)) == 1:
                    assert max(min(top[cause] for cause in part) for part in reaction.takes) < top[event]


@pytest.mark.parametrize("name", [*ALL])
def test_bars_of_the_same_time_are_beside_each_other_and_left_of_all_labels(name: str) -> None:
    layout = place_sequence(make_picture(make_graph(ALL[name].values()), name))
    bars = sorted(layout.bars.items())
    for number, ((lane, _), bar) in enumerate(bars):
        assert layout.lanes[lane].left < bar.x - 4
        assert bar.x + 4 < layout.lanes[lane].label_x
        for (other_lane, _), other in bars[:number]:
            if other_lane == lane and bar.top <= other.bottom and other.top <= bar.bottom:
                assert abs(bar.x - other.x) >= 8, (lane, bar, other)


def test_a_large_picture_repeats_the_names_of_lanes_and_of_long_arrows() -> None:
    texts = Counter(box.text for box in list_boxes(drawn("large")))
    assert all(texts[service] >= 4 for service in make_graph(ALL["large"].values()).services)
    assert texts["CreditScreeningRefused"] == 2
    assert texts["CreditScreeningTakenBack"] == 1
    assert Counter(box.text for box in list_boxes(drawn("order")))["OrderPlaced"] == 1


def test_participants_outside_come_first() -> None:
    text = "event E starts\nevent F starts\na.take: E\nb.take: F"
    picture = make_picture(make_graph(parse_choreography(text).values()), "two")
    assert [lane.name for lane in picture.lanes] == ["external clients", "a", "b"]
    assert [lane.is_outside for lane in picture.lanes] == [True, False, False]


# -------------------------------------------------------------------- without colour


def forms(svg: str) -> dict[str, str]:
    """The shapes of each kind of row and mark in the legend, without their places and colours."""
    root, found = ET.fromstring(svg), {}
    children = list(root)
    for sample, text in pairwise(children):
        if sample.tag == f"{SVG}g" and text.attrib.get("class") == "sans legend":
            dashes = re.search(rf"\.{sample.attrib['class'].split()[1]} \.arrow {{([^}}]*)}}", STYLE)
            shapes = [(each.tag, each.attrib["class"], re.sub(r"[-\d.]+", "", each.get("d", ""))) for each in sample]
            at = [re.findall(r"[-\d.]+", each.get("d", "") or each.get("cx", ""))[0] for each in sample]
            side = "end" if float(at[-1]) > float(at[0]) + 20 else "begin"
            found[text.text or ""] = f"{shapes} {side} {dashes[1] if dashes else ''}"
    return found


def test_each_kind_has_a_form_of_its_own_in_the_legend() -> None:
    legend = forms(drawn("large"))
    assert set(legend) == {
        "starts a saga", "event, from its producer", "to a handler", "starts a timer, for a deadline", "stops a timer",
        "outcome: success", "outcome: failure", "to a compensation", "event of a compensation",
        "for external consumers", "without a consumer",
    }  # fmt: skip
    assert len({*legend.values()}) == len(legend)


def test_the_legend_has_only_what_is_drawn() -> None:
    part = select_neighbours(make_graph(DOMAINS["travel"].values()), ["traveller"])
    assert set(forms(draw_sequence(make_picture(part, "")))) == {
        "outcome: success", "to a handler", "event, from its producer", "for external consumers"
    }  # fmt: skip


def test_outcomes_and_compensations_differ_by_dashes_and_width() -> None:
    styles = {kind: re.search(rf"\.{kind} \.arrow {{([^}}]*)}}", STYLE) for kind in ("success", "failure", "undo")}
    assert len({found[1] for found in styles.values() if found is not None}) == 3


def test_a_picture_has_colours_for_light_and_dark() -> None:
    light, _, dark = STYLE.partition("prefers-color-scheme: dark")
    names = set(re.findall(r"--[\w-]+(?=:)", light))
    assert names - {"--bar-edge"} <= set(re.findall(r"--[\w-]+(?=:)", dark))
    used = set(re.findall(r"var\((--[\w-]+)\)", STYLE))
    assert used <= names
    assert f"<style>{STYLE}</style>" in drawn("order")


# -------------------------------------------------------------------- details


def find_labels(svg: str, event: str) -> list[str]:
    """Texts between the name of an event and that of the next one."""
    texts = [(each.text or "", each.attrib["class"]) for each in ET.fromstring(svg).iter(f"{SVG}text")]
    begin = texts.index((event, "event"))
    after = takewhile(lambda each: each[1] not in ("event", "sans legend"), texts[begin + 1 :])
    return [text for text, _ in after]


def test_a_fan_in_is_labelled_with_the_number_of_events_it_needs() -> None:
    svg = drawn("order")
    assert "book (1 of 3)" in find_labels(svg, "OrderPlaced")
    events = [row.name for row in make_picture(make_graph(ALL["order"].values()), "").rows]
    second, third = sorted(("PaymentReserved", "InventoryReserved"), key=events.index)
    assert "book (2 of 3)" in find_labels(svg, second)
    assert "book (3 of 3)" in find_labels(svg, third)
    assert "cancel" in find_labels(svg, "PaymentDeclined"), "one of several events is enough"


def test_deadlines_have_their_duration_and_compensations_what_they_undo() -> None:
    svg = drawn("order")
    assert {"expire", "after 15 minutes"} <= set(find_labels(svg, "OrderPlaced"))
    assert {"put_back", "undoes set_aside", "failure"} <= set(find_labels(svg, "OrderCancelled"))
    assert {"give_up", "does not run then"} <= set(find_labels(drawn("travel"), "DepositCharged"))


def test_an_optional_event_is_labelled_as_not_needed() -> None:
    text = "event Asked starts\nguest.answer: Asked -> Answered\ntrip.remind: Asked + Answered? -> Reminded"
    svg = draw_sequence(make_picture(make_graph(parse_choreography(text).values()), "optional"))
    assert find_labels(svg, "Answered") == ["answer", "remind", "does not need it"]
    assert "remind" in find_labels(svg, "Asked"), "it needs one event only: no count"


def test_irreversible_and_suspendable_handlers_are_labelled() -> None:
    manifest = parse_choreography("event Asked starts\na.send: Asked -> Sent")["a"]
    sent = replace(manifest, reactions=(replace(manifest.reactions[0], later=True, irreversible=True),))
    svg = draw_sequence(make_picture(make_graph([sent]), "pivot"))
    assert find_labels(svg, "Asked") == ["starts a saga", "send", "may continue later", "cannot be undone"]


def test_live_numbers_are_beside_the_arrows_and_names_are_links() -> None:
    graph = make_graph(ALL["order"].values())
    live = LiveNumbers(
        services={"payment": "2.00/s"},
        troubles=frozenset({"payment"}),
        rates={("payment", "reserve"): "1.50/s"},
        errors={("payment", "reserve"): "3 errors"},
        stuck={("shipping", "book", "PaymentReserved"): "1 stuck"},
    )

    def link(event: GraphEvent) -> str:
        return f"/events?name={event.name}&x=<"

    svg = draw_sequence(make_picture(graph, "live", live, GraphLinks(lambda name: f"/{name}", link)), has_style=False)
    assert STYLE not in svg
    assert {"1.50/s", "3 errors"} <= set(find_labels(svg, "OrderPlaced"))
    assert "1 stuck" in find_labels(svg, "PaymentReserved")
    assert "1 stuck" not in find_labels(svg, "InventoryReserved")
    addresses = {each.attrib["href"] for each in ET.fromstring(svg).iter(f"{SVG}a")}
    assert {"/payment", "/events?name=OrderPlaced&x=<"} <= addresses
    assert "/external clients" not in addresses


def test_text_from_outside_cannot_become_markup() -> None:
    evil = '<script>"&\n'
    lane, mark = SequenceLane(evil, note=evil), SequenceMark(evil, label=(evil, evil), bar="b", notes=(evil,))
    row = SequenceRow(evil, tags=(evil,), begins=(mark,))
    picture = SequencePicture(evil, evil, (lane,), (SequenceSection(evil, (row,)),))
    root = ET.fromstring(draw_sequence(picture))
    assert not list(root.iter(f"{SVG}script"))
    assert {each.text for each in root.iter(f"{SVG}text")} >= {'<script>"&\\n'}


def test_a_part_without_anything_is_a_picture_too() -> None:
    graph = select_reached(make_graph(ALL["order"].values()), "PaymentCaptured")
    assert "PaymentCaptured" in draw_sequence(make_picture(graph, "leaf"))
    lonely = make_graph(parse_choreography("event Asked starts\na.take: Asked -> Asked").values())
    assert "Asked" in draw_sequence(make_picture(lonely, "circle"))


def test_lanes_are_in_an_order_with_short_arrows() -> None:
    rows = [["a", "d"], ["d", "b"], ["b", "c"]]
    order = sort_lanes(["a", "b", "c", "d"], rows, {})
    assert sum(abs(order.index(one) - order.index(other)) for one, other in rows) == 3
    assert sort_lanes(["a", "b", "z"], [["a", "z"], ["z", "b"]], {"z": -1}) == ["z", "a", "b"]
