"""Runs that are put off: which of them have a timer already, and since when the history records why they wait."""

import pytest
from msgspec import Raw
from msgspec.structs import replace

from saga.messages import Message
from saga.progress import failed_attempts
from saga.progress.actions import Compensate, HandlerAction, RunHandler
from saga.progress.document import (
    CompensableResult,
    Outcome,
    PendingMessage,
    SagaProgress,
    SuspendedRun,
    Transition,
    encode,
)
from saga.progress.handlers import CompensationRole, HandlerRole
from saga.support.clock import iso
from tests.progress.pieces import NOW_MS, a_message, blank, kept

A, B, OTHER, FAILED = a_message("A"), a_message("B"), a_message("A", "A-2"), a_message("Failed")
ROLE = HandlerRole(
    name="reserve",
    takes=(frozenset({"A"}),),
    optional=(frozenset({"B"}),),
    undo=CompensationRole(name="release", outcomes=frozenset({"Failed"}), results=frozenset({"R"})),
)
RUN, UNDO = (
    RunHandler(ROLE, A, (A,)),
    Compensate(
        ROLE, FAILED, CompensableResult(handler="reserve", cause=A.id, event=a_message("R"), self_consumed_ids=())
    ),
)
DUE_MS = NOW_MS + 60_000
PAUSED, LIMITED = "reserve is paused by ada", "the bank takes no more calls"


def parked(message: Message, due_ms: int = DUE_MS, handler: str = "reserve") -> PendingMessage:
    return replace(kept(handler, message), due_ms=due_ms)


def goes_on(until: tuple[str, ...] = ()) -> SuspendedRun:
    return SuspendedRun(
        handler="reserve", parts=(A,), n=1, turn=1, first_ms=NOW_MS, seen_ms=NOW_MS, due_ms=DUE_MS, awaited_types=until
    )


@pytest.mark.parametrize(
    ("p", "action", "has_begun", "expected"),
    [
        (blank(), RUN, False, False),
        (replace(blank(), queue=(parked(A),)), RUN, False, True),
        (replace(blank(), queue=(parked(A, due_ms=0),)), RUN, False, False),
        (replace(blank(), queue=(parked(OTHER), parked(A))), RUN, False, False),  # the head alone waits for time
        (replace(blank(), queue=(parked(A, handler="other"),)), RUN, False, False),
        (replace(blank(), deadlines=(parked(A),)), RUN, False, True),
        (replace(blank(), deadlines=(parked(OTHER),)), RUN, False, False),
        (replace(blank(), suspended_runs=(goes_on(),)), RUN, False, True),
        (replace(blank(), suspended_runs=(goes_on(),)), RUN, True, False),  # what has begun is kept as an intent
        (replace(blank(), suspended_runs=(goes_on(("B",)),), waiting=(kept("reserve", B),)), RUN, False, False),
        (replace(blank(), compensating=(parked(FAILED),)), UNDO, False, True),
        (replace(blank(), compensating=(parked(FAILED, due_ms=0),)), UNDO, False, False),
        (replace(blank(), compensating=(parked(FAILED, handler="other"),)), UNDO, False, False),
    ],
)
def test_a_run_that_waits_for_a_time_has_a_timer(
    p: SagaProgress, action: HandlerAction, has_begun: bool, expected: bool
) -> None:
    assert failed_attempts.has_timer(p, action, has_begun=has_begun) is expected


def with_history(*entries: tuple[Outcome, str, int, str | None]) -> SagaProgress:
    """Progress with transitions of `reserve`, each a second after the one before: outcome, message, attempt, reason."""
    transitions = [
        Transition(
            n=n,
            previous="",
            time=iso(NOW_MS + 1000 * n),
            outcome=outcome,
            handler="reserve",
            message=message,
            type="A",
            source="other",
            attempt=attempt,
            reason=reason,
        )
        for n, (outcome, message, attempt, reason) in enumerate(entries)
    ]
    return replace(blank(), n=len(entries), transitions=tuple(Raw(encode(entry)) for entry in transitions))


@pytest.mark.parametrize(
    ("p", "expected_s"),
    [
        (blank(), None),
        (with_history(("retrying", A.id, 2, PAUSED)), 0),
        (with_history(("retrying", A.id, 2, LIMITED)), None),
        (with_history(("retrying", A.id, 1, PAUSED)), None),  # it has been tried since
        (with_history(("handled", A.id, 2, PAUSED)), None),
        (with_history(("retrying", A.id, 2, PAUSED), ("handled", OTHER.id, 1, None)), 0),
        (with_history(("retrying", A.id, 2, PAUSED), ("retrying", A.id, 2, LIMITED)), 0),  # in turn
        (with_history(("retrying", A.id, 2, PAUSED), ("retrying", A.id, 2, PAUSED)), 0),
        (with_history(("retrying", A.id, 2, PAUSED), ("retrying", A.id, 1, PAUSED), ("retrying", A.id, 2, PAUSED)), 2),
    ],
)
def test_the_history_records_since_when_a_run_waits_for_a_reason(p: SagaProgress, expected_s: int | None) -> None:
    expected_ms = None if expected_s is None else NOW_MS + 1000 * expected_s
    assert failed_attempts.find_postponed_since_ms(p, RUN, 2, PAUSED) == expected_ms
