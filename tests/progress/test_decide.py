"""The decision table of docs/concepts/protocol.md, line by line; and what is ready to go on with."""

from dataclasses import replace as replace_role

from msgspec.structs import replace

from saga.messages import Message
from saga.messaging.message_ids import id_of_change
from saga.progress import ids
from saga.progress.actions import (
    Abort,
    AlreadyPending,
    AlreadyProcessed,
    BeginAbort,
    CloseHandler,
    Compensate,
    DelayCompensation,
    Enqueue,
    Ignore,
    KeepPending,
    Now,
    Reject,
    RunHandler,
)
from saga.progress.decisions import (
    decide,
    decide_compensation,
    find_closing_reason,
    find_compensations,
    find_next_ready,
    is_message_known,
)
from saga.progress.document import CompensableResult, SagaProgress, SelfConsumedEvent
from saga.progress.handlers import CompensationRole, HandlerRole, compensation_name
from saga.support.clock import from_iso
from tests.progress.pieces import START, a_message, a_role, an_intent, blank, kept, ran, roles_of

ALONE = a_role("alone", "A")
BOTH = a_role("both", "A", "B C")
MANY = a_role("many", "A", many=True)
MANY_BOTH = a_role("many_both", "A", "B", many=True)
DECIDES = a_role("decides", "A", decides=True)
A, B, C = a_message("A"), a_message("B"), a_message("C")
A2, B2 = a_message("A", value=b"2"), a_message("B", value=b"2")
A_AGAIN = a_message("A", id="A-again")
NOW = Now(from_iso(START) + 100_000, retention_s=100)  # so that what is older than A is forgotten
LATER = Now(NOW.ms + 1000, retention_s=100)


def entered(p: SagaProgress, handler: str, *messages: str) -> SagaProgress:
    return replace(p, inbox={**p.inbox, **{ids.inbox_entry(message, handler): 0 for message in messages}})


def parts_of(p: SagaProgress, role: HandlerRole, message: Message) -> tuple[Message, ...]:
    """Messages that the handler runs on for the current message."""
    decision = decide(p, role, message, now=NOW)
    assert isinstance(decision, RunHandler)
    return decision.parts


# ---------------------------------------------------------------- lines 1 to 3


def test_line_1_a_message_in_the_inbox_is_never_handled_again() -> None:
    p = entered(replace(blank(), closed=("alone",), intents=(an_intent("alone", A),)), "alone", A.id)
    assert isinstance(decide(p, ALONE, A, now=NOW), AlreadyProcessed)
    assert not isinstance(decide(p, DECIDES, A, now=NOW), AlreadyProcessed), "the inbox is of message and handler"


def test_line_1a_a_pending_message_stays_in_its_place() -> None:
    queued = replace(blank(), queue=(kept("other", B), kept("alone", A)))
    waiting = replace(blank(), waiting=(kept("both", A),))
    assert isinstance(decide(queued, ALONE, A, now=NOW), AlreadyPending)
    assert isinstance(decide(waiting, BOTH, A, now=NOW), AlreadyPending)
    assert isinstance(decide(queued, DECIDES, A, now=NOW), Enqueue), "it is kept for another handler"
    assert isinstance(decide(waiting, BOTH, A), KeepPending), "settling looks again"


def test_line_2_the_open_intent_of_the_message_is_resumed() -> None:
    intent = an_intent("both", A, B)
    p = replace(blank(), intents=(intent,))
    for message in (A, B):
        decision = decide(p, BOTH, message, now=NOW)
        assert decision == RunHandler(BOTH, message, (A, B), intent)
    assert isinstance(decide(p, ALONE, A, now=NOW), Enqueue), "the intent of another handler blocks"
    assert isinstance(decide(replace(p, closed=("both",)), BOTH, A, now=NOW), RunHandler), "before line 3"


def test_line_2_the_abort_of_a_dead_original_is_not_resumed_by_its_message() -> None:
    p = replace(blank(), intents=(replace(an_intent("alone", A), kind="lieu"),))
    assert isinstance(decide(p, ALONE, A, now=NOW), AlreadyPending)
    assert isinstance(decide(p, ALONE, A_AGAIN, now=NOW), Enqueue), "a message that is not kept yet is not lost"


def test_line_3_a_closed_handler_ignores() -> None:
    p = replace(blank(), closed=("alone",))
    assert decide(p, ALONE, A, now=NOW) == Ignore(ALONE, A, "its compensation has closed this handler")
    assert isinstance(decide(replace(blank(), closed=("other",)), ALONE, A, now=NOW), RunHandler)


def test_line_3_there_is_one_outcome() -> None:
    p = replace(blank(), outcome="Over")
    assert decide(p, DECIDES, A, now=NOW) == Ignore(DECIDES, A, "the saga has ended here with Over")
    assert isinstance(decide(p, ALONE, A, now=NOW), RunHandler), "a handler that cannot end the saga goes on"


# ---------------------------------------------------------------- line 4: repetitions


def test_line_4_the_same_event_again_is_ignored() -> None:
    p = replace(blank(), completed_runs=(ran("alone", A, ids.content_digest(A.value)),))
    assert decide(p, ALONE, A_AGAIN, now=NOW) == Ignore(ALONE, A_AGAIN, "alone has taken a message for this already")


def test_line_4_other_content_is_a_dead_letter() -> None:
    p = replace(blank(), completed_runs=(ran("alone", A, ids.content_digest(A.value)),))
    decision = decide(p, ALONE, A2, now=NOW)
    assert isinstance(decision, Reject)
    assert decision.reason == "already handled with other content: alone has taken another A in this saga already"
    assert decision.remedy == "look why two differ; the first one counts"


def test_line_4_another_change_of_a_document_is_ignored() -> None:
    role = replace_role(ALONE, changes=frozenset("A"))
    p = replace(blank(), completed_runs=(ran("alone", A, ids.content_digest(A.value)),))
    assert decide(p, role, A2, now=NOW) == Ignore(role, A2, "alone has taken a message for this already")


def test_line_4a_a_removal_is_ignored_by_a_handler_that_runs_once_whatever_blocks_it() -> None:
    gone = a_message("A", id=id_of_change("document", 1, is_gone=True))
    role, many = (replace_role(each, changes=frozenset("A")) for each in (ALONE, MANY))
    ignored = Ignore(role, gone, "the document is gone, and alone runs on one that is there")
    assert decide(blank(), role, gone, now=NOW) == ignored
    assert decide(replace(blank(), intents=(an_intent("other", B),)), role, gone, now=NOW) == ignored
    assert isinstance(decide(blank(), role, A, now=NOW), RunHandler)
    assert isinstance(decide(blank(), many, gone, now=NOW), RunHandler), "it is shown each change"
    assert isinstance(decide(blank(), ALONE, gone, now=NOW), RunHandler), "to others the name means nothing"
    second = replace_role(MANY_BOTH, changes=frozenset("B"))
    gone = a_message("B", id=id_of_change("document", 1, is_gone=True))
    assert isinstance(decide(blank(), second, gone, now=NOW), Ignore), "this part stays"


def test_line_4_the_same_event_in_another_schema_version_is_ignored() -> None:
    p = replace(blank(), completed_runs=(ran("alone", A, ids.content_digest(A.value)),))
    assert isinstance(decide(p, ALONE, replace(A2, schema="things/A.v2"), now=NOW), Ignore)


def test_line_4_another_type_for_the_same_parameter_is_ignored() -> None:
    p = replace(blank(), completed_runs=(ran("both", A, "a"), ran("both", B, ids.content_digest(B.value), parameter=1)))
    assert isinstance(decide(p, BOTH, C, now=NOW), Ignore)


def test_line_4_a_pending_part_counts_as_received() -> None:
    p = replace(blank(), waiting=(kept("both", B),))
    assert isinstance(decide(p, BOTH, replace(B, id="B-again"), now=NOW), Ignore)
    assert isinstance(decide(p, BOTH, B2, now=NOW), Reject)
    assert isinstance(decide(p, BOTH, C, now=NOW), Ignore)
    assert isinstance(decide(p, BOTH, A, now=NOW), RunHandler), "another parameter is free"


def test_line_4_a_message_pending_for_another_handler_is_no_repetition() -> None:
    p = replace(blank(), waiting=(kept("other", A),), completed_runs=(ran("other", A, "a"),))
    assert isinstance(decide(p, ALONE, A2, now=NOW), RunHandler)


def test_line_4_a_handler_that_has_run_takes_no_part_of_another_type_either() -> None:
    p = replace(blank(), completed_runs=(ran("both", A, "a"),))
    assert decide(p, BOTH, B, now=NOW) == Ignore(BOTH, B, "both has run in this saga already")


def test_line_4_many_takes_the_first_parameter_again_and_the_others_once() -> None:
    p = replace(blank(), waiting=(kept("many_both", B),))
    assert parts_of(p, MANY_BOTH, A) == (A, B)
    assert parts_of(entered(p, "many_both", A.id), MANY_BOTH, A2) == (A2, B)
    assert isinstance(decide(p, MANY_BOTH, B2, now=NOW), Reject)
    assert isinstance(decide(blank(), MANY, A2, now=NOW), RunHandler)


# ---------------------------------------------------------------- lines 5 to 7


def test_line_5_a_part_waits_for_the_others_and_names_them() -> None:
    assert decide(blank(), BOTH, A, now=NOW) == KeepPending(BOTH, A, "for B or C")
    assert decide(blank(), BOTH, C, now=NOW) == KeepPending(BOTH, C, "for A")


def test_line_5_a_bad_part_waits_for_nothing() -> None:
    assert isinstance(decide(blank(), BOTH, A, now=NOW, undecodable="why"), RunHandler)
    assert isinstance(
        decide(blank(started=None), ALONE, replace(A, started=None), now=NOW, undecodable="why"), RunHandler
    )


def test_line_5_nothing_runs_before_the_start_of_the_saga_is_known() -> None:
    unknown = replace(A, started=None)
    waits = KeepPending(ALONE, unknown, "no message with the start of this saga has come yet")
    assert decide(blank(started=None), ALONE, unknown, now=NOW) == waits
    assert isinstance(decide(blank(started=None), ALONE, A, now=NOW), RunHandler), "it tells itself"
    assert isinstance(decide(blank(), ALONE, unknown, now=NOW), RunHandler), "another transition has it"


def test_line_5_a_self_consumed_event_is_a_part() -> None:
    p = replace(blank(), self_consumed=(SelfConsumedEvent(event=B, n=0),))
    assert parts_of(p, BOTH, A) == (A, B)
    assert isinstance(decide(entered(p, "both", B.id), BOTH, A, now=NOW), KeepPending), "it was taken already"


def test_a_repeating_handler_ignores_messages_that_may_have_been_handled_and_forgotten() -> None:
    decision = decide(blank(), MANY, A, now=LATER)
    assert isinstance(decision, Reject)
    assert decision.reason == f"older than the retention: it is of {A.time}, and may have been handled then"
    assert decision.remedy.startswith("look why it comes so late")
    assert isinstance(decide(blank(), MANY, A, now=NOW), RunHandler)
    assert isinstance(decide(blank(), ALONE, A, now=LATER), RunHandler), "what runs once remembers that it has"
    p = replace(blank(), waiting=(kept("many_both", A),))
    assert isinstance(decide(p, MANY_BOTH, B, now=LATER), RunHandler)


def test_line_5_a_message_of_a_repeating_handler_waits_behind_pending_ones() -> None:
    p = replace(blank(), waiting=(kept("many", A),))
    assert isinstance(decide(p, MANY, A_AGAIN, now=NOW), KeepPending)
    assert isinstance(decide(p, MANY, A_AGAIN, now=NOW, undecodable="why"), RunHandler), (
        "what cannot be decoded waits for nothing"
    )
    assert isinstance(decide(p, MANY, A), RunHandler), "the first one"
    assert isinstance(decide(replace(blank(), waiting=(kept("other", A),)), MANY, A_AGAIN, now=NOW), RunHandler)


def test_line_5_a_queued_message_of_a_repeating_handler_waits_only_behind_earlier_ones() -> None:
    p = replace(blank(), queue=(kept("many", A, 2),), waiting=(kept("many", A_AGAIN, 3),))
    assert isinstance(decide(p, MANY, A), RunHandler)
    assert isinstance(decide(replace(p, waiting=(kept("many", A_AGAIN, 1),)), MANY, A), KeepPending)
    assert isinstance(decide(replace(p, queue=(kept("other", A, 2),)), MANY, A), KeepPending), "it is another handler's"


def test_line_6_an_open_intent_a_queue_and_a_dead_letter_block() -> None:
    intent = replace(blank(), intents=(an_intent("other", B),))
    queue = replace(blank(), queue=(kept("other", B),))
    dead = replace(blank(), queue=(kept("other", B, dead="d"),))
    undo_dead = replace(blank(), compensating=(kept("other", B, dead="d"),))
    for p, reason in (
        (intent, "other has begun and is not at its end"),
        (queue, "others are queued before it"),
        (dead, "the saga is quarantined: B for other is a dead letter"),
        (undo_dead, "the saga is quarantined: B for other is a dead letter"),
    ):
        assert decide(p, ALONE, A, now=NOW) == Enqueue(ALONE, A, reason)
    assert isinstance(decide(replace(blank(), compensating=(kept("other", B),)), ALONE, A, now=NOW), RunHandler)


def test_line_6_the_head_of_the_queue_is_not_blocked_by_messages_behind_it() -> None:
    p = replace(blank(), queue=(kept("alone", A), kept("other", B)))
    assert isinstance(decide(p, ALONE, A), RunHandler)
    assert isinstance(decide(p, DECIDES, A), Enqueue)


def test_line_7_runs_with_its_parts_in_the_order_of_the_parameters() -> None:
    p = replace(blank(), waiting=(kept("both", A),))
    assert parts_of(p, BOTH, C) == (A, C)
    assert parts_of(blank(), ALONE, A) == (A,)


# ---------------------------------------------------------------- what a message is for, and what is ready


def undone(name: str) -> CompensationRole:
    return CompensationRole(name=f"undo_{name}", outcomes=frozenset({"Failed"}), results=frozenset({"R"}))


def a_result(handler: str, event: str) -> CompensableResult:
    return CompensableResult(handler=handler, cause="c", event=a_message("R", id=event), self_consumed_ids=())


FIRST = a_role("first", "A", undo=undone("first"))
SECOND = a_role("second", "B", undo=undone("second"))
LISTENS = a_role("listens", "Failed")
ROLES = roles_of(FIRST, SECOND, BOTH, LISTENS, outcomes="Failed", emitted="R Failed")
FAILED = a_message("Failed")


def test_the_handler_of_the_newest_result_is_undone_first() -> None:
    p = replace(blank(), results=(a_result("second", "r1"), a_result("first", "r2")))
    assert find_compensations(p, ROLES, "Failed") == [FIRST, SECOND]
    assert find_compensations(replace(p, results=p.results[::-1]), ROLES, "Failed") == [SECOND, FIRST]
    assert not find_compensations(p, ROLES, "A")


def test_in_a_quarantine_nothing_is_ready_but_compensations() -> None:
    p = replace(blank(), queue=(kept("both", A, dead="d"), kept("listens", FAILED)))
    assert find_next_ready(p, ROLES, NOW.ms) is None
    assert find_next_ready(replace(p, compensating=(kept("first", FAILED),)), ROLES, NOW.ms) == CloseHandler(
        FIRST, FAILED
    )


def test_a_compensation_that_is_a_dead_letter_is_not_ready_and_others_are() -> None:
    p = replace(blank(), compensating=(kept("first", FAILED, dead="d"),))
    assert find_next_ready(p, ROLES, NOW.ms) is None
    ready = find_next_ready(replace(p, compensating=(*p.compensating, kept("second", FAILED))), ROLES, NOW.ms)
    assert ready is not None
    assert ready.role is SECOND


def test_of_kept_compensations_the_one_of_the_newest_result_goes_first() -> None:
    p = replace(
        blank(),
        results=(a_result("first", "r1"), a_result("second", "r2")),
        compensating=(kept("first", FAILED), kept("second", FAILED)),
    )
    ready = find_next_ready(p, ROLES, NOW.ms)
    assert ready is not None
    assert ready.role is SECOND


def test_a_compensation_is_not_ready_before_its_original_has_ended() -> None:
    p = replace(blank(), compensating=(kept("first", FAILED),), intents=(an_intent("first", A),))
    assert find_next_ready(p, ROLES, NOW.ms) is None


def test_a_compensation_closes_waits_aborts_or_runs_by_the_state_of_its_original() -> None:
    begun = replace(blank(), intents=(an_intent("first", A),))
    dead = replace(begun, queue=(kept("first", A, dead="d"),))
    done = replace(dead, results=(a_result("first", "r"),))
    half_dead = replace(dead, intents=(*dead.intents, an_intent("first", A2)))
    sealed = replace(dead, intents=(replace(an_intent("first", A), kind="lieu"),))
    of_another = replace(begun, queue=(kept("second", A, dead="d"),))
    waits = DelayCompensation(FIRST, FAILED, known=True)
    for p, step in (
        (blank(), CloseHandler(FIRST, FAILED)),
        (begun, waits),
        (dead, BeginAbort(FIRST, FAILED)),
        (done, Compensate(FIRST, FAILED, done.results[0])),
        (half_dead, waits),
        (sealed, Abort(FIRST, FAILED, sealed.intents[0])),
        (replace(sealed, results=done.results), Compensate(FIRST, FAILED, done.results[0])),
        (of_another, waits),
        (replace(blank(), results=(a_result("second", "r"),)), CloseHandler(FIRST, FAILED)),
    ):
        assert decide_compensation(p, FIRST, FAILED) == step
    unknown = replace(FAILED, started=None)
    assert decide_compensation(replace(dead, started=None), FIRST, unknown) == DelayCompensation(
        FIRST, unknown, known=False
    )


def test_the_queue_continues_at_its_head() -> None:
    p = replace(blank(), queue=(kept("second", B), kept("first", A)))
    ready = find_next_ready(p, ROLES, NOW.ms)
    assert ready is not None
    assert (ready.role, ready.message) == (SECOND, B)


def test_complete_fan_ins_run_in_their_order() -> None:
    one, other = a_role("one", "A", "B"), a_role("other", "A", "C")
    roles = roles_of(one, other)
    p = replace(
        blank(),
        waiting=(kept("one", A, 0), kept("other", A, 1), kept("other", C, 2), kept("one", B, 3)),
    )
    ready = find_next_ready(p, roles, NOW.ms)
    assert ready is not None
    assert (ready.role, ready.message) == (other, C)
    ready = find_next_ready(replace(p, queue=(kept("one", A, dead="d"),)), roles, NOW.ms)
    assert ready is None, "only if the queue is empty"


def test_a_complete_fan_in_waits_until_the_start_of_the_saga_is_known() -> None:
    parts = [replace(part, started=None) for part in (A, B)]
    p = replace(blank(started=None), waiting=tuple(kept("both", part, n) for n, part in enumerate(parts)))
    assert find_next_ready(p, roles_of(BOTH), NOW.ms) is None
    ready = find_next_ready(replace(p, started=START), roles_of(BOTH), NOW.ms)
    assert isinstance(ready, RunHandler)


def test_an_open_intent_is_resumed_if_its_message_is_not_redelivered() -> None:
    intent = an_intent("both", A, B)
    p = replace(blank(), intents=(intent,))
    assert find_next_ready(p, ROLES, NOW.ms) is None, "its message is redelivered"
    for there in (
        replace(p, waiting=(kept("both", B),)),
        replace(p, queue=(kept("both", A),)),
        replace(p, intents=(replace(intent, message=replace(A, source="svc")),)),
    ):
        ready = find_next_ready(there, ROLES, NOW.ms)
        assert ready is not None
        assert ready.role is BOTH
    assert find_next_ready(replace(p, queue=(kept("both", A, dead="d"),)), ROLES, NOW.ms) is None
    elsewhere = replace(p, queue=(kept("first", A),))
    assert find_next_ready(elsewhere, ROLES, NOW.ms) is None, "the message is kept for another handler"


def test_a_message_is_known_by_the_inbox_and_by_kept_messages() -> None:
    p = replace(blank(), n=1)
    assert not is_message_known(p, ROLES, A)
    assert is_message_known(entered(p, "first", A.id), ROLES, A)
    assert not is_message_known(entered(p, "stranger", A.id), ROLES, A)
    assert is_message_known(entered(p, compensation_name("first"), FAILED.id), ROLES, FAILED)
    assert is_message_known(replace(p, queue=(kept("first", A),)), ROLES, A)
    assert is_message_known(replace(p, waiting=(kept("both", A),)), ROLES, A)
    assert is_message_known(replace(p, compensating=(kept("first", FAILED),)), ROLES, FAILED)


# ---------------------------------------------------------------- own parts, and what is undone


def test_line_4_a_self_consumed_part_counts_as_received() -> None:
    p = replace(blank(), self_consumed=(SelfConsumedEvent(event=B, n=0),))
    assert isinstance(decide(p, BOTH, a_message("B", id="B-again"), now=NOW), Ignore)
    assert isinstance(decide(p, BOTH, B2, now=NOW), Reject), "the same type with other content"
    assert isinstance(decide(p, BOTH, C, now=NOW), Ignore), "another type for the same parameter"
    assert parts_of(p, BOTH, A) == (A, B)


def test_line_4_the_first_of_two_self_consumed_parts_counts() -> None:
    p = replace(
        blank(),
        self_consumed=(SelfConsumedEvent(event=B, n=0), SelfConsumedEvent(event=C, n=0)),
        waiting=(kept("both", A, n=1),),
    )
    ready = find_next_ready(p, roles_of(BOTH, emitted="B C"), NOW.ms)
    assert ready is not None
    assert isinstance(decide(p, BOTH, B), RunHandler)
    assert isinstance(decide(p, BOTH, C), Ignore)


def test_line_4_a_part_pending_before_a_self_consumed_one_counts() -> None:
    p = replace(blank(), self_consumed=(SelfConsumedEvent(event=C, n=5),), waiting=(kept("both", B, n=1),))
    assert isinstance(decide(p, BOTH, B), KeepPending)
    assert parts_of(p, BOTH, A) == (A, B)


def test_line_6_originals_are_queued_during_the_compensation_of_their_handler() -> None:
    p = replace(blank(), compensating=(kept("alone", FAILED),))
    assert decide(p, ALONE, A, now=NOW) == Enqueue(ALONE, A, "what alone did is undone because of Failed")
    assert isinstance(decide(p, DECIDES, A, now=NOW), RunHandler), "others go on"


def test_line_3_a_handler_without_compensation_runs_no_more_after_a_failure() -> None:
    waits = replace(blank(), compensating=(kept("second", FAILED),))
    reason = "the saga has failed, so first would never be undone"
    assert find_closing_reason(replace(blank(), failed=("Failed",)), FIRST) == reason
    assert find_closing_reason(waits, FIRST) == reason
    assert find_closing_reason(replace(waits, compensating=(*waits.compensating, kept("first", FAILED))), FIRST) is None
    assert find_closing_reason(replace(blank(), failed=("Another",)), FIRST) is None


def test_an_incomplete_fan_in_is_not_ready() -> None:
    assert find_next_ready(replace(blank(), waiting=(kept("both", A),)), ROLES, NOW.ms) is None


def test_a_complete_fan_in_waits_while_another_run_is_open() -> None:
    p = replace(blank(), waiting=(kept("both", A), kept("both", B, 1)))
    assert isinstance(find_next_ready(p, ROLES, NOW.ms), RunHandler)
    assert find_next_ready(replace(p, intents=(an_intent("listens", A2),)), ROLES, NOW.ms) is None


def test_a_message_pending_for_another_handler_is_no_part() -> None:
    roles = roles_of(a_role("alone", "A"), a_role("meet", "A", "B"), a_role("join", "B", "C"))
    p = replace(blank(), waiting=(kept("meet", a_message("A"), n=1), kept("join", a_message("B"), n=2)))
    assert find_next_ready(p, roles, NOW.ms) is None


def test_a_self_consumed_event_kept_for_another_handler_reruns_no_finished_one() -> None:
    event = a_message("P")
    roles = roles_of(a_role("took", "P"), a_role("meet", "P", "B"), emitted="P")
    p = replace(
        blank(),
        self_consumed=(SelfConsumedEvent(event=event, n=1),),
        completed_runs=(ran("took", event, ids.content_digest(event.value)),),
    )
    assert find_next_ready(p, roles, NOW.ms) is None
