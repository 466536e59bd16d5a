"""Poll one source for as many records as flow control allows, and pass each record to the executor, to a buffer, or to
the dead letters."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import TypeAlias

from saga.broker.port import Membership, partition_of
from saga.engine.consumer.flow_control import FlowControl, LowPriorityBuffer
from saga.engine.consumer.keyed_executor import KeyedExecutor, WorkItem
from saga.engine.consumer.offset_tracker import OffsetTracker
from saga.engine.consumer.record_router import SkippedRecord, route_record
from saga.engine.consumer.timers import TimerBuffer
from saga.engine.consumer.worker_ports import WorkerAssignment
from saga.engine.errors import Draining
from saga.engine.execution import value_codec
from saga.engine.outage_watch import OutageWatch
from saga.engine.persistence import dead_letters, outbox
from saga.engine.service_runtime import ServiceRuntime
from saga.errors import BrokerUnavailable
from saga.messages import Message, Partition, Position, Record, StalledPartition
from saga.messaging.envelope import type_of
from saga.messaging.timers import SagaTimer
from saga.support.printable import printable, shorten
from saga.telemetry.events import (
    DeadLettered,
    GoesOn,
    OtherPartitioner,
    PassedOver,
    StandsStill,
    StrangersMet,
    UnknownType,
)

Place: TypeAlias = tuple[str, int | None]
"""Topic and partition number; `None` for all partitions of the topic."""

POLL_S = 86_400.0
"""Timeout of a poll, in seconds, while the worker is idle. Any change wakes the poll."""
TELL_EVERY_S = 60.0
"""Interval, in seconds, between two reports of foreign members in the group."""
AGAIN_S = 0.2
"""Pause after a failed poll."""
FULL_S = 0.005
"""Poll timeout while a partition is left out because it has used up its share of the messages in flight."""
UNKNOWN_MAX = 200
"""Maximum number of unknown types that are reported."""
GATHER_S = 0.002
"""Pause of a full worker after its first message has ended, so that one poll fetches several records."""


@dataclass(slots=True)
class PollLoop:
    """Receives records from one source and routes them."""

    service: ServiceRuntime
    assignment: WorkerAssignment
    flow: FlowControl
    executor: KeyedExecutor
    timers: TimerBuffer
    unreadable: "UnreadableRecords"
    low_priority: LowPriorityBuffer | None = None
    """Buffer for low-priority messages; `None` if all handlers have the same priority."""
    _unknown: set[tuple[str, str]] = field(default_factory=set)
    """Unknown types that were reported, with their topics."""

    async def run(self, membership: Membership, stop: asyncio.Event) -> None:
        """Poll until `stop` is set."""
        ports, trackers, yielding = self.service.ports, self.assignment.trackers, self.low_priority
        away, stalled, met_s = False, dict[Place, StalledPartition](), -inf
        idle_s = POLL_S
        while not stop.is_set():
            open_, room = self.flow.choose_partitions()
            if not open_ and trackers:  # without an assignment, poll: that is how partitions arrive
                self.executor.freed.clear()
                await self.executor.freed.wait()
                if not stop.is_set():
                    await ports.clock.sleep(GATHER_S)
                continue
            try:
                # Poll briefly if a full partition may have room again soon, or if low-priority messages wait for an
                # idle moment.
                timeout_s = (
                    FULL_S if self.flow.has_full_partition or (yielding is not None and yielding.count) else idle_s
                )
                records = await membership.poll(open_, records_max=max(1, room), timeout_s=timeout_s)
            except BrokerUnavailable as why:
                away = True
                ports.outage_watch.unavailable("poll", why)
                await ports.clock.sleep(AGAIN_S)
                continue
            stalled = _report_stalled_partitions(ports.outage_watch, stalled, membership.stalled_partitions())
            if strangers := membership.disagreeing_members():
                idle_s, now_s = TELL_EVERY_S, ports.clock.monotonic_s()
                if now_s - met_s >= TELL_EVERY_S:
                    met_s = now_s
                    ports.outage_watch.report(StrangersMet(service=self.service.name, members=tuple(strangers)))
            else:
                idle_s = POLL_S
            if away:  # not after each poll: a broker that can be read may reject writes
                away = False
                ports.outage_watch.answered("broker")
            if yielding is not None:
                self.flow.is_behind = len(records) >= room
                self.executor.freed.set()
            self._route_records(records)

    def _route_records(self, records: Iterable[Record]) -> None:
        """Route each record, and register its offset."""
        service, assignment, executor = self.service, self.assignment, self.executor
        now_s, partition, tracker = service.ports.clock.monotonic_s(), ("", -1), None
        add = executor.add if self.low_priority is None else self.low_priority.add
        for record in records:  # the records of one partition come together
            if record[:2] != partition:
                partition = record[:2]  # as good as a `Partition`
                place = Partition(*partition)
                tracker = None if place in assignment.leaving else assignment.trackers.get(place)
                if record.topic not in assignment.scattered:
                    self._check_partitioner(record)
            if tracker is None:
                continue
            taken, offset = route_record(record, service), record.offset
            if isinstance(taken, SkippedRecord):  # skipped records are many: their offsets are not registered
                tracker.skip_to(offset + 1)
                executor.finished.set()
                if taken.why is not None:
                    self._report_passed_over(record, taken)
                continue
            tracker.begin(offset)
            if isinstance(taken, Message):
                item = WorkItem(taken, Position(*partition, offset, record.log_id), tracker, now_s)
                if type(taken) is SagaTimer:
                    self.timers.add(item, record, service.wakes[record.topic])
                else:
                    add(item)
            else:
                self.unreadable.give_up(record, tracker, taken.reason)

    def _check_partitioner(self, record: Record) -> None:
        """Report once if the producer of an event topic uses another partitioner, because the order within sagas is
        lost then. Only the first record of each partition in a batch is checked."""
        topic = self.service.schemas.library.topics.get(record.topic)
        if topic is None or not record.key or record.partition >= topic.partitions:
            return
        expected = partition_of(record.key, topic.partitions)
        if expected != record.partition:
            self.assignment.scattered.add(record.topic)
            self.service.ports.outage_watch.report(
                OtherPartitioner(
                    service=self.service.name,
                    topic=record.topic,
                    partition=record.partition,
                    offset=record.offset,
                    expected=expected,
                )
            )

    def _report_passed_over(self, record: Record, skip: SkippedRecord) -> None:
        """Report a skipped record that may have been meant for this service. An unknown type is reported only the first
        time."""
        watching, name = self.service.ports.outage_watch, self.service.name
        topic, partition, offset = record[:3]
        assert skip.why is not None
        watching.report(PassedOver(service=name, topic=topic, partition=partition, offset=offset, why=skip.why))
        skipped = (topic, skip.type)
        if skip.why == "unknown type" and skipped not in self._unknown and len(self._unknown) < UNKNOWN_MAX:
            self._unknown.add(skipped)
            watching.report(UnknownType(service=name, topic=topic, partition=partition, offset=offset, type=skip.type))


@dataclass(slots=True)
class UnreadableRecords:
    """Publishes dead letters for records that belong to no saga. They count as messages in flight."""

    service: ServiceRuntime
    executor: KeyedExecutor
    _under_way: set[asyncio.Task[None]] = field(default_factory=set)

    def give_up(self, record: Record, tracker: OffsetTracker, reason: str) -> None:
        """Start publishing the dead letter. Other records are handled meanwhile."""
        self.executor.inflight += 1
        self.executor.without_saga += 1
        task = self.executor.tasks.create_task(self._send_dead_letter(record, tracker, reason), name="dead letter")
        self._under_way.add(task)
        task.add_done_callback(self._finish)

    async def drain(self, limit_s: float) -> None:
        """Wait until all dead letters are published, or for `limit_s`."""
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=limit_s)

    async def _send_dead_letter(self, record: Record, tracker: OffsetTracker, reason: str) -> None:
        """Publish a dead letter, and only then mark the record as finished, so that its offset does not move before."""
        position = Position(*record[:3], record.log_id)
        contract, now_ms = self.service.contracts.get(type_of(record) or ""), self.service.ports.clock.now_ms()
        try:
            encrypted = await value_codec.encrypt_record(self.service, record)
            letter = dead_letters.from_unreadable(self.service.name, encrypted, reason, now_ms, contract)
            await outbox.send_dead_letter(self.service, position, letter)
        except Draining:
            return
        self.executor.finish(tracker, record.offset)
        self.service.ports.outage_watch.report(
            DeadLettered(
                service=self.service.name,
                reason=shorten(printable(reason), dead_letters.REASON_BYTES_MAX),
                remedy="fix its sender; its dead letter has it, or says where it is",
                blame="data",
                owner=None if contract is None else contract.owner,
            )
        )

    def _finish(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        self.executor.inflight -= 1
        self.executor.without_saga -= 1
        self.executor.freed.set()


def _report_stalled_partitions(
    watching: OutageWatch, before: Mapping[Place, StalledPartition], standstills: Iterable[StalledPartition]
) -> dict[Place, StalledPartition]:
    """Report partitions that have stalled or recovered since `before`. Returns the ones stalled now."""
    now = {(each.topic, each.partition): each for each in standstills}
    for (topic, partition), each in now.items():
        if before.get((topic, partition)) != each:
            watching.report(
                StandsStill(
                    service=watching.service, topic=topic, partition=partition, offset=each.offset, error=each.reason
                )
            )
    for topic, partition in before.keys() - now.keys():
        watching.report(GoesOn(service=watching.service, topic=topic, partition=partition))
    return now
