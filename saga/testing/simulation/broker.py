"""A broker in memory, behind a network: topics, partitions, positions and groups as the adapters have them."""

import asyncio
from asyncio import Future
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Self

from saga.broker.partitioner import partition_of
from saga.broker.port import RECORD_BYTES_MAX, Listener, Topic, size_of
from saga.envelope import type_of
from saga.errors import BrokerError, BrokerUnavailable, SagaError
from saga.messages import Outgoing, Partition, Record
from saga.testing.simulation.clock import BEGINNING_MS
from saga.testing.simulation.groups import DRAIN_S, Group
from saga.testing.simulation.members import SimulatedMember
from saga.testing.simulation.network import Backend, Effect, Network
from saga.testing.simulation.plan import Planned, What
from saga.testing.simulation.processes import Process
from saga.testing.simulation.spoiled_messages import spoiled

DELIVERED_S = 0.002
"""Longest time from appending to readers, without faults."""


@dataclass(slots=True)
class Log:
    """One partition of the log."""

    records: list[Record] = field(default_factory=list)
    begins: int = 0
    """Offset of the first record that is still there."""
    visible: int = 0
    """Number of records that have reached readers."""
    due_s: float = 0.0
    """Time at which the last record reaches readers: none overtakes another."""


class Cluster:
    """Logs and groups, which all processes share."""

    def __init__(self, network: Network, began_ms: int = BEGINNING_MS) -> None:
        """`began_ms`: time of day when the event loop's time was 0."""
        self.topics: dict[str, list[Log]] = {}
        self.groups: dict[str, Group] = {}
        self.log: list[Record] = []
        """Everything that was appended, in that order."""
        self.spoiled: set[str] = set()
        """Sagas that got a message that nobody can handle."""
        self.broken: dict[Partition, int] = {}
        """Partitions with a record that cannot be read, and its offset."""
        self._network, self._began_ms = network, began_ms

    def ensure(self, topics: Sequence[Topic]) -> None:
        for topic in topics:
            there = self.topics.setdefault(topic.name, [Log() for _ in range(topic.partitions)])
            if len(there) != topic.partitions:
                raise BrokerError(
                    f"topic {topic.name!r} has {len(there)} partitions, {topic.partitions} partitions are asked for"
                )

    def partitions_of(self, topic: str) -> int:
        return len(self._logs(topic))

    def group(self, name: str) -> Group:
        return self.groups.setdefault(name, Group(name))

    def ends(self) -> dict[Partition, int]:
        """End of each partition: the offset that the next record would get."""
        return {Partition(t, n): len(log.records) for t, logs in self.topics.items() for n, log in enumerate(logs)}

    def read(self, partition: Partition, offset: int, records_max: int) -> list[Record]:
        log = self.topics[partition.topic][partition.number]
        return log.records[
            max(offset, log.begins) : min(log.visible, offset + records_max, self.broken.get(partition, log.visible))
        ]

    def remove(self, before: Mapping[Partition, int]) -> None:
        """Remove the records below these offsets, read or not."""
        for (topic, number), offset in before.items():
            self.topics[topic][number].begins = offset

    def begins(self, partition: Partition) -> int:
        """Offset of the first record that is still there."""
        return self.topics[partition.topic][partition.number].begins

    def mend(self, partition: Partition) -> None:
        """Let all of the partition be read again."""
        self.broken.pop(partition, None)
        for group in self.groups.values():
            for member in group.members.values():
                member.has_news(partition)
                member.wake()

    def has_more(self, partition: Partition, offset: int) -> bool:
        """True if there is something to read from that offset on."""
        return offset < self.topics[partition.topic][partition.number].visible

    def behind(self, partition: Partition, offset: int) -> int:
        """Number of records to read from that offset on."""
        return max(0, self.topics[partition.topic][partition.number].visible - offset)

    def check(self, messages: Sequence[Outgoing]) -> None:
        """Check the messages. Raises `BrokerError` for one that no broker takes."""
        for message in messages:
            self._logs(message.topic)
            if (size := size_of(message)) > RECORD_BYTES_MAX:
                raise BrokerError(
                    f"a record of {size} bytes for {message.topic} is too large: {RECORD_BYTES_MAX} bytes at most"
                )

    def append(self, message: Outgoing, delay_s: float) -> None:
        """Append to the partition of its key; readers get it `delay_s` later."""
        logs = self._logs(message.topic)
        number = partition_of(message.key, len(logs))
        log, now_s = logs[number], asyncio.get_running_loop().time()
        record = Record(
            message.topic,
            number,
            len(log.records),
            message.key,
            message.value,
            message.headers,
            self._began_ms + int(now_s * 1000),
        )
        log.records.append(record)
        self.log.append(record)
        log.due_s = max(log.due_s, now_s + delay_s)
        self._network.later(log.due_s - now_s, lambda: self._delivered(log, record))

    def _delivered(self, log: Log, record: Record) -> None:
        log.visible = max(log.visible, record.offset + 1)
        partition = Partition(record.topic, record.partition)
        for group in self.groups.values():
            for member in group.members.values():
                member.has_news(partition)

    def _logs(self, topic: str) -> list[Log]:
        logs = self.topics.get(topic)
        if logs is None:
            raise BrokerError(f"there is no topic {topic!r}: it has to be made first")
        return logs


class SimulatedBroker:
    """See `saga.broker.port.Broker` for the promises. One for each process; all have one cluster."""

    record_bytes_max = RECORD_BYTES_MAX
    makes_topics = True

    def __init__(self, cluster: Cluster, process: Process, network: Network, memory_s: float = 30 * 86_400.0) -> None:
        """`memory_s`: time after which the services have forgotten a saga."""
        self.cluster, self.process, self.network = cluster, process, network
        self.members: list[SimulatedMember] = []
        self._memory_s = memory_s
        self._backend = Backend("broker", BrokerUnavailable, BrokerUnavailable)
        self._open = False
        self._publishing: list[Future[Any]] = []

    async def __aenter__(self) -> Self:
        self._open = True
        return self

    async def __aexit__(self, *exc: object) -> None:
        if under_way := [publish for publish in self._publishing if not publish.done()]:
            await asyncio.wait(under_way)
        self._open = False

    async def ensure(self, topics: Sequence[Topic]) -> None:
        self.cluster.ensure(topics)

    async def partitions(self, topics: Collection[str]) -> Mapping[str, int]:
        return {name: len(self.cluster.topics[name]) for name in topics if name in self.cluster.topics}

    async def forbidden(
        self, reads: Collection[str], writes: Collection[str], groups: Collection[str] = ()
    ) -> Sequence[str]:
        return ()

    async def publish(self, messages: Sequence[Outgoing]) -> None:
        self.cluster.check(messages)
        batch = list(messages)
        topics = tuple(dict.fromkeys(message.topic for message in batch))
        where = ", ".join(f"{_type_of(message)} of {message.key.decode(errors='replace')}" for message in batch)
        self._publishing = [publish for publish in self._publishing if not publish.done()]
        asked = self.asks("publish", where, topics, lambda planned, draws: self._appended(batch, planned, draws))
        self._publishing.append(asked)
        await asyncio.shield(asked)  # whoever is cancelled here does not take back what is on its way

    @asynccontextmanager
    async def join(self, group: str, topics: Sequence[str], listener: Listener) -> AsyncIterator[SimulatedMember]:
        member = SimulatedMember(self, group, topics, listener)
        self.members.append(member)
        member.enter()
        # No TaskGroup: it would wrap the block's own exceptions.
        following = asyncio.get_running_loop().create_task(member.follow(), name=f"{group} follows")
        try:
            yield member
        finally:
            following.cancel()
            await asyncio.wait([following])
            await member.leave()
            self.members.remove(member)

    async def scan(self, topic: str) -> AsyncIterator[Record]:
        for record in [record for log in self.cluster.topics.get(topic, ()) for record in log.records]:
            if self.cluster.broken.get(Partition(topic, record.partition)) == record.offset:
                raise BrokerError(f"planted: {topic}/{record.partition} stands at offset {record.offset}")
            yield record

    def asks(self, what: What, where: str, names: tuple[str, ...], effect: Effect) -> "Future[Any]":
        """Ask the cluster. Raises `SagaError` when this is not open."""
        if not self._open:
            raise SagaError("the broker is not open: use it inside `async with`")
        return self.network.ask(self.process, self._backend, what, where, names, effect)

    def _appended(
        self, batch: Sequence[Outgoing], planned: Planned | None, draws: tuple[float, float, float, float]
    ) -> None:
        """Append the batch, with its fault: the effect of a publish that lands."""
        delay_s = DELIVERED_S * draws[2]
        if planned is None:
            for message in batch:
                self.cluster.append(message, delay_s)
            return
        landing, later = batch, self.network.later
        chosen = batch[int(draws[3] * len(batch))]
        match planned.kind:
            case "lost answer" | "crash":
                landing = batch[: int(draws[2] * (len(batch) + 1))] if len(batch) > 1 else batch
            case "delay":
                delay_s = 10 * draws[3] ** 2
            case "duplicate":
                later(60 * draws[2] ** 4, lambda: self.cluster.append(chosen, delay_s))
            case "expiry":
                self.cluster.spoiled.add(chosen.key.decode())
                forgotten_s = self._memory_s * (1.01 + draws[2])
                later(forgotten_s, self.network.disruptions.anew)
                later(forgotten_s + DRAIN_S, lambda: self.cluster.append(chosen, delay_s))
            case "newer schema" | "poison":
                self.cluster.spoiled.add(chosen.key.decode())
                self.cluster.append(spoiled(chosen, planned, draws[2]), delay_s)
            case _:
                pass
        for message in landing:
            self.cluster.append(message, delay_s)


def _type_of(message: Outgoing) -> str:
    return type_of(message) or "record"
