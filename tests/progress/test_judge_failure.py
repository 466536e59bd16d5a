"""What follows from a failed attempt: the next attempt, a look, or a dead letter."""

from typing import Literal

import pytest
from msgspec import Raw
from msgspec.structs import replace

from saga.policies.retry import FailureRule, Retry
from saga.progress.actions import Compensate, HandlerAction, HeldBack, RunHandler
from saga.progress.document import (
    CompensableResult,
    CurrentTimer,
    FailedAttempt,
    PendingMessage,
    SagaProgress,
    SuspendedRun,
    Transition,
    encode,
)
from saga.progress.failed_attempts import (
    LOOK_S_MAX,
    READ_S_MIN,
    Failure,
    FailureVerdict,
    count_failures_before,
    judge_failure,
)
from saga.progress.handlers import CompensationRole, HandlerRole
from saga.progress.next_action import hold_back
from saga.support.clock import iso
from tests.progress.pieces import NOW_MS, a_message, blank, kept

A, FAILED = a_message("A"), a_message("Failed")
ROLE = HandlerRole(
    name="reserve",
    takes=(frozenset({"A"}),),
    undo=CompensationRole(name="release", outcomes=frozenset({"Failed"}), results=frozenset({"R"})),
)
RUN = RunHandler(ROLE, A, (A,))
UNDO = Compensate(ROLE, FAILED, CompensableResult(handler="reserve", cause=A.id, event=A, self_consumed_ids=()))
RETRY = Retry(attempts_max=3, delay_s_first=1, delay_s_max=60, in_place_s=2)
TIMER = CurrentTimer(id="t", due_ms=NOW_MS)


def parked(attempts: int) -> SagaProgress:
    run = replace(kept("reserve", A), attempts=attempts, due_ms=NOW_MS)
    return replace(blank(), queue=(run,), timer=TIMER)


def judge(
    p: SagaProgress,
    action: HandlerAction = RUN,
    *,
    waits_for: Literal["schema", "key", "release"] | None = None,
    is_final: bool = False,
    is_permanent: bool = False,
    schemas_may_come: bool = True,
) -> FailureVerdict:
    failure = Failure("it fails", FailureRule("", RETRY), waits_for, is_final=is_final, is_permanent=is_permanent)
    history = (FailedAttempt(time=iso(NOW_MS), ms=1, reason="it fails"),)
    return judge_failure(p, action, failure, history, (NOW_MS, 0.0), schemas_may_come=schemas_may_come)


def test_the_first_attempts_are_retried_in_memory_and_later_ones_parked() -> None:
    first, second = judge(blank()), judge(parked(1))
    assert (first.gives_up, first.parks, first.wait_s, first.attempt) == (False, False, 1, 1)
    assert (second.gives_up, second.parks, second.wait_s, second.attempt) == (False, True, 2, 2)


def test_the_last_attempt_and_a_permanent_failure_give_up_but_a_compensation_is_never_given_up() -> None:
    assert judge(parked(2)).gives_up
    assert judge(blank(), is_permanent=True).gives_up
    undoing = replace(blank(), compensating=(replace(kept("reserve", FAILED), attempts=7),), timer=TIMER)
    assert not judge(undoing, UNDO).gives_up
    assert not judge(undoing, UNDO, is_permanent=True).gives_up
    assert judge(blank(), UNDO, is_final=True).gives_up


@pytest.mark.parametrize("waits_for", ["schema", "key", "release"])
def test_a_failure_that_needs_a_deployment_or_a_restore_is_parked_without_limit(
    waits_for: Literal["schema", "key", "release"],
) -> None:
    verdict = judge(blank(), waits_for=waits_for)
    assert (verdict.gives_up, verdict.parks, verdict.is_recheck) == (False, True, False)
    assert READ_S_MIN <= verdict.wait_s <= LOOK_S_MAX


def test_a_missing_schema_is_given_up_only_where_none_can_come() -> None:
    assert not judge(parked(9), waits_for="schema", is_final=True).gives_up
    assert judge(parked(9), waits_for="schema", is_final=True, schemas_may_come=False).gives_up
    assert not judge(blank(), waits_for="schema", is_final=True, schemas_may_come=False).gives_up


@pytest.mark.parametrize(
    ("outcome", "reason", "since_s", "is_recheck"),
    [
        ("retrying", "it fails", 0, True),
        ("retrying", "it fails", 3600, False),
        ("retrying", "something else", 0, False),
        ("released", "it fails", 0, False),
        ("handled", "it fails", 0, False),
    ],
)
def test_a_wait_that_is_already_recorded_is_no_attempt(
    outcome: Literal["retrying", "released", "handled"], reason: str, since_s: int, is_recheck: bool
) -> None:
    entry = Transition(
        n=0,
        time=iso(NOW_MS - since_s * 1000),
        message=A.id,
        type="A",
        handler="reserve",
        outcome=outcome,
        reason=reason,
        source="other",
        previous="",
    )
    p = replace(parked(1), transitions=(Raw(encode(entry)),))
    assert judge(p, waits_for="release").is_recheck == is_recheck
    assert not judge(blank(), waits_for="release").is_recheck


def test_attempts_are_counted_for_each_retry_rule() -> None:
    run = replace(kept("reserve", A), attempts=1, under={"bank": 1}, due_ms=NOW_MS)
    verdict = judge(replace(blank(), queue=(run,), timer=TIMER), waits_for="release")
    assert (verdict.attempt, verdict.attempts, verdict.is_recheck) == (1, 2, False)


def test_failures_before_are_those_of_the_parked_run() -> None:
    assert count_failures_before(blank(), RUN) == (0, {})
    assert count_failures_before(parked(2), RUN) == (2, {})
    assert count_failures_before(replace(blank(), timer=TIMER), RUN) == (0, {})
    suspended = SuspendedRun(
        handler="reserve", parts=(A,), n=1, turn=1, first_ms=0, seen_ms=0, due_ms=NOW_MS, attempts=4, under={"b": 1}
    )
    assert count_failures_before(replace(blank(), timer=TIMER, suspended_runs=(suspended,)), RUN) == (4, {"b": 1})


@pytest.mark.parametrize("undoes", [False, True])
def test_a_run_is_postponed_for_its_message_alone(undoes: bool) -> None:
    messages = [a_message("A", f"A-{n}") for n in (1, 2)]
    waits = tuple(PendingMessage(handler="reserve", message=m, n=n, due_ms=1000) for n, m in enumerate(messages))
    p = replace(blank(), compensating=waits) if undoes else replace(blank(), queue=waits)
    later = hold_back(p, [HeldBack("reserve", undoes, 1500, "A-1")], now_ms=3000)
    assert [k.due_ms for k in (*later.queue, *later.compensating)] == [4500, 1000], (
        "as the timer checks what is overdue"
    )
    every = hold_back(p, [HeldBack("reserve", undoes, 5000)], now_ms=3000)
    assert [k.due_ms for k in (*every.queue, *every.compensating)] == [5000, 5000]
