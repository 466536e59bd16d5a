"""A wake that ends its turn and leads to nothing yet: it is sent on, or kept until the log has been handled far enough.
It came before its time, something else of its saga waits for a later one, or this store does not know its saga."""

from msgspec.structs import replace

from saga.engine.persistence import outbox, progress_repository
from saga.engine.processing_state import ProcessingState
from saga.engine.service_runtime import ServiceRuntime
from saga.progress.actions import AwaitLog, Complete, ForwardTimer, Now
from saga.progress.document import PendingMessage, SagaProgress
from saga.progress.timers import is_overdue
from saga.telemetry.events import DeadlinePassedLog, TimerKept


async def send_on(service: ServiceRuntime, turn: ProcessingState, action: ForwardTimer) -> ProcessingState:
    """Publish a wake again, for this time; then nothing is left to do."""
    p, due_ms, unknown_ms = turn.loaded_progress, action.due_ms, action.unknown_ms
    wake = turn.message.id if p.wake is None else p.wake.id
    record = outbox.wake_record(service, p.saga, wake, due_ms, unknown_ms=unknown_ms)
    await progress_repository.send(service, turn.position, [record])
    if unknown_ms:
        wait_s = (due_ms - service.ports.clock.now_ms()) / 1000
        service.ports.outage_watch.report(TimerKept(service=service.name, saga=p.saga, timer=wake, again_s=wait_s))
        turn.measurements.outcomes.append(("", "kept", "this store knows no such saga"))
    return replace(turn, is_complete=True)


async def with_log(service: ServiceRuntime, turn: ProcessingState, now: Now) -> Now:
    """The time; where a deadline is due, with how far the log has been handled, for what closes it may lie there."""
    p = turn.loaded_progress
    if not is_overdue(p, now.ms):
        return now
    due_ms = max(k.due_ms for k in p.deadlines if k.due_ms <= now.ms)
    handled_ms = await service.ports.assignment.handled_ms(p.saga, due_ms)
    for k in p.deadlines:
        if now.ms >= k.due_ms > handled_ms:
            _tell_of_grace(service, p, k, now.ms)
    return replace(now, handled_ms=handled_ms)


def _tell_of_grace(service: ServiceRuntime, p: SagaProgress, k: PendingMessage, now_ms: int) -> None:
    """Tell people of a deadline that runs because its grace is over."""
    grace_ms, watching = service.roles.handlers[k.handler].grace_ms, service.ports.outage_watch
    if grace_ms is None or now_ms < k.due_ms + grace_ms or not watching.is_news(f"{p.saga} {k.handler} {k.due_ms}"):
        return
    why = f"the grace of {k.handler} is over, {grace_ms / 1000:g} s after its due time: the log was not handled so far"
    watching.report(DeadlinePassedLog(service=service.name, saga=p.saga, topic=None, partition=None, error=why))


async def rests(
    service: ServiceRuntime, turn: ProcessingState, action: Complete | ForwardTimer | AwaitLog
) -> ProcessingState:
    """End the turn; its wake is sent on, or kept until the log has been handled. Where another worker has the saga's
    partitions the wake goes there: what has been read of them, and what cannot be read, is known there alone."""
    if isinstance(action, Complete):
        return replace(turn, is_complete=True)
    if isinstance(action, ForwardTimer):
        return await send_on(service, turn, action)
    if not service.ports.assignment.is_at_home(turn.message.saga, turn.position):
        return await send_on(service, turn, ForwardTimer(action.due_ms))
    return replace(turn, is_complete=True, awaited_log=action)
