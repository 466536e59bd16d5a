"""What becomes of a command about a dead letter, and its record."""

import dataclasses
from typing import Any

import pytest
from msgspec.structs import replace

from saga.messages import Message
from saga.messaging.operator_commands import OperatorCommand, StepAnswer, Wanted
from saga.progress import decisions, history, ids, journal, operator_commands
from saga.progress.actions import (
    Abort,
    AdmitAsNew,
    AnswerStep,
    BeginAbort,
    Discard,
    RejectCommand,
    Replay,
    ResolveEscalation,
    RunHandler,
)
from saga.progress.document import DeadLetterRecord, Intent, PendingMessage, SagaProgress, StepRecord, decode_transition
from saga.progress.handlers import COMMAND, CompensationRole, HandlerRole, HandlerRoles
from saga.progress.journal import Commit
from tests.progress.pieces import NOW_MS, START, a_hand, a_message, a_role, an_intent, blank, kept, roles_of

DEAD = "dead-1"
A, B = a_message("A"), a_message("B")
HANDLER = dataclasses.replace(a_role("on_a", "A"), expected_errors=frozenset({"Declined"}))
ROLES = roles_of(HANDLER, a_role("on_b", "B"))


def a_command(
    wanted: Wanted = "replay", dead: str = DEAD, who: str = "ada", answered: StepAnswer | None = None
) -> OperatorCommand:
    return OperatorCommand(
        id=f"operator|{wanted}-{who}",
        type=f"saga.{wanted}",
        schema="",
        saga="s",
        source="operator",
        time=START,
        value=b"",
        wanted=wanted,
        dead=dead,
        who=who,
        why="because",
        answered=answered,
    )


def quarantined(*behind: PendingMessage, **fields: Any) -> SagaProgress:
    return replace(blank(), n=3, queue=(kept("on_a", A, n=2, dead=DEAD), *behind), **fields)


def executed(p: SagaProgress, command: OperatorCommand, roles: HandlerRoles = ROLES) -> Commit:
    action = operator_commands.decide_command(p, roles, command)
    assert isinstance(action, Replay | AdmitAsNew | Discard | AnswerStep | ResolveEscalation | RejectCommand)
    return operator_commands.apply_command(p, a_hand(command, roles=roles), action)


def reason(p: SagaProgress, command: OperatorCommand, roles: HandlerRoles = ROLES) -> str:
    action = operator_commands.decide_command(p, roles, command)
    assert isinstance(action, RejectCommand), action
    return action.reason


def test_a_replayed_message_runs_first() -> None:
    p = quarantined(kept("on_b", B, n=1))
    assert decisions.find_next_ready(p, ROLES, NOW_MS) is None
    written = executed(p, a_command())
    assert decisions.find_next_ready(written.snapshot, ROLES, NOW_MS) == RunHandler(HANDLER, A, (A,))
    assert written.snapshot.replays == 1
    entry = written.entry
    assert entry is not None
    assert (entry.outcome, entry.handler, entry.message, entry.cause) == ("replayed", "on_a", a_command().id, A.id)
    assert entry.reason == "ada wants it: because"
    (end,) = entry.letters
    assert (end.id, end.kind, end.handler) == ("dead-1-replayed", "replayed", "on_a")


def test_a_message_that_fails_again_after_a_replay_is_another_dead_letter() -> None:
    p = quarantined()
    again = executed(p, a_command()).snapshot
    assert ids.dead_letter_id("svc", "s", "on_a", A.id, p.replays) != ids.dead_letter_id(
        "svc", "s", "on_a", A.id, again.replays
    )


def test_a_command_is_executed_once() -> None:
    written = executed(quarantined(), a_command())
    assert operator_commands.decide_command(written.snapshot, ROLES, a_command()) is None
    assert ids.inbox_entry(a_command().id, COMMAND) in written.snapshot.inbox


def test_nothing_is_written_about_an_unknown_saga() -> None:
    assert operator_commands.decide_command(blank(), ROLES, a_command()) is None


def test_a_command_for_a_removed_dead_letter_is_answered_from_the_history() -> None:
    written = executed(quarantined(), a_command(dead="dead-2"))
    entry = written.entry
    assert entry is not None
    assert (entry.outcome, entry.letters) == ("ignored", ())
    assert entry.reason == (
        "not replayed: no dead letter dead-2 is in the saga's way here: it may have gone before (ada wants it: because)"
    )
    assert written.snapshot.queue == quarantined().queue


def test_a_begun_run_resumes_when_it_is_replayed() -> None:
    intent = an_intent("on_a", A)
    written = executed(quarantined(intents=(intent,)), a_command())
    assert decisions.find_next_ready(written.snapshot, ROLES, NOW_MS) == RunHandler(HANDLER, A, (A,), intent)


def test_a_message_whose_bytes_the_progress_lacks_cannot_be_replayed() -> None:
    p = replace(blank(), n=3, queue=(kept("on_a", replace(A, value=b""), dead=DEAD),))
    assert "its bytes are in the dead letter alone" in reason(p, a_command())


def test_an_aborted_run_cannot_be_replayed() -> None:
    p = quarantined(intents=(replace(an_intent("on_a", A), kind="lieu"),))
    assert "on_a is being closed" in reason(p, a_command())


def test_a_compensation_is_replayed_under_its_own_name_and_never_discarded() -> None:
    role = replace_role(
        HANDLER, undo=CompensationRole(name="undo_a", outcomes=frozenset({"X"}), results=frozenset({"R"}))
    )
    roles = roles_of(role)
    p = replace(blank(), n=3, compensating=(kept("on_a", a_message("X"), dead=DEAD),))
    assert "what on_a did would never be undone" in reason(p, a_command("discard"), roles)
    written = executed(p, a_command(), roles)
    assert written.entry is not None
    assert written.entry.handler == written.entry.letters[0].handler == "undo_a"
    assert written.snapshot.compensating[0].dead is None


def replace_role(role: HandlerRole, **fields: Any) -> HandlerRole:
    return dataclasses.replace(role, **fields)


def test_a_discarded_message_is_never_handled_and_what_is_queued_behind_it_runs() -> None:
    written = executed(quarantined(kept("on_b", B, n=3)), a_command("discard"))
    p, entry = written.snapshot, written.entry
    assert entry is not None
    assert (entry.outcome, entry.handler, entry.cause) == ("discarded", "on_a", A.id)
    assert [letter.kind for letter in entry.letters] == ["discarded"]
    assert ids.inbox_entry(A.id, "on_a") in p.inbox
    assert ids.inbox_entry(a_command("discard").id, COMMAND) in p.inbox
    ready = decisions.find_next_ready(p, ROLES, NOW_MS)
    assert isinstance(ready, RunHandler)
    assert ready.role.name == "on_b"


def test_after_a_discard_the_other_parts_of_a_fan_in_wait_for_another_message() -> None:
    roles = roles_of(a_role("meet", "A", "B"))
    p = replace(blank(), n=3, queue=(kept("meet", A, n=2, dead=DEAD),), waiting=(kept("meet", B, n=1),))
    written = executed(p, a_command("discard"), roles)
    assert (written.snapshot.waiting, written.snapshot.queue) == (p.waiting, ())
    assert written.entry is not None
    assert written.entry.cause == A.id
    another = a_message("A", id="another")
    decision = decisions.decide(written.snapshot, roles.handlers["meet"], another)
    assert isinstance(decision, RunHandler)
    assert decision.parts == (another, B)


def test_a_begun_run_is_aborted_before_it_is_discarded_and_reported() -> None:
    intent = an_intent("on_a", A)
    p = quarantined(intents=(intent,))
    command = a_command("discard")
    assert operator_commands.decide_command(p, ROLES, command) == BeginAbort(HANDLER, command)
    sealed = replace(p, intents=(replace(intent, kind="lieu"),))
    assert operator_commands.decide_command(sealed, ROLES, command) == Abort(HANDLER, command, sealed.intents[0])
    written = operator_commands.discard_message(
        sealed, a_hand(command, roles=ROLES), command, sealed.queue[0], remains=["step x ran"]
    )
    assert written.snapshot.intents == ()
    assert written.entry is not None
    end, escalation = written.entry.letters
    assert (end.kind, escalation.kind, escalation.calls) == ("discarded", "escalation", ("step x ran",))


@pytest.mark.parametrize(
    ("roles", "why"),
    [
        (roles_of(replace_role(HANDLER, after_outcome=True)), "an outcome sets on_a off"),
        (roles_of(HANDLER, a_role("ends", "Z", decides=True), outcomes="X"), "svc decides how sagas end"),
    ],
    ids=["after an outcome", "of who decides"],
)
def test_a_dead_letter_that_other_services_rely_on_is_never_discarded(roles: HandlerRoles, why: str) -> None:
    assert why in reason(quarantined(), a_command("discard"), roles)
    assert isinstance(operator_commands.decide_command(quarantined(), roles, a_command()), Replay)


def test_a_history_with_commands_is_unchanged_and_one_that_was_edited_is_not() -> None:
    roles, p = ROLES, replace(journal.new_progress("svc", "s", 1), started=None)
    first, second = a_hand(A, roles=roles), a_hand(B, roles=roles)
    died = PendingMessage(handler="on_a", message=A, n=0, dead=DEAD)
    letter = DeadLetterRecord(
        id=DEAD, kind="dead letter", handler="on_a", reason="r", remedy="m", message=A, attempts=1
    )
    write_context = replace(first, before=p)
    ended = journal.TransitionDetails(message=A, letters=(letter,))
    p = journal.append_transition(replace(p, queue=(died,)), write_context, "dead", "on_a", ended).snapshot
    p = journal.enqueue_message(p, replace(second, before=p), roles.handlers["on_b"], B, "behind", None).snapshot
    action = operator_commands.decide_command(p, roles, a_command())
    assert isinstance(action, Replay)
    p = operator_commands.apply_command(p, replace(a_hand(a_command(), roles=roles), before=p), action).snapshot
    assert history.verify_history(p.transitions, p) is None
    assert [decode_transition(raw).outcome for raw in p.transitions] == ["dead", "queued", "replayed"]
    assert history.verify_history(p.transitions, replace(p, replays=0)) is not None
    assert history.verify_history(p.transitions, replace(p, queue=p.queue[1:])) is not None


# -------------------------------------------------------------------- resolved


CHARGE = StepRecord(kind="step", name="charge", number=1, input="i1")
PACK = StepRecord(kind="step", name="pack", number=1, input="i2")


def answering(step: str, number: int = 1, raised: str | None = None) -> OperatorCommand:
    value = '["no"]' if raised else '"ch-1"'
    return a_command("resolve", answered=StepAnswer(step=step, number=number, value=value, raised=raised))


def begun(calls: tuple[StepRecord, ...] = (), begins: StepRecord | None = None) -> SagaProgress:
    return quarantined(intents=(replace(an_intent("on_a", A), calls=calls, begins=begins),))


def intent_of(written: Commit) -> Intent:
    (intent,) = written.snapshot.intents
    return intent


def given(calls: tuple[StepRecord, ...]) -> list[tuple[str, bytes, str | None, str | None]]:
    return [(c.name, bytes(c.value), c.answer, c.by) for c in calls]


def test_a_step_of_unknown_result_gets_the_answer_of_an_operator_and_its_run_resumes() -> None:
    written = executed(begun(begins=CHARGE), answering("charge"))
    intent = intent_of(written)
    assert given(intent.calls) == [("charge", b'"ch-1"', None, "ada")]
    assert (intent.calls[0].input, intent.begins) == ("i1", CHARGE)
    assert decisions.find_next_ready(written.snapshot, ROLES, NOW_MS) == RunHandler(HANDLER, A, (A,), intent)
    entry = written.entry
    assert entry is not None
    assert (entry.outcome, entry.handler, entry.reason, entry.cause) == (
        "resolved",
        "on_a",
        "ada wants it: because",
        A.id,
    )
    assert entry.calls == intent.calls
    (end,) = entry.letters
    assert (end.id, end.kind) == ("dead-1-resolved", "resolved")
    assert end.reason == "charge is answered, and it is tried again: ada wants it: because"
    assert written.snapshot.replays == 1


DISPUTED = (("charge", 1), ("pack", 1))


def disputed(calls: tuple[StepRecord, ...], begins: StepRecord | None = None) -> SagaProgress:
    p = begun(calls, begins)
    return replace(p, queue=(replace(p.queue[0], disputed=DISPUTED), *p.queue[1:]))


def test_a_resolution_replaces_a_recorded_step_that_the_code_no_longer_calls() -> None:
    written = executed(disputed((CHARGE, PACK), begins=PACK), answering("charge", raised="Declined"))
    intent = intent_of(written)
    assert given(intent.calls) == [("charge", b'["no"]', "Declined", "ada"), ("pack", b"null", None, None)]
    assert written.snapshot.queue[0].disputed == ()


def test_an_operator_can_correct_a_resolution() -> None:
    written = executed(begun(begins=CHARGE), answering("charge", raised="Declined"))
    again = replace(written.snapshot, queue=(replace(written.snapshot.queue[0], dead="dead-2"),))
    second = replace(answering("charge"), id="operator|resolve-2", dead="dead-2", who="bob")
    assert given(intent_of(executed(again, second)).calls)[0] == ("charge", b'"ch-1"', None, "bob")


def test_a_step_that_is_not_recorded_can_be_resolved() -> None:
    intent = intent_of(executed(disputed((CHARGE,), begins=CHARGE), answering("pack")))
    assert given(intent.calls) == [("charge", b"null", None, None), ("pack", b'"ch-1"', None, "ada")]


@pytest.mark.parametrize(
    ("p", "command", "why"),
    [
        (
            begun(begins=CHARGE),
            answering("chrage"),
            "on_a has not asked for step 'chrage' (number 1); it waits for an answer to 'charge' (number 1)",
        ),
        (begun(begins=CHARGE), answering("charge", 2), "on_a has not asked for step 'charge' (number 2); it waits for"),
        (
            begun((CHARGE,), begins=PACK),
            answering("charge"),
            "step 'charge' (number 1) of on_a is answered already; it waits for an answer to 'pack' (number 1)",
        ),
        (
            begun((CHARGE, PACK), begins=PACK),
            answering("pack"),
            "step 'pack' (number 1) of on_a is answered already, and no call of it is open: replay it",
        ),
        (
            begun((CHARGE,), begins=StepRecord(kind="update", name="take", number=1, input="", document="stock/tea")),
            answering("pack"),
            "on_a has not asked for step 'pack' (number 1), and no call of it is open: replay it",
        ),
        (
            begun(begins=CHARGE),
            answering("charge", raised="Declnied"),
            "on_a has no declared exception 'Declnied'; its resources declare Declined",
        ),
    ],
)
def test_a_resolution_is_checked_against_the_step_of_the_run(
    p: SagaProgress, command: OperatorCommand, why: str
) -> None:
    assert why in reason(p, command)


def test_an_undeclared_exception_is_no_resolution() -> None:
    roles = roles_of(replace_role(HANDLER, expected_errors=frozenset()))
    why = reason(begun(begins=CHARGE), answering("charge", raised="Declined"), roles)
    assert why == "on_a has no declared exception 'Declined'; its resources declare none"


def test_a_step_of_a_compensation_can_be_resolved_too() -> None:
    undo = CompensationRole(
        name="undo_a", outcomes=frozenset({"X"}), results=frozenset({"R"}), expected_errors=frozenset({"NoSuchCharge"})
    )
    role = replace_role(HANDLER, undo=undo)
    outcome, result = a_message("X"), a_message("R")
    intent = replace(an_intent("on_a", outcome, result), kind="undo", cause=result.id, name="undo_a", begins=CHARGE)
    p = replace(blank(), n=3, compensating=(kept("on_a", outcome, dead=DEAD),), intents=(intent,))
    why = reason(p, answering("charge", raised="Declined"), roles_of(role))
    assert why == "undo_a has no declared exception 'Declined'; its resources declare NoSuchCharge"
    written = executed(p, answering("charge", raised="NoSuchCharge"), roles_of(role))
    assert given(intent_of(written).calls) == [("charge", b'["no"]', "NoSuchCharge", "ada")]
    assert written.entry is not None
    assert written.entry.handler == "undo_a"
    assert written.snapshot.compensating[0].dead is None


def test_an_impossible_resolution_is_refused_with_the_reason() -> None:
    assert "has begun nothing that could be answered: replay it" in reason(quarantined(), answering("charge"))
    update = StepRecord(kind="update", name="take", number=1, input="", document="stock/tea")
    assert "the document stock/tea knows whether take happened" in reason(begun(begins=update), answering("take"))
    sealed = replace(an_intent("on_a", A), kind="lieu", begins=CHARGE)
    assert "on_a is being closed" in reason(quarantined(intents=(sealed,)), answering("charge"))
    assert "no dead letter dead-1 is in the saga's way" in reason(blank_with_one(), answering("charge"))


def blank_with_one() -> SagaProgress:
    return replace(blank(), n=1)


def escalated() -> SagaProgress:
    """A discarded run has left something for a person."""
    sealed = replace(an_intent("on_a", A), kind="lieu", begins=CHARGE)
    p, command = quarantined(intents=(sealed,)), a_command("discard")
    return operator_commands.discard_message(
        p, a_hand(command, roles=ROLES), command, p.queue[0], remains=["step charge ran"]
    ).snapshot


def test_an_escalation_is_closed_once_and_the_history_names_who_closed_it() -> None:
    p = escalated()
    (escalation,) = [e for e in decode_transition(p.transitions[-1]).letters if e.kind == "escalation"]
    written = executed(p, a_command("resolve", dead=escalation.id, who="bob"))
    entry = written.entry
    assert entry is not None
    assert (entry.outcome, entry.handler, entry.reason) == ("resolved", "on_a", "bob wants it: because")
    (end,) = entry.letters
    assert (end.id, end.kind, end.message) == (f"{escalation.id}-resolved", "resolved", A)
    later = replace(a_command("resolve", dead=escalation.id), id="operator|resolve-later")
    assert "is closed already" in reason(written.snapshot, later)


def test_an_unknown_escalation_is_not_closed_unless_its_transition_may_be_archived() -> None:
    p = escalated()
    assert "no escalation other is known of this saga" in reason(p, a_command("resolve", dead="other"))
    assert "no escalation dead-1-discarded is known" in reason(p, a_command("resolve", dead="dead-1-discarded"))
    assert "is known of this saga" in reason(blank_with_one(), a_command("resolve", dead="other"))
    again = replace(blank_with_one(), replays=1)  # a message of a forgotten saga was handled as new
    assert executed(again, a_command("resolve", dead="other")).snapshot.n == 2
    written = executed(replace(p, first=1), a_command("resolve", dead="other"))
    assert written.entry is not None
    assert (written.entry.outcome, written.entry.handler) == ("resolved", COMMAND)
    assert written.entry.letters[0].id == "other-resolved"


# -------------------------------------------------------------------- handled as new


LATE = "2027-01-01T00:00:00.000Z"


def renewing(dead: str = DEAD, original: Message | None = A) -> OperatorCommand:
    return replace(a_command(dead=dead), original=original, time=LATE)


def test_a_message_of_a_forgotten_saga_is_queued_as_if_it_came_now() -> None:
    roles = roles_of(HANDLER, a_role("also", "A"), a_role("on_b", "B"))
    p = SagaProgress(service="svc", saga="s")
    action = operator_commands.decide_command(p, roles, renewing(), {"also": "no bytes"})
    assert isinstance(action, AdmitAsNew)
    written = operator_commands.apply_command(p, replace(a_hand(renewing(), roles=roles), before=p), action)
    entry, after = written.entry, written.snapshot
    assert entry is not None
    assert [(k.handler, k.message.time, k.undecodable) for k in after.queue] == [
        ("on_a", LATE, None),
        ("also", LATE, "no bytes"),
    ]
    assert (after.started, after.replays, after.n) == (LATE, 1, 1)
    assert (entry.outcome, entry.handler, entry.cause) == ("replayed", COMMAND, A.id)
    (end,) = entry.letters
    assert (end.id, end.reason) == ("dead-1-replayed", "it is handled as a new one: ada wants it: because")
    assert isinstance(decisions.find_next_ready(after, roles, NOW_MS), RunHandler)
    assert history.verify_history(after.transitions, after) is None
    assert after.principal is None, "the principal is not stated"
    later = replace(renewing(), id="operator|later")
    assert "no dead letter dead-1" in reason(after, later, roles)


def test_the_principal_of_a_forgotten_saga_is_restored_with_its_message() -> None:
    roles = roles_of(HANDLER)
    p = SagaProgress(service="svc", saga="s")
    action = operator_commands.decide_command(p, roles, renewing(original=replace(A, principal="user:4711")))
    assert isinstance(action, AdmitAsNew)
    after = operator_commands.apply_command(p, replace(a_hand(renewing(), roles=roles), before=p), action).snapshot
    assert after.principal == "user:4711"
    assert history.verify_history(after.transitions, after) is None


def test_a_message_admitted_as_new_is_for_handlers_without_it_and_for_compensations() -> None:
    undo = CompensationRole(name="undo_b", outcomes=frozenset({"A"}), results=frozenset({"R"}))
    roles = roles_of(HANDLER, a_role("also", "A"), a_role("on_b", "B", undo=undo))
    p = replace(blank(), n=1, inbox={ids.inbox_entry(A.id, "also"): 1})
    action = operator_commands.decide_command(p, roles, renewing())
    assert isinstance(action, AdmitAsNew)
    assert ([r.name for r in action.takers], [r.name for r in action.undone]) == (["on_a"], ["on_b"])
    after = operator_commands.apply_command(p, a_hand(renewing(), roles=roles), action).snapshot
    assert [k.handler for k in after.compensating] == ["on_b"]
    kept_ = replace(p, queue=(kept("on_a", A),), compensating=(kept("on_b", A),))
    assert "no handler here has anything left to do with A" in reason(kept_, renewing(), roles)
    had = replace(p, inbox={ids.inbox_entry(A.id, name): 1 for name in ("also", "on_a", "undo on_b")})
    assert "no handler here has anything left to do with A" in reason(had, renewing(), roles)
    found = operator_commands.decide_command(p, roles, renewing(), paged=("on_a", "undo on_b"))
    assert isinstance(found, RejectCommand), "segments know what the inbox does not"
    assert "no handler here has anything left to do with Z" in reason(p, renewing(original=a_message("Z")), roles)


def test_an_outcome_of_a_forgotten_saga_reports_that_nothing_was_compensated() -> None:
    undo = CompensationRole(name="undo_b", outcomes=frozenset({"A"}), results=frozenset({"R"}))
    roles = roles_of(a_role("on_b", "B", undo=undo))
    nothing = SagaProgress(service="svc", saga="s")
    assert "what A would undo is forgotten here: undo its remaining effects by hand" in reason(
        nothing, renewing(), roles
    )


def refused(why: str) -> SagaProgress:
    write_context = a_hand(A, roles=ROLES)
    return journal.reject_message(blank(), replace(write_context, before=blank()), HANDLER, A, why, "look why").snapshot


def letter_id(p: SagaProgress) -> str:
    (letter,) = decode_transition(p.transitions[-1]).letters
    return letter.id


def test_a_message_too_old_for_one_handler_runs_there_on_command() -> None:
    p = refused(f"{decisions.TOO_OLD}: it is of long ago")
    command = renewing(letter_id(p), original=None)
    action = operator_commands.decide_command(p, ROLES, command)
    assert isinstance(action, AdmitAsNew)
    written = operator_commands.apply_command(p, replace(a_hand(command, roles=ROLES), before=p), action)
    assert ids.inbox_entry(A.id, "on_a") not in written.snapshot.inbox
    assert written.entry is not None
    assert written.entry.handler == "on_a"
    assert isinstance(decisions.find_next_ready(written.snapshot, ROLES, NOW_MS), RunHandler)


def test_a_message_too_old_for_a_removed_handler_is_refused() -> None:
    p = refused(f"{decisions.TOO_OLD}: it is of long ago")
    renamed = roles_of(a_role("on_another", "A"))
    assert "no handler on_a" in reason(p, renewing(letter_id(p), original=None), renamed)


def test_a_message_with_other_content_than_the_handled_one_is_not_handled() -> None:
    p = refused(f"{decisions.OTHER_CONTENT}: on_a has taken another A")
    assert "what on_a has handled first counts" in reason(p, renewing(letter_id(p), original=None))
    other = refused("of an unknown kind")
    assert "no dead letter" in reason(other, renewing(letter_id(other), original=None))


def test_a_discarded_dead_letter_is_not_admitted_as_new() -> None:
    p = executed(quarantined(), a_command("discard")).snapshot
    died = DeadLetterRecord(id=DEAD, kind="dead letter", handler="on_a", reason="r", remedy="m", message=A, attempts=3)
    ended = journal.append_transition(
        p, a_hand(A, roles=ROLES), "dead", "on_a", journal.TransitionDetails(message=A, letters=(died,))
    ).snapshot
    assert "no dead letter dead-1" in reason(ended, renewing())


def test_the_end_of_a_replay_is_reported_once() -> None:
    p = executed(quarantined(), a_command()).snapshot

    def then(p: SagaProgress, outcome: Any, handler: str = "on_a") -> SagaProgress:
        return journal.append_transition(
            p, a_hand(A, roles=ROLES), outcome, handler, journal.TransitionDetails(message=A)
        ).snapshot

    def came(p: SagaProgress) -> str | None:
        return operator_commands.find_replay_result(p, decode_transition(p.transitions[-1]))

    assert came(p) is None, "a replay is no end"
    assert came(then(p, "retrying")) is None
    handled = then(then(p, "retrying"), "handled")
    assert came(handled) == "succeeded"
    assert came(replace(handled, replays=0)) is None
    assert came(then(p, "dead")) == "died"
    assert came(then(handled, "handled")) is None, "it was reported with the one before"
    assert came(then(p, "handled", "on_b")) is None, "another handler was never replayed"
    assert came(then(then(then(p, "queued", "on_b"), "ignored", "on_b"), "ignored")) == "ignored"
