"""Polling: records go where intake says, if their partition is ours and stays so."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

from saga import Service
from saga.broker.port import RECORD_BYTES_MAX
from saga.engine.consumer.flow_control import FlowControl, FlowLimits
from saga.engine.consumer.keyed_executor import KeyedExecutor, WorkItem
from saga.engine.consumer.offset_tracker import OffsetTracker
from saga.engine.consumer.poll_loop import PollLoop, UnreadableRecords
from saga.engine.consumer.timers import TimerBuffer
from saga.engine.consumer.worker_ports import WorkerAssignment, make_worker_ports
from saga.engine.outage_watch import OutageWatch
from saga.engine.prepared_service import prepare
from saga.engine.service_runtime import make_service_runtime
from saga.messages import Outgoing, Partition, Record, StalledPartition
from saga.support.clock import SystemClock
from services.payment.events import OrderPlaced
from tests.engine.real_worker import an_order, message_of
from tests.engine.test_intake import sent

NOWHERE: Any = None
OURS, LEAVING, FOREIGN = (Partition("orders", number) for number in range(3))
payment = Service("payment")


@payment.handler
async def reserve(order: OrderPlaced) -> None: ...


class Once:
    """A membership whose first poll gives these records, and is the last."""

    def __init__(self, records: Sequence[Record], stop: asyncio.Event) -> None:
        self.records, self.stop, self.asked = records, stop, list[Partition]()

    async def poll(self, partitions: Collection[Partition], *, records_max: int, timeout_s: float) -> Sequence[Record]:
        self.asked = list(partitions)
        self.stop.set()
        return self.records

    def disagreeing_members(self) -> Sequence[str]:
        return ()

    def stalled_partitions(self) -> Sequence[StalledPartition]:
        return ()


def records(saga: str, partition: int, *offsets: int) -> list[Record]:
    record = sent(message_of(an_order(saga), started=None))
    return [record._replace(partition=partition, offset=offset) for offset in offsets]


def polling_of(
    assignment: WorkerAssignment,
    tasks: asyncio.TaskGroup,
    handle: Callable[[WorkItem], Awaitable[bool]],
    log: Any = NOWHERE,
) -> PollLoop:
    service = make_service_runtime(prepare(payment.declared), {}, make_worker_ports(NOWHERE, log, assignment))
    lanes = KeyedExecutor(tasks, handle, handle)
    held = TimerBuffer(service.ports.clock, lanes, FlowLimits().inflight_max, NOWHERE)
    room = FlowControl(FlowLimits(), assignment, lanes, held)
    return PollLoop(service, assignment, room, lanes, held, UnreadableRecords(service, lanes))


def assignment_of(*partitions: Partition) -> WorkerAssignment:
    assignment = WorkerAssignment(OutageWatch("payment", SystemClock(), lambda moment: None))
    assignment.trackers |= {partition: OffsetTracker(0) for partition in partitions}
    return assignment


async def test_only_what_is_ours_and_stays_so_is_begun() -> None:
    handled: list[tuple[int, int]] = []

    async def handle(item: WorkItem) -> bool:
        handled.append((item.position.partition, item.position.offset))
        return True

    assignment, stop = assignment_of(OURS, LEAVING), asyncio.Event()
    assignment.let_go([LEAVING])
    async with asyncio.TaskGroup() as tasks:
        polling = polling_of(assignment, tasks, handle)
        given = [*records("a", 0, 4, 5), *records("b", 1, 7), *records("c", 2, 9), *records("d", 0, 6)]
        membership: Any = Once(given, stop)
        async with polling.executor:
            await polling.run(membership, stop)
        assert membership.asked == [OURS]
    assert sorted(handled) == [(0, 4), (0, 5), (0, 6)]
    assert (assignment.trackers[OURS].offset_to_commit(), assignment.trackers[LEAVING].offset_to_commit()) == (7, None)


async def test_records_for_other_services_are_finished_at_once_and_block_nothing() -> None:
    async def handle(item: WorkItem) -> bool:
        raise AssertionError("it is for others")

    assignment, stop = assignment_of(OURS), asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        polling = polling_of(assignment, tasks, handle)
        (record,) = records("a", 0, 4)
        theirs = record._replace(headers=(("ce_type", b"saga.PaymentReserved"), *record.headers[1:]), value=b"\xc3\x01")
        await polling.run(Once([theirs], stop), stop)  # type: ignore[arg-type]  # all of it that a poll uses
    assert polling.executor.finished.is_set()
    assert (assignment.trackers[OURS].offset_to_commit(), len(assignment.trackers[OURS])) == (5, 0)


class Slow:
    """A log that acknowledges when it is let."""

    record_bytes_max = RECORD_BYTES_MAX

    def __init__(self) -> None:
        self.gate = asyncio.Event()

    async def publish(self, messages: Sequence[Outgoing]) -> None:
        await self.gate.wait()


async def test_a_record_that_cannot_be_read_is_in_flight_until_its_dead_letter_is_acknowledged() -> None:
    async def handle(item: WorkItem) -> bool:
        raise AssertionError("it is no message")

    assignment, stop, log = assignment_of(OURS), asyncio.Event(), Slow()
    async with asyncio.TaskGroup() as tasks:
        polling = polling_of(assignment, tasks, handle, log)
        (record,) = records("a", 0, 4)
        membership: Any = Once([record._replace(value=b"")], stop)
        await polling.run(membership, stop)
        for _ in range(5):
            await SystemClock().sleep(0)
        polling.executor.freed.clear()
        assert (polling.executor.inflight, assignment.trackers[OURS].offset_to_commit()) == (1, 4)
        log.gate.set()
        await polling.unreadable.drain(10)
        await polling.executor.freed.wait()
        assert (polling.executor.inflight, assignment.trackers[OURS].offset_to_commit()) == (0, 5)
