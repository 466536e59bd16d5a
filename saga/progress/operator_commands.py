"""Decide and record operator commands about dead letters, escalations and parked runs. Pure functions.

A command is applied even if the saga is quarantined or has queued messages. It names a dead letter, whose id depends on
the number of replays, or one particular wait of a parked run. So a command that arrives twice, or late, has no effect.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Literal, TypeAlias

from msgspec import Raw
from msgspec.structs import replace

from saga.messaging.operator_commands import OperatorCommand, StepAnswer, Wanted
from saga.progress import decisions, ids, journal, suspended_runs, timers
from saga.progress.actions import (
    NO_HANDLERS,
    Abort,
    AdmitAsNew,
    AnswerStep,
    BeginAbort,
    CommandDecision,
    Discard,
    RejectCommand,
    Release,
    Replay,
    ResolveEscalation,
)
from saga.progress.document import (
    ABORT,
    DeadLetterRecord,
    Intent,
    PendingMessage,
    SagaProgress,
    StepRecord,
    SuspendedRun,
    Transition,
    compute_format,
    decode_transition,
)
from saga.progress.failed_attempts import find_parked_runs, release_run
from saga.progress.handlers import COMMAND, HandlerRole, HandlerRoles, compensation_name
from saga.progress.journal import Commit, TransitionDetails, WriteContext


def decide_command(
    p: SagaProgress,
    roles: HandlerRoles,
    command: OperatorCommand,
    undecodable: Mapping[str, str] = NO_HANDLERS,
    paged: Collection[str] = (),
) -> CommandDecision | BeginAbort | Abort | None:
    """Decide what a command does; `None` if it was applied before, or is about work of an unknown saga.

    `undecodable`: handlers that can never decode the message that the command contains, with the reason for each.
    `paged`: handlers and compensations that overflow segments know to have handled that message, or to have it pending.
    """
    if ids.inbox_entry(command.id, COMMAND) in p.inbox:
        return None
    if command.wanted == "resolve" and command.answered is None:
        return _decide_resolution(p, command)
    if not p.n and command.original is None:
        return None
    if command.wanted == "release":
        return _decide_release(p, command)
    pending = next((k for k in (*p.queue, *p.compensating) if k.dead == command.dead), None)
    if (
        pending is None
        and command.wanted == "replay"
        and (admitted := _decide_admission(p, roles, command, undecodable, paged)) is not None
    ):
        return admitted
    if pending is None:
        return RejectCommand(
            command, f"no dead letter {command.dead} is in the saga's way here: it may have gone before"
        )
    if command.wanted == "replay":
        refusal = _why_not_replayable(p, pending)
        return RejectCommand(command, refusal) if refusal else Replay(command, pending)
    if command.answered is not None:
        return _decide_answer(p, roles, command, command.answered, pending)
    role = roles.handlers[pending.handler]
    refusal = _why_not_discardable(p, roles, role, pending)
    if refusal:
        return RejectCommand(command, refusal)
    abort_intent = decisions.find_intent(p, pending.handler, pending.message, ABORT)
    if abort_intent is not None:
        return Abort(role, command, abort_intent)
    goes_on = suspended_runs.find_suspended_run(p, pending.handler, pending.message.id)
    if decisions.find_intent(p, pending.handler, pending.message) is not None or (
        goes_on is not None and (goes_on.calls or goes_on.undo_with)
    ):
        return BeginAbort(role, command)  # from then on nothing continues the run
    return Discard(command, pending)


def _decide_admission(
    p: SagaProgress,
    roles: HandlerRoles,
    command: OperatorCommand,
    undecodable: Mapping[str, str],
    paged: Collection[str],
) -> AdmitAsNew | RejectCommand | None:
    """Decide on a dead letter that does not block its saga; `None` if there is none with this id."""
    letters = {letter.id: letter for raw in p.transitions for letter in decode_transition(raw).letters}
    letter = letters.get(command.dead)
    if f"{command.dead}-replayed" in letters or (letter is not None and letter.attempts):
        return None
    if letter is not None and letter.reason.startswith(decisions.OTHER_CONTENT):
        return RejectCommand(command, f"what {letter.handler} has handled first counts: have its sender say what is so")
    message = command.original if letter is None else letter.message
    if message is None or (letter is not None and not letter.reason.startswith(decisions.TOO_OLD)):
        return None
    if letter is not None and letter.handler not in roles.handlers:
        return RejectCommand(command, f"this version has no handler {letter.handler}: replay it where one has")
    if letter is not None:
        return AdmitAsNew(command, message, (roles.handlers[letter.handler],), undecodable=undecodable)
    stored = {(k.handler, k.message.id) for k in (*p.queue, *p.waiting)}
    takers = tuple(
        role
        for role in roles.by_type.get(message.type, ())
        if ids.inbox_entry(message.id, role.name) not in p.inbox
        and (role.name, message.id) not in stored
        and role.name not in paged
    )
    undone = tuple(
        role
        for role in roles.undone_by.get(message.type, ())
        if p.n
        and not decisions.is_compensated(p, role, message)
        and compensation_name(role.name) not in paged
        and decisions.find_pending_compensation(p, role.name, message) is None
    )
    if not takers and not p.n and message.type in roles.undone_by:
        return RejectCommand(
            command, f"what {message.type} would undo is forgotten here: undo its remaining effects by hand"
        )
    if not takers and not undone:
        return RejectCommand(command, f"no handler here has anything left to do with {message.type}")
    return AdmitAsNew(command, message, takers, undone, undecodable)


def _decide_release(p: SagaProgress, command: OperatorCommand) -> Release | RejectCommand:
    """Decide on a command that ends the wait of a parked run."""
    run = next((run for run in find_parked_runs(p) if run.id == command.dead), None)
    if run is None:
        return RejectCommand(command, "what was parked has been tried, or has ended, since")
    return Release(command, run)


def _decide_answer(
    p: SagaProgress, roles: HandlerRoles, command: OperatorCommand, given: StepAnswer, pending: PendingMessage
) -> AnswerStep | RejectCommand:
    """Decide on an operator's answer to a call."""
    refusal = _why_not_replayable(p, pending)
    if refusal is not None:
        return RejectCommand(command, refusal)
    intent = _find_intent_of(p, pending)
    if intent is None:
        return RejectCommand(command, f"{pending.handler} has begun nothing that could be answered: replay it")
    known = _find_call(intent, given)
    if known is not None and known.kind == "update":
        return RejectCommand(command, f"the document {known.document} knows whether {known.name} happened: replay it")
    unfit = _why_not_answerable(pending, intent, given, known) or _why_not_declared(
        roles.handlers[pending.handler], intent, given
    )
    return RejectCommand(command, unfit) if unfit else AnswerStep(command, pending, intent)


def _why_not_answerable(
    pending: PendingMessage, intent: Intent, given: StepAnswer, known: StepRecord | None
) -> str | None:
    """Return why an operator may not answer this step of a dead run; `None` if they may.

    An answer to a step that the run never makes would change nothing, and the open call would be made again. An answer
    of the external system stays valid, unless the run's code now makes another call there.
    """
    open_call = intent.open_call
    may_be = [] if open_call is None or open_call.kind == "update" else [(open_call.name, open_call.number)]
    may_be += [(call.name, call.number) for call in intent.calls if call.by is not None]
    may_be += [step for step in pending.disputed if step not in may_be]
    if (given.step, given.number) in may_be:
        return None
    which = f"step {given.step!r} (number {given.number})"
    wrong = f"{intent.name or pending.handler} has not asked for {which}"
    if known is not None:
        wrong = f"{which} of {intent.name or pending.handler} is answered already"
    there = ", ".join(f"{name!r} (number {number})" for name, number in may_be)
    return f"{wrong}; it waits for an answer to {there}" if there else f"{wrong}, and no call of it is open: replay it"


def _why_not_declared(role: HandlerRole, intent: Intent, given: StepAnswer) -> str | None:
    """Return why an operator may not answer with this exception; `None` if the run's resources declare it."""
    declared = role.undo.expected_errors if intent.kind == "undo" and role.undo is not None else role.expected_errors
    if given.raised is None or given.raised in declared:
        return None
    there = ", ".join(sorted(declared)) or "none"
    return f"{intent.name or role.name} has no declared exception {given.raised!r}; its resources declare {there}"


def _find_intent_of(p: SagaProgress, pending: PendingMessage) -> Intent | None:
    """Return the open intent of a dead run of a handler or a compensation."""
    undoes = any(k is pending for k in p.compensating)
    return decisions.find_intent(p, pending.handler, pending.message, "undo" if undoes else "do")


def _find_call(intent: Intent, given: StepAnswer) -> StepRecord | None:
    """Return the recorded or begun call that the operator answers; `None` if the run has not made it."""
    begun = (*intent.calls, intent.begins) if intent.begins is not None else intent.calls
    return next((c for c in begun if (c.name, c.number) == (given.step, given.number)), None)


def _decide_resolution(p: SagaProgress, command: OperatorCommand) -> ResolveEscalation | RejectCommand:
    """Decide on a command that closes an escalation.

    An escalation outlives its saga, because it stays open until a person closes it. So it is refused as unknown only if
    the progress has every transition since the saga began: none is archived, and none was forgotten with the saga.
    """
    letters = {letter.id: letter for raw in p.transitions for letter in decode_transition(raw).letters}
    if f"{command.dead}-resolved" in letters:
        return RejectCommand(command, f"escalation {command.dead} is closed already")
    escalation = letters.get(command.dead)
    is_complete = p.started is not None and not p.first and not p.replays
    if is_complete if escalation is None else escalation.kind != "escalation":
        return RejectCommand(command, f"no escalation {command.dead} is known of this saga here")
    return ResolveEscalation(command, escalation)


def _why_not_replayable(p: SagaProgress, pending: PendingMessage) -> str | None:
    if not pending.message.value:
        return (
            "the progress had no room for the message: its bytes are in the dead letter alone; let its sender repeat it"
        )
    if decisions.find_intent(p, pending.handler, pending.message, ABORT) is not None:
        return f"{pending.handler} is being closed: what it began is put out of reach"
    return None


def _why_not_discardable(
    p: SagaProgress, roles: HandlerRoles, role: HandlerRole, pending: PendingMessage
) -> str | None:
    """Return why the message cannot be discarded; `None` if it can."""
    if any(k is pending for k in p.compensating):
        return f"what {role.name} did would never be undone: replay it, once its compensation can succeed"
    if role.after_outcome:
        return f"an outcome sets {role.name} off, and other services rely on it: replay it, once it can succeed"
    if roles.outcomes and not timers.is_end_certain(p, roles):
        return (
            f"{roles.service} decides how sagas end, and without {role.name} this one might not, for no deadline is "
            "open that would end it: replay it"
        )
    return None


ReplayResult: TypeAlias = Literal["succeeded", "died", "ignored"]
_CAME_OF: Mapping[str, ReplayResult] = {
    "handled": "succeeded", "later": "succeeded", "compensated": "succeeded", "dead": "died", "ignored": "ignored"
}  # fmt: skip


def find_replay_result(p: SagaProgress, entry: Transition) -> ReplayResult | None:
    """Return the result of a replay, if the last transition of the progress ends the replay; otherwise `None`.

    The replay is looked up in the transitions that are not archived. Between it and the last transition, this message
    and handler may only have failed attempts.
    """
    if not p.replays or entry.outcome not in _CAME_OF:
        return None
    for raw in reversed(p.transitions[:-1]):
        earlier = decode_transition(raw)
        if earlier.outcome in ("replayed", "resolved") and earlier.cause == entry.message:
            if earlier.handler in (entry.handler, COMMAND):
                return _CAME_OF[entry.outcome]
        elif (earlier.handler, earlier.message) == (entry.handler, entry.message) and earlier.outcome in _CAME_OF:
            return None
    return None


# -------------------------------------------------------------------- records


def apply_command(p: SagaProgress, context: WriteContext, action: CommandDecision) -> Commit:
    """Record the result of a command."""
    command = action.command
    p = replace(p, inbox=journal.add_to_inbox(p, context, COMMAND, [command.id]))
    match action:
        case Replay(pending=pending):
            return _apply_replay(p, context, command, pending)
        case AdmitAsNew():
            return _apply_admission(p, context, action)
        case Discard(pending=pending):
            return discard_message(p, context, command, pending)
        case Release(run=run):
            ended = TransitionDetails(
                message=command, cause=run.message.id, reason=describe_request(command), attempt=run.attempts
            )
            role = context.roles.handlers[run.handler]
            name = role.undo.name if run.undoes and role.undo is not None else role.name
            return journal.append_transition(release_run(p, run, context.now_ms), context, "released", name, ended)
        case AnswerStep(pending=pending, intent=intent):
            return _apply_answer(p, context, command, pending, intent)
        case ResolveEscalation(escalation=escalation):
            return _apply_resolution(p, context, command, escalation)
        case RejectCommand(reason=reason):  # pragma: no branch - it is the last one, and checkers would see another
            reason = f"not {_PAST[command.wanted]}: {reason} ({describe_request(command)})"
            return journal.append_transition(
                p, context, "ignored", COMMAND, TransitionDetails(message=command, reason=reason)
            )


def _apply_replay(p: SagaProgress, context: WriteContext, command: OperatorCommand, pending: PendingMessage) -> Commit:
    """Record a replay: the message keeps its position at the head of the queue, and its attempts are counted from
    zero."""
    p, end = _revive(p, context, command, pending, "replayed", "it is tried again")
    ended = TransitionDetails(
        message=command, cause=pending.message.id, reason=describe_request(command), letters=(end,)
    )
    return journal.append_transition(p, context, "replayed", end.handler, ended)


def _revive(
    p: SagaProgress,
    context: WriteContext,
    command: OperatorCommand,
    pending: PendingMessage,
    what: Literal["replayed", "resolved"],
    so: str,
) -> tuple[SagaProgress, DeadLetterRecord]:
    """Turn a dead letter back into a message to be handled. Returns the progress, and the record that ends the dead
    letter."""
    again = replace(pending, dead=None, attempts=0, under={}, disputed=())
    p = replace(
        p,
        queue=tuple(again if k is pending else k for k in p.queue),
        compensating=tuple(again if k is pending else k for k in p.compensating),
        replays=p.replays + 1,
    )
    role = context.roles.handlers[pending.handler]
    undoes = role.undo is not None and any(k is again for k in p.compensating)
    return p, _make_end_record(command, pending, what, so, role.undo.name if undoes and role.undo else role.name)


def _apply_admission(p: SagaProgress, context: WriteContext, action: AdmitAsNew) -> Commit:
    """Queue the message as if it had arrived now, and as if its saga began now."""
    command = action.command
    message = replace(action.message, time=command.time, started=p.started or command.time)
    inbox = dict(p.inbox)
    for role in action.takers:
        inbox.pop(ids.inbox_entry(message.id, role.name), None)
    takers = [
        PendingMessage(handler=r.name, message=message, n=p.n, undecodable=action.undecodable.get(r.name))
        for r in action.takers
    ]
    undone = [PendingMessage(handler=r.name, message=message, n=p.n) for r in action.undone]
    p = replace(
        p,
        inbox=inbox,
        queue=(*p.queue, *takers),
        compensating=(*p.compensating, *undone),
        replays=p.replays + 1,
    )
    handler = action.takers[0].name if len(action.takers) == 1 and not undone else COMMAND
    end = DeadLetterRecord(
        id=f"{command.dead}-replayed",
        kind="replayed",
        handler=handler,
        reason=f"it is handled as a new one: {describe_request(command)}",
        remedy="nothing to do",
        message=message,
    )
    ended = TransitionDetails(message=command, cause=message.id, reason=describe_request(command), letters=(end,))
    return journal.append_transition(p, replace(context, message=message), "replayed", handler, ended)


def _apply_answer(
    p: SagaProgress, context: WriteContext, command: OperatorCommand, pending: PendingMessage, intent: Intent
) -> Commit:
    """Record an operator's answer in place of the recorded or open call, and retry the run."""
    given = command.answered
    assert given is not None
    known, answered = _find_call(intent, given), make_answered_record(intent, given, command.who)
    calls = tuple(answered if c is known else c for c in intent.calls)
    resolved = replace(intent, calls=calls if known in intent.calls else (*calls, answered))
    p = replace(p, intents=tuple(resolved if i is intent else i for i in p.intents))
    p, end = _revive(p, context, command, pending, "resolved", f"{answered.name} is answered, and it is tried again")
    ended = TransitionDetails(
        message=command, cause=pending.message.id, reason=describe_request(command), letters=(end,), calls=(answered,)
    )
    return journal.append_transition(p, context, "resolved", end.handler, ended)


def make_answered_record(intent: Intent, given: StepAnswer, who: str = "") -> StepRecord:
    """Make the record of a call with the answer that an operator supplies."""
    known = _find_call(intent, given)
    return StepRecord(
        kind="step" if known is None else known.kind,
        name=given.step,
        number=given.number,
        input="" if known is None else known.input,
        arguments="" if known is None else known.arguments,
        document=None if known is None else known.document,
        value=Raw(given.value.encode()),
        answer=given.raised,
        by=who,
    )


def _apply_resolution(
    p: SagaProgress, context: WriteContext, command: OperatorCommand, escalation: DeadLetterRecord | None
) -> Commit:
    """Record that an operator has corrected what an escalation reports."""
    handler = COMMAND if escalation is None else escalation.handler
    end = DeadLetterRecord(
        id=f"{command.dead}-resolved",
        kind="resolved",
        handler=handler,
        reason=f"its problem is corrected: {describe_request(command)}",
        remedy="nothing to do",
        message=command if escalation is None else escalation.message,
    )
    ended = TransitionDetails(message=command, reason=describe_request(command), letters=(end,))
    return journal.append_transition(p, context, "resolved", handler, ended)


def discard_message(  # the message, the command that discards it, and what became of its run's effects
    p: SagaProgress,
    context: WriteContext,
    command: OperatorCommand,
    pending: PendingMessage,
    *,
    remains: Sequence[str] = (),
    calls: tuple[StepRecord, ...] = (),
) -> Commit:
    """Record that the message will never be handled.

    The other events of a fan-in stay, because another message may replace it. `remains`: effects of the run that
    nothing undoes, for a person to correct. `calls`: the calls that undid the run.
    """
    abort_intent = decisions.find_intent(p, pending.handler, pending.message, ABORT)
    gone = [pending.message.id]
    inbox = journal.add_to_inbox(p, context, pending.handler, gone)
    inbox[ids.inbox_entry(command.id, COMMAND)] = context.entered_s
    letters = [_make_end_record(command, pending, "discarded", "it is never handled", pending.handler)]
    if remains:
        letters.append(
            DeadLetterRecord(
                id=ids.dead_letter_id(p.service, p.saga, f"{pending.handler}|escalation", command.id, p.replays),
                kind="escalation",
                handler=pending.handler,
                reason=f"{pending.handler} had begun, and is discarded; its effects have to be corrected by hand",
                remedy="correct the effect of each of these calls by hand",
                message=pending.message,
                calls=tuple(remains),
            )
        )
    goes_on = suspended_runs.find_suspended_run(p, pending.handler, pending.message.id)
    left = () if goes_on is None else _find_remaining_parts(p, context.roles.handlers[pending.handler], goes_on)
    later = tuple(c for c in p.suspended_runs if c is not goes_on)
    p = replace(
        p,
        inbox=inbox,
        queue=journal.remove_messages(p.queue, pending.handler, gone),
        waiting=(*journal.remove_messages(p.waiting, pending.handler, gone), *left),
        suspended_runs=later,
        format=compute_format(p.segments, p.deadlines, later, p.version),
        intents=tuple(i for i in p.intents if i is not abort_intent),
    )
    ended = TransitionDetails(
        message=command, cause=pending.message.id, reason=describe_request(command), calls=calls, letters=tuple(letters)
    )
    return journal.append_transition(p, context, "discarded", pending.handler, ended)


def _find_remaining_parts(p: SagaProgress, role: HandlerRole, goes_on: SuspendedRun) -> tuple[PendingMessage, ...]:
    """Return the other events of a run that never continues. Self-consumed events are left out: they are stored
    anyway."""
    if role.many:
        return ()
    rest = [m for m in goes_on.parts[1:] if m.source != p.service]
    return tuple(PendingMessage(handler=role.name, message=m, n=p.n, decides=role.decides) for m in rest)


def _make_end_record(
    command: OperatorCommand,
    pending: PendingMessage,
    what: Literal["replayed", "discarded", "resolved"],
    so: str,
    handler: str,
) -> DeadLetterRecord:
    """Make the record that ends a dead letter of a handler or a compensation."""
    return DeadLetterRecord(
        id=f"{pending.dead}-{what}",
        kind=what,
        handler=handler,
        reason=f"{so}: {describe_request(command)}",
        remedy="nothing to do",
        message=pending.message,
    )


_PAST: Mapping[Wanted, str] = {
    "replay": "replayed", "discard": "discarded", "resolve": "resolved", "release": "released"
}  # fmt: skip


def describe_request(command: OperatorCommand) -> str:
    """Describe who requested a command and why, for the record of its result."""
    return f"{command.who} wants it: {command.why}"
