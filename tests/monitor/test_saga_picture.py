"""Picture of a saga: lanes of services over time, runs as bars, messages as arrows, and what is awaited."""

from pathlib import Path
from random import Random  # noqa: TID251 - seeds are given: the same seed makes the same saga
from xml.etree import ElementTree

import pytest

from saga.configuration.settings import Settings
from saga.monitor.web.saga_picture import (
    AWAITED_MAX,
    NO_OUTCOME,
    RUNS_MAX,
    PictureOutcome,
    PictureRun,
    PictureWait,
    SagaPicture,
    draw_names,
    draw_saga,
    place_saga,
)
from tests.monitor.asking import browsing
from tests.monitor.test_web_pages import HOSTILE, is_clean
from tests.monitor.transition_events import Monitor, S, make_transition

ATTRIBUTES = {
    "class", "width", "height", "viewBox", "role", "aria-label", "x", "y", "d", "rx", "cx", "cy", "r",
}  # fmt: skip
SUCCESS = PictureOutcome("success", "OrderConfirmed")
FAILURE = PictureOutcome("failure", "OrderCancelled")


def a_run(
    service: str,
    handler: str,
    end_ms: int,
    type_: str = "OrderPlaced",
    source: str = "web",
    emitted: tuple[str, ...] = (),
    outcome: str = "handled",
    run_ms: int | None = 5,
    attempt: int = 1,
) -> PictureRun:
    return PictureRun(
        service=service,
        handler=handler,
        outcome=outcome,
        type=type_,
        source=source,
        emitted=emitted,
        end_ms=end_ms,
        run_ms=run_ms,
        queued_ms=1,
        attempt=attempt,
    )


ORDER = [
    a_run("order", "start", 10, emitted=("OrderStarted",)),
    a_run("payment", "reserve", 30, "OrderStarted", "order", ("PaymentReserved",)),
    a_run("order", "confirm", 50, "PaymentReserved", "payment", ("OrderConfirmed",)),
]
CANCELLED = [
    *ORDER[:2],
    a_run("order", "cancel", 50, "PaymentReserved", "payment", ("OrderCancelled",)),
    a_run("payment", "release", 70, "OrderCancelled", "order", ("PaymentReleased",), outcome="compensated"),
]


def arrows_of(picture: SagaPicture) -> list[tuple[str, str]]:
    return [(arrow.form, arrow.mark) for arrow in picture.arrows]


def test_services_are_lanes_in_the_order_in_which_they_take_part_below_their_sources() -> None:
    picture = place_saga(ORDER, [], SUCCESS, 100)
    assert [(lane.name, lane.is_outside) for lane in picture.lanes] == [
        ("web", True),
        ("order", False),
        ("payment", False),
    ]
    tops = [lane.top for lane in picture.lanes]
    assert tops == sorted(tops)


def test_a_message_is_an_arrow_from_the_run_that_emitted_it_to_the_run_that_handled_it() -> None:
    picture = place_saga(ORDER, [], SUCCESS, 100)
    start, reserve, confirm = picture.runs
    first, second, third = picture.arrows
    assert first.form == "start"
    assert (second.x, second.y, second.to_x, second.to_y) == (start.right, start.y, reserve.left, reserve.y)
    assert (third.x, third.y, third.to_x, third.to_y) == (reserve.right, reserve.y, confirm.left, confirm.y)
    assert [run.left for run in picture.runs] == sorted(run.left for run in picture.runs)


def test_the_next_attempt_of_a_run_gets_no_second_arrow() -> None:
    retried = [
        a_run("payment", "reserve", 10, outcome="retrying", attempt=1),
        a_run("payment", "reserve", 20, outcome="retrying", attempt=2),
        a_run("payment", "reserve", 30, attempt=3),
        a_run("payment", "reserve", 40),
    ]
    picture = place_saga(retried, [], NO_OUTCOME, 100)
    assert [arrow.to_x for arrow in picture.arrows] == [picture.runs[0].left, picture.runs[3].left]


def test_outcome_and_compensation_are_told_apart_by_form_dash_and_word() -> None:
    won, lost = (draw_saga(place_saga(runs, [], end, 100)) for runs, end in ((ORDER, SUCCESS), (CANCELLED, FAILURE)))
    assert "outcome: OrderConfirmed, success" in won
    assert '<g class="row success"><circle' in won
    assert "outcome: OrderCancelled, failure" in lost
    assert '<g class="row failure"><path' in lost
    assert "release: compensated" in lost
    assert 'class="bar compensation"' in lost
    assert 'class="bar compensation"' not in won
    assert arrows_of(place_saga(CANCELLED, [], FAILURE, 100))[-1] == ("failure", "compensation")
    undone = a_run("order", "note", 90, "PaymentReleased", "payment")
    assert arrows_of(place_saga([*CANCELLED, undone], [], FAILURE, 100))[-1] == ("undo", "handler")


def test_what_did_not_succeed_is_dashed_and_named() -> None:
    for outcome in ("retrying", "dead", "waiting", "queued", "something new"):
        svg = draw_saga(place_saga([a_run("payment", "reserve", 10, outcome=outcome, attempt=2)], [], NO_OUTCOME, 20))
        assert 'class="bar deadline"' in svg, outcome
        assert f"reserve: {outcome}, attempt 2 5.0 ms" in svg


def test_a_message_that_no_handler_takes_is_named_by_its_outcome() -> None:
    [placed] = place_saga([a_run("order", "", 10, outcome="noted")], [], NO_OUTCOME, 20).runs
    assert placed.label == ("noted 5.0 ms", "on OrderPlaced")


def test_what_is_awaited_lasts_until_now() -> None:
    waits = [
        PictureWait("shipping", "book", ("StockReserved", "PaymentReserved"), 30, is_person=False),
        PictureWait("payment", "reserve", (), 30, is_person=True),
    ]
    picture = place_saga(ORDER[:2], waits, NO_OUTCOME, 40_000)
    svg = draw_saga(picture)
    assert "book: waits" in svg
    assert "for StockReserved and PaymentReserved" in svg
    assert "for a person" in svg
    assert [lane.name for lane in picture.lanes if not lane.is_outside] == ["order", "payment", "shipping"]
    assert all(picture.scale.right > wait.left for wait in picture.waits)
    assert [cut.ms for cut in picture.scale.cuts] == [40_000 - 30], "a long time without an event is cut out"


def test_time_is_linear_between_the_cuts() -> None:
    runs = [a_run("order", f"h{n}", n * 100) for n in range(1, 6)]
    runs += [a_run("order", f"h{n}", 9_000_000 + n * 100) for n in range(1, 6)]
    scale = place_saga(runs, [], NO_OUTCOME, 0).scale
    assert len(scale.cuts) == 1
    steps = [scale.find_x(n * 100 + 100) - scale.find_x(n * 100) for n in range(1, 5)]
    steps += [scale.find_x(9_000_000 + n * 100 + 100) - scale.find_x(9_000_000 + n * 100) for n in range(1, 5)]
    assert max(steps) - min(steps) < 0.001


@pytest.mark.parametrize("seed", range(20))
def test_no_label_covers_another_one_or_leaves_the_picture(seed: int) -> None:
    chance = Random(seed)
    runs = [
        a_run(
            f"service-{chance.randrange(8)}",
            "handler" * chance.randint(1, 3),
            chance.choice((0, 5, 60_000, 9_999_999)) + chance.randrange(500),
            run_ms=chance.choice((None, 0, 3, 200)),
        )
        for _ in range(chance.randint(1, 60))
    ]
    waits = [
        PictureWait(f"service-{n}", "book", ("E" * 40,), 10 * n, is_person=False) for n in range(chance.randint(0, 9))
    ]
    picture = place_saga(runs, waits, NO_OUTCOME, 10_000_500)
    boxes = [(run.label_x, run.y, run.label) for run in picture.runs]
    boxes += [(wait.label_x, wait.y, wait.label) for wait in picture.waits]
    for number, (x, y, label) in enumerate(boxes):
        width = max(6.7 * len(line) for line in label)
        assert x >= 0
        assert x + width <= picture.width
        assert any(lane.top <= y and y + 44 <= lane.top + lane.height for lane in picture.lanes)
        for other_x, other_y, other in boxes[number + 1 :]:
            apart = x + width <= other_x or other_x + max(6.7 * len(line) for line in other) <= x
            assert apart or abs(y - other_y) >= 60, (label, other)


def test_its_size_is_bounded_whatever_the_saga_is() -> None:
    runs = [a_run(f"service-{n % 25}", "handle", n, f"E{n}", f"source-{n}", emitted=(f"E{n}",)) for n in range(10_000)]
    waits = [PictureWait("order", f"h{n}", ("E",), 5, is_person=False) for n in range(1000)]
    picture = place_saga(runs, waits, NO_OUTCOME, 20_000)
    assert len(picture.runs) == RUNS_MAX
    assert picture.runs[-1].run.end_ms == 9999, "the newest are shown"
    assert len(picture.waits) == AWAITED_MAX
    assert len(picture.arrows) <= RUNS_MAX
    assert len(draw_saga(picture)) < 150_000


def test_hostile_and_very_long_names_are_escaped_and_cut() -> None:
    for text in (*HOSTILE, "x" * 1000, "\N{GRINNING FACE}" * 100):
        runs = [a_run(text, text, 10, text, text, (text,)), a_run("b", text, 20, text, text, outcome=text)]
        waits = [PictureWait(text, text, (text,), 5, is_person=False)]
        picture = place_saga(runs, waits, PictureOutcome("success", text), 30)
        for svg in (draw_saga(picture), draw_names(picture)):
            root = ElementTree.fromstring(svg)
            assert {element.tag for element in root.iter()} <= {"svg", "rect", "path", "g", "text", "circle"}
            assert all(len(element.text or "") < 120 for element in root.iter("text"))
            assert float(root.get("width") or 0) < 3000
            assert {name for element in root.iter() for name in element.attrib} <= ATTRIBUTES
        assert float(root.get("width") or 0) < 160, "the names leave room on a narrow screen"


def test_names_of_lanes_are_beside_the_picture_on_the_heights_of_its_lines() -> None:
    picture = place_saga(ORDER, [], SUCCESS, 100)
    names, drawn = ElementTree.fromstring(draw_names(picture)), ElementTree.fromstring(draw_saga(picture))
    assert [(text.text, float(text.get("y") or 0)) for text in names.iter("text")] == [
        (lane.name, lane.line_y + 5) for lane in picture.lanes
    ]
    assert not [text for text in drawn.iter("text") if text.get("class") == "who"]
    assert (drawn.get("viewBox") or "").split()[0] == names.get("width")
    assert drawn.get("height") == names.get("height")


async def test_the_page_of_a_saga_shows_the_picture_above_its_table(folder: Path) -> None:
    monitor = Monitor().take(
        make_transition("payment", 0, 0, saga="order-1", emitted=("PaymentReserved",)),
        make_transition(
            "shipping", 0, 5 * S, "waiting", saga="order-1", handler="book", type_="PaymentReserved", open_=True,
            awaits=(("book", ("StockReserved",)),),
        ),
    )  # fmt: skip
    async with browsing(Settings(), monitor.answers) as browser:
        page = await browser.get("/saga?id=order-1")
        is_clean(page)
        [names] = [attrs for _, attrs in page.elements if attrs.get("class") == "sequence swim names"]
        assert names["aria-label"] == "Lanes: client, payment, shipping"
        [swim] = [attrs for _, attrs in page.elements if attrs.get("class") == "sequence swim"]
        assert (swim["aria-label"] or "").startswith("2 transitions in 2 services, ")
        assert "book: waits for StockReserved" in page.text
        assert page.text.index("for StockReserved") < page.text.index("Message and emitted events")


async def test_the_picture_of_a_saga_in_stores_has_its_outcome(shop: Path) -> None:
    async with browsing(Settings()) as browser:
        done, undone, open_ = [await browser.get(f"/saga?id=order-{n}") for n in (1, 2, 3)]
        for page in (done, undone, open_):
            is_clean(page)
        assert "outcome: OrderConfirmed, success" in done.text
        assert "outcome: OrderCancelled, failure" in undone.text
        assert ": compensated" in undone.text
        assert "outcome:" not in open_.text
        assert ": dead" in open_.text
        assert "waits" in open_.text
