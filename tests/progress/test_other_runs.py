"""What is recorded about one run touches no other run, of the same handler or of another one."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from saga.messages import Message
from saga.progress import compensation, failed_attempts, journal
from saga.progress.actions import Compensate, RunHandler
from saga.progress.document import (
    CompensableResult,
    PendingMessage,
    SagaProgress,
    SelfConsumedEvent,
    StepRecord,
    SuspendedRun,
    decode_transition,
)
from saga.progress.failed_attempts import RunFailure
from saga.progress.handlers import CompensationRole, HandlerRole
from saga.progress.journal import TransitionDetails
from tests.progress.pieces import NOW_MS, a_hand, a_message, a_role, an_intent, blank, ran, roles_of

Change = Callable[[SagaProgress], SagaProgress]

LISTS = (
    "completed_runs", "results", "self_consumed", "intents", "queue", "waiting", "compensating", "deadlines",
    "suspended_runs",
)  # fmt: skip
"""The fields of a progress that hold something of single runs."""


def an_undo(name: str) -> CompensationRole:
    return CompensationRole(name=name, outcomes=frozenset({"X"}), results=frozenset({"R"}))


JOB = a_role("job", "A", many=True, undo=an_undo("undo job"))
OTHER = a_role("other", "A", many=True, undo=an_undo("undo other"))
ROLES = roles_of(JOB, OTHER, a_role("takes R", "R"), outcomes="X", emitted="R X")
MINE, ANOTHER, OUTCOME = a_message("A", "mine"), a_message("A", "another"), a_message("X")
FAILURE = RunFailure(reason="no", remedy="mend it", attempts=2)
STEP = StepRecord(kind="step", name="charge", number=1, input="")


def result_of(role: HandlerRole, message: Message) -> CompensableResult:
    event = replace(a_message("R", f"R of {role.name} on {message.id}"), source="svc")
    return CompensableResult(
        handler=role.name, cause=message.id, event=event, self_consumed_ids=(event.id, f"{event.id}, too")
    )


def job_of(role: HandlerRole, message: Message, turn: int = 1) -> SuspendedRun:
    c = SuspendedRun(handler=role.name, parts=(message,), n=0, turn=turn, first_ms=0, seen_ms=0, due_ms=NOW_MS + 1000)
    return replace(c, calls=(STEP,))


def run_of(role: HandlerRole, message: Message) -> dict[str, tuple[object, ...]]:
    """Everything that a progress can hold of a run, in each field."""
    kept = PendingMessage(handler=role.name, message=message, n=0, attempts=1, due_ms=NOW_MS + 1000)
    result = result_of(role, message)
    return {
        "completed_runs": (ran(role.name, message, "content"),),
        "results": (result,),
        "self_consumed": tuple(
            SelfConsumedEvent(event=replace(result.event, id=id_), n=0) for id_ in result.self_consumed_ids
        ),
        "intents": (
            replace(an_intent(role.name, message), calls=(STEP,)),
            replace(an_intent(role.name, message), kind="undo", cause=result.event.id),
        ),
        "queue": (replace(kept, dead=f"dead {role.name} {message.id}"),),
        "waiting": (kept,),
        "compensating": (
            replace(kept, message=a_message("X", f"X for {message.id}"), due_ms=NOW_MS if role is OTHER else 0),
        ),
        "deadlines": (kept,),
        "suspended_runs": (job_of(role, message),),
    }


def progress_of(*runs: dict[str, tuple[object, ...]]) -> SagaProgress:
    fields = {name: sum((run.get(name, ()) for run in runs), ()) for name in LISTS}
    return replace(blank(), n=1, **fields)


def sealed(p: SagaProgress, run: str | None) -> SagaProgress:
    """The progress with what takes the place of a run that has begun something."""
    begun = [
        *(i.parts for i in p.intents if i.handler == "job"),
        *(c.parts for c in p.suspended_runs if c.handler == "job"),
    ]
    if not any(run in (None, parts[0].id) for parts in begun):
        return p
    return replace(p, intents=(*p.intents, compensation.make_abort_intent(p, JOB, run)))


HAND = a_hand(MINE, roles=ROLES)
ENDED = TransitionDetails(message=MINE, cause=MINE.id, parts=(MINE,), events=(a_message("R", "new"),), calls=(STEP,))
RUN, UNDOES = RunHandler(JOB, MINE, (MINE,)), Compensate(JOB, OUTCOME, result_of(JOB, MINE))
OF_ONE_RUN: dict[str, Change] = {
    "begun": lambda p: journal.open_intent(p, HAND, replace(an_intent("job", MINE), begins=STEP)).snapshot,
    "handled": lambda p: journal.complete_run(p, HAND, JOB, ENDED).snapshot,
    "ignored": lambda p: journal.ignore_message(p, HAND, JOB, MINE, "no").snapshot,
    "refused": lambda p: journal.reject_message(p, HAND, JOB, MINE, "no", "mend it").snapshot,
    "waiting": lambda p: journal.keep_pending(p, HAND, JOB, MINE, "no").snapshot,
    "queued": lambda p: journal.enqueue_message(p, HAND, JOB, MINE, "no", None).snapshot,
    "dead": lambda p: failed_attempts.give_up(p, HAND, RUN, FAILURE, an_intent("job", MINE)).snapshot,
    "stripped": lambda p: failed_attempts.give_up_without_content(p, HAND, RUN, letter="letter", reason="no").snapshot,
    "parked": lambda p: failed_attempts.park(p, HAND, RUN, FAILURE, an_intent("job", MINE), due_ms=NOW_MS).snapshot,
    "going on": lambda p: journal.suspend_run(p, HAND, JOB, ENDED, job_of(JOB, MINE, turn=2)).snapshot,
    "going on without a result": lambda p: (
        journal.suspend_run(p, HAND, JOB, replace(ENDED, events=()), job_of(JOB, MINE, turn=2)).snapshot
    ),
    "sealed": lambda p: sealed(p, MINE.id),
    "compensation waits": lambda p: compensation.delay_compensation(p, HAND, JOB, OUTCOME, known=True).snapshot,
    "compensation dead": lambda p: failed_attempts.give_up(p, HAND, UNDOES, FAILURE, None).snapshot,
    "compensation parked": lambda p: failed_attempts.park(p, HAND, UNDOES, FAILURE, None, due_ms=NOW_MS).snapshot,
}
IN_ITS_PLACE = replace(an_intent("job", MINE), kind="lieu")
OF_A_HANDLER: dict[str, Change] = {
    "undone": lambda p: (
        compensation.complete_compensation(
            p, HAND, JOB, result_of(JOB, MINE), TransitionDetails(message=OUTCOME)
        ).snapshot
    ),
    "closed": lambda p: compensation.close_without_results(p, HAND, JOB, OUTCOME).snapshot,
    "all sealed": lambda p: sealed(p, None),
    "closed for good": lambda p: (
        compensation.complete_abort(
            replace(p, intents=(replace(an_intent("job", MINE), kind="lieu"), *p.intents)),
            HAND,
            JOB,
            OUTCOME,
            remains=["charge"],
        ).snapshot
    ),
}


def check_untouched(
    change: Change, role: HandlerRole, message: Message, without: tuple[str, ...], *, ends_with_it: bool = False
) -> None:
    """Check that a change leaves this run as it is, and makes the same of the other one, unless that `ends_with_it`."""
    mine = {name: entries for name, entries in run_of(JOB, MINE).items() if name not in without}
    other = run_of(role, message)
    for runs in ((mine, other), (other, mine)):
        expected, found = change(progress_of(mine)), change(progress_of(*runs))
        for name in LISTS:
            foreign, kept = other[name], getattr(found, name)
            assert tuple(each for each in kept if each in foreign) == foreign, (name, "of the other run")
            if not ends_with_it:
                assert [e for e in kept if e not in foreign] == [*getattr(expected, name)], (name, "of the run itself")
        if not ends_with_it:
            assert (found.inbox, found.closed) == (expected.inbox, expected.closed)
            assert last_of(found) == last_of(expected)


def last_of(p: SagaProgress) -> tuple[object, ...]:
    """What the last transition says of its run."""
    entry = decode_transition(p.transitions[-1]) if p.transitions else None
    return () if entry is None else (entry.reason, entry.calls, [letter.id for letter in entry.letters])


FEWER = pytest.mark.parametrize(
    "without",
    [
        (),
        ("suspended_runs",),
        ("queue",),
        ("deadlines", "suspended_runs"),
        ("intents", "results", "suspended_runs"),
    ],
)
"""Fields that hold nothing of the run: it is seldom in all of them at once."""


@FEWER
@pytest.mark.parametrize("change", OF_ONE_RUN.values(), ids=OF_ONE_RUN)
def test_another_run_of_the_handler_is_not_changed(change: Change, without: tuple[str, ...]) -> None:
    check_untouched(change, JOB, ANOTHER, without)


@FEWER
def test_results_of_another_run_are_not_undone_with_it(without: tuple[str, ...]) -> None:
    check_untouched(OF_A_HANDLER["undone"], JOB, ANOTHER, without, ends_with_it=True)


@FEWER
@pytest.mark.parametrize("change", (OF_ONE_RUN | OF_A_HANDLER).values(), ids=OF_ONE_RUN | OF_A_HANDLER)
def test_a_run_of_another_handler_on_the_same_message_is_not_changed(change: Change, without: tuple[str, ...]) -> None:
    check_untouched(change, OTHER, MINE, without)
