"""Process one message: decide what is next, carry it out, repeat. docs/protocol.md gives the reason for each line.

| dies | then |
|---|---|
| before the write | redelivered; steps and updates that finished are not repeated, their results are recorded |
| after the write, before publishing | redelivered; its events are published then, or before the saga's next write |
| after publishing, before the commit | redelivered; found in the inbox; receivers drop repeats by id |
| two workers own the partition | the second write is refused, and decided again by whoever owns it now |
| the write's answer is lost | never written again blindly: reload and decide again |
| the publish's answer is lost | publish again; same ids |
"""

from msgspec.structs import replace

from saga.engine.errors import Superseded
from saga.engine.execution import abort, failure_handling, handler_runner
from saga.engine.execution.beginning import judge_decodable, read_progress
from saga.engine.execution.value_codec import encrypt_answer
from saga.engine.persistence import overflow_store, progress_repository
from saga.engine.processing_state import ProcessingState
from saga.engine.service_runtime import ServiceRuntime
from saga.errors import SchemaUnasked, TooLarge
from saga.progress.actions import (
    Abort,
    Action,
    ApplyCommand,
    AwaitLog,
    Compensate,
    Complete,
    ForwardTimer,
    HandlerAction,
    LoadProgress,
    Now,
    RecallOverflow,
    RecordDecision,
    RescheduleTimer,
    RunHandler,
    TouchDeadline,
)
from saga.progress.document import PendingMessage, SagaProgress
from saga.progress.next_action import (
    RELOAD,
    choose_next_action,
    is_message_complete,
    record_decision,
    record_without_handler,
)
from saga.progress.operator_commands import apply_command
from saga.progress.timers import is_deadline_overdue
from saga.telemetry.events import DeadlinePassedLog, TimerKept


async def process(service: ServiceRuntime, turn: ProcessingState) -> ProcessingState:
    """Process one message until nothing is left to do for it; then its offset may be committed."""
    while not turn.is_complete:
        turn = await advance(service, turn)
    return turn


async def advance(service: ServiceRuntime, turn: ProcessingState) -> ProcessingState:
    """Carry out one decision, up to one read or write of the progress.

    A refused write is no error: the next decision is made on the progress as it is by then.
    """
    action: Action = RELOAD
    try:
        if turn.bad:
            turn = judge_decodable(service, turn)
        if turn.progress is not None:  # else nothing can be decided, and most messages are the first of their saga here
            now = progress_repository.decision_time(service)
            if turn.progress.deadlines:
                now = await add_log_progress(service, turn, now)
            action = choose_next_action(read_progress(service, turn, now.ms), service.roles, turn, now, turn.is_current)
        match action:
            case RunHandler():
                turn = await handler_runner.run(service, turn, action)
            case Complete() | ForwardTimer() | AwaitLog():
                return await end_with_timer(service, turn, action)
            case LoadProgress():
                return await progress_repository.load(service, turn)
            case RecallOverflow():
                return await overflow_store.recall(service, turn)
            case Compensate():
                turn = await handler_runner.compensate(service, turn, action)
            case Abort():
                turn = await abort.abort_run(service, turn, action)
            case ApplyCommand():
                service.schemas.doubt()
                heeds = await encrypt_answer(service, turn, action)
                turn = await progress_repository.commit(service, turn, apply_command, heeds)
            case TouchDeadline() | RescheduleTimer():
                turn = await progress_repository.commit(service, turn, record_without_handler, action)
            case RecordDecision():
                turn = await progress_repository.commit(service, turn, record_decision, action)
    except (Superseded, SchemaUnasked) as why:
        return await _decide_again(service, turn, why)
    except TooLarge as why:
        return await _give_up_oversized(service, turn, action, why)
    return replace(turn, is_complete=True) if _is_finished(service, turn) else turn


async def _decide_again(
    service: ServiceRuntime, turn: ProcessingState, why: Superseded | SchemaUnasked
) -> ProcessingState:
    """Drop what is known to be outdated, or ask the schema registry, so that the next decision can be made."""
    if isinstance(why, Superseded):
        return turn.drop_progress()
    await service.schemas.ask(why.id, service.ports.ask_registry)
    return turn


async def _give_up_oversized(
    service: ServiceRuntime, turn: ProcessingState, action: Action, why: TooLarge
) -> ProcessingState:
    """Make a dead letter of a message whose progress the store refuses as too large, or reject the command.

    Raises `why` again if neither a handler nor a command is at fault.
    """
    if isinstance(action, ApplyCommand):
        return await failure_handling.reject_oversized_command(service, turn, action.command, why)
    if not isinstance(action, HandlerAction):
        raise why
    return await failure_handling.give_up_oversized(service, turn, action, why)


def _is_finished(service: ServiceRuntime, turn: ProcessingState) -> bool:
    """Return True if nothing is left to do and one more decision would only confirm it.

    A deadline that became due meanwhile is something to do.
    """
    p = turn.progress
    if p is None or not turn.is_current or not is_message_complete(p, service.roles, turn):
        return False
    return not p.deadlines or not is_deadline_overdue(p, service.ports.clock.now_ms())


# -------------------------------------------------------------------- timers


async def forward_timer(service: ServiceRuntime, turn: ProcessingState, action: ForwardTimer) -> ProcessingState:
    """Publish the timer again for a later time, and complete the message."""
    p, due_ms, unknown_ms = turn.loaded_progress, action.due_ms, action.unknown_ms
    wake = turn.message.id if p.wake is None else p.wake.id
    record = progress_repository.timer_record(service, p.saga, wake, due_ms, unknown_ms=unknown_ms)
    await progress_repository.send(service, turn.position, [record])
    if unknown_ms:
        wait_s = (due_ms - service.ports.clock.now_ms()) / 1000
        service.ports.outage_watch.report(TimerKept(service=service.name, saga=p.saga, timer=wake, again_s=wait_s))
        turn.measurements.outcomes.append(("", "kept", "this store knows no such saga"))
    return replace(turn, is_complete=True)


async def add_log_progress(service: ServiceRuntime, turn: ProcessingState, now: Now) -> Now:
    """Add to `now` how far the log has been handled, if a deadline is due: an event that closes it may lie there."""
    p = turn.loaded_progress
    if not is_deadline_overdue(p, now.ms):
        return now
    due_ms = max(k.due_ms for k in p.deadlines if k.due_ms <= now.ms)
    handled_ms = await service.ports.assignment.handled_ms(p.saga, due_ms)
    for k in p.deadlines:
        if now.ms >= k.due_ms > handled_ms:
            _report_grace(service, p, k, now.ms)
    return replace(now, handled_ms=handled_ms)


def _report_grace(service: ServiceRuntime, p: SagaProgress, k: PendingMessage, now_ms: int) -> None:
    """Report a deadline that runs because its grace is over, although the log was not handled up to its due time."""
    grace_ms, watching = service.roles.handlers[k.handler].grace_ms, service.ports.outage_watch
    if grace_ms is None or now_ms < k.due_ms + grace_ms or not watching.is_news(f"{p.saga} {k.handler} {k.due_ms}"):
        return
    why = f"the grace of {k.handler} is over, {grace_ms / 1000:g} s after its due time: the log was not handled so far"
    watching.report(DeadlinePassedLog(service=service.name, saga=p.saga, topic=None, partition=None, error=why))


async def end_with_timer(
    service: ServiceRuntime, turn: ProcessingState, action: Complete | ForwardTimer | AwaitLog
) -> ProcessingState:
    """Complete the message; a timer is forwarded, or kept until the log has been handled.

    If another worker has the partitions of the saga, the timer is forwarded to it: only that worker knows how far they
    have been handled.
    """
    if isinstance(action, Complete):
        return replace(turn, is_complete=True)
    if isinstance(action, ForwardTimer):
        return await forward_timer(service, turn, action)
    if not service.ports.assignment.is_at_home(turn.message.saga, turn.position):
        return await forward_timer(service, turn, ForwardTimer(action.due_ms))
    return replace(turn, is_complete=True, awaited_log=action)
