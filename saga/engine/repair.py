"""Repair a saga: do what this version of a service would do, although no message triggers it; and republish lost
timers.

It is safe beside running workers, and may be stopped anywhere: its writes are compare-and-swaps like theirs, and a saga
counts as repaired only by the last write, when everything before it is published. Run again, it continues.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from msgspec.structs import replace

from saga.engine.consumer.offset_tracker import OffsetTracker
from saga.engine.consumer.worker_ports import WorkerAssignment
from saga.engine.errors import Superseded
from saga.engine.execution import value_codec
from saga.engine.execution.message_processor import MessageProcessor
from saga.engine.processing_state import NOWHERE, Measurements, ProcessingState
from saga.engine.service_runtime import ServiceRuntime
from saga.messages import Message, Partition
from saga.progress import takeover, timers
from saga.progress.actions import ForwardTimer
from saga.progress.journal import Commit
from saga.support.clock import iso

NOTHING_COMMITTED: Mapping[Partition, int] = MappingProxyType({})
UNKNOWN_LOGS: Mapping[str, str] = MappingProxyType({})


def may_act(
    assignment: WorkerAssignment,
    positions: Mapping[Partition, int] = NOTHING_COMMITTED,
    log_ids: Mapping[str, str] = UNKNOWN_LOGS,
) -> None:
    """Let a process outside of the consumer group process sagas that no message triggers.

    `positions`: committed offsets of the group, in the logs of these ids by topic: what was handled below is published.
    """
    for partition, offset in positions.items():
        assignment.trackers[partition] = OffsetTracker(offset, log_ids.get(partition.topic, ""))
    assignment.trackers[Partition(NOWHERE.topic, NOWHERE.partition)] = OffsetTracker(0)


async def republish_saga(
    service: ServiceRuntime, saga: str, triggers: Sequence[Message] = ()
) -> list[tuple[str, str, str | None]]:
    """Continue the saga until nothing is ready, and forward its timer. Returns handler, outcome and reason of each
    transition.

    `triggers`: messages that are processed again here, for what they began is kept only by its intent. Raises
    `SagaError` if this version cannot decide, and `Draining` when it is to stop.
    """
    stages, processor = Measurements(), MessageProcessor(service)
    for message in triggers:
        message = await value_codec.encrypt_message(service, message, NOWHERE)
        await processor.process(processor.begin(message, NOWHERE, None, stages).drop_progress())
    while True:
        turn = await processor.process(_without_message(service, saga, stages))
        if turn.progress is None or not takeover.is_takeover_due(turn.progress, service.roles):
            return stages.outcomes
        whole = replace(turn.loaded_progress, heard=service.roles.heard)
        try:
            await processor.repository.checkpoint(turn, Commit(whole))
        except Superseded:
            continue
        return stages.outcomes


async def republish_timer(service: ServiceRuntime, saga: str) -> None:
    """Publish the saga's current timer again, for the earliest time for which something waits. No handler runs here.

    The worker that reads it continues what is due by then. Raises `SagaError` as above.
    """
    processor = MessageProcessor(service)
    turn = await processor.repository.load(_without_message(service, saga, Measurements()))
    p = turn.loaded_progress
    due_ms = timers.find_earliest_ms(p)
    if due_ms is None:  # it has gone on meanwhile
        return
    if p.wake is None or timers.is_timer_too_late(p, service.ports.clock.now_ms()):
        await processor.process(turn)  # it gets one that is in time
    else:
        await processor.forward_timer(turn, ForwardTimer(due_ms))


def _without_message(service: ServiceRuntime, saga: str, stages: Measurements) -> ProcessingState:
    message = Message(
        id="", type="", schema="", saga=saga, source="", time=iso(service.ports.clock.now_ms()), value=b""
    )
    return ProcessingState(message=message, position=NOWHERE, measurements=stages)
