"""Logs, positions and groups of a simulated broker: one cluster, which the brokers of all processes share."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from saga.broker.partitioner import partition_of
from saga.broker.port import RECORD_BYTES_MAX, record_size
from saga.errors import BrokerError
from saga.messages import Outgoing, Partition, Record, Topic
from saga.testing.simulation.clock import BEGINNING_MS
from saga.testing.simulation.groups import Group
from saga.testing.simulation.network import Network

LOOK_S = 5.0
"""Longest time until a member looks whether a topic has been created again."""


@dataclass(slots=True)
class Log:
    """One partition of the log."""

    id: str = ""
    """Id of the topic's log: another one each time that the topic is created."""
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
        self._creations: dict[str, int] = {}
        """Times that a topic was created."""

    def ensure(self, topics: Sequence[Topic]) -> None:
        for topic in topics:
            there = self.topics.get(topic.name)
            if there is None:
                there = self.topics[topic.name] = self._created(topic.name, topic.partitions)
            if len(there) != topic.partitions:
                raise BrokerError(
                    f"topic {topic.name!r} has {len(there)} partitions, {topic.partitions} partitions are asked for"
                )

    def _created(self, topic: str, partitions: int) -> list[Log]:
        """New logs of a topic, which no log was before."""
        number = self._creations[topic] = self._creations.get(topic, 0) + 1
        return [Log(id=f"{topic}-{number}") for _ in range(partitions)]

    def log_id(self, topic: str) -> str:
        """Id of the log of a topic."""
        return self._logs(topic)[0].id

    def recreate(self, topic: str, *, kept: bool) -> None:
        """Delete a topic and create it again. `kept`: what not every group had finished with is published again, so
        that nothing but positions has lost its meaning: the same records lie at other offsets."""
        old, new = self._logs(topic), self._created(topic, len(self._logs(topic)))
        self.topics[topic] = new
        self.broken = {partition: at for partition, at in self.broken.items() if partition.topic != topic}
        now_s = asyncio.get_running_loop().time()
        for number, log in enumerate(old if kept else ()):
            for record in log.records[self._finished(Partition(topic, number), log) :]:
                self._append(new[number], record, now_s)
        for group in self.groups.values():
            for member in group.members.values():
                self._network.later(LOOK_S * self._network.chance.draw(f"{topic} {new[0].id}"), member.told)

    def _finished(self, partition: Partition, log: Log) -> int:
        """Offset below which every group that reads a partition has finished with it; 0 if none reads it."""
        groups = [each for each in self.groups.values() if partition in each.target]
        ends = [
            each.committed.get(partition, 0) if each.committed_in.get(partition) == log.id else 0 for each in groups
        ]
        return min(ends, default=0)

    def partitions_of(self, topic: str) -> int:
        return len(self._logs(topic))

    def group(self, name: str) -> Group:
        return self.groups.setdefault(name, Group(name))

    def ends(self) -> dict[Partition, int]:
        """End of each partition: the offset that the next record would get."""
        return {Partition(t, n): len(log.records) for t, logs in self.topics.items() for n, log in enumerate(logs)}

    def end(self, partition: Partition) -> int:
        """Offset that the next record of the partition would get, whether or not readers have all before it."""
        return len(self.topics[partition.topic][partition.number].records)

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

    def since(self, partition: Partition, time_ms: int) -> int:
        """Offset of the first record that was appended then or later; of 0 the beginning of the log."""
        records = self.topics[partition.topic][partition.number].records
        later = (record.offset for record in records if record.time_ms >= time_ms)
        return next(later, len(records)) if time_ms else 0

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
            if (size := record_size(message)) > RECORD_BYTES_MAX:
                raise BrokerError(
                    f"a record of {size} bytes for {message.topic} is too large: {RECORD_BYTES_MAX} bytes at most"
                )

    def append(self, message: Outgoing, delay_s: float, beside: int = 0) -> None:
        """Append to the partition of its key, or so many beside it; readers get it `delay_s` later."""
        logs = self._logs(message.topic)
        number = (partition_of(message.key, len(logs)) + beside) % len(logs)
        now_s = asyncio.get_running_loop().time()
        record = Record(message.topic, number, 0, message.key, message.value, message.headers, 0)
        self._append(logs[number], record, now_s + delay_s)

    def _append(self, log: Log, record: Record, due_s: float) -> None:
        """Append a record with what its place in the log and the time make of it; readers get it at `due_s`."""
        now_s = asyncio.get_running_loop().time()
        time_ms = self._began_ms + int(now_s * 1000)
        record = record._replace(offset=len(log.records), time_ms=time_ms, log_id=log.id)
        log.records.append(record)
        self.log.append(record)
        log.due_s = max(log.due_s, due_s)
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
