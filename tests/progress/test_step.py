"""One step: what happens next of all that could, in order; and what is only written down of it."""

import pytest
from msgspec.structs import replace

from saga.messaging.operator_commands import OperatorCommand
from saga.progress import ids
from saga.progress.actions import (
    Action,
    BeginAbort,
    CloseHandler,
    Compensate,
    Complete,
    DelayCompensation,
    Enqueue,
    Ignore,
    KeepPending,
    LoadProgress,
    Now,
    RecallOverflow,
    RecordedDecision,
    Reject,
    Replay,
    RunHandler,
    Trigger,
)
from saga.progress.document import CompensableResult, Outcome, OverflowSegment, SagaProgress, SelfConsumedEvent
from saga.progress.handlers import COMMAND, CompensationRole, HandlerRole, compensation_name
from saga.progress.next_action import choose_next_action, is_message_complete, record_decision
from tests.progress.pieces import NOW_MS, a_hand, a_message, a_role, an_intent, blank, kept, roles_of

NOW = Now(NOW_MS, retention_s=10**6)
UNDO = CompensationRole(name="release", outcomes=frozenset({"Failed"}), results=frozenset({"R"}))
FIRST, SECOND = a_role("first", "A"), a_role("second", "A")
RESERVE = a_role("reserve", "B", undo=UNDO)
LISTENS = a_role("listens", "Failed")
ROLES = roles_of(FIRST, SECOND, RESERVE, LISTENS, outcomes="Failed", emitted="R Failed")
A, B, FAILED = a_message("A"), a_message("B"), a_message("Failed")
RESULT = CompensableResult(handler="reserve", cause=B.id, event=a_message("R"), self_consumed_ids=())


def entered(p: SagaProgress, name: str, message: str) -> SagaProgress:
    return replace(p, inbox={**p.inbox, ids.inbox_entry(message, name): 0})


def following(p: SagaProgress | None, trigger: Trigger, *, certain: bool = True) -> Action:
    return choose_next_action(p, ROLES, trigger, NOW, certain)


def after(p: SagaProgress, *names: str, message: str = A.id) -> SagaProgress:
    for name in names:
        p = entered(p, name, message)
    return p


# ---------------------------------------------------------------- what is read first


def test_an_unknown_progress_is_loaded() -> None:
    assert following(None, Trigger(message=A)) == LoadProgress()


def test_segments_are_searched_once_before_anything_is_decided() -> None:
    p = replace(blank(), segments=(OverflowSegment(kind="inbox", name="p", count=1, newest=0),))
    assert following(p, Trigger(message=A)) == RecallOverflow()
    assert following(p, Trigger(message=A, paged=())) == RunHandler(FIRST, A, (A,))


def test_a_message_that_a_segment_keeps_for_a_handler_stays_there() -> None:
    p = replace(blank(), segments=(OverflowSegment(kind="queue", name="p", count=1, newest=0),))
    assert following(p, Trigger(message=A, paged=("first",))) == RunHandler(SECOND, A, (A,))
    p = entered(p, "second", A.id)
    assert following(p, Trigger(message=A, paged=("first",))) == Complete()
    assert following(p, Trigger(message=A, paged=("first",)), certain=False) == LoadProgress(), "it is not in the inbox"


# ---------------------------------------------------------------- the message in hand


def test_handlers_take_the_message_in_the_order_of_declaration_each_once() -> None:
    assert following(blank(), Trigger(message=A)) == RunHandler(FIRST, A, (A,))
    assert following(after(blank(), "first"), Trigger(message=A)) == RunHandler(SECOND, A, (A,))
    assert following(after(blank(), "first", "second"), Trigger(message=A)) == Complete()


def test_a_message_that_one_handler_cannot_decode_fails_only_there() -> None:
    unknown = replace(A, started=None)
    trigger = Trigger(message=unknown, undecodable={"second": "why"})
    p = blank(started=None)
    assert isinstance(following(p, trigger), KeepPending)
    assert following(entered(p, "first", A.id), trigger) == RunHandler(SECOND, unknown, (unknown,))


def test_an_outcome_is_handled_before_anything_is_undone() -> None:
    p = replace(blank(), results=(RESULT,))
    assert following(p, Trigger(message=FAILED)) == RunHandler(LISTENS, FAILED, (FAILED,))
    p = entered(p, "listens", FAILED.id)
    assert following(p, Trigger(message=FAILED)) == Compensate(RESERVE, FAILED, RESULT)
    assert following(entered(p, compensation_name("reserve"), FAILED.id), Trigger(message=FAILED)) == Complete()


def test_an_outcome_that_waits_for_the_original_is_recorded_once() -> None:
    p = entered(replace(blank(), intents=(an_intent("reserve", B),)), "listens", FAILED.id)
    assert following(p, Trigger(message=FAILED)) == DelayCompensation(RESERVE, FAILED, known=True)
    p = replace(p, compensating=(kept("reserve", FAILED),))
    assert following(p, Trigger(message=FAILED)) == Complete()
    assert following(p, Trigger(message=FAILED), certain=False) == LoadProgress()


def test_a_compensation_that_is_a_dead_letter_is_left_to_operators() -> None:
    p = replace(blank(), results=(RESULT,), compensating=(kept("reserve", FAILED, dead="d"),))
    assert following(entered(p, "listens", FAILED.id), Trigger(message=FAILED)) == Complete()


# ---------------------------------------------------------------- what is ready, and the end


def test_ready_runs_follow_the_current_message_before_its_processing_ends() -> None:
    p = replace(blank(), queue=(kept("reserve", B),))
    assert following(after(p, "first", "second"), Trigger(message=A)) == RunHandler(RESERVE, B, (B,))
    assert isinstance(following(after(p, "first"), Trigger(message=A)), Enqueue), "first what is in hand"


def test_a_message_that_no_handler_takes_starts_ready_runs() -> None:
    trigger = Trigger(message=replace(A, id="", type=""))
    assert following(replace(blank(), queue=(kept("reserve", B),)), trigger) == RunHandler(RESERVE, B, (B,))
    assert following(blank(), trigger) == Complete()


def test_a_cached_progress_ends_processing_only_by_its_inbox() -> None:
    p = after(blank(), "first", "second")
    assert following(p, Trigger(message=A), certain=False) == Complete()
    p = replace(entered(blank(), "first", A.id), queue=(kept("other", B, dead="d"), kept("second", A)))
    assert following(p, Trigger(message=A), certain=False) == LoadProgress(), "what is kept may be due by now"
    assert following(p, Trigger(message=A), certain=True) == Complete()


ALONE = roles_of(FIRST, RESERVE, outcomes="Failed", emitted="R Failed")
ENDED = entered(blank(), "first", A.id)


def test_processing_that_leaves_nothing_open_is_complete() -> None:
    assert is_message_complete(ENDED, ALONE, Trigger(message=A))
    assert choose_next_action(ENDED, ALONE, Trigger(message=A), NOW, True) == Complete()


@pytest.mark.parametrize(
    "p",
    [
        blank(),
        replace(ENDED, intents=(an_intent("reserve", B),)),
        replace(ENDED, queue=(kept("reserve", B),)),
        replace(ENDED, waiting=(kept("reserve", B),)),
        replace(ENDED, self_consumed=(SelfConsumedEvent(event=B, n=0),)),
        replace(ENDED, compensating=(kept("reserve", FAILED),)),
        replace(ENDED, segments=(OverflowSegment(kind="queue", name="p", count=1, newest=0),)),
    ],
)
def test_processing_with_open_work_is_not_complete(p: SagaProgress) -> None:
    assert not is_message_complete(p, ALONE, Trigger(message=A))


def test_a_message_for_several_handlers_is_not_complete_after_one() -> None:
    assert not is_message_complete(after(blank(), "first", "second"), ROLES, Trigger(message=A))
    assert not is_message_complete(entered(blank(), "listens", FAILED.id), ROLES, Trigger(message=FAILED)), (
        "it undoes something"
    )


# ---------------------------------------------------------------- what is only written down

DEAD = replace(blank(), queue=(kept("reserve", B, dead="d"),), intents=(an_intent("reserve", B),))


@pytest.mark.parametrize(
    ("action", "outcome", "handler"),
    [
        (Ignore(FIRST, A, "why"), "ignored", "first"),
        (Reject(FIRST, A, "why", "mend"), "dead", "first"),
        (KeepPending(FIRST, A, "why"), "waiting", "first"),
        (Enqueue(FIRST, A, "why", "bad"), "queued", "first"),
        (DelayCompensation(RESERVE, FAILED, known=True), "waiting", "release"),
        (DelayCompensation(RESERVE, FAILED, known=False), "waiting", "release"),
        (CloseHandler(RESERVE, FAILED), "compensated", "release"),
    ],
)
def test_each_action_that_runs_nothing_is_a_transition_of_its_own(
    action: RecordedDecision, outcome: Outcome, handler: str
) -> None:
    written = record_decision(blank(), a_hand(A, roles=ROLES), action)
    assert written.entry is not None
    assert (written.entry.outcome, written.entry.handler, action.name) == (outcome, handler, handler)
    assert written.snapshot.n == 1


def test_a_waiting_outcome_names_the_handler_that_it_waits_for() -> None:
    for known, reason in ((True, "reserve has begun and"), (False, "no message with the start")):
        entry = record_decision(
            blank(), a_hand(FAILED, roles=ROLES), DelayCompensation(RESERVE, FAILED, known=known)
        ).entry
        assert entry is not None
        assert str(entry.reason).startswith(reason)


def test_a_queued_message_keeps_its_decoding_error() -> None:
    p = record_decision(blank(), a_hand(A), Enqueue(FIRST, A, "why", "bad")).snapshot
    assert [k.undecodable for k in p.queue] == ["bad"]


def test_an_abort_begins_without_a_transition() -> None:
    written = record_decision(DEAD, a_hand(FAILED, roles=ROLES), BeginAbort(RESERVE, FAILED))
    assert written.entry is None
    assert [(intent.handler, intent.kind) for intent in written.snapshot.intents] == [("reserve", "lieu")]


def named(role: HandlerRole) -> tuple[str, str]:
    return RunHandler(role, B, (B,)).name, CloseHandler(role, FAILED).name


def test_a_compensation_is_recorded_under_its_own_name() -> None:
    assert named(RESERVE) == ("reserve", "release")


def test_a_command_is_executed_before_ready_runs() -> None:
    command = OperatorCommand(
        id="operator|replay-1",
        type="saga.replay",
        schema="",
        saga="s",
        source="operator",
        time=A.time,
        value=b"",
        wanted="replay",
        dead="dead-1",
        who="ada",
        why="mended",
    )
    p = replace(blank(), n=1, queue=(kept("first", A, dead="dead-1"),))
    trigger = Trigger(message=command)
    action = choose_next_action(p, ROLES, trigger, NOW, True)
    assert action == Replay(command, p.queue[0])
    after = replace(p, queue=(kept("first", A),), inbox={ids.inbox_entry(command.id, COMMAND): 1})
    assert choose_next_action(after, ROLES, trigger, NOW, True) == RunHandler(FIRST, A, (A,))
