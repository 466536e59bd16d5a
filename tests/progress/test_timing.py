"""What waits for time: what is parked, its one current timer, and the end of a turn that finds it there."""

import dataclasses
from itertools import product

import pytest
from msgspec import Raw
from msgspec.structs import replace

from saga.messages import Message
from saga.messaging.timers import TYPE as TIMER_TYPE
from saga.messaging.timers import SagaTimer
from saga.progress import compensation, decisions, failed_attempts, history, ids, journal, timers
from saga.progress.actions import (
    Action,
    Compensate,
    Complete,
    ForwardTimer,
    HandlerAction,
    LoadProgress,
    Now,
    RescheduleTimer,
    RunHandler,
    Trigger,
)
from saga.progress.document import (
    CompensableResult,
    CurrentTimer,
    EmittedEvent,
    FailedAttempt,
    Intent,
    PendingMessage,
    SagaProgress,
    StepRecord,
    SuspendedRun,
    Transition,
    encode,
)
from saga.progress.failed_attempts import RunFailure
from saga.progress.handlers import CompensationRole, compensation_name
from saga.progress.journal import Commit, TransitionDetails
from saga.progress.next_action import choose_next_action, record_decision
from saga.support.clock import iso
from tests.progress.pieces import NOW_MS, a_hand, a_message, a_role, an_intent, blank, kept, roles_of

SOON, LATER, LATEST = NOW_MS + 1, NOW_MS + 5000, NOW_MS + 9000
A, B, C, FAILED, FAILED_TOO = (a_message(type_) for type_ in ("A", "B", "C", "Failed", "FailedToo"))
UNDO = CompensationRole(name="release", outcomes=frozenset({"Failed", "FailedToo"}), results=frozenset({"R"}))
FIRST, SECOND, RESERVE = a_role("first", "A"), a_role("second", "B"), a_role("reserve", "C", undo=UNDO)
OTHER = a_role("other", "D", undo=CompensationRole(name="give_back", outcomes=UNDO.outcomes, results=frozenset({"S"})))
ROLES = roles_of(FIRST, SECOND, RESERVE, OTHER, outcomes="Failed FailedToo", emitted="R")
NOW = Now(NOW_MS, retention_s=10**6)
RESULT = CompensableResult(handler="reserve", cause=C.id, event=a_message("R"), self_consumed_ids=())
RESULT_TOO = CompensableResult(handler="reserve", cause="C-2", event=a_message("R", "R-2"), self_consumed_ids=())
CURRENT = CurrentTimer(id="wake-3", due_ms=LATER)


def parked(handler: str, message: Message, due_ms: int = LATER, *, n: int = 0, attempts: int = 4) -> PendingMessage:
    return replace(kept(handler, message, n), attempts=attempts, due_ms=due_ms)


def waiting_for(*due_ms: int, timer: CurrentTimer | None = None) -> SagaProgress:
    """The first is at the head of the queue, the others are to be undone."""
    head, *others = (parked("first" if i == 0 else f"reserve-{i}", A, due) for i, due in enumerate(due_ms))
    return replace(blank(), n=7, queue=(head,), compensating=tuple(others), timer=timer)


# ---------------------------------------------------------------- the wake that is named


def test_only_parked_runs_wait_for_a_time() -> None:
    assert timers.find_timed_work(blank()) == frozenset()
    p = replace(
        blank(),
        queue=(parked("first", A, SOON), kept("second", B)),
        compensating=(kept("other", FAILED), parked("reserve", FAILED, LATER)),
    )
    assert timers.find_timed_work(p) == {("first", A.id, SOON), ("reserve", FAILED.id, LATER)}
    assert timers.find_timed_work(replace(p, queue=())) == {("reserve", FAILED.id, LATER)}
    assert timers.find_timed_work(replace(p, compensating=())) == {("first", A.id, SOON)}


def test_the_next_check_is_at_the_earliest_due_time() -> None:
    assert timers.compute_next_check(blank(), NOW_MS) is None
    assert timers.compute_next_check(waiting_for(LATER, SOON, LATEST), NOW_MS) == SOON


@pytest.mark.parametrize(("overdue_ms", "again_ms"), [(0, 1000), (999, 1000), (1001, 1001), (10**9, 86_400_000)])
def test_overdue_blocked_runs_are_checked_at_growing_intervals(overdue_ms: int, again_ms: int) -> None:
    assert timers.compute_next_check(waiting_for(NOW_MS - overdue_ms), NOW_MS) == NOW_MS + again_ms
    assert timers.compute_next_check(waiting_for(NOW_MS - overdue_ms, SOON), NOW_MS) == SOON


def test_the_first_parked_run_sets_a_timer_named_by_its_transition() -> None:
    p, timer = timers.set_timer(waiting_for(LATEST, LATER), blank(), NOW_MS)
    assert timer == p.timer == CurrentTimer(id="wake-7", due_ms=LATER)
    assert timers.set_timer(waiting_for(LATEST), None, NOW_MS)[1] == CurrentTimer(id="wake-7", due_ms=LATEST)


def test_the_current_timer_serves_runs_parked_when_it_was_set() -> None:
    p = waiting_for(LATER, LATEST, timer=CURRENT)
    assert timers.set_timer(p, p, NOW_MS) == (p, None)
    less = replace(p, compensating=())
    assert timers.set_timer(less, p, NOW_MS) == (less, None), "what ended needs none"
    early = replace(p, timer=replace(CURRENT, due_ms=SOON))
    assert timers.set_timer(early, early, NOW_MS) == (early, None), "it is sent on when it comes"


@pytest.mark.parametrize(
    ("p", "before", "why"),
    [
        (waiting_for(SOON, timer=CURRENT), waiting_for(SOON), "it comes too late"),
        (waiting_for(NOW_MS, timer=CURRENT), waiting_for(NOW_MS), "what is overdue is looked at earlier"),
        (waiting_for(LATER, LATEST, timer=CURRENT), waiting_for(LATER), "another worker may have used it up"),
        (waiting_for(LATER, timer=CURRENT), None, "what waited is unknown"),
    ],
)
def test_a_timer_that_is_too_late_is_replaced(p: SagaProgress, before: SagaProgress | None, why: str) -> None:
    after, timer = timers.set_timer(p, before, NOW_MS)
    assert timer is not None, why
    assert timer == after.timer == CurrentTimer(id="wake-7", due_ms=timers.compute_next_check(p, NOW_MS) or 0)


def test_the_timer_is_removed_with_the_last_parked_run() -> None:
    done = replace(blank(), timer=CURRENT)
    assert timers.set_timer(done, waiting_for(LATER), NOW_MS) == (replace(done, timer=None), None)
    assert timers.set_timer(blank(), blank(), NOW_MS) == (blank(), None)


# ---------------------------------------------------------------- where a turn ends

WAKE = SagaTimer(
    id=CURRENT.id, type=TIMER_TYPE, schema="", saga="s", source="svc", time=A.time, value=b"", due_ms=LATER
)
NO_MESSAGE = replace(A, id="", type="")


def following(p: SagaProgress, message: Message, *, certain: bool = True) -> Action:
    return choose_next_action(p, ROLES, Trigger(message=message), NOW, certain)


def entered(p: SagaProgress, handler: str, message: Message) -> SagaProgress:
    return replace(p, inbox={**p.inbox, ids.inbox_entry(message.id, handler): 0})


def test_an_early_current_timer_is_forwarded_to_the_next_due_time() -> None:
    assert following(waiting_for(LATER, LATEST, timer=CURRENT), WAKE) == ForwardTimer(LATER)
    assert following(waiting_for(LATEST, timer=CURRENT), WAKE) == ForwardTimer(LATEST), "what it was for has ended"


def test_a_timer_that_is_not_the_current_one_is_complete() -> None:
    p = waiting_for(LATER, timer=CURRENT)
    assert following(p, replace(WAKE, id="wake-2")) == Complete()
    assert following(replace(blank(), n=1), WAKE) == Complete()


def test_a_timer_of_an_unknown_saga_is_repeated_until_the_retention_has_passed() -> None:
    assert following(blank(), WAKE) == ForwardTimer(LATER, LATER), "before its time"
    assert following(blank(), WAKE, certain=False) == LoadProgress()
    for overdue_ms, again_ms in ((0, 1000), (999, 1000), (5000, 5000), (10**9 - 1, 86_400_000), (10**9, 86_400_000)):
        first_ms = NOW_MS - overdue_ms
        late, again = replace(WAKE, due_ms=first_ms), replace(WAKE, due_ms=NOW_MS, unknown_ms=first_ms)
        assert following(blank(), late) == following(blank(), again) == ForwardTimer(NOW_MS + again_ms, first_ms)
    assert following(blank(), replace(WAKE, due_ms=NOW_MS, unknown_ms=NOW_MS - 10**9 - 1)) == Complete()


def test_a_timer_of_a_saga_that_has_only_begun_is_known() -> None:
    assert following(replace(blank(), intents=(an_intent("first", A),)), WAKE) == Complete()


def test_a_message_that_no_handler_takes_forwards_the_current_timer() -> None:
    assert following(waiting_for(LATER, timer=CURRENT), NO_MESSAGE) == ForwardTimer(LATER)
    assert following(blank(), NO_MESSAGE) == Complete()


def test_a_message_does_not_change_the_timer() -> None:
    p = replace(waiting_for(LATER, timer=CURRENT), queue=(parked("first", A, LATER), kept("second", B)))
    assert following(p, B) == Complete()
    assert following(p, B, certain=False) == LoadProgress()


@pytest.mark.parametrize("wake", [None, replace(CURRENT, due_ms=LATER + 1)])
def test_an_overdue_run_sets_a_new_timer_only_on_a_loaded_progress(wake: CurrentTimer | None) -> None:
    p = replace(entered(waiting_for(LATER, timer=wake), "first", A), queue=(parked("second", B),))
    assert following(p, A) == RescheduleTimer()
    written = record_decision(p, a_hand(A, roles=ROLES), RescheduleTimer())
    assert written.snapshot.timer is not None
    assert written.snapshot.timer.due_ms == LATER
    assert following(p, A, certain=False) == LoadProgress()
    assert following(replace(p, timer=CURRENT), A, certain=False) == Complete()


def test_a_due_run_starts_on_a_cached_progress() -> None:
    due = waiting_for(NOW_MS, timer=CURRENT)
    assert isinstance(following(due, WAKE, certain=False), RunHandler)
    assert isinstance(following(due, WAKE), RunHandler)


def test_a_timer_without_work_is_complete_only_on_a_loaded_progress() -> None:
    for p in (blank(), waiting_for(LATER, timer=CURRENT), waiting_for(LATER)):
        assert following(p, WAKE, certain=False) == LoadProgress()


def test_a_redelivered_parked_outcome_waits_for_its_time() -> None:
    p = replace(blank(), results=(RESULT,), timer=CURRENT)
    p = entered(p, compensation_name("other"), FAILED)
    assert following(replace(p, compensating=(parked("reserve", FAILED),)), FAILED) == Complete()
    for due_ms in (0, NOW_MS):
        p = replace(p, compensating=(parked("reserve", FAILED, due_ms),))
        assert following(p, FAILED) == Compensate(RESERVE, FAILED, RESULT)


# ---------------------------------------------------------------- what is ready


def test_the_parked_head_is_ready_at_its_time_and_blocks_those_behind_it() -> None:
    p = replace(blank(), queue=(parked("first", A), kept("second", B)))
    assert decisions.find_next_ready(p, ROLES, LATER - 1) is None
    assert decisions.find_next_ready(p, ROLES, LATER) == RunHandler(FIRST, A, (A,))
    assert decisions.explain_block(p, "second") == "first has failed and is tried again"
    assert decisions.is_blocked(p, "second", B)


def test_a_begun_run_resumes_at_its_time() -> None:
    intent = an_intent("first", A)
    p = replace(blank(), queue=(parked("first", A), kept("second", B)), intents=(intent,))
    assert decisions.find_next_ready(p, ROLES, LATER - 1) is None
    assert decisions.find_next_ready(p, ROLES, LATER) == RunHandler(FIRST, A, (A,), intent)
    assert decisions.explain_block(p, "second") == "first has failed and is tried again"


def test_a_parked_compensation_does_not_block_others() -> None:
    p = replace(blank(), results=(RESULT,), compensating=(parked("reserve", FAILED), kept("other", FAILED)))
    ready = decisions.find_next_ready(p, ROLES, LATER - 1)
    assert ready is not None
    assert ready.role is OTHER
    assert decisions.find_next_ready(p, ROLES, LATER) == Compensate(RESERVE, FAILED, RESULT)
    alone = replace(p, compensating=p.compensating[:1])
    assert decisions.find_next_ready(alone, ROLES, LATER - 1) is None


BEGUN = {k: an_intent(k, m) for k, m in (("first", A), ("second", B), ("expire", A), ("look", A))}
EXPIRE, LOOK = dataclasses.replace(a_role("expire", "A"), within_ms=5000), a_role("look", "A")
HEADS = (None, parked("first", A), kept("first", A, dead="d"))
BEHIND = (None, parked("second", B), kept("second", B, dead="d"))
UNDOINGS = (None, parked("reserve", FAILED), kept("reserve", FAILED, dead="d"))


@pytest.mark.parametrize("begun", [None, *BEGUN])
def test_behind_a_dead_letter_only_timed_runs_have_a_timer(begun: str | None) -> None:
    roles = roles_of(FIRST, SECOND, RESERVE, EXPIRE, LOOK, outcomes="Failed FailedToo", emitted="R")
    deadline = PendingMessage(handler="expire", message=A, n=0, due_ms=SOON)
    for head, behind, undoing, opened, later in product(HEADS, BEHIND, UNDOINGS, (None, deadline), (False, True)):
        p = replace(
            blank(),
            queue=tuple(k for k in (head, behind) if k),
            compensating=(undoing,) if undoing else (),
            results=(RESULT,) if undoing else (),
            deadlines=(opened,) if opened else (),
            suspended_runs=(replace(a_turn(NOW_MS, SOON), handler="look"),) if later else (),
        )
        kept_for = {k.handler for k in (*p.queue, *p.deadlines)} | {c.handler for c in p.suspended_runs}
        if begun in kept_for:
            p = replace(p, intents=(BEGUN[begun],))
        if p.is_quarantined:
            assert bool(timers.find_timed_work(p)) == (decisions.find_next_ready(p, roles, LATEST) is not None), p


def test_a_dead_letter_removes_the_timer_of_blocked_runs_and_its_replay_sets_another() -> None:
    deadline = PendingMessage(handler="expire", message=A, n=0, due_ms=NOW_MS - 5000)
    free = replace(blank(), n=7, deadlines=(deadline,), timer=replace(CURRENT, due_ms=NOW_MS))
    held_up = replace(free, queue=(kept("second", B, dead="d"),))
    assert timers.set_timer(held_up, free, NOW_MS) == (replace(held_up, timer=None), None)
    replayed = replace(held_up, queue=(kept("second", B),), timer=None)
    assert timers.set_timer(replayed, held_up, NOW_MS)[1] == CurrentTimer(id="wake-7", due_ms=NOW_MS), "it is overdue"


# ---------------------------------------------------------------- what is written down

HISTORY = (
    FailedAttempt(time=A.time, ms=5, reason="first"),
    FailedAttempt(time=A.time, ms=6, reason="why", worker="svc-1"),
)
FAILURE = RunFailure(reason="why", remedy="-", attempts=6, history=HISTORY, where="here")


def park(p: SagaProgress, action: HandlerAction, intent: Intent | None = None, *, due_ms: int = LATER) -> Commit:
    write_context = replace(a_hand(action.message, roles=ROLES), before=p)
    return failed_attempts.park(p, write_context, action, FAILURE, intent, due_ms=due_ms)


def test_a_parked_run_moves_to_the_head_with_its_attempts_and_its_failures_are_recorded() -> None:
    p = replace(blank(), n=7, queue=(kept("second", B, 3),), waiting=(kept("first", A, 2), kept("second", A, 2)))
    written = park(p, RunHandler(FIRST, A, (A,)))
    assert written.snapshot.queue == (
        PendingMessage(handler="first", message=A, n=2, attempts=6, due_ms=LATER, delay_ms=LATER - NOW_MS),
        kept("second", B, 3),
    )
    assert [k.handler for k in written.snapshot.waiting] == ["second"]
    entry = written.entry
    assert entry is not None
    assert (entry.outcome, entry.handler, entry.reason, entry.attempt) == ("retrying", "first", "why", 6)
    assert (entry.failures, entry.letters, entry.events) == (HISTORY, (), ())
    assert entry.timer == written.snapshot.timer == CurrentTimer(id="wake-7", due_ms=LATER)
    again = park(written.snapshot, RunHandler(FIRST, A, (A,)), due_ms=LATEST).snapshot
    assert [(k.handler, k.n, k.due_ms) for k in again.queue] == [("first", 2, LATEST), ("second", 3, 0)]
    assert again.timer == CurrentTimer(id="wake-8", due_ms=LATEST)


def test_a_parked_message_of_a_repeating_handler_stays_before_later_ones() -> None:
    many, again = a_role("many", "A", many=True), a_message("A", id="A-again")
    roles = roles_of(many)
    p = replace(blank(), n=7, waiting=(kept("many", A, 2), kept("many", again, 3)))
    p = park(p, RunHandler(many, A, (A,))).snapshot
    assert [(k.n, k.due_ms) for k in p.queue] == [(2, LATER)]
    assert decisions.find_next_ready(p, roles, LATER - 1) is None
    assert decisions.find_next_ready(p, roles, LATER) == RunHandler(many, A, (A,))


def test_a_run_that_is_parked_again_keeps_its_recorded_values() -> None:
    begun = an_intent("first", A)
    call = StepRecord(kind="step", name="ask", number=0, input="-")
    other = an_intent("second", B)
    p = replace(blank(), n=2, intents=(begun, other))
    written = park(p, RunHandler(FIRST, A, (A,), begun), replace(begun, calls=(call,)))
    assert written.snapshot.intents == (replace(begun, calls=(call,)), other)
    assert written.entry is not None
    assert written.entry.calls == (), "the transition that ends the run has them"


def test_a_compensation_is_parked_in_place_or_behind_the_others() -> None:
    action = Compensate(RESERVE, FAILED, RESULT)
    p = replace(
        blank(), n=7, queue=(kept("second", B, 1),), results=(RESULT,), compensating=(kept("other", FAILED, 5),)
    )
    written = park(p, action)
    assert written.snapshot.compensating == (
        kept("other", FAILED, 5),
        replace(parked("reserve", FAILED, n=7, attempts=6), delay_ms=LATER - NOW_MS),
    )
    assert [k.handler for k in written.snapshot.queue] == ["second"]
    assert written.entry is not None
    assert (written.entry.handler, written.entry.outcome) == ("release", "retrying")
    alone = park(replace(p, queue=()), action)
    assert alone.entry is not None
    assert alone.entry.timer == alone.snapshot.timer == CurrentTimer(id="wake-7", due_ms=LATER)
    others = (kept("other", FAILED, 3), kept("reserve", FAILED, 4), kept("reserve", FAILED_TOO, 5))
    again = park(replace(p, compensating=others), action).snapshot
    assert again.compensating == (
        others[0],
        replace(parked("reserve", FAILED, n=4, attempts=6), delay_ms=LATER - NOW_MS),
        others[2],
    )


def test_a_new_timer_replaces_one_that_would_come_too_late() -> None:
    late = replace(CURRENT, due_ms=LATEST)
    p = waiting_for(LATER, timer=late)
    written = journal.reschedule_timer(p, replace(a_hand(B), before=p))
    assert written.snapshot.timer == CurrentTimer(id="wake-7", due_ms=LATER)
    assert written.entry is not None
    assert (written.entry.outcome, written.entry.handler, written.entry.message) == ("waiting", "", B.id)
    assert written.entry.timer == written.snapshot.timer


def test_a_finished_run_removes_its_timer() -> None:
    p = waiting_for(NOW_MS, timer=CURRENT)
    written = journal.complete_run(
        p, replace(a_hand(A, roles=ROLES), before=p), FIRST, TransitionDetails(message=A, parts=(A,))
    )
    assert (written.snapshot.queue, written.snapshot.timer) == ((), None)
    assert written.entry is not None
    assert written.entry.timer is None


def test_the_next_result_is_undone_as_if_nothing_had_failed() -> None:
    others = (parked("other", FAILED), kept("reserve", FAILED_TOO))
    p = replace(blank(), results=(RESULT, RESULT_TOO), compensating=(parked("reserve", FAILED, NOW_MS), *others))
    ended = TransitionDetails(message=FAILED, cause=RESULT_TOO.event.id)
    written = compensation.complete_compensation(
        p, replace(a_hand(FAILED, roles=ROLES), before=p), RESERVE, RESULT_TOO, ended
    )
    assert written.snapshot.compensating == (kept("reserve", FAILED), *others)


# ---------------------------------------------------------------- what is published again


def entries(*transitions: Transition) -> SagaProgress:
    """A progress with these transitions, none known as published."""
    written = blank()
    for entry in transitions:
        written = replace(written, transitions=(*written.transitions, Raw(encode(entry))))
    return replace(written, n=len(transitions))


def an_entry(n: int, **more: object) -> Transition:
    whole = Transition(
        n=n, previous="", time=A.time, outcome="waiting", handler="-", message=A.id, type="A", source="-"
    )
    return replace(whole, **more)


def test_a_timer_is_among_what_readers_publish_unless_it_is_being_handled() -> None:
    event = EmittedEvent(id="e", type="R", schema="-", value=b"")
    p = replace(entries(an_entry(0, timer=CURRENT), an_entry(1), an_entry(2, events=(event,))), timer=CURRENT)
    assert [entry.n for entry in history.find_unpublished(p, lambda position: False, A.id)] == [0, 2]
    assert [entry.n for entry in history.find_unpublished(p, lambda position: False, CURRENT.id)] == [2]


def test_the_earliest_due_time_may_be_past_or_future() -> None:
    assert timers.find_earliest_ms(blank()) is None
    waits = [replace(kept("on_a", a_message("A", id=f"a{n}")), due_ms=NOW_MS + n) for n in (-5, 5)]
    assert timers.find_earliest_ms(replace(blank(), queue=tuple(waits))) == NOW_MS - 5


def test_a_timer_set_by_a_clock_that_is_ahead_is_too_late() -> None:
    p = replace(blank(), queue=(replace(kept("on_a", a_message("A")), due_ms=NOW_MS + 5),))
    assert not timers.is_timer_too_late(p, NOW_MS)
    assert not timers.is_timer_too_late(replace(p, timer=CurrentTimer(id="wake-0", due_ms=NOW_MS + 5)), NOW_MS)
    assert timers.is_timer_too_late(replace(p, timer=CurrentTimer(id="wake-0", due_ms=NOW_MS + 6)), NOW_MS)


# ---------------------------------------------------------------- clocks that were wrong

YEAR_MS = 365 * 86_400_000


def test_no_run_waits_longer_than_its_delay_whatever_clock_set_its_time() -> None:
    ahead = NOW_MS + YEAR_MS
    expire = a_role("expire", "A")
    roles = roles_of(FIRST, dataclasses.replace(expire, within_ms=900_000))
    p = replace(
        blank(),
        queue=(PendingMessage(handler="first", message=B, n=0, attempts=1, due_ms=ahead + 5000, delay_ms=5000),),
        compensating=(
            PendingMessage(handler="first", message=FAILED, n=0, attempts=1, due_ms=ahead + 7000, delay_ms=7000),
        ),
        deadlines=(
            PendingMessage(handler="expire", message=A, n=0, due_ms=ahead + 900_000),
            PendingMessage(handler="expire", message=B, n=0, attempts=1, due_ms=ahead + 9000, delay_ms=9000),
            PendingMessage(handler="gone", message=B, n=0, due_ms=ahead),
        ),
        suspended_runs=(a_turn(ahead, ahead + 60_000), replace(a_turn(ahead, ahead + 8000), attempts=1, delay_ms=8000)),
        timer=CurrentTimer(id="wake-0", due_ms=ahead + 5000),
    )
    at = timers.limit_delays(p, roles, NOW_MS)
    left = [k.due_ms - NOW_MS for k in (*at.queue, *at.compensating, *at.deadlines)]
    assert left == [5000, 7000, 900_000, 9000, YEAR_MS], "what a later release has declared is its own"
    assert [c.due_ms - NOW_MS for c in at.suspended_runs] == [60_000, 8000]
    assert at.deadlines[0].delay_ms == 0
    assert timers.limit_delays(at, roles, NOW_MS) is at, "it is bounded once"
    assert timers.limit_delays(at, roles, NOW_MS - timers.AHEAD_MS) is at, "clocks may differ by a little"


def test_a_timer_with_a_wrong_time_is_replaced_and_runs_get_their_own_delay() -> None:
    ahead = NOW_MS + YEAR_MS
    k = PendingMessage(handler="first", message=A, n=0, attempts=1, due_ms=ahead + 5000, delay_ms=5000)
    p = replace(blank(), n=1, queue=(k,), timer=CurrentTimer(id="wake-0", due_ms=ahead + 5000))
    wake = replace(a_message("saga.wake"), id="wake-0", type=TIMER_TYPE, time=iso(NOW_MS))
    assert choose_next_action(p, ROLES, Trigger(message=wake), NOW, True) == RescheduleTimer()
    written = journal.reschedule_timer(p, replace(a_hand(wake, roles=ROLES), before=p))
    assert written.entry is not None
    assert written.entry.timer is not None
    assert written.entry.timer.due_ms == NOW_MS + 5000 == written.snapshot.queue[0].due_ms


def test_a_clock_behind_the_current_message_changes_no_time_and_repeats_the_timer_soon() -> None:
    ahead = NOW_MS + YEAR_MS
    k = PendingMessage(handler="first", message=A, n=0, attempts=1, due_ms=ahead + 5000, delay_ms=5000)
    p = replace(blank(), n=1, queue=(k,), timer=CurrentTimer(id="wake-0", due_ms=NOW_MS))
    wake = replace(a_message("saga.wake"), id="wake-0", type=TIMER_TYPE, time=iso(ahead))
    assert choose_next_action(p, ROLES, Trigger(message=wake), NOW, True) == ForwardTimer(NOW_MS + 5000)
    written = journal.reschedule_timer(p, replace(a_hand(wake, roles=ROLES), before=p))
    assert written.snapshot.queue == (k,)


def a_turn(seen_ms: int, due_ms: int) -> SuspendedRun:
    return SuspendedRun(handler="first", parts=(A,), n=0, turn=1, first_ms=seen_ms, seen_ms=seen_ms, due_ms=due_ms)
