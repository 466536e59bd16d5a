"""Work of a saga that no message sets off any more: what `saga sagas repair` finds in a progress."""

from msgspec.structs import replace

from saga.progress.document import CurrentTimer, Intent, PendingMessage, SagaProgress, SelfConsumedEvent, SuspendedRun
from saga.progress.journal import TransitionDetails, append_transition
from saga.progress.stranded_work import StrandedWork, find_stranded_work
from saga.support.clock import iso
from tests.progress.pieces import NOW_MS, a_hand, a_message, a_role, an_intent, blank, kept, roles_of

A, B, X = a_message("A"), a_message("B"), a_message("X")
ROLES = roles_of(a_role("on_a", "A"), a_role("on_b", "B"))
QUIET_MS = 60_000
LONG_AGO = iso(NOW_MS - 2 * QUIET_MS)


def found(p: SagaProgress, now_ms: int = NOW_MS) -> StrandedWork:
    return find_stranded_work(p, ROLES, now_ms, QUIET_MS)


def begun(intent: Intent) -> Intent:
    return replace(intent, time=LONG_AGO)


def due(k: PendingMessage, due_ms: int) -> PendingMessage:
    return replace(k, due_ms=due_ms, attempts=1)


def test_a_saga_at_rest_has_no_unattended_work() -> None:
    nothing = found(blank())
    assert (nothing.is_any, nothing.is_wake_alone, nothing.triggers) == (False, True, ())


def test_a_parked_run_needs_its_timer_before_and_after_its_due_time() -> None:
    for due_ms in (NOW_MS - 5, NOW_MS + 5):
        p = replace(blank(), queue=(due(kept("on_a", A), due_ms),), timer=CurrentTimer(id="wake-0", due_ms=due_ms))
        there = found(p)
        assert (there.wakes_at, there.is_any, there.is_wake_alone) == (iso(due_ms), True, True)


def test_a_run_kept_by_its_intent_alone_is_resumed_when_no_worker_is_executing_it() -> None:
    p = replace(blank(), n=1, intents=(begun(an_intent("on_a", A)),))
    there = found(p)
    assert ([i.handler for i in there.begun], there.triggers, there.is_wake_alone) == (["on_a"], (A,), False)
    assert not found(replace(p, intents=(replace(p.intents[0], time=iso(NOW_MS - 1)),))).is_any, "a worker is at it"


def test_an_intent_that_something_else_resumes_is_not_unattended() -> None:
    intent = begun(an_intent("on_a", A))
    going_on = SuspendedRun(handler="on_a", parts=(A,), n=1, turn=1, first_ms=1, seen_ms=1, due_ms=NOW_MS + 9)
    undo = replace(intent, kind="undo", message=X)
    for p in (
        replace(blank(), intents=(replace(intent, message=replace(A, source="svc")),)),
        replace(blank(), intents=(replace(intent, kind="lieu"),)),
        replace(blank(), intents=(undo,), compensating=(kept("on_a", X),)),
        replace(blank(), intents=(intent,), deadlines=(due(kept("on_a", A), NOW_MS + 9),)),
        replace(blank(), intents=(intent,), suspended_runs=(going_on,)),
        replace(blank(), intents=(intent,), queue=(due(kept("on_a", A), NOW_MS + 9),)),
    ):
        assert found(replace(p, timer=CurrentTimer(id="wake-0", due_ms=NOW_MS + 9))).begun == ()
    assert found(replace(blank(), intents=(undo,))).begun == (undo,)


def test_a_ready_run_without_a_timer_is_named() -> None:
    p = replace(blank(), queue=(kept("on_a", A),))
    p = replace(append_transition(p, a_hand(A), "queued", "on_a", TransitionDetails(message=A)).snapshot, timer=None)
    assert found(p, NOW_MS + QUIET_MS).ready == "on_a"
    assert found(p).ready is None, "a worker is at it most likely"


def test_runs_of_another_release_are_left_to_it() -> None:
    p = replace(blank(), intents=(begun(an_intent("on_another", A)),))
    assert not found(p).is_any


def test_self_consumed_events_that_this_release_handles_again_are_named() -> None:
    roles = roles_of(a_role("on_a", "A"), emitted="A")
    p = append_transition(
        blank(), a_hand(B), "handled", "on_b", TransitionDetails(message=B, events=(replace(A, source="svc"),))
    ).snapshot
    p = replace(p, self_consumed_types=(), self_consumed=())
    assert find_stranded_work(p, roles, NOW_MS, QUIET_MS).self_consumed_types == ("A",)
    assert SelfConsumedEvent(event=A, n=1).n == 1
