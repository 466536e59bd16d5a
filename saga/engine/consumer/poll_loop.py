"""Polling of one source: the loop that takes in as many records as there is room for. Messages go into lanes, and what
is no message of any saga becomes a dead letter beside them."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import TypeAlias

from saga.broker.partitioner import partition_of
from saga.broker.port import Membership
from saga.engine.consumer.flow_control import Room
from saga.engine.consumer.keyed_executor import Item, Lanes
from saga.engine.consumer.low_priority import Yielding
from saga.engine.consumer.offset_tracker import Prefix
from saga.engine.consumer.record_router import Skip, received
from saga.engine.consumer.timer_buffer import Held
from saga.engine.consumer.worker_ports import WorkerAssignment
from saga.engine.errors import Draining
from saga.engine.execution import value_codec
from saga.engine.outage_watch import OutageWatch
from saga.engine.persistence import dead_letters, progress_repository
from saga.engine.service_runtime import ServiceRuntime
from saga.errors import BrokerUnavailable
from saga.messages import Message, Partition, Position, Record, Standstill
from saga.messaging.envelope import type_of
from saga.messaging.timers import Wake
from saga.support.printable import printable, shortened
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
"""Topic, and the number of a partition of it, or `None` for all."""

POLL_S = 86_400.0
"""Longest wait of an idle poll: whatever changes wakes it."""
TELL_EVERY_S = 60.0
"""Pause before people are told again of members that do not belong in the group."""
AGAIN_S = 0.2
"""Pause before a log that cannot be read is read again."""
FULL_S = 0.005
"""Longest wait while a partition is left out because it has its share of what is in flight."""
UNKNOWN_MAX = 200
"""Types that no contract has of which people are told, at most."""
GATHER_S = 0.002
"""Time that a worker without room waits for more of it, once there is some."""


@dataclass(slots=True)
class Polling:
    """Takes records from where they come to where they go."""

    service: ServiceRuntime
    assignment: WorkerAssignment
    room: Room
    lanes: Lanes
    held: Held
    unreadable: "Unreadable"
    yielding: Yielding | None = None
    """Messages that yield; `None`: none ever does."""
    _unknown: set[tuple[str, str]] = field(default_factory=set)
    """Topics and types that no contract has, of which people were told."""

    async def run(self, membership: Membership, stop: asyncio.Event) -> None:
        """Take from one source until `stop`."""
        ports, prefixes, yielding = self.service.ports, self.assignment.prefixes, self.yielding
        away, told, met_s = False, dict[Place, Standstill](), -inf
        idle_s = POLL_S
        while not stop.is_set():
            open_, room = self.room.open()
            if not open_ and prefixes:  # without any, what keeps it so comes out of the poll
                self.lanes.freed.clear()
                await self.lanes.freed.wait()
                if not stop.is_set():
                    await ports.clock.sleep(GATHER_S)
                continue
            try:
                # One that has its share may have room again in a moment: then the others are not waited for for long.
                # What yields goes on as soon as nothing else comes.
                timeout_s = FULL_S if self.room.soon or (yielding is not None and yielding.count) else idle_s
                records = await membership.poll(open_, records_max=max(1, room), timeout_s=timeout_s)
            except BrokerUnavailable as why:
                away = True
                ports.outage_watch.unavailable("poll", why)
                await ports.clock.sleep(AGAIN_S)
                continue
            told = _tell_standstills(ports.outage_watch, told, membership.standstills())
            if strangers := membership.strangers():
                idle_s, now_s = TELL_EVERY_S, ports.clock.monotonic_s()
                if now_s - met_s >= TELL_EVERY_S:
                    met_s = now_s
                    ports.outage_watch.report(StrangersMet(service=self.service.name, members=tuple(strangers)))
            else:
                idle_s = POLL_S
            if away:  # else nothing is said: a log that can be read may be full
                away = False
                ports.outage_watch.answered("broker")
            if yielding is not None:
                self.room.is_behind = len(records) >= room
                self.lanes.freed.set()
            self._take(records)

    def _take(self, records: Iterable[Record]) -> None:
        """Begin records, and see each to where it goes."""
        service, assignment, lanes = self.service, self.assignment, self.lanes
        now_s, partition, prefix = service.ports.clock.monotonic_s(), ("", -1), None
        add = lanes.add if self.yielding is None else self.yielding.add
        for record in records:  # those of one partition come together
            if record[:2] != partition:
                partition = record[:2]  # as good as a `Partition`
                place = Partition(*partition)
                prefix = None if place in assignment.leaving else assignment.prefixes.get(place)
                if record.topic not in assignment.scattered:
                    self._check_partitioner(record)
            if prefix is None:
                continue
            taken, offset = received(record, service), record.offset
            if isinstance(taken, Skip):  # of others there are many, and they leave nothing to remember
                prefix.skipped(offset + 1)
                lanes.finished.set()
                if taken.why is not None:
                    self._pass_over(record, taken)
                continue
            prefix.begun(offset)
            if isinstance(taken, Message):
                item = Item(taken, Position(*partition, offset, record.log_id), prefix, now_s)
                if type(taken) is Wake:
                    self.held.add(item, record, service.wakes[record.topic])
                else:
                    add(item)
            else:
                self.unreadable.give_up(record, prefix, taken.reason)

    def _check_partitioner(self, record: Record) -> None:
        """Report a topic of events, once, in which a key lies where our partitioner would not have put it: the order of
        its sagas is lost. The first record of each partition in a batch is looked at, which costs next to nothing."""
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

    def _pass_over(self, record: Record, skip: Skip) -> None:
        """Tell of a record that may have been meant for us: of a type the first time, of what is counted each time."""
        watching, name = self.service.ports.outage_watch, self.service.name
        topic, partition, offset = record[:3]
        assert skip.why is not None
        watching.report(PassedOver(service=name, topic=topic, partition=partition, offset=offset, why=skip.why))
        told = (topic, skip.type)
        if skip.why == "unknown type" and told not in self._unknown and len(self._unknown) < UNKNOWN_MAX:
            self._unknown.add(told)
            watching.report(UnknownType(service=name, topic=topic, partition=partition, offset=offset, type=skip.type))


@dataclass(slots=True)
class Unreadable:
    """Dead letters under way of records that belong to no lane. They count as messages in flight."""

    service: ServiceRuntime
    lanes: Lanes
    _under_way: set[asyncio.Task[None]] = field(default_factory=set)

    def give_up(self, record: Record, prefix: Prefix, reason: str) -> None:
        """Send its dead letter from here on; other records go on meanwhile, within what may be in flight."""
        self.lanes.inflight += 1
        letter = self.lanes.tasks.create_task(self._sent(record, prefix, reason), name="dead letter")
        self._under_way.add(letter)
        letter.add_done_callback(self._is_over)

    async def drained(self, limit_s: float) -> None:
        """Return when none is under way, or at the limit."""
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=limit_s)

    async def _sent(self, record: Record, prefix: Prefix, reason: str) -> None:
        """The dead letter is durable before the offset moves."""
        position = Position(*record[:3], record.log_id)
        contract, now_ms = self.service.contracts.get(type_of(record) or ""), self.service.ports.clock.now_ms()
        try:
            kept = await value_codec.encrypt_record(self.service, record)
            letter = dead_letters.unreadable(self.service.name, kept, reason, now_ms, contract)
            await progress_repository.send_dead_letter(self.service, position, letter)
        except Draining:
            return
        self.lanes.finish(prefix, record.offset)
        self.service.ports.outage_watch.report(
            DeadLettered(
                service=self.service.name,
                reason=shortened(printable(reason), dead_letters.REASON_BYTES_MAX),
                remedy="mend its sender; its dead letter has it, or says where it lies",
                blame="data",
                owner=None if contract is None else contract.owner,
            )
        )

    def _is_over(self, letter: asyncio.Task[None]) -> None:
        self._under_way.discard(letter)
        self.lanes.inflight -= 1
        self.lanes.freed.set()


def _tell_standstills(
    watching: OutageWatch, before: Mapping[Place, Standstill], standstills: Iterable[Standstill]
) -> dict[Place, Standstill]:
    """Tell of what stands still from now on, and of what goes on again: each once. `before`: what people know of;
    returns what they know of by now."""
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
