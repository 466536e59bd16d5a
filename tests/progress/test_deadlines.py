"""Deadlines as pure decisions: what opens and closes them, and when they may run."""

from dataclasses import replace as replace_role

from msgspec.structs import replace

from saga.messages import Message
from saga.progress import failed_attempts, ids, journal, timers
from saga.progress.actions import AwaitLog, Complete, ForwardTimer, Ignore, Now, RunHandler, TouchDeadline, Trigger
from saga.progress.decisions import find_next_ready, is_message_known
from saga.progress.document import (
    FORMAT,
    PAGED,
    PLAIN,
    TIMED,
    CurrentTimer,
    OverflowSegment,
    PendingMessage,
    SagaProgress,
    SelfConsumedEvent,
    compute_format,
)
from saga.progress.failed_attempts import RunFailure
from saga.progress.handlers import DEADLINE, HandlerRole, HandlerRoles
from saga.progress.journal import TransitionDetails, WriteContext
from saga.progress.next_action import choose_next_action, record_decision
from saga.progress.timers import is_deadline_overdue
from saga.support.clock import LATEST_MS, from_iso, iso
from tests.progress.pieces import START, a_message, a_role, an_intent, blank, kept, ran, roles_of

DUE = from_iso(START) + 60_000
EXPIRE = HandlerRole(
    name="expire", takes=(frozenset("A"),), decides=True, within_ms=60_000, unless=frozenset({"Over", "Paid"})
)
HANDLER, DECIDER = a_role("handler", "A B"), a_role("decider", "C", decides=True)
ROLES = roles_of(EXPIRE, HANDLER, DECIDER, outcomes="Over", emitted="Over")
ALONE = roles_of(EXPIRE, outcomes="Over", emitted="Over")
A, B, C = a_message("A"), a_message("B"), a_message("C")
PAID, OVER = a_message("Paid"), a_message("Over")


def write_context(
    p: SagaProgress, message: Message, roles: HandlerRoles = ROLES, now_ms: int = DUE - 1
) -> WriteContext:
    return WriteContext(
        message=message, position=None, roles=roles, self_consumed_types=(), now_ms=now_ms, retention_s=1000, before=p
    )


def opened(p: SagaProgress | None = None, due_ms: int = DUE) -> SagaProgress:
    return replace(p or blank(), n=1, deadlines=(PendingMessage(handler="expire", message=A, n=0, due_ms=due_ms),))


def touched(p: SagaProgress, message: Message, *emitted: Message) -> SagaProgress:
    return timers.touch_deadlines(p, ROLES, (message, *emitted), DUE - 1)


def test_roles_distinguish_deadlines_from_handlers() -> None:
    assert [role.name for role in ROLES.by_type["A"]] == ["handler"]
    assert ROLES.opening == {"A": (EXPIRE,)}
    assert ROLES.closing == {"Over": (EXPIRE,), "Paid": (EXPIRE,)}
    assert ROLES.noted == {"Over", "Paid"}
    assert ALONE.noted == {"A", "Over", "Paid"}
    assert ALONE.names["A"] == [DEADLINE]


def test_the_first_write_about_its_event_opens_a_deadline() -> None:
    p = journal.complete_run(
        blank(), write_context(blank(), A), HANDLER, TransitionDetails(message=A, cause=A.id, parts=(A,))
    ).snapshot
    assert p.deadlines == (PendingMessage(handler="expire", message=A, n=0, due_ms=DUE),)
    assert p.is_open
    assert p.timer is not None
    assert p.timer.due_ms == DUE
    assert is_message_known(p, ROLES, A)
    assert touched(p, A) is p, "once"
    assert touched(p, a_message("A", "another")) is p, "it runs once in a saga"


def test_a_deadline_of_an_event_dated_in_the_future_counts_from_now() -> None:
    p = touched(blank(), replace(A, time=iso(LATEST_MS)))
    assert [k.due_ms for k in p.deadlines] == [DUE - 1 + 60_000]


def test_a_deadline_of_an_event_with_an_untrusted_time_counts_from_now() -> None:
    p = touched(blank(), replace(A, time=iso(0), foreign_time=True))
    assert [k.due_ms for k in p.deadlines] == [DUE - 1 + 60_000]


def test_events_in_the_log_before_the_due_time_are_handled_before_the_deadline() -> None:
    p = journal.record_deadline_event(blank(), write_context(blank(), A, ALONE), A).snapshot
    assert p.timer is not None
    assert find_next_ready(p, ALONE, DUE, handled_ms=DUE - 1) is None
    assert find_next_ready(p, ALONE, DUE, handled_ms=DUE) == RunHandler(EXPIRE, A, (A,))
    wake = replace(a_message("saga.wake"), id=p.timer.id)
    behind = Now(DUE + 9, 1000, DUE - 1)
    assert choose_next_action(p, ALONE, Trigger(message=wake), behind, True) == AwaitLog(DUE, None)
    assert choose_next_action(p, ALONE, Trigger(message=C), behind, True) == Complete()
    unhandled = replace(C, type="")
    assert choose_next_action(p, ALONE, Trigger(message=unhandled), behind, True) == ForwardTimer(DUE + 9 + 1000)


def test_the_timer_of_a_deadline_is_checked_again_at_the_next_due_time_or_after_its_grace() -> None:
    gracious = replace_role(EXPIRE, grace_ms=5000)
    roles = roles_of(gracious, HANDLER, outcomes="Over", emitted="Over")
    parked = PendingMessage(handler="handler", message=B, n=0, attempts=1, due_ms=DUE + 100)
    p = replace(opened(), queue=(parked,), timer=CurrentTimer(id="wake-0", due_ms=DUE))
    wake = Trigger(message=replace(a_message("saga.wake"), id="wake-0"))
    assert choose_next_action(p, ROLES, wake, Now(DUE + 9, 1000, 0), True) == AwaitLog(DUE, DUE + 100)
    assert choose_next_action(p, roles, wake, Now(DUE + 9, 1000, 0), True) == AwaitLog(DUE, DUE + 100)
    alone = replace(p, queue=())
    assert choose_next_action(alone, roles, wake, Now(DUE + 9, 1000, 0), True) == AwaitLog(DUE, DUE + 5000)
    assert choose_next_action(alone, roles, wake, Now(DUE + 5000, 1000, 0), True) == RunHandler(gracious, A, (A,))
    dead = replace(p, queue=(kept("handler", B, dead="d"),))
    assert choose_next_action(dead, ROLES, wake, Now(DUE + 9, 1000, 0), True) == Complete(), "a person is waited for"


def test_a_message_that_no_handler_takes_is_recorded_because_it_opens_a_deadline() -> None:
    context = write_context(blank(), A, ALONE)
    written = record_decision(blank(), context, TouchDeadline(A))
    assert written.snapshot == journal.record_deadline_event(blank(), context, A).snapshot
    assert [each.message for each in written.snapshot.deadlines] == [A]


def test_a_deadline_that_is_due_when_opened_is_checked_at_once() -> None:
    late = DUE + 8 * 3_600_000
    p = journal.record_deadline_event(blank(), write_context(blank(), A, ALONE, now_ms=late), A).snapshot
    assert p.timer is not None
    assert p.timer.due_ms == late


def test_a_deadline_does_not_overtake_a_postponed_message_that_came_in_time() -> None:
    tried = PendingMessage(handler="decider", message=C, n=0, attempts=3, due_ms=DUE + 9)
    for held_up in (replace(tried, attempts=0), replace(tried, put_off=True)):
        assert find_next_ready(replace(opened(), queue=(held_up,)), ROLES, DUE) is None
        failing_first = PendingMessage(handler="handler", message=B, n=0, attempts=1, due_ms=DUE + 9)
        assert find_next_ready(replace(opened(), queue=(failing_first, held_up)), ROLES, DUE) is None
    assert find_next_ready(replace(opened(), queue=(tried,)), ROLES, DUE) == RunHandler(EXPIRE, A, (A,))
    page = OverflowSegment(kind="queue", name="p", count=1, newest=0, handlers=("handler",))
    failing = replace(opened(), queue=(replace(tried, handler="handler"),))
    assert find_next_ready(replace(failing, segments=(page,)), ROLES, DUE) == RunHandler(EXPIRE, A, (A,))
    assert find_next_ready(replace(failing, segments=(replace(page, handlers=("decider",)),)), ROLES, DUE) is None


def test_a_postponed_message_that_closes_a_deadline_without_an_outcome_counts_too() -> None:
    closer = replace_role(HANDLER, closes=True)
    roles = roles_of(EXPIRE, closer, outcomes="Over", emitted="Over")
    p = replace(opened(), queue=(PendingMessage(handler="handler", message=B, n=0, due_ms=DUE + 9),))
    assert find_next_ready(p, ROLES, DUE) == RunHandler(EXPIRE, A, (A,))
    assert find_next_ready(p, roles, DUE) is None


def test_a_self_consumed_event_opens_and_closes_a_deadline() -> None:
    assert touched(blank(), C, A).deadlines[0].message == A
    assert touched(opened(), C, OVER).closed == ("expire",)


def test_a_deadline_of_a_self_consumed_event_waits_for_its_time() -> None:
    taker = a_role("taker", "A")
    roles = roles_of(EXPIRE, taker, emitted="A")
    p = replace(opened(), self_consumed=(SelfConsumedEvent(event=replace(A, source="svc"), n=0),))
    there = find_next_ready(p, roles, DUE - 1, "C-1")
    assert isinstance(there, RunHandler)
    assert there.role is taker
    done = replace(p, inbox={ids.inbox_entry(A.id, "taker"): 1})
    assert find_next_ready(done, roles, DUE - 1, "C-1") is None
    due = find_next_ready(done, roles, DUE, "C-1")
    assert isinstance(due, RunHandler)
    assert due.role is EXPIRE


def test_the_end_of_a_run_touches_deadlines_whichever_message_is_processed() -> None:
    """Another worker wrote only an intent about the run's own message."""
    for message, before, wanted in (A, blank(), ["expire"]), (PAID, opened(), []):
        ended = TransitionDetails(message=message, cause=message.id, parts=(message,))
        after = journal.complete_run(before, write_context(before, C), HANDLER, ended).snapshot
        assert [k.handler for k in after.deadlines] == wanted
        assert ("expire" in after.closed) == (message is PAID)


def test_a_deadline_can_be_closed_before_and_after_its_event() -> None:
    closed = touched(blank(), PAID)
    assert (closed.closed, closed.deadlines) == (("expire",), ())
    assert touched(closed, A) is closed
    assert touched(closed, PAID) is closed
    behind = touched(opened(), PAID)
    assert (behind.closed, behind.deadlines) == (("expire",), ())


def test_an_open_deadline_keeps_older_versions_of_the_toolkit_away() -> None:
    """It would write the progress without what it does not know."""
    p = touched(blank(), A)
    assert p.format == TIMED <= FORMAT
    assert touched(p, PAID).format == PLAIN
    page = OverflowSegment(kind="inbox", name="p", count=1, newest=1)
    assert compute_format((page,), (), (), 1) == PAGED
    assert compute_format((page,), p.deadlines, (), 1) == TIMED


def test_a_deadline_of_an_ended_saga_is_closed_at_once() -> None:
    assert touched(replace(blank(), outcome="Over"), A).closed == ("expire",)
    assert touched(replace(blank(), failed=("Over",)), A).closed == ("expire",)


def test_a_begun_deadline_is_finished() -> None:
    begun = replace(opened(), intents=(an_intent("expire", A),))
    assert touched(begun, PAID) is begun


def test_a_deadline_that_has_run_or_was_given_up_does_not_open_again() -> None:
    had = replace(blank(), inbox={ids.inbox_entry(A.id, "expire"): 1})
    assert touched(had, A) is had
    repeated = replace(blank(), completed_runs=(ran("expire", a_message("A", "first"), "x"),))
    assert touched(repeated, A) is repeated
    dead = replace(blank(), queue=(kept("expire", A, dead="d"),))
    assert touched(dead, A) is dead
    assert touched(dead, a_message("A", "another")) is dead, "nor with a repetition of its event"


def test_a_deadline_that_has_run_or_was_given_up_has_no_due_time() -> None:
    assert touched(replace(opened(), inbox={ids.inbox_entry(A.id, "expire"): 1}), B).deadlines == ()
    assert touched(replace(opened(), queue=(kept("expire", A, dead="d"),)), B).deadlines == ()
    assert touched(replace(opened(), queue=(kept("handler", A, dead="d"),)), B).deadlines != ()


def test_a_message_that_only_opens_a_deadline_is_recorded_once() -> None:
    trigger, now = Trigger(message=PAID), Now(DUE - 1, 1000)
    action = choose_next_action(opened(), ROLES, trigger, now, True)
    assert action == TouchDeadline(PAID)
    assert isinstance(action, TouchDeadline)
    p = record_decision(opened(), write_context(opened(), PAID), action).snapshot
    assert p.closed == ("expire",)
    assert is_message_known(p, ROLES, PAID)
    assert choose_next_action(p, ROLES, trigger, now, True) == Complete()
    assert not timers.touches_deadline(blank(), ROLES, A), "its handler writes about it"


def test_a_deadline_is_ready_at_its_time() -> None:
    assert find_next_ready(opened(), ROLES, DUE - 1) is None
    assert find_next_ready(opened(), ROLES, DUE) == RunHandler(EXPIRE, A, (A,))
    both = replace(
        opened(), deadlines=(*opened().deadlines, PendingMessage(handler="expire", message=B, n=0, due_ms=DUE - 9))
    )
    assert find_next_ready(both, ROLES, DUE) == RunHandler(EXPIRE, B, (B,)), "the earliest first"
    waiting = replace(opened(), waiting=(kept("handler", B),))
    assert find_next_ready(waiting, ROLES, DUE) == RunHandler(HANDLER, B, (B,)), "what is fulfilled goes before"


def test_a_deadline_is_overdue_from_its_time_on() -> None:
    assert [is_deadline_overdue(opened(), at) for at in (DUE - 1, DUE, DUE + 1)] == [False, True, True]
    assert not is_deadline_overdue(blank(), DUE)


def test_a_deadline_is_void_after_an_outcome_of_the_service() -> None:
    ready = find_next_ready(replace(opened(), outcome="Over"), ROLES, DUE)
    assert ready == Ignore(EXPIRE, A, "the saga has ended here with Over")
    assert isinstance(ready, Ignore)
    p = journal.ignore_message(opened(), write_context(opened(), B), EXPIRE, A, "why").snapshot
    assert p.deadlines == ()


def test_a_deadline_waits_for_open_runs_and_behind_a_dead_letter() -> None:
    assert find_next_ready(replace(opened(), intents=(an_intent("handler", B),)), ROLES, DUE) is None
    assert find_next_ready(replace(opened(), queue=(kept("handler", B, dead="d"),)), ROLES, DUE) is None
    assert find_next_ready(replace(opened(), compensating=(kept("handler", OVER, dead="d"),)), ROLES, DUE) is None
    behind = replace(opened(), queue=(kept("handler", B),), intents=(an_intent("decider", C),))
    assert find_next_ready(behind, ROLES, DUE) is None
    assert not timers.may_deadline_run(replace(opened(), queue=(kept("handler", B),)), ROLES)


def test_a_deadline_overtakes_parked_runs_except_a_begun_decider() -> None:
    parked = PendingMessage(handler="handler", message=B, n=0, attempts=1, due_ms=DUE + 9)
    assert find_next_ready(replace(opened(), queue=(parked,)), ROLES, DUE) == RunHandler(EXPIRE, A, (A,))
    begun = replace(opened(), queue=(parked,), intents=(an_intent("handler", B),))
    assert find_next_ready(begun, ROLES, DUE) == RunHandler(EXPIRE, A, (A,))
    two = replace(begun, intents=(*begun.intents, an_intent("decider", C)))
    assert find_next_ready(two, ROLES, DUE) is None, "another run is under way"
    deciding = replace(parked, handler="decider", message=C)
    assert find_next_ready(replace(opened(), queue=(deciding,)), ROLES, DUE) == RunHandler(EXPIRE, A, (A,))
    assert find_next_ready(replace(opened(), queue=(deciding,), intents=(an_intent("decider", C),)), ROLES, DUE) is None


def test_a_begun_parked_deadline_resumes_at_its_time() -> None:
    intent = an_intent("expire", A)
    begun = replace(opened(), intents=(intent,))
    assert find_next_ready(begun, ROLES, DUE) == RunHandler(EXPIRE, A, (A,), intent)
    assert find_next_ready(begun, ROLES, DUE - 1) is None
    replayed = replace(begun, deadlines=(), queue=(kept("expire", A),))
    assert find_next_ready(replayed, ROLES, DUE) == RunHandler(EXPIRE, A, (A,), intent), "a person has replayed it"


def test_a_failed_deadline_moves_its_time_and_a_dead_one_blocks_the_saga() -> None:
    failure = RunFailure(reason="why", remedy="mend", attempts=2)
    action = RunHandler(EXPIRE, A, (A,))
    p = failed_attempts.park(
        opened(), write_context(opened(), B, now_ms=DUE), action, failure, None, due_ms=DUE + 7
    ).snapshot
    assert p.queue == ()
    assert p.deadlines == (PendingMessage(handler="expire", message=A, n=0, due_ms=DUE + 7, delay_ms=7, attempts=2),)
    assert p.timer is not None
    assert p.timer.due_ms == DUE + 7
    p = failed_attempts.give_up(opened(), write_context(opened(), B, now_ms=DUE), action, failure, None).snapshot
    assert p.deadlines == ()
    assert [k.handler for k in p.queue] == ["expire"]


def test_a_replayed_deadline_that_fails_again_waits_at_the_head() -> None:
    failure, action = RunFailure(reason="why", remedy="mend", attempts=2), RunHandler(EXPIRE, A, (A,))
    replayed = replace(blank(), n=3, queue=(kept("expire", A, 1), kept("handler", B, 2)))
    p = failed_attempts.park(
        replayed, write_context(replayed, B, now_ms=DUE), action, failure, None, due_ms=DUE + 7
    ).snapshot
    assert p.queue == (
        PendingMessage(handler="expire", message=A, n=1, due_ms=DUE + 7, delay_ms=7, attempts=2),
        kept("handler", B, 2),
    )
    assert p.deadlines == ()
    assert find_next_ready(p, ROLES, DUE + 6) is None
    assert find_next_ready(p, ROLES, DUE + 7) == action
    assert p.timer is not None
    assert p.timer.due_ms == DUE + 7


def test_the_timer_of_a_blocked_deadline_is_forwarded() -> None:
    p = journal.enqueue_message(opened(), write_context(opened(), B), HANDLER, B, "why", None).snapshot
    p = replace(p, queue=(), intents=(an_intent("handler", B),))
    assert p.timer is not None
    wake = replace(a_message("saga.wake"), id=p.timer.id)
    at = DUE + 5000
    assert choose_next_action(p, ROLES, Trigger(message=wake), Now(at, 1000), True) == ForwardTimer(at + 5000)
