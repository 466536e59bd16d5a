"""Record how a compensation waits, undoes results and closes its handler, in whatever order the messages arrive.
Pure functions."""

from collections.abc import Sequence

from msgspec.structs import replace

from saga.messages import Message
from saga.progress import ids, journal, suspended_runs
from saga.progress.decisions import find_intent
from saga.progress.document import (
    ABORT,
    CompensableResult,
    DeadLetterRecord,
    Intent,
    OverflowSegment,
    PendingMessage,
    SagaProgress,
    StepRecord,
    compute_format,
)
from saga.progress.handlers import HandlerRole
from saga.progress.journal import Commit, TransitionDetails, WriteContext, find_uncovered_calls


def delay_compensation(
    p: SagaProgress, context: WriteContext, role: HandlerRole, outcome: Message, *, known: bool
) -> Commit:
    """Record that a compensation waits, and keep its failure outcome.

    `known`: True if it waits for the end of the handler's run, which has begun. False if it waits for a message with
    the start of the saga: before that, the service may have forgotten what it did, so it must not record that there was
    nothing to undo.
    """
    began = f"{role.name} has begun and is brought to its end first"
    reason = began if known else "no message with the start of this saga has come yet"
    return journal.append_transition(
        _keep_outcome(p, role, outcome),
        context,
        "waiting",
        _name(role),
        TransitionDetails(message=outcome, reason=reason),
    )


def _keep_outcome(p: SagaProgress, role: HandlerRole, outcome: Message) -> SagaProgress:
    """Return the progress with the outcome stored for the compensation.

    No run of the handler begins until the compensation has ended.
    """
    if any(k.handler == role.name and k.message.id == outcome.id for k in p.compensating):
        return p
    return replace(p, compensating=(*p.compensating, PendingMessage(handler=role.name, message=outcome, n=p.n)))


def complete_compensation(
    p: SagaProgress, context: WriteContext, role: HandlerRole, result: CompensableResult, ended: TransitionDetails
) -> Commit:
    """Record that one result is undone. After the last result the handler is closed, unless it still has an open run,
    or a suspended run to undo."""
    outcome, delta = ended.message, ended.delta
    cause = result.event.id
    rest = tuple(r for r in p.results if r.event.id != cause or r.handler != role.name)
    # With the run's last result all of its self-consumed events are withdrawn, before that only the event undone here.
    last = not any(r.handler == role.name and r.cause == result.cause for r in rest)
    own = tuple(
        o for o in p.self_consumed if o.event.id != cause and not (last and o.event.id in result.self_consumed_ids)
    )
    if p.queue and own != p.self_consumed:
        p, ended = _drop_withdrawn_runs(p, context, {o.event.id for o in p.self_consumed if o not in own}, ended)
    p = replace(
        p,
        results=rest,
        self_consumed=own,
        intents=tuple(i for i in p.intents if not (i.kind == "undo" and i.handler == role.name and i.cause == cause)),
        state={**p.state, **delta} if delta else p.state,
        compensating=tuple(
            [
                replace(k, attempts=0, under={}, due_ms=0) if k.handler == role.name and k.due_ms else k
                for k in p.compensating
            ]
        ),
    )
    if not (
        _has_more_results(p, role)
        or any(i.handler == role.name for i in p.intents)
        or (p.suspended_runs and suspended_runs.has_uncovered_calls(p, role.name))
    ):
        p, letters = _close_handler(p, context, role, outcome)
        ended = replace(ended, letters=(*ended.letters, *letters))
    else:
        p = _keep_outcome(p, role, outcome)
    return journal.append_transition(
        journal.apply_emitted_events(p, context.roles, ended.events), context, "compensated", _name(role), ended
    )


def _drop_withdrawn_runs(
    p: SagaProgress, context: WriteContext, withdrawn: set[str], ended: TransitionDetails
) -> tuple[SagaProgress, TransitionDetails]:
    """Remove failed runs whose event has just been withdrawn, and end their dead letters. A run with an open intent
    stays."""
    gone = [
        k
        for k in p.queue
        if k.message.id in withdrawn
        and not context.roles.handlers[k.handler].is_deadline
        and find_intent(p, k.handler, k.message) is None
        and suspended_runs.find_suspended_run(p, k.handler, k.message.id) is None
    ]
    if not gone:
        return p, ended
    for k in gone:
        inbox = journal.add_to_inbox(p, context, k.handler, [k.message.id])
        p = replace(p, inbox=inbox, queue=journal.remove_messages(p.queue, k.handler, [k.message.id]))
    reason = f"withdrawn, and never handled by {', '.join(k.handler for k in gone)}, which had failed on it"
    letters = [
        _make_dropped_record(k, f"{k.message.type} is withdrawn: {k.handler} never runs on it") for k in gone if k.dead
    ]
    return p, replace(ended, reason=reason, letters=(*ended.letters, *letters))


def _make_dropped_record(k: PendingMessage, reason: str) -> DeadLetterRecord:
    """Make the record that ends a dead letter whose message will never be handled."""
    return DeadLetterRecord(
        id=f"{k.dead}-dropped",
        kind="dropped",
        handler=k.handler,
        reason=reason,
        remedy="nothing to do",
        message=k.message,
    )


def _has_more_results(p: SagaProgress, role: HandlerRole) -> bool:
    """Return True if another result of the handler has to be undone.

    Results in overflow segments count, too: the next write restores them.
    """
    if any(result.handler == role.name for result in p.results):
        return True
    return any(page.kind == "results" and page.handlers == (role.name,) for page in p.segments)


def close_without_results(p: SagaProgress, context: WriteContext, role: HandlerRole, outcome: Message) -> Commit:
    """Record that there is nothing to undo, and close the handler: it will never run in this saga."""
    p, letters = _close_handler(p, context, role, outcome)
    reason = f"nothing of {role.name} to undo; it is closed"
    return journal.append_transition(
        p, context, "compensated", _name(role), TransitionDetails(message=outcome, reason=reason, letters=letters)
    )


def make_abort_intent(p: SagaProgress, role: HandlerRole, run: str | None = None) -> Intent:
    """Make the intent that replaces a handler's run which will never finish, so that nothing continues that run.

    `run`: id of a message of the run to abort; `None` for any run of the handler.
    """
    going_on = [c for c in p.suspended_runs if c.handler == role.name and run in (None, c.parts[0].id)]
    abort_actions = tuple(each for c in going_on for each in c.undo_with)
    intents = [i for i in p.intents if i.handler == role.name and i.kind == "do"]
    original = next((i for i in intents if run is None or run in [m.id for m in i.parts]), None)
    # What a run declares with `on_abort` covers its own earlier turns, and no other run of the handler.
    covered = original.parts[0].id if original is not None and original.undo_with else None
    done = tuple(call for c in going_on if c.parts[0].id != covered for call in c.calls)
    if original is not None and not abort_actions and not original.undo_with:
        return replace(original, kind=ABORT, not_undone=done)
    if original is not None:
        return replace(
            original,
            kind=ABORT,
            calls=(),
            begins=None,
            not_undone=(*done, *find_uncovered_calls(original.calls, original.undo_with)),
            unanswered_call=original.open_call,
            undo_with=(*abort_actions, *original.undo_with),
        )
    c = going_on[0]
    return Intent(
        handler=role.name,
        kind=ABORT,
        cause=suspended_runs.compute_cause(c.parts, c),
        message=c.parts[0],
        parts=c.parts,
        state=p.state,
        version=p.version,
        time="",
        not_undone=done,
        undo_with=abort_actions,
    )


def complete_abort(  # the run, the outcome that ends it, and what became of the run's effects
    p: SagaProgress,
    context: WriteContext,
    role: HandlerRole,
    outcome: Message,
    *,
    remains: Sequence[str],
    calls: tuple[StepRecord, ...] = (),
) -> Commit:
    """Record that the run is aborted. Effects that no call undoes are reported to an operator.

    `remains`: descriptions of those effects. `calls`: the calls that were made to undo the run.
    """
    intent = next(i for i in p.intents if i.handler == role.name and i.kind == ABORT)
    p = replace(p, intents=tuple(i for i in p.intents if i is not intent))
    is_dead = any(k.dead and k.handler == role.name for k in p.queue)
    p, letters = _close_handler(p, context, role, outcome)
    reason = f"{role.name} can never finish: {'it is a dead letter' if is_dead else 'it never continues'}"
    if calls:
        reason += "; the calls given to on_abort were made instead"
    if remains:
        reason += "; its effects remain and have to be corrected by hand"
        escalation = DeadLetterRecord(
            id=ids.dead_letter_id(p.service, p.saga, f"{role.name}|escalation", outcome.id, p.replays),
            kind="escalation",
            handler=role.name,
            reason=reason,
            remedy="correct the effect of each of these calls by hand",
            message=intent.message,
            calls=tuple(remains),
        )
        letters = (escalation, *letters)
    return journal.append_transition(
        p,
        context,
        "compensated",
        _name(role),
        TransitionDetails(message=outcome, reason=reason, calls=calls, letters=letters),
    )


def _close_handler(
    p: SagaProgress, context: WriteContext, role: HandlerRole, outcome: Message
) -> tuple[SagaProgress, tuple[DeadLetterRecord, ...]]:
    """Close the handler for this saga: drop the messages that are stored for it, and record the end of their dead
    letters.

    The outcome and the dropped messages go into the inbox.
    """
    reason = f"{outcome.type} has closed {role.name}: the message will never be handled"
    letters = tuple([_make_dropped_record(k, reason) for k in p.queue if k.handler == role.name and k.dead])
    inbox = journal.close_inbox(p, context, role, outcome)
    later = tuple(c for c in p.suspended_runs if c.handler != role.name)
    p = replace(
        p,
        suspended_runs=later,
        format=compute_format(p.segments, p.deadlines, later, p.version),
        inbox=inbox,
        queue=tuple(k for k in p.queue if k.handler != role.name),
        waiting=tuple(k for k in p.waiting if k.handler != role.name),
        compensating=journal.remove_messages(p.compensating, role.name, [outcome.id]),
        segments=_close_segments(p, context, role) if p.segments else (),
        closed=p.closed if role.name in p.closed else (*p.closed, role.name),
        failed=p.failed if outcome.type in p.failed else (*p.failed, outcome.type),
    )
    return p, letters


def _close_segments(p: SagaProgress, context: WriteContext, role: HandlerRole) -> tuple[OverflowSegment, ...]:
    """Turn segments of messages that are pending for the handler into inbox segments.

    Segments of the queue stay, because they may contain messages of other handlers. Queued messages of this handler are
    ignored when they become next.
    """
    now_s = context.entered_s
    return tuple(
        page.closed(now_s, now_s + context.retention_s)
        if page.kind == "waiting" and page.handlers == (role.name,)
        else page
        for page in p.segments
    )


def _name(role: HandlerRole) -> str:
    """Return the name of the compensation for the journal."""
    return role.undo.name if role.undo else role.name
