"""Suspended runs: when each resumes, with what, and what is written about it."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

from saga.messages import Message
from saga.messaging.operator_commands import OperatorCommand, type_of
from saga.progress import compensation, failed_attempts, journal, operator_commands, suspended_runs, timers
from saga.progress.actions import (
    Abort,
    Action,
    BeginAbort,
    CloseHandler,
    Compensate,
    Complete,
    Discard,
    Enqueue,
    Ignore,
    KeepPending,
    Now,
    Reject,
    RunHandler,
    Trigger,
)
from saga.progress.decisions import decide, decide_compensation, find_next_ready, find_parts, is_message_known
from saga.progress.document import (
    CONTINUED,
    PLAIN,
    TIMED,
    AbortAction,
    CompensableResult,
    CurrentTimer,
    PendingMessage,
    SagaProgress,
    SelfConsumedEvent,
    StepRecord,
    SuspendedRun,
    compute_format,
    decode_transition,
)
from saga.progress.failed_attempts import RunFailure
from saga.progress.handlers import CompensationRole, HandlerRole, HandlerRoles
from saga.progress.journal import CALLS_MAX, TransitionDetails, WriteContext
from saga.progress.next_action import choose_next_action
from saga.progress.takeover import find_undeclared
from tests.progress.pieces import NOW_MS, a_hand, a_message, a_role, an_intent, blank, kept, ran, roles_of

A, B, E, F = (a_message(type_) for type_ in "ABEF")
E2, W = a_message("E", "E-2"), a_message("W", "wake-4")
UNDO = CompensationRole(name="release", outcomes=frozenset("F"), results=frozenset("R"))
LOOK = HandlerRole(name="look", takes=(frozenset("A"),), optional=(frozenset("E"),))
BOTH = HandlerRole(name="both", takes=(frozenset("A"), frozenset("B")), undo=UNDO)
EACH = HandlerRole(name="each", takes=(frozenset("A"),), many=True)
EACH_OF_TWO = HandlerRole(name="each", takes=(frozenset("A"), frozenset("B")), many=True)
NOW = Now(NOW_MS, retention_s=10**6)
STEP = StepRecord(kind="step", name="post", number=1, input="x", value=Raw(b"7"))


def roles(*handlers: HandlerRole) -> HandlerRoles:
    return roles_of(*handlers, outcomes="F")


def going(role: HandlerRole = LOOK, *parts: Message, due_ms: int = NOW_MS, n: int = 1) -> SuspendedRun:
    return SuspendedRun(
        handler=role.name,
        parts=parts or (A,),
        n=n,
        turn=1,
        first_ms=NOW_MS - 50,
        seen_ms=NOW_MS - 50,
        due_ms=due_ms,
        last_message="A-1",
    )


def with_(
    *later: SuspendedRun, waiting: Sequence[PendingMessage] = (), queue: Sequence[PendingMessage] = ()
) -> SagaProgress:
    return replace(
        blank(), n=5, published=5, suspended_runs=later, waiting=tuple(waiting), queue=tuple(queue), format=CONTINUED
    )


def ready(p: SagaProgress, *handlers: HandlerRole, in_hand: str | None = None) -> Action | None:
    return find_next_ready(p, roles(*handlers), NOW_MS, in_hand)


# ---------------------------------------------------------------- when it goes on


def test_a_suspended_run_resumes_at_its_time() -> None:
    c = going()
    assert ready(with_(c), LOOK) == RunHandler(LOOK, A, (A,), goes_on=c)
    assert ready(with_(going(due_ms=NOW_MS + 1)), LOOK) is None


def test_the_suspended_run_with_the_earliest_time_resumes_first() -> None:
    early, late = going(EACH, a_message("A", "early"), due_ms=NOW_MS - 9), going(EACH, A)
    assert ready(with_(late, early), EACH) == RunHandler(EACH, early.parts[0], early.parts, goes_on=early)


def test_a_suspended_run_does_not_resume_during_the_message_that_suspended_it() -> None:
    c = going()
    assert ready(with_(c), LOOK, in_hand="A-1") is None
    assert ready(with_(c), LOOK, in_hand="wake-1") is not None


def test_an_awaited_event_resumes_a_suspended_run_before_its_time() -> None:
    c = replace(going(due_ms=NOW_MS + 9), awaited_types=("E",))
    p = with_(c, waiting=[kept("look", E, 3)])
    assert ready(p, LOOK, in_hand="A-1") == RunHandler(LOOK, A, (A, E), goes_on=c)
    assert ready(with_(c), LOOK) is None
    assert ready(with_(replace(c, awaited_types=()), waiting=[kept("look", E, 3)]), LOOK) is None, "it waits for a time"


def test_an_awaited_event_is_not_hidden_by_an_earlier_one_of_the_same_parameter() -> None:
    either = dataclasses.replace(LOOK, optional=(frozenset("EB"),))
    c = replace(going(either, due_ms=NOW_MS + 9), awaited_types=("E",))
    p = with_(c, waiting=[kept("look", B, 3), kept("look", E, 4), kept("look", E2, 5)])
    assert ready(p, either, in_hand="A-1") == RunHandler(either, A, (A, E), goes_on=c)
    assert ready(with_(c, waiting=[kept("look", B, 3)]), either) is None, "B is not what it waits for"
    timed = with_(replace(c, due_ms=NOW_MS), waiting=[kept("look", B, 3)])
    assert ready(timed, either) == RunHandler(either, A, (A, B), goes_on=timed.suspended_runs[0])
    whichever = replace(c, awaited_types=("B", "E"))
    assert ready(with_(whichever, waiting=p.waiting), either) == RunHandler(either, A, (A, B), goes_on=whichever)


def test_a_failed_turn_waits_for_its_next_attempt_despite_an_awaited_event() -> None:
    c = replace(going(due_ms=NOW_MS + 9), awaited_types=("E",), attempts=1)
    assert ready(with_(c, waiting=[kept("look", E, 3)]), LOOK) is None


def test_each_turn_gets_the_first_event_that_no_turn_has_had() -> None:
    p = with_(going(), waiting=[kept("look", E2, 4), kept("look", E, 3), kept("other", E, 2)])
    assert suspended_runs.find_optional_messages(p, LOOK) == (E,)
    own = replace(
        p,
        waiting=(),
        self_consumed=(
            SelfConsumedEvent(event=E2, n=3),
            SelfConsumedEvent(event=B, n=1),
            SelfConsumedEvent(event=E, n=4),
        ),
    )
    assert suspended_runs.find_optional_messages(own, LOOK) == (E2,)
    had = replace(own, inbox=journal.add_to_inbox(own, a_hand(A), "look", [E2.id]))
    assert suspended_runs.find_optional_messages(had, LOOK) == (E,)
    assert suspended_runs.find_optional_messages(with_(), LOOK) == ()


@pytest.mark.parametrize(
    "p",
    [
        with_(going(), queue=[kept("other", B)]),
        replace(with_(going()), intents=(an_intent("other", B),)),
        replace(with_(going()), compensating=(kept("look", F),)),
    ],
)
def test_a_suspended_run_waits_while_other_runs_are_open(p: SagaProgress) -> None:
    found = ready(p, LOOK, a_role("other", "B", undo=UNDO), in_hand="B-1")
    assert not isinstance(found, RunHandler) or found.goes_on is None


def test_a_begun_turn_is_finished_at_any_time_unless_it_is_parked() -> None:
    c = going(due_ms=NOW_MS + 9)
    intent = an_intent("look", A, E)
    p = replace(with_(c), intents=(intent,))
    assert ready(p, LOOK) == RunHandler(LOOK, A, (A, E), intent, c)
    assert ready(replace(p, suspended_runs=(replace(c, attempts=1),)), LOOK) is None
    assert ready(replace(p, suspended_runs=(replace(c, attempts=1, due_ms=NOW_MS),)), LOOK) == RunHandler(
        LOOK, A, (A, E), intent, replace(c, attempts=1, due_ms=NOW_MS)
    )
    dead = replace(p, queue=(kept("look", A, dead="d"),))
    assert ready(dead, LOOK) is None


def test_a_closed_suspended_run_never_resumes() -> None:
    closed = replace(with_(going()), closed=("look",))
    assert ready(closed, LOOK) == Ignore(LOOK, A, "its compensation has closed this handler")
    begun = replace(closed, intents=(an_intent("look", A),))
    assert not isinstance(ready(begun, LOOK), Ignore), "it is brought to its end"
    ignored = journal.ignore_message(closed, a_hand(A, roles=roles(LOOK)), LOOK, A, "closed").snapshot
    assert (ignored.suspended_runs, ignored.format) == ((), PLAIN)
    both = replace(with_(going(BOTH, A, B)), closed=("both",))
    ignored = journal.ignore_message(both, a_hand(A, roles=roles(BOTH)), BOTH, A, "closed").snapshot
    assert len(ignored.inbox) == 2
    each = replace(with_(going(EACH_OF_TWO, A, B)), closed=("each",))
    assert len(journal.ignore_message(each, a_hand(A), EACH_OF_TWO, A, "closed").snapshot.inbox) == 1


# ---------------------------------------------------------------- what is decided on messages


def test_a_suspended_run_with_calls_waits_for_its_compensation_after_a_failure() -> None:
    c = going(BOTH)
    p = replace(with_(c), failed=("F",))
    assert isinstance(ready(p, BOTH), Ignore)
    assert isinstance(decide(p, BOTH, A), Ignore)
    begun = replace(p, suspended_runs=(replace(c, calls=(STEP,)),))
    assert ready(begun, BOTH) is None
    assert isinstance(decide(begun, BOTH, A), Enqueue)
    assert isinstance(ready(replace(begun, closed=("both",)), BOTH), Ignore)


def test_an_optional_event_is_kept_for_the_next_turn() -> None:
    for p in (blank(), with_(going()), replace(with_(going()), queue=(kept("look", B, dead="d"),))):
        assert decide(p, LOOK, E, now=NOW) == KeepPending(LOOK, E, "until look runs, and is shown it")
    assert decide(blank(), LOOK, A, now=NOW) == RunHandler(LOOK, A, (A,))
    there = replace(blank(), waiting=(kept("look", E),))
    assert decide(there, LOOK, A, now=NOW) == RunHandler(LOOK, A, (A, E))


def test_a_late_or_unused_event_of_a_finished_run_is_ignored() -> None:
    p = replace(blank(), completed_runs=(ran("look", A, "c"),))
    over = Ignore(LOOK, E, "look has run in this saga already")
    assert decide(p, LOOK, E, now=NOW) == over
    assert ready(replace(p, waiting=(kept("look", E),)), LOOK) == over
    assert ready(replace(p, waiting=(kept("look", A), kept("other", E))), LOOK) is None
    assert ready(replace(blank(), waiting=(kept("look", E),)), LOOK) is None


def test_a_message_that_cannot_be_decoded_is_run_at_once() -> None:
    assert decide(blank(), LOOK, E, now=NOW, undecodable="bytes") == RunHandler(LOOK, E, (E,))
    blocked = replace(blank(), intents=(an_intent("other", B),))
    assert isinstance(decide(blocked, LOOK, E, now=NOW, undecodable="bytes"), Enqueue)


def test_a_message_on_which_a_run_resumes_is_not_handled_again() -> None:
    p = with_(going(BOTH, A, B))
    assert is_message_known(p, roles(BOTH), A)
    assert is_message_known(p, roles(BOTH), B)
    assert not is_message_known(p, roles(BOTH), E)
    trigger = Trigger(message=A)
    woken = replace(p, timer=CurrentTimer(id="wake-4", due_ms=NOW_MS))
    assert choose_next_action(woken, roles(BOTH), trigger, Now(NOW_MS - 90, retention_s=99), certain=True) == Complete()
    other = a_message("B", "B-2", value=b"2")
    assert isinstance(decide(p, BOTH, other, now=NOW), Reject)
    assert isinstance(decide(p, BOTH, replace(other, value=b"1"), now=NOW), Ignore)
    assert decide(with_(going(EACH)), EACH, replace(A, id="A-2"), now=NOW) == RunHandler(
        EACH, replace(A, id="A-2"), (replace(A, id="A-2"),)
    )


def test_self_consumed_events_on_which_a_run_resumes_are_no_parts_of_another() -> None:
    p = replace(
        with_(going(BOTH, A, B)), self_consumed=(SelfConsumedEvent(event=A, n=0), SelfConsumedEvent(event=B, n=1))
    )
    assert list(find_parts(p, BOTH, 0)) == []
    assert ready(p, BOTH, in_hand="A-1") is None
    many = replace(
        with_(going(EACH_OF_TWO, A, B)),
        self_consumed=(SelfConsumedEvent(event=A, n=0), SelfConsumedEvent(event=B, n=1)),
    )
    assert list(find_parts(many, EACH_OF_TWO, 0)) == []
    assert list(find_parts(many, EACH_OF_TWO, 1)) == [(1, B)], "the others stay for each"


def test_a_replayed_dead_turn_runs_as_a_turn() -> None:
    c = going(due_ms=NOW_MS + 9)
    p = with_(c, queue=[kept("look", A)])
    assert ready(p, LOOK) == RunHandler(LOOK, A, (A,), goes_on=c)
    blocked = replace(p, intents=(an_intent("other", B),))
    assert ready(blocked, LOOK, a_role("other", "B")) is None
    with_intent = replace(p, intents=(an_intent("look", A),))
    assert ready(with_intent, LOOK) == RunHandler(LOOK, A, (A,), with_intent.intents[0], c)


def test_a_failed_turn_moves_its_time_and_blocks_no_other_run() -> None:
    c, other = going(), going(EACH, a_message("A", "other"))
    p = with_(c, other)
    failure = RunFailure(reason="why", remedy="", attempts=3, under={"bank": 2})
    after = failed_attempts.park(
        p, a_hand(A), RunHandler(LOOK, A, (A,), goes_on=c), failure, None, due_ms=NOW_MS + 70
    ).snapshot
    moved = replace(c, attempts=3, under={"bank": 2}, due_ms=NOW_MS + 70, delay_ms=70)
    assert (after.suspended_runs, after.queue) == ((moved, other), ())
    replayed = replace(p, queue=(kept("look", A),))
    at_its_place = failed_attempts.park(
        replayed, a_hand(A), RunHandler(LOOK, A, (A,), goes_on=c), failure, None, due_ms=NOW_MS + 70
    )
    assert [k.due_ms for k in at_its_place.snapshot.queue] == [NOW_MS + 70]
    assert at_its_place.snapshot.suspended_runs == (c, other)


# ---------------------------------------------------------------- what is written


def write_context(p: SagaProgress, message: Message, *handlers: HandlerRole) -> WriteContext:
    return replace(a_hand(message, roles=roles(*handlers)), before=p)


def turn_of(p: SagaProgress, role: HandlerRole, *parts: Message, **did: Any) -> SagaProgress:
    """The progress after a turn on these parts."""
    c = next(iter(p.suspended_runs), None)
    cause = suspended_runs.compute_cause(parts[: len(role.takes)], c)
    ended = TransitionDetails(message=parts[0], cause=cause, parts=parts, delta={"x": 1}, **did)
    needed = parts[: len(role.takes)]
    following = replace(going(role, *needed), turn=1 if c is None else c.turn + 1)
    return journal.suspend_run(p, write_context(p, W, role), role, ended, following).snapshot


def test_each_turn_has_a_cause_of_its_own() -> None:
    assert suspended_runs.compute_cause((A,), None) == A.id
    assert suspended_runs.compute_cause((B, A), None) == f"{A.id}+{B.id}"
    assert suspended_runs.compute_cause((A,), replace(going(), turn=3)) == f"{A.id}~3"


def test_a_turn_keeps_the_events_of_its_run_and_removes_those_it_was_given() -> None:
    p = replace(blank(), waiting=(kept("look", E, 1), kept("look", E2, 2)), intents=(an_intent("look", A),), n=3)
    after = turn_of(p, LOOK, A, E, shown=(E.id,))
    (c,) = after.suspended_runs
    assert (c.parts, c.turn, c.n, c.last_message) == ((A,), 1, 3, W.id)
    assert [k.message for k in after.waiting] == [E2]
    assert len(after.inbox) == 1
    assert (after.intents, after.completed_runs, after.state, after.format, after.is_open) == (
        (),
        (),
        {"x": 1},
        CONTINUED,
        True,
    )
    assert after.timer is not None
    assert after.timer.due_ms == NOW_MS, "what goes on at once is woken at once"
    assert decode_transition(after.transitions[-1]).ran
    again = turn_of(after, LOOK, A, E2, shown=(E2.id,))
    assert [(c.turn, c.n) for c in again.suspended_runs] == [(2, 4)]


def test_the_last_turn_ends_the_run() -> None:
    p = with_(going(BOTH, A, B))
    ended = TransitionDetails(message=A, cause=f"{A.id}~1", parts=(A, B))
    after = journal.complete_run(p, write_context(p, W, BOTH), BOTH, ended).snapshot
    assert (after.suspended_runs, after.format, after.timer) == ((), PLAIN, None)
    assert len(after.inbox) == len(after.completed_runs) == 2
    p = with_(going(), waiting=[kept("look", E)])
    after = journal.complete_run(
        p, write_context(p, W, LOOK), LOOK, TransitionDetails(message=A, cause="c", parts=(A, E))
    ).snapshot
    assert (after.waiting, len(after.inbox), len(after.completed_runs)) == ((), 2, 1)


def test_calls_without_a_result_that_covers_them_stay_listed() -> None:
    read, refused = replace(STEP, kind="read"), replace(STEP, name="no", answer="Declined")
    once = turn_of(blank(), BOTH, A, B, calls=(STEP, read, refused))
    assert once.suspended_runs[0].calls == (replace(STEP, value=Raw(b"null")),)
    twice = turn_of(once, BOTH, A, B, calls=(replace(STEP, name="more"),))
    assert [call.name for call in twice.suspended_runs[0].calls] == ["post", "more"]
    covered = turn_of(twice, BOTH, A, B, calls=(STEP,), events=[replace(a_message("R"), source="svc")])
    assert covered.suspended_runs[0].calls == ()
    assert [r.cause for r in covered.results] == [f"{A.id}+{B.id}~2"]
    assert turn_of(blank(), LOOK, A, calls=(STEP,)).suspended_runs[0].calls == (), "nothing undoes it"


def test_the_other_messages_of_a_repeating_handler_stay() -> None:
    p = replace(blank(), waiting=(kept("each", A), kept("each", B)))
    assert [k.message for k in turn_of(p, EACH_OF_TWO, A, B).waiting] == [B]
    last = replace(blank(), n=7, waiting=(kept("each", A),))
    assert [(k.message, k.n) for k in turn_of(last, EACH_OF_TWO, A, B).waiting] == [(B, 7)], "B has just arrived"
    behind = replace(last, queue=(kept("each", B, 3),))
    after = turn_of(behind, EACH_OF_TWO, A, B)
    assert ([(k.message, k.n) for k in after.waiting], after.queue) == ([(B, 3)], ())
    own = replace(B, source="svc")
    assert turn_of(last, EACH_OF_TWO, A, own).waiting == (), "a self-consumed event is kept as such"


def test_the_format_shows_whether_a_run_is_suspended() -> None:
    c, opened = going(), kept("expire", A)
    assert compute_format((), (opened,), (c,), 1) == CONTINUED
    assert compute_format((), (opened,), (), 1) == TIMED
    p = replace(with_(c), deadlines=(opened,))
    assert set(find_undeclared(p, roles(LOOK))) == {"handler expire"}
    assert find_undeclared(with_(c), roles()) == ("handler look",)


# ---------------------------------------------------------------- when the saga fails


def test_a_suspended_run_is_closed_and_what_its_turns_did_is_undone() -> None:
    c = going(BOTH, A, B)
    p = with_(c)
    assert decide_compensation(p, BOTH, F) == CloseHandler(BOTH, F)
    closed = compensation.close_without_results(p, write_context(p, F, BOTH), BOTH, F).snapshot
    assert (closed.suspended_runs, closed.format, closed.closed) == ((), PLAIN, ("both",))
    assert len(closed.inbox) == 3, "the outcome and both messages"
    did = with_(replace(c, calls=(STEP,)))
    assert decide_compensation(did, BOTH, F) == BeginAbort(BOTH, F)
    sealed = compensation.make_abort_intent(did, BOTH)
    assert (sealed.kind, sealed.cause, sealed.not_undone, sealed.calls) == ("lieu", f"{A.id}+{B.id}~1", (STEP,), ())
    p = journal.open_intent(did, write_context(did, F, BOTH), sealed).snapshot
    assert decide_compensation(p, BOTH, F) == Abort(BOTH, F, sealed)
    assert Abort(BOTH, F, sealed).parts == (A, B)
    written = compensation.complete_abort(p, write_context(p, F, BOTH), BOTH, F, remains=["step post ran"])
    assert written.entry is not None
    assert str(written.entry.reason).startswith("both can never finish: it never continues;")
    begun = replace(did, intents=(an_intent("both", A, B),), queue=(kept("both", A, dead="d"),))
    assert compensation.make_abort_intent(begun, BOTH).not_undone == (STEP,)


BACK = AbortAction(call="bank.give", after=1)


def test_registered_abort_actions_replace_the_calls_that_they_cover() -> None:
    more = replace(STEP, name="more")
    begun = replace(an_intent("both", A, B), calls=(STEP, more), begins=replace(STEP, name="begun"), undo_with=(BACK,))
    p = replace(blank(), intents=(begun,), queue=(kept("both", A, dead="d"),))
    sealed = compensation.make_abort_intent(p, BOTH)
    assert (sealed.kind, sealed.calls, sealed.begins, sealed.undo_with) == ("lieu", (), None, (BACK,))
    assert [call.name for call in sealed.not_undone] == ["more"], "what was done before it was recorded is covered"
    assert sealed.unanswered_call == begun.begins
    answered = replace(begun, begins=more)
    assert compensation.make_abort_intent(replace(p, intents=(answered,)), BOTH).unanswered_call is None
    never_begun = replace(begun, begins=None, calls=())
    assert compensation.make_abort_intent(replace(p, intents=(never_begun,)), BOTH).unanswered_call is None
    p = journal.open_intent(p, write_context(p, F, BOTH), sealed).snapshot
    written = compensation.complete_abort(p, write_context(p, F, BOTH), BOTH, F, remains=(), calls=(STEP,))
    assert written.entry is not None
    assert (
        written.entry.reason
        == "both can never finish: it is a dead letter; the calls given to on_abort were made instead"
    )
    assert (written.entry.calls, written.entry.letters[0].kind) == ((STEP,), "dropped")


def test_abort_actions_of_one_run_do_not_cover_the_calls_of_another() -> None:
    other = replace(going(EACH, a_message("A", "other")), calls=(replace(STEP, name="of the other"),))
    own = replace(going(EACH, A), calls=(STEP,))
    begun = replace(an_intent("each", A), undo_with=(BACK,))
    p = replace(with_(other, own), intents=(begun,), queue=(kept("each", A, dead="d"),))
    assert [call.name for call in compensation.make_abort_intent(p, EACH).not_undone] == ["of the other"]
    assert compensation.make_abort_intent(p, EACH, A.id).not_undone == ()
    plain = replace(p, intents=(an_intent("each", A),))
    assert len(compensation.make_abort_intent(plain, EACH).not_undone) == 2


def test_abort_actions_of_turns_are_kept_until_a_result_covers_them() -> None:
    postponed = replace(going(BOTH, A, B), undo_with=(BACK,))
    ended = TransitionDetails(message=A, cause="c", parts=(A, B), calls=(STEP, replace(STEP, name="more")))
    p = journal.suspend_run(blank(), write_context(blank(), W, BOTH), BOTH, ended, postponed).snapshot
    assert [call.name for call in p.suspended_runs[0].calls] == ["more"]
    assert p.suspended_runs[0].undo_with == (replace(BACK, after=0),)
    p = journal.suspend_run(p, write_context(p, W, BOTH), BOTH, replace(ended, cause="d"), postponed).snapshot
    assert [call.name for call in p.suspended_runs[0].calls] == ["more"], "those of the turn before are covered"
    assert len(p.suspended_runs[0].undo_with) == 2
    sealed = compensation.make_abort_intent(p, BOTH)
    assert ([call.name for call in sealed.not_undone], len(sealed.undo_with)) == (["more"], 2)
    assert decide_compensation(
        replace(p, suspended_runs=(replace(p.suspended_runs[0], calls=()),)), BOTH, F
    ) == BeginAbort(BOTH, F)
    begun = replace(p, intents=(replace(an_intent("both", A, B), undo_with=(BACK,)),))
    assert compensation.make_abort_intent(begun, BOTH).not_undone == ()
    result = replace(ended, cause="e", events=[replace(a_message("R"), source="svc")])
    assert (
        journal.suspend_run(p, write_context(p, W, BOTH), BOTH, result, postponed).snapshot.suspended_runs[0].undo_with
        == ()
    )


def test_beyond_a_limit_only_the_newest_calls_are_listed_and_the_rest_counted() -> None:
    p = blank()
    for n in range(2 * CALLS_MAX):
        ended = TransitionDetails(message=A, cause=f"c{n}", parts=(A, B), calls=(replace(STEP, number=n + 1),))
        p = journal.suspend_run(p, write_context(p, W, BOTH), BOTH, ended, going(BOTH, A, B)).snapshot
    first, *rest = p.suspended_runs[0].calls
    assert (first.name, first.number, len(rest)) == ("", CALLS_MAX, CALLS_MAX)
    assert [call.number for call in rest] == list(range(CALLS_MAX + 1, 2 * CALLS_MAX + 1))
    assert compensation.make_abort_intent(p, BOTH).not_undone == (first, *rest)


def test_results_of_the_turns_are_undone_first() -> None:
    result = CompensableResult(handler="both", cause="c", event=a_message("R"), self_consumed_ids=())
    did = replace(with_(replace(going(BOTH, A, B), calls=(STEP,))), results=(result,))
    assert type(decide_compensation(did, BOTH, F)) is Compensate


def test_calls_of_turns_after_the_last_result_are_aborted_with_its_compensation() -> None:
    result = CompensableResult(handler="both", cause="c", event=a_message("R"), self_consumed_ids=())
    for left, closes in ({"calls": (STEP,)}, False), ({"undo_with": (BACK,)}, False), ({}, True):
        did = replace(with_(replace(going(BOTH, A, B), **left)), results=(result,))
        p = compensation.complete_compensation(
            did, write_context(did, F, BOTH), BOTH, result, TransitionDetails(message=F, cause="c")
        ).snapshot
        assert (p.closed == ("both",), p.suspended_runs == ()) == (closes, closes)
        if not closes:
            assert [kept.message for kept in p.compensating] == [F]
            assert decide_compensation(p, BOTH, F) == BeginAbort(BOTH, F)


# ---------------------------------------------------------------- when a person ends it


def a_command() -> OperatorCommand:
    return OperatorCommand(
        id="command-1",
        type=type_of("discard"),
        schema="",
        saga="s",
        source="operator",
        time=A.time,
        value=b"",
        wanted="discard",
        dead="dead-1",
        who="ada",
        why="because",
    )


def test_a_dead_turn_is_discarded_with_its_run_and_its_calls_are_escalated() -> None:
    two = HandlerRole(name="two", takes=(frozenset("A"), frozenset("B")))
    c, head = going(two, A, B), kept("two", A, dead="dead-1")
    p = with_(c, queue=[head])
    here, command = roles_of(two), a_command()
    assert operator_commands.decide_command(p, here, command) == Discard(command, head)
    after = operator_commands.discard_message(p, a_hand(command, roles=here), command, head).snapshot
    assert (after.suspended_runs, after.queue, after.format) == ((), (), PLAIN)
    assert [(k.handler, k.message) for k in after.waiting] == [("two", B)], "another one may come in its place"
    did = with_(replace(c, calls=(STEP,)), queue=[head])
    assert operator_commands.decide_command(did, here, command) == BeginAbort(two, command)
    assert compensation.make_abort_intent(did, two, A.id).not_undone == (STEP,)
    own = with_(replace(c, parts=(A, replace(B, source="svc"))), queue=[head])
    assert operator_commands.discard_message(own, a_hand(command, roles=here), command, head).snapshot.waiting == ()
    each = with_(going(EACH_OF_TWO, A, B), queue=[kept("each", A, dead="dead-1")])
    each_head = each.queue[0]
    written = operator_commands.discard_message(each, a_hand(command, roles=roles_of(EACH_OF_TWO)), command, each_head)
    assert written.snapshot.waiting == ()


# ---------------------------------------------------------------- times


def test_a_new_turn_is_checked_at_its_time_and_an_old_one_with_growing_pauses() -> None:
    before, after = with_(), with_(going(due_ms=NOW_MS - 5000))
    assert timers.compute_next_check(after, NOW_MS, before) == NOW_MS
    assert timers.compute_next_check(after, NOW_MS, after) == timers.compute_next_check(after, NOW_MS) == NOW_MS + 5000
    soon = with_(going(due_ms=NOW_MS + 3))
    assert timers.compute_next_check(soon, NOW_MS, before) == NOW_MS + 3
    assert len(timers.find_timed_work(soon)) == 1
    dead = replace(soon, queue=(kept("look", A, dead="d"),))
    assert timers.find_timed_work(dead) == frozenset(), "a person decides when it goes on"


# ---------------------------------------------------------------- what is put off without a failed attempt


def put_off(p: SagaProgress, c: SuspendedRun, attempts: int = 0) -> SagaProgress:
    action, failure = RunHandler(LOOK, A, (A,), goes_on=c), RunFailure(reason="paused", remedy="", attempts=attempts)
    return failed_attempts.park(p, a_hand(W), action, failure, None, due_ms=NOW_MS + 60_000).snapshot


def test_a_failed_turn_that_awaits_events_is_parked_at_the_head() -> None:
    c = going()
    has_come = with_(c, waiting=[kept("look", E)])
    awaiting = replace(has_come, suspended_runs=(replace(c, awaited_types=("E",), due_ms=NOW_MS + 9),))
    begun = replace(with_(c), intents=(an_intent("look", A),))
    for p in (awaiting, begun):
        after = put_off(p, p.suspended_runs[0])
        assert [(k.handler, k.message.id, k.due_ms) for k in after.queue] == [("look", A.id, NOW_MS + 60_000)]
        assert after.suspended_runs == p.suspended_runs
        assert ready(after, LOOK) is None


def test_a_failed_turn_that_awaits_only_its_time_is_parked_in_place() -> None:
    c = going()
    after = put_off(with_(c), c)
    assert (after.queue, after.suspended_runs) == ((), (replace(c, due_ms=NOW_MS + 60_000, delay_ms=60_000),))
    failed = replace(with_(c), intents=(an_intent("look", A),))
    assert put_off(failed, c, attempts=1).queue == ()


def a_job(role: HandlerRole, message: Message, turn: int, calls: tuple[StepRecord, ...] = ()) -> SuspendedRun:
    return SuspendedRun(
        handler=role.name, parts=(message,), n=turn, turn=turn, first_ms=0, seen_ms=0, due_ms=NOW_MS, calls=calls
    )


def test_a_turn_takes_over_the_steps_of_its_own_run_only() -> None:
    undo = CompensationRole(name="undo_job", outcomes=frozenset({"X"}), results=frozenset({"R"}))
    role = a_role("job", "A", many=True, undo=undo)
    one, two = a_message("A", "one"), a_message("A", "two")
    made = StepRecord(kind="step", name="charge", number=1, input="", arguments="")
    p = replace(blank(), suspended_runs=(a_job(role, one, 1, (made,)), a_job(role, two, 1)))
    ended = TransitionDetails(message=two, parts=(two,), calls=())
    after = journal.suspend_run(p, a_hand(two, roles=roles_of(role)), role, ended, a_job(role, two, 2)).snapshot
    assert {c.parts[0].id: [call.name for call in c.calls] for c in after.suspended_runs} == {
        "one": ["charge"],
        "two": [],
    }
