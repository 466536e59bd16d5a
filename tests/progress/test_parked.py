"""Runs that are parked: which they are, and what a person's wish makes of them."""

from msgspec.structs import replace

from saga.messaging.operator_commands import OperatorCommand
from saga.progress import decisions, operator_commands
from saga.progress.actions import RejectCommand, Release, RunHandler
from saga.progress.document import PendingMessage, SagaProgress, SuspendedRun
from saga.progress.failed_attempts import find_parked_runs
from saga.progress.handlers import CompensationRole, HandlerRoles
from saga.progress.journal import Commit
from tests.progress.pieces import NOW_MS, START, a_hand, a_message, a_role, blank, kept, roles_of

SOON_MS = NOW_MS + 60_000
A, B, X = a_message("A"), a_message("B"), a_message("X")
UNDO = CompensationRole(name="undo_a", outcomes=frozenset({"X"}), results=frozenset({"R"}))
ON_A = a_role("on_a", "A", undo=UNDO)
ROLES = roles_of(ON_A, a_role("on_b", "B"))


def failed(handler: str, message: object, *, attempts: int = 2, due_ms: int = SOON_MS) -> PendingMessage:
    assert isinstance(message, type(A))
    return replace(kept(handler, message, n=1), attempts=attempts, due_ms=due_ms)


def going_on(*, attempts: int) -> SuspendedRun:
    return SuspendedRun(
        handler="on_b", parts=(B,), n=1, turn=1, first_ms=NOW_MS, seen_ms=NOW_MS, due_ms=SOON_MS, attempts=attempts
    )


def a_wish(dead: str) -> OperatorCommand:
    return OperatorCommand(
        id="operator|release", type="saga.release", schema="", saga="s", source="operator", time=START, value=b"",
        wanted="release", dead=dead, who="ada", why="because",
    )  # fmt: skip


def released(p: SagaProgress, number: int = 0, roles: HandlerRoles = ROLES) -> Commit:
    wish = a_wish([run.id for run in find_parked_runs(p)][number])
    action = operator_commands.decide_command(p, roles, wish)
    assert isinstance(action, Release)
    return operator_commands.apply_command(p, a_hand(wish, roles=roles), action)


def test_failed_and_postponed_runs_count_as_parked_and_waiting_ones_do_not() -> None:
    p = replace(
        blank(),
        n=5,
        queue=(failed("on_a", A), failed("on_a", a_message("A", id="a2"), attempts=0), kept("on_c", B)),
        compensating=(failed("on_a", X), kept("on_b", X)),
        deadlines=(failed("late", A), failed("later", A, attempts=0)),
        suspended_runs=(going_on(attempts=1), replace(going_on(attempts=0), handler="waits")),
    )
    assert [(run.handler, run.message.id, run.attempts, run.undoes) for run in find_parked_runs(p)] == [
        ("on_a", A.id, 2, False),
        ("on_a", "a2", 0, False),
        ("on_a", X.id, 2, True),
        ("late", A.id, 2, False),
        ("on_b", B.id, 1, False),
    ]
    assert len({run.id for run in find_parked_runs(p)}) == 5


def test_a_dead_letter_is_not_parked() -> None:
    assert list(find_parked_runs(replace(blank(), queue=(replace(failed("on_a", A), dead="dead-1"),)))) == []


def test_a_released_run_is_ready_in_its_place_with_its_attempts() -> None:
    p = replace(blank(), n=3, queue=(failed("on_a", A), kept("on_b", B, n=2)))
    assert decisions.find_next_ready(p, ROLES, NOW_MS) is None
    written = released(p)
    assert decisions.find_next_ready(written.snapshot, ROLES, NOW_MS) == RunHandler(ON_A, A, (A,))
    assert [(k.attempts, k.due_ms) for k in written.snapshot.queue] == [(2, NOW_MS), (0, 0)]
    entry = written.entry
    assert entry is not None
    assert (entry.outcome, entry.handler, entry.cause, entry.attempt) == ("released", "on_a", A.id, 2)
    assert entry.reason == "ada wants it: because"
    assert entry.timer is not None, "this clock may be ahead of that of the next worker"


def test_a_compensation_is_released_under_its_own_name_and_nothing_else_with_it() -> None:
    p = replace(blank(), n=3, queue=(failed("on_b", B),), compensating=(failed("on_a", X),))
    written = released(p, 1)
    assert written.entry is not None
    assert written.entry.handler == "undo_a"
    assert [k.due_ms for k in (*written.snapshot.queue, *written.snapshot.compensating)] == [SOON_MS, NOW_MS]


def test_failed_deadlines_and_turns_are_released_and_other_runs_wait() -> None:
    p = replace(
        blank(),
        n=3,
        deadlines=(failed("on_a", A), failed("on_a", a_message("A", id="a2"))),
        suspended_runs=(going_on(attempts=1), replace(going_on(attempts=1), parts=(a_message("B", id="b2"),))),
    )
    assert [k.due_ms for k in released(p, 1).snapshot.deadlines] == [SOON_MS, NOW_MS]
    assert [c.due_ms for c in released(p, 2).snapshot.suspended_runs] == [NOW_MS, SOON_MS]


def test_a_command_for_a_run_that_is_no_longer_parked_is_rejected_with_the_reason() -> None:
    p = replace(blank(), n=3, queue=(failed("on_a", A, due_ms=SOON_MS + 1),))
    wish = a_wish(next(run.id for run in find_parked_runs(replace(p, queue=(failed("on_a", A),)))))
    action = operator_commands.decide_command(p, ROLES, wish)
    assert isinstance(action, RejectCommand)
    assert action.reason == "what was parked has been tried, or has ended, since"
