"""The order of entries in a timeline, with clocks that differ and unusual histories."""

from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

from saga.messages import Message
from saga.ops.histories import (
    ParkedRunStatus,
    SagaHistory,
    build_timeline,
    compute_status,
    decode_summary,
    find_transition,
)
from saga.ops.sagas import describe_open_work
from saga.progress.document import (
    CompletedRun,
    EmittedEvent,
    FailedAttempt,
    Intent,
    Outcome,
    OverflowSegment,
    PendingMessage,
    SagaProgress,
    SegmentKind,
    StepRecord,
    Transition,
    encode,
)
from saga.progress.failed_attempts import find_parked_runs

START = "2026-01-01T00:00:00.000Z"
COUNTS: dict[SegmentKind, int] = {"inbox": 70, "queue": 5, "waiting": 3}


def an_entry(n: int, second: int, message: str, emits: tuple[str, ...] = (), **delta: object) -> Transition:
    return Transition(
        n=n,
        previous="",
        time=f"2026-01-01T00:00:{second:02}.000Z",
        outcome="handled",
        handler="react",
        message=message,
        type="Said",
        source="other",
        delta=delta,
        events=tuple(EmittedEvent(id=id_, type=id_.upper(), schema="", value=b"") for id_ in emits),
    )


def a_history(service: str, *entries: Transition) -> SagaHistory:
    return SagaHistory(SagaProgress(service=service, saga="s"), tuple(Raw(encode(entry)) for entry in entries))


def timeline_order(*histories: SagaHistory) -> list[tuple[str, int]]:
    return [(line.service, line.transition) for line in build_timeline(histories)]


def a_message(id_: str) -> Message:
    return Message(id=id_, type="Said", schema="", saga="s", source="other", time="", value=b"")


def a_run(handler: str) -> CompletedRun:
    return CompletedRun(handler=handler, parameter=0, type="Said", schema="", content="", message="m")


def test_lines_of_independent_services_stand_by_time() -> None:
    a = a_history("a", an_entry(0, 1, "m"), an_entry(1, 4, "n"))
    b = a_history("b", an_entry(0, 2, "m"), an_entry(1, 3, "n"))
    assert timeline_order(a, b) == timeline_order(b, a) == [("a", 0), ("b", 0), ("b", 1), ("a", 1)]


def test_an_effect_stands_below_its_cause_though_its_clock_is_behind() -> None:
    cause = a_history("late", an_entry(0, 30, "m", emits=("x",)))
    effect = a_history("early", an_entry(0, 10, "x", emits=("y",)), an_entry(1, 11, "z"))
    last = a_history("third", an_entry(0, 5, "y"))
    assert timeline_order(cause, effect, last) == [("late", 0), ("early", 0), ("third", 0), ("early", 1)]


def test_an_effect_at_the_very_time_of_its_cause_stands_below_it() -> None:
    cause = a_history("z", an_entry(0, 1, "m", emits=("x",)))
    assert timeline_order(cause, a_history("a", an_entry(0, 1, "x"))) == [("z", 0), ("a", 0)]


def test_within_a_service_numbers_go_up_though_its_clock_went_back() -> None:
    assert timeline_order(a_history("a", an_entry(0, 9, "m"), an_entry(1, 3, "n"))) == [("a", 0), ("a", 1)]


def test_causes_that_go_in_a_circle_are_shown_all_the_same() -> None:
    a = a_history("a", an_entry(0, 2, "y", emits=("x",)))
    b = a_history("b", an_entry(0, 1, "x", emits=("y",)))
    assert timeline_order(a, b) == [("b", 0), ("a", 0)]


def test_an_own_event_is_no_reason_to_wait() -> None:
    assert timeline_order(a_history("a", an_entry(0, 1, "m", emits=("x",)), an_entry(1, 2, "x"))) == [
        ("a", 0),
        ("a", 1),
    ]


def test_the_state_after_a_transition_is_made_of_the_deltas_up_to_it() -> None:
    h = a_history("a", an_entry(0, 1, "m", x=1), an_entry(1, 2, "n", x=2, y=1), an_entry(2, 3, "o", y=5))
    assert [find_transition(h, n)[1] for n in range(3)] == [{"x": 1}, {"x": 2, "y": 1}, {"x": 2, "y": 5}]
    with pytest.raises(LookupError):
        find_transition(h, 3)


def test_a_handler_that_has_begun_before_any_transition_is_open() -> None:
    intent = Intent(
        handler="react",
        kind="do",
        cause="m",
        message=a_message("m"),
        parts=(),
        state={},
        time="2026-01-01T00:00:00.000Z",
    )
    begun = compute_status(SagaProgress(service="a", saga="s", intents=(intent,)))
    assert (begun.state, begun.is_open, begun.changed) == ("begun", True, intent.time)


def test_a_dead_letter_quarantines_and_is_counted_once() -> None:
    kept = PendingMessage(handler="react", message=a_message("m"), n=0)
    dead = PendingMessage(handler="react", message=a_message("n"), n=0, dead="dead-1")
    p = SagaProgress(service="a", saga="s", started=START, queue=(dead, kept), compensating=(kept,))
    status = compute_status(p)
    assert (status.state, status.dead, status.queue, status.compensating) == ("quarantined", 1, 1, 1)


def retrying(n: int, handler: str, attempt: int, reason: str) -> Transition:
    failed = tuple(
        FailedAttempt(time=f"2026-01-01T00:00:0{i}.000Z", ms=i, reason=f"why {i}", worker="w") for i in (1, 2)
    )
    return replace(
        an_entry(n, n, "m"), outcome="retrying", handler=handler, attempt=attempt, reason=reason, failures=failed
    )


def test_a_parked_run_is_shown_with_its_reason_due_time_and_queued_messages() -> None:
    once = retrying(3, "react", 5, "another message, that was given up")
    entries = (once, retrying(4, "react", 4, "shut"), retrying(5, "react", 5, "shut still"), an_entry(6, 9, "n"))
    kept = PendingMessage(handler="react", message=a_message("m"), n=4, attempts=5, due_ms=1_767_225_660_000)
    behind = PendingMessage(handler="react", message=a_message("n"), n=6)
    p = SagaProgress(
        service="a", saga="s", queue=(kept, behind), first=3, n=7, transitions=tuple(Raw(encode(e)) for e in entries)
    )
    for status in (compute_status(p), compute_status(decode_summary(encode(p)))):
        assert (status.state, status.is_open, status.parked, status.queue) == ("retrying", True, 1, 1)
        assert status.retries == (
            ParkedRunStatus(
                handler="react", undoes=None, attempts=5, next="2026-01-01T00:01:00.000Z", since=entries[1].time,
                error="shut still",
            ),
        )  # fmt: skip
    dead = replace(p, compensating=(replace(kept, handler="other", dead="dead-1"),))
    assert compute_status(dead).state == "quarantined"
    assert compute_status(replace(p, queue=(kept,))).is_open


@pytest.mark.parametrize(
    ("attempts", "words"),
    [(0, "checked each minute; last error: shut"), (2, "each minute: 2 attempts failed since ")],
)
def test_a_postponed_run_is_shown_without_a_due_time(attempts: int, words: str) -> None:
    held_up = PendingMessage(
        handler="react", message=a_message("m"), n=0, attempts=attempts, due_ms=1_767_225_660_000, put_off=True
    )
    entry = Raw(encode(retrying(0, "react", attempts, "shut")))
    p = SagaProgress(service="a", saga="s", queue=(held_up,), n=1, transitions=(entry,))
    for status in (compute_status(p), compute_status(decode_summary(encode(p)))):
        [line] = describe_open_work(p, status, {})
        assert line.startswith("react is postponed, and checked each minute")
        assert words in line
    assert [run.put_off for run in find_parked_runs(p)] == [True]


def test_a_parked_compensation_has_its_own_name() -> None:
    entry, other = retrying(0, "release", 4, "shut"), retrying(1, "put_back", 7, "another one")
    kept = PendingMessage(handler="react", message=a_message("m"), n=0, attempts=4, due_ms=1)
    begun = Intent(
        handler="react",
        kind="undo",
        name="let_go",
        cause="r",
        message=a_message("m"),
        parts=(),
        state={},
        time=entry.time,
    )
    p = SagaProgress(
        service="a", saga="s", compensating=(kept,), n=2, transitions=(Raw(encode(entry)), Raw(encode(other)))
    )
    for each, name, error in ((p, "release", "shut"), (replace(p, intents=(begun,)), "let_go", None)):
        status = compute_status(each)
        [retry] = status.retries
        assert (retry.handler, retry.undoes, retry.error) == (name, "react", error)
        assert (status.state, status.parked, status.compensating) == ("retrying", 1, 0)


def test_a_parked_run_is_shown_although_its_transitions_are_archived_or_damaged() -> None:
    kept = PendingMessage(handler="react", message=a_message("m"), n=3, attempts=5, due_ms=1 << 70)
    last = Raw(encode(an_entry(9, 9, "n")))
    for p in (
        SagaProgress(service="a", saga="s", queue=(kept,), first=9, n=10, transitions=(last,)),
        SagaProgress(service="a", saga="s", queue=(kept,), first=3, n=5, transitions=(Raw(b'{"time": 7}'), last)),
    ):
        [retry] = compute_status(decode_summary(encode(p))).retries
        assert (retry.handler, retry.next, retry.since, retry.error) == (
            "react",
            "9999-12-31T23:59:59.999Z",
            None,
            None,
        )


@pytest.mark.parametrize(
    ("outcome", "attempt", "numbers"), [("retrying", 5, [4, 5]), ("dead", 17, [16, 17]), ("handled", 3, [1, 2])]
)
def test_a_line_has_the_attempts_that_failed_numbered(outcome: Outcome, attempt: int, numbers: list[int]) -> None:
    entry = replace(retrying(0, "react", attempt, "shut"), outcome=outcome)
    [line] = build_timeline([a_history("a", entry)])
    assert [each.attempt for each in line.failures] == numbers
    assert [(each.time, each.ms, each.worker, each.reason) for each in line.failures] == [
        (f"2026-01-01T00:00:0{i}.000Z", i, "w", f"why {i}") for i in (1, 2)
    ]


def test_a_saga_of_which_nothing_is_open_stands_as_its_last_transition() -> None:
    waits = PendingMessage(handler="both", message=a_message("m"), n=0)
    entry = an_entry(0, 1, "m")
    status = compute_status(
        SagaProgress(service="a", saga="s", started="then", waiting=(waits,), transitions=(Raw(encode(entry)),))
    )
    assert (status.state, status.changed, status.waiting, status.left) == ("handled", entry.time, 1, 0)
    assert status.is_open


@pytest.mark.parametrize(
    ("what", "left"),
    [
        ({}, 0),
        ({"closed": ("both",)}, 1),
        ({"closed": ("another",)}, 0),
        ({"completed_runs": (a_run("both"),)}, 1),
        ({"completed_runs": (a_run("another"),)}, 0),
        ({"outcome": "Ended"}, 1),
    ],
)
def test_a_message_pending_for_a_closed_handler_counts_as_left(what: dict[str, Any], left: int) -> None:
    waits = PendingMessage(handler="both", message=a_message("m"), n=0, decides=True)
    p = SagaProgress(service="a", saga="s", started=START, waiting=(waits,), **what)
    assert compute_status(p).left == compute_status(decode_summary(encode(p))).left == left
    assert compute_status(p).waiting == 1 - left


def test_messages_in_segments_are_counted_by_their_kind() -> None:
    pages = tuple(OverflowSegment(kind=of, name=of, count=count, newest=0) for of, count in COUNTS.items())
    status = compute_status(SagaProgress(service="a", saga="s", started=START, segments=pages))
    assert (status.queue, status.waiting) == (COUNTS["queue"], COUNTS["waiting"])


def test_a_timeline_entry_lists_the_steps_and_updates_of_its_handler() -> None:
    calls = (
        StepRecord(kind="step", name="reserve", number=0, input=""),
        StepRecord(kind="update", name="set_aside", number=0, input="", document="stock/tea"),
        StepRecord(kind="read", name="stock", number=0, input="", document="stock/tea"),
    )
    entry = replace(an_entry(0, 1, "m", emits=("x",), taken=1), calls=calls)
    [line] = build_timeline([a_history("a", entry)])
    assert line.steps == ("reserve", "update set_aside stock/tea", "read stock/tea")
    assert (line.emitted, line.delta, line.message, line.source) == (("X",), {"taken": 1}, "m", "other")


def test_a_history_is_named_after_its_service() -> None:
    assert a_history("a").service == "a"
