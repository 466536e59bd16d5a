"""Choose the next action of a saga, and record decisions that need no handler. Pure functions.

Work that the message itself does not trigger (an operator's command, a due time, a complete fan-in) is found here, too.
"""

from collections.abc import Sequence
from operator import attrgetter

from msgspec.structs import replace

from saga.messages import Message
from saga.messaging.operator_commands import OperatorCommand
from saga.messaging.timers import TYPE as TIMER_TYPE
from saga.progress import compensation, ids, journal, operator_commands, timers
from saga.progress.actions import (
    Action,
    AlreadyPending,
    AlreadyProcessed,
    AwaitLog,
    BeginAbort,
    CloseHandler,
    Complete,
    DelayCompensation,
    Enqueue,
    ForwardTimer,
    HeldBack,
    Ignore,
    KeepPending,
    LoadProgress,
    Now,
    RecallOverflow,
    RecordedDecision,
    Reject,
    RescheduleTimer,
    TouchDeadline,
    Trigger,
)
from saga.progress.decisions import (
    decide,
    decide_compensation,
    find_compensations,
    find_next_ready,
    find_pending_compensation,
    is_compensated,
)
from saga.progress.document import PendingMessage, SagaProgress
from saga.progress.handlers import HandlerRoles
from saga.progress.journal import Commit, WriteContext

DONE, RELOAD, RECALL = Complete(), LoadProgress(), RecallOverflow()
_open_work = attrgetter("intents", "queue", "waiting", "self_consumed", "compensating", "suspended_runs", "segments")


def choose_next_action(
    p: SagaProgress | None, roles: HandlerRoles, trigger: Trigger, now: Now, certain: bool
) -> Action:
    """Choose the next action for the message and its saga.

    First come actions for the message itself: for its handlers in declaration order, then for compensations; or the
    action of an operator command. Then comes all other work of the saga that is ready, because it has to be done before
    the offset is committed.

    `p`: the progress; `None` if it is unknown. `certain`: True if the progress was read or written while this message
    is processed.
    """
    message = trigger.message
    if p is None:
        return RELOAD
    if p.segments and trigger.paged is None:
        return RECALL
    if p.timer is not None and not timers.is_clock_behind(message, now.ms):  # without a timer nothing waits for a time
        p = timers.limit_delays(p, roles, now.ms)
    only_had = (
        message.type != TIMER_TYPE
    )  # a handled message stays in the inbox, so an old copy suffices; timers are not in it
    if isinstance(message, OperatorCommand):
        applied = operator_commands.decide_command(p, roles, message, trigger.undecodable, trigger.paged or ())
        if applied is not None:
            return applied
    for role in roles.by_type.get(message.type, ()):
        if trigger.paged and role.name in trigger.paged:  # it is stored already
            only_had = False
            continue
        decision = decide(p, role, message, now=now, undecodable=trigger.undecodable.get(role.name))
        if isinstance(decision, AlreadyProcessed):
            continue
        only_had = False
        if not isinstance(decision, AlreadyPending):
            return decision
    for role in find_compensations(p, roles, message.type):
        if is_compensated(p, role, message):
            continue
        only_had = False
        pending, step = find_pending_compensation(p, role.name, message), decide_compensation(p, role, message)
        if pending is None or (
            pending.dead is None and pending.due_ms <= now.ms and not isinstance(step, DelayCompensation)
        ):
            return step
    if roles.noted and timers.touches_deadline(p, roles, message):
        return TouchDeadline(message)
    ready = find_next_ready(p, roles, now.ms, message.id, now.handled_ms)
    if ready is not None:
        return ready
    # To finish without a write, the progress must have been read while this message is processed.
    return _at_rest(p, roles, message, now, certain) if certain or only_had else RELOAD


def _at_rest(p: SagaProgress, roles: HandlerRoles, message: Message, now: Now, certain: bool) -> Action:
    """Return the action when no work is ready: make sure that waiting work has a timer, then finish the message."""
    if (unknown := timers.check_unknown_saga(p, message, now.ms, now.retention_s)) is not None:
        return ForwardTimer(*unknown)
    at = timers.compute_next_check(p, now.ms)
    if at is None:
        return DONE
    if p.timer is None or p.timer.due_ms > at:  # a worker whose clock is ahead set it
        return RescheduleTimer() if certain else RELOAD
    if message.type and message.id != p.timer.id:
        return DONE
    if message.type and p.deadlines and (behind := timers.find_deadlines_behind_log(p, roles, now)):
        return _await_log(p, roles, behind, now)
    # If that is far too late by the runs' own delays, it fires earlier: one of the clocks is wrong.
    soon = timers.compute_next_check(timers.limit_delays(p, roles, now.ms), now.ms)
    return ForwardTimer(at if soon is None else min(at, soon))


def _await_log(p: SagaProgress, roles: HandlerRoles, behind: Sequence[PendingMessage], now: Now) -> AwaitLog:
    """Keep the timer until the log was handled up to these deadlines, but not beyond the due time of other waiting
    work.

    `behind`: the deadlines, earliest first.
    """
    others = replace(p, deadlines=tuple([k for k in p.deadlines if k not in behind]))
    looks = [timers.compute_next_check(others, now.ms)]
    looks += [k.due_ms + grace for k in behind if (grace := roles.handlers[k.handler].grace_ms) is not None]
    return AwaitLog(behind[0].due_ms, min([at for at in looks if at is not None], default=None))


def is_message_complete(p: SagaProgress, roles: HandlerRoles, trigger: Trigger) -> bool:
    """Return True if the next action on this progress would be `Complete`. This cheap check saves most messages a
    decision.

    It applies if the only handler that consumes the message has processed it, and the saga has no other work.
    """
    message = trigger.message
    takers = roles.by_type.get(message.type, ())
    return (
        len(takers) == 1
        and not any(_open_work(p))
        and ids.inbox_entry(message.id, takers[0].name) in p.inbox
        and message.type not in roles.undone_by
    )


def record_decision(
    p: SagaProgress, context: WriteContext, action: RecordedDecision | TouchDeadline | RescheduleTimer
) -> Commit:
    """Record a decision for which no handler runs."""
    if isinstance(action, TouchDeadline):  # the message opens or closes a deadline
        return journal.record_deadline_event(p, context, action.message)
    if isinstance(action, RescheduleTimer):
        return journal.reschedule_timer(p, context)
    role, message = action.role, action.message
    match action:
        case Ignore():
            return journal.ignore_message(p, context, role, message, action.reason)
        case Reject():
            return journal.reject_message(p, context, role, message, action.reason, action.remedy)
        case KeepPending():
            return journal.keep_pending(p, context, role, message, action.reason)
        case Enqueue():
            return journal.enqueue_message(p, context, role, message, action.reason, action.undecodable)
        case DelayCompensation():
            return compensation.delay_compensation(p, context, role, message, known=action.known)
        case BeginAbort():
            dead = message.dead if isinstance(message, OperatorCommand) else None
            run = next((k.message.id for k in p.queue if k.dead == dead), None) if dead else None
            return journal.open_intent(p, context, compensation.make_abort_intent(p, role, run))
        case CloseHandler():  # pragma: no branch - it is the last one, and checkers would see another
            return compensation.close_without_results(p, context, role, message)


# -------------------------------------------------------------------- runs that are held back


def hold_back(p: SagaProgress, held_back: Sequence[HeldBack], now_ms: int) -> SagaProgress:
    """Return the progress with the held-back runs due later, whatever their stored time.

    So other runs continue, and the current timer is forwarded. The delay is not recorded, because a pause of days would
    fill the journal. A run that is overdue by now gets the time at which the timer checks it again. With any other
    time, a new timer would be set after each write, without end.
    """
    for handler, undoes, due_ms, message in held_back:
        at = timers.compute_check(due_ms, now_ms)
        if undoes:
            p = replace(p, compensating=_move_due(p.compensating, handler, message, at))
        else:
            later = tuple(
                replace(c, due_ms=max(c.due_ms, at))
                if c.handler == handler and message in ("", *[m.id for m in c.parts])
                else c
                for c in p.suspended_runs
            )
            queue, waits = _move_due(p.queue, handler, message, at), _move_due(p.deadlines, handler, message, at)
            p = replace(p, queue=queue, deadlines=waits, suspended_runs=later)
    return p


def _move_due(
    pending: tuple[PendingMessage, ...], handler: str, message: str, due_ms: int
) -> tuple[PendingMessage, ...]:
    return tuple(
        replace(
            k, due_ms=max(k.due_ms, due_ms), delay_ms=due_ms
        )  # however long: the delay must not be taken for a wrong clock
        if k.handler == handler and k.due_ms and message in ("", k.message.id)
        else k
        for k in pending
    )
