"""Measure of a stuck saga: each reason, from which moment on, and what ends it."""

import pytest

from saga.messaging.transition_events import TransitionEvent
from saga.monitor import stuck_detection
from saga.monitor.queries import HELD_UP
from saga.monitor.read_model import ReadModel
from saga.support.clock import LATEST_MS
from tests.monitor.transition_events import BEGIN_MS, MINUTE, Monitor, S, make_transition

PAID = (("book", ("PaymentReserved",)),)
LATER = (("book", ("PaymentReserved",), 60 * MINUTE),)


def test_a_dead_letter_is_stuck_at_once_until_a_person_has_ended_it() -> None:
    dead = make_transition("payment", 0, 5 * S, "dead", open_=True, error="KeyError")
    monitor = Monitor().take(make_transition("order", 0, 0, due_ms=60 * MINUTE, open_=True), dead)
    assert monitor.stuck(5 * S) == [("order-1", "dead", 5 * S)]
    assert monitor.stuck(5 * S - 1) == []
    assert "saga dead replay" in monitor.ends(5 * S)
    monitor.take(make_transition("payment", 1, 9 * S, "replayed", open_=True))
    assert monitor.stuck(10 * S) == []


def test_a_dead_letter_that_came_to_its_end_with_the_saga_blocks_it_no_more() -> None:
    monitor = Monitor().take(
        make_transition("payment", 0, 0, "dead", open_=True, error="KeyError"),
        make_transition("payment", 1, S, "compensated", handler="release", awaits=PAID),
    )
    assert [why for _, why, _ in monitor.stuck(1000 * MINUTE)] == ["waiting"]


def test_a_dead_letter_that_the_failure_of_its_saga_has_closed_is_not_shown_while_something_else_is_open() -> None:
    monitor = Monitor().take(make_transition("payment", 0, 0, "dead", open_=True, error="KeyError"))
    closes = make_transition("payment", 1, S, "compensated", handler="release", closed=("reserve",), open_=True)
    monitor.take(
        closes, make_transition("payment", 2, 2 * S, "retrying", handler="refund", open_=True, parked_ms=9 * S)
    )
    assert [why for _, why, _ in monitor.stuck(8 * S)] == []
    assert [why for _, why, _ in monitor.stuck(60 * S)] == ["overdue"]


def test_a_run_that_fails_in_its_own_code_ends_with_the_saga_that_closes_its_handler() -> None:
    monitor = Monitor().take(failed(0, 0))
    closes = make_transition("payment", 1, S, "compensated", handler="release", closed=("reserve",), open_=True)
    assert monitor.take(closes, failed(2, 2 * S, "outside", "refund")).stuck(8 * S) == []


def failed(number: int, ms: int, blame: str | None = "code", handler: str = "reserve") -> TransitionEvent:
    return make_transition(
        "payment", number, ms, "retrying", handler=handler, parked_ms=60 * MINUTE, open_=True, error="E", blame=blame
    )


def test_a_run_that_fails_of_its_own_code_is_stuck_at_its_first_failure_until_it_comes_to_its_end() -> None:
    monitor = Monitor().take(failed(0, 5 * S), failed(1, 9 * S))
    assert monitor.stuck(5 * S) == [("order-1", "failing", 5 * S)]
    assert monitor.stuck(5 * S - 1) == []
    assert monitor.ends(5 * S) == "a release that fixes reserve, or a rollback: its own code fails on OrderPlaced"
    monitor.take(make_transition("payment", 2, MINUTE, "handled"))
    assert monitor.stuck(2 * MINUTE) == []


def test_a_run_that_the_outside_fails_is_not_stuck_while_it_is_tried_again() -> None:
    assert Monitor().take(failed(0, 5 * S, "outside"), failed(1, 9 * S, None)).stuck(MINUTE) == []
    assert Monitor().take(failed(0, 5 * S), failed(1, 9 * S, "outside")).stuck(MINUTE) == [], "by its last failure"


def test_a_dead_letter_is_reported_before_a_run_that_fails() -> None:
    monitor = Monitor().take(
        failed(0, 5 * S), make_transition("payment", 1, 6 * S, "dead", handler="capture", open_=True)
    )
    assert [why for _, why, _ in monitor.stuck(MINUTE)] == ["dead"]


def test_what_was_due_is_stuck_when_it_is_overdue_and_no_more_when_it_has_run() -> None:
    monitor = Monitor().take(make_transition("order", 0, 0, "waiting", due_ms=20 * MINUTE, awaits=PAID, open_=True))
    late = 20 * MINUTE + stuck_detection.OVERDUE_MS
    assert monitor.stuck(late - 1) == []
    assert monitor.stuck(late) == [("order-1", "overdue", late)]
    assert "deadline" in monitor.ends(late)
    monitor.take(make_transition("order", 1, late + 1, handler="expire", result="failure", emitted=("OrderCancelled",)))
    assert monitor.stuck(late + 2) == []


def test_a_next_attempt_that_does_not_come_is_overdue() -> None:
    monitor = Monitor().take(
        make_transition("payment", 0, 0, "retrying", parked_ms=MINUTE, open_=True, error="TimeoutError")
    )
    assert monitor.stuck(MINUTE) == []
    assert monitor.stuck(2 * MINUTE) == [("order-1", "overdue", MINUTE + stuck_detection.OVERDUE_MS)]
    assert "next attempt" in monitor.ends(2 * MINUTE)


def test_what_a_breaker_or_a_pause_holds_up_is_never_overdue_and_reported_as_held_up() -> None:
    monitor = Monitor().take(make_transition("payment", 0, 0, "retrying", parked_ms=LATEST_MS - BEGIN_MS, open_=True))
    assert monitor.stuck(1000 * MINUTE) == []
    timeline = monitor.answers.saga("order-1", BEGIN_MS + 1000 * MINUTE)
    assert timeline is not None
    [awaited] = timeline.awaited
    assert (awaited.until_ms, awaited.ends) == (None, f"its next attempt {HELD_UP}")


def test_a_wait_that_nothing_ends_is_stuck_after_what_is_allowed_where_nothing_is_usual() -> None:
    monitor = Monitor().take(make_transition("shipping", 0, 0, "waiting", handler="book", awaits=PAID))
    assert monitor.stuck(stuck_detection.UNKNOWN_MS - 1) == []
    assert monitor.stuck(stuck_detection.UNKNOWN_MS) == [("order-1", "waiting", stuck_detection.UNKNOWN_MS)]
    (stuck,) = monitor.answers.stuck(BEGIN_MS + stuck_detection.UNKNOWN_MS).sagas
    assert (stuck.awaited.service, stuck.awaited.handler) == ("shipping", "book")
    assert stuck.awaited.for_ == ("PaymentReserved",)
    assert stuck.awaited.since_ms == BEGIN_MS


def test_a_wait_counts_from_the_first_part_that_waits() -> None:
    monitor = Monitor().take(
        make_transition("shipping", 0, 0, "waiting", handler="book", awaits=PAID),
        make_transition("shipping", 1, MINUTE, "waiting", handler="book", awaits=PAID),
    )
    assert monitor.stuck(stuck_detection.UNKNOWN_MS) == [("order-1", "waiting", stuck_detection.UNKNOWN_MS)]


@pytest.mark.parametrize(("usual_ms", "allowed_ms"), [(1 * S, stuck_detection.LEAST_MS), (100 * S, 425_980)])
def test_a_wait_is_measured_by_what_is_usual_for_its_handler(usual_ms: int, allowed_ms: int) -> None:
    monitor = Monitor()
    for n in range(stuck_detection.USUAL_LEAST):
        both = (
            make_transition("shipping", 0, 0, "waiting", saga=f"s{n}", handler="book", awaits=PAID),
            make_transition("shipping", 1, usual_ms, saga=f"s{n}", handler="book", result="success"),
        )
        monitor.take(*(both if n % 2 else reversed(both)))
    monitor.take(make_transition("shipping", 0, 0, "waiting", handler="book", awaits=PAID))
    assert monitor.stuck(allowed_ms - 1) == []
    assert monitor.stuck(allowed_ms) == [("order-1", "waiting", allowed_ms)]


@pytest.mark.parametrize("backwards", [False, True])
def test_a_wait_ends_with_the_first_run_after_it(backwards: bool) -> None:
    outcomes = ((0, "handled"), (10 * MINUTE, "waiting"), (10 * MINUTE + S, "later"), (200 * MINUTE, "handled"))
    ran = [make_transition("payment", n, ms, outcome) for n, (ms, outcome) in enumerate(outcomes)]
    monitor = Monitor().take(*(reversed(ran) if backwards else ran))
    usual = monitor.folds.waits["payment", "reserve"]
    assert (usual.count, usual.percentile(0.0)) == (1, usual.percentile(1.0))
    assert S <= usual.percentile(1.0) < 1.1 * S


def test_a_wait_ends_by_itself_while_a_time_is_set_in_any_service() -> None:
    monitor = Monitor().take(
        make_transition("shipping", 0, 0, "waiting", handler="book", awaits=PAID),
        make_transition("order", 0, 0, due_ms=120 * MINUTE, open_=True),
    )
    assert monitor.stuck(119 * MINUTE) == []


def test_what_waits_until_a_deadline_is_awaited_once() -> None:
    monitor = Monitor().take(
        make_transition("shipping", 0, 0, "waiting", handler="book", awaits=PAID, due_ms=MINUTE, open_=True)
    )
    timeline = monitor.answers.saga("order-1", BEGIN_MS)
    assert timeline is not None
    assert [each.ends for each in timeline.awaited] == [
        "PaymentReserved, published to its topic; or the time 2026-11-21T14:07:40.000Z"
    ]


def test_a_saga_without_transitions_for_longer_than_sagas_take_is_silent() -> None:
    monitor = Monitor().take(make_transition("order", 0, 0, emitted=("OrderPlaced",)))
    assert monitor.stuck(stuck_detection.UNKNOWN_MS) == [("order-1", "silent", stuck_detection.UNKNOWN_MS)]
    assert "those that take OrderPlaced run" in monitor.ends(stuck_detection.UNKNOWN_MS)
    for n in range(stuck_detection.USUAL_LEAST):
        monitor.take(
            make_transition("order", 0, 0, saga=f"s{n}"), make_transition("order", 1, S, saga=f"s{n}", result="success")
        )
    assert monitor.stuck(stuck_detection.LEAST_MS) == [("order-1", "silent", stuck_detection.LEAST_MS)]


@pytest.mark.parametrize("backwards", [False, True])
def test_how_long_sagas_of_another_kind_take_has_no_effect_on_silence(backwards: bool) -> None:
    history = list[TransitionEvent]()
    for kind, takes_ms in (("Refunded", S), ("Rented", 100 * MINUTE)):
        for n in range(stuck_detection.USUAL_LEAST):
            saga = f"{kind}-{n}"
            history += [
                make_transition("order", 0, 0, saga=saga, type_=kind),
                make_transition("payment", 0, takes_ms, saga=saga, type_="Paid", result="success"),
            ]
        history.append(make_transition("order", 0, 0, saga=kind, type_=kind))
    monitor = Monitor().take(*(reversed(history) if backwards else history))
    assert monitor.stuck(stuck_detection.LEAST_MS) == [("Refunded", "silent", stuck_detection.LEAST_MS)]
    assert monitor.stuck(300 * MINUTE) == [("Refunded", "silent", stuck_detection.LEAST_MS)]
    assert [saga for saga, _, _ in monitor.stuck(450 * MINUTE)] == ["Refunded", "Rented"]


def test_a_saga_whose_beginning_was_not_published_is_never_silent() -> None:
    assert Monitor().take(make_transition("order", 4, 0)).stuck(1000 * MINUTE) == []


def test_after_the_outcome_only_what_is_open_counts() -> None:
    ended = make_transition("order", 0, 0, result="success")
    left_over = make_transition("shipping", 0, 0, "waiting", handler="book", awaits=PAID)
    monitor = Monitor().take(ended, left_over)
    assert monitor.stuck(1000 * MINUTE) == []
    assert (timeline := monitor.answers.saga("order-1", BEGIN_MS)) is not None
    assert timeline.awaited == ()
    open_still = make_transition("shipping", 0, 0, "waiting", handler="book", awaits=PAID, open_=True)
    monitor = Monitor().take(ended, open_still)
    assert monitor.stuck(1000 * MINUTE) == [("order-1", "waiting", stuck_detection.UNKNOWN_MS)]
    assert (timeline := monitor.answers.saga("order-1", BEGIN_MS)) is not None
    assert [each.handler for each in timeline.awaited] == ["book"]


def test_a_suspended_run_is_awaited_with_its_time_and_overdue_after_it() -> None:
    monitor = Monitor().take(
        make_transition("shipping", 0, 0, "waiting", handler="book", awaits=PAID),
        make_transition("shipping", 1, MINUTE, "later", handler="book", later=LATER, open_=True),
    )
    timeline = monitor.answers.saga("order-1", BEGIN_MS)
    assert timeline is not None
    (awaited,) = timeline.awaited
    assert awaited.ends == "it continues at 2026-11-21T15:06:40.000Z, as requested by `Later`; or with PaymentReserved"
    assert (awaited.handler, awaited.for_) == ("book", ("PaymentReserved",))
    assert (awaited.since_ms, awaited.until_ms) == (BEGIN_MS + MINUTE, BEGIN_MS + 60 * MINUTE)
    late = 60 * MINUTE + stuck_detection.OVERDUE_MS
    assert monitor.stuck(late - 1) == []
    assert monitor.stuck(late) == [("order-1", "overdue", late)]
    (stuck,) = monitor.answers.stuck(BEGIN_MS + late).sagas
    assert (stuck.awaited.service, stuck.awaited.handler) == ("shipping", "book")
    assert "requested by `Later`, which was due at 2026-11-21T15:06:40.000Z: check that" in stuck.awaited.ends
    monitor.take(make_transition("shipping", 2, late, handler="book"))
    assert monitor.stuck(1000 * MINUTE) == [("order-1", "silent", late + stuck_detection.UNKNOWN_MS)]


def test_of_several_times_the_nearest_counts_and_an_attempt_goes_before_a_suspended_run() -> None:
    monitor = Monitor().take(
        make_transition("shipping", 0, 0, "later", handler="book", later=LATER, due_ms=MINUTE, open_=True)
    )
    assert monitor.stuck(2 * MINUTE) == [("order-1", "overdue", MINUTE + stuck_detection.OVERDUE_MS)]
    assert "its deadline" in monitor.ends(2 * MINUTE)
    timeline = monitor.answers.saga("order-1", BEGIN_MS)
    assert timeline is not None
    assert [each.ends[:27] for each in timeline.awaited] == [
        "it continues at 2026-11-21T",
        "its deadline at 2026-11-21T",
    ]
    monitor.take(make_transition("shipping", 1, 1, "retrying", later=LATER, parked_ms=90 * MINUTE, open_=True))
    assert monitor.stuck(91 * MINUTE) == [("order-1", "overdue", 90 * MINUTE + stuck_detection.OVERDUE_MS)]
    assert "next attempt" in monitor.ends(91 * MINUTE)


def test_two_messages_that_wait_for_one_handler_are_one_wait() -> None:
    twice = (("book", ("PaymentReserved",)), ("book", ("OrderPlaced",)))
    monitor = Monitor().take(make_transition("shipping", 0, 0, "waiting", handler="book", awaits=twice))
    assert len(monitor.stuck(stuck_detection.UNKNOWN_MS)) == 1
    monitor.take(make_transition("shipping", 1, S, handler="book", result="success"))
    assert monitor.stuck(1000 * MINUTE) == []


def test_the_longest_stuck_come_first_and_all_is_gone_with_a_saga_that_is_forgotten() -> None:
    monitor = Monitor(ReadModel(sagas_max=2))
    monitor.take(
        make_transition("order", 0, 2 * S, "dead", saga="late", open_=True),
        make_transition("order", 0, S, "dead", saga="early", open_=True),
    )
    assert [saga for saga, _, _ in monitor.stuck(MINUTE)] == ["early", "late"]
    monitor.take(make_transition("order", 0, 3 * S, saga="new"))
    assert [saga for saga, _, _ in monitor.stuck(MINUTE)] == ["late"]
