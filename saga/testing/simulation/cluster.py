"""The cluster of the simulated broker: logs, committed offsets and consumer groups, which the brokers of all processes
share.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from saga.broker.port import RECORD_BYTES_MAX, MemberIdentity, partition_of, record_size
from saga.errors import BrokerError, Fenced
from saga.messages import Outgoing, Partition, Record, Topic
from saga.testing.simulation.loop import BEGINNING_MS
from saga.testing.simulation.network import Network

DRAIN_S = 5.0
"""Maximum time in seconds that the new owner of a partition waits for the old owner's `Listener.on_revoked`."""
SILENCE_S = 10.0
"""Time in seconds without heartbeats after which a member is considered dead."""


class JoinedMember(Protocol):
    """A member of a consumer group, as the broker sees it."""

    topics: list[str]
    identity: MemberIdentity | None

    def partitions_of(self, topic: str) -> int: ...

    def on_change(self) -> None: ...

    def has_news(self, partition: Partition) -> None: ...

    def wake(self) -> None: ...


@dataclass(slots=True)
class SimulatedGroup:
    """The broker's state of one consumer group. Its methods take no simulated time; the members and the network add the
    delays.
    """

    name: str
    members: dict[int, JoinedMember] = field(default_factory=dict)
    """Members by id, in the order in which they joined."""
    owner: dict[Partition, int] = field(default_factory=dict)
    """Current owner of each partition. A partition without an entry has none."""
    target: dict[Partition, int] = field(default_factory=dict)
    """The member to which each partition is assigned. It becomes the owner when it takes the partition."""
    committed: dict[Partition, int] = field(default_factory=dict)
    committed_in: dict[Partition, str] = field(default_factory=dict)
    """For each committed offset, the id of the log that it belongs to."""
    since_s: float = 0.0
    """Time at which the assignment last changed."""
    rotation: int = 0
    grants: dict[Partition, int] = field(default_factory=dict)
    """How often each partition was granted to a member. The broker rejects a commit under an earlier grant."""
    in_progress: set[Partition] = field(default_factory=set)
    """Partitions with messages that may be in progress. An owner marks its partitions, and removes the marks when it
    leaves them properly.
    """
    _joined: int = 0

    def enter(self, member: JoinedMember) -> int:
        """Add a member, and return its id."""
        self._joined += 1
        self.members[self._joined] = member
        self.balance()
        return self._joined

    def leave(self, id_: int) -> None:
        """Remove a member, even one that does not notice."""
        if self.members.pop(id_, None) is not None:
            self.owner = {partition: owner for partition, owner in self.owner.items() if owner != id_}
            self.balance()

    def balance(self) -> None:
        """Assign the partitions to the members in ranges, topic by topic, so that a member gets the partitions with the
        same numbers in all topics.
        """
        target: dict[Partition, int] = {}
        ids = list(self.members)
        topics = dict.fromkeys(topic for member in self.members.values() for topic in member.topics)
        for index, topic in enumerate(topics):
            takers = [id_ for id_ in ids if topic in self.members[id_].topics]
            # During some moves partitions with the same number go to different members. This affects only speed.
            shift = (self.rotation + self.rotation // 2 * index) % len(takers)
            takers = takers[shift:] + takers[:shift]
            count = self.members[takers[0]].partitions_of(topic)
            for number in range(count):
                target[Partition(topic, number)] = takers[number * len(takers) // count]
        self.target, self.since_s = target, asyncio.get_running_loop().time()
        self.notify_members()

    def notify_members(self) -> None:
        """Notify every member of a change in the group."""
        for member in self.members.values():
            member.on_change()

    def owned_by(self, id_: int) -> set[Partition]:
        return {partition for partition, owner in self.owner.items() if owner == id_}

    def assigned_to(self, id_: int) -> list[Partition]:
        """Return the partitions assigned to a member, in the order of the topics."""
        return [partition for partition, target in self.target.items() if target == id_]

    def take(
        self, id_: int, partitions: Sequence[Partition], begins: Callable[[Partition], int]
    ) -> dict[Partition, int]:
        """Make the member the owner of those of `partitions` that are assigned to it. Return each of them with the
        offset to read from.

        `begins`: returns the offset from which the group starts to read a partition without a committed offset.
        """
        if id_ not in self.members:
            return {}
        taken = [p for p in partitions if self.target.get(p) == id_]
        for partition in taken:
            self.owner[partition] = id_
            self.grants[partition] = self.grants.get(partition, 0) + 1
        for partition in taken:
            if partition not in self.committed and (begin := begins(partition)):
                self.committed[partition] = begin
        return {partition: self.committed.get(partition, 0) for partition in taken}

    def release(self, id_: int, partitions: Collection[Partition]) -> None:
        for partition in partitions:
            if self.owner.get(partition) == id_:
                del self.owner[partition]
        self.notify_members()

    def commit(
        self,
        id_: int,
        offsets: Mapping[Partition, int],
        grants: Mapping[Partition, int | None],
        log_ids: Mapping[Partition, str],
    ) -> None:
        """Commit offsets. `grants`: the numbers of the grants that the member had when it sent the request. Raises
        `Fenced` if a partition has been granted again since then.
        """
        self._check(id_, offsets, grants)
        self.committed.update(offsets)
        self.committed_in.update(log_ids)

    def mark(
        self,
        id_: int,
        offsets: Mapping[Partition, int],
        grants: Mapping[Partition, int | None],
        log_ids: Mapping[Partition, str],
        *,
        in_progress: bool,
    ) -> None:
        """Commit these offsets, and record whether messages of their partitions may be in progress. Raises `Fenced` as
        `commit` does.
        """
        self.commit(id_, offsets, grants, log_ids)
        if in_progress:
            self.in_progress.update(offsets)
        else:
            self.in_progress.difference_update(offsets)

    def _check(self, id_: int, partitions: Iterable[Partition], grants: Mapping[Partition, int | None]) -> None:
        for partition in partitions:
            if self.owner.get(partition) != id_ or self.grants.get(partition) != grants[partition]:
                raise Fenced(
                    f"group {self.name!r}: {partition} is not this member's; what it did comes again elsewhere"
                )


LOOK_S = 5.0
"""Maximum time in seconds until a member notices that a topic was deleted and created again."""


@dataclass(slots=True)
class PartitionLog:
    """The log of one partition."""

    id: str = ""
    """Id of the topic's log. A topic gets a new one each time it is created."""
    records: list[Record] = field(default_factory=list)
    begins: int = 0
    """Offset of the first record that has not been removed."""
    visible: int = 0
    """Number of records that are visible to readers."""
    due_s: float = 0.0
    """Time at which the last record becomes visible. Later records become visible at this time or later."""


class Cluster:
    """The logs and consumer groups of the simulated broker, shared by all processes."""

    def __init__(self, network: Network, began_ms: int = BEGINNING_MS) -> None:
        """Create an empty cluster. `began_ms`: time of day at time 0 of the event loop."""
        self.topics: dict[str, list[PartitionLog]] = {}
        self.groups: dict[str, SimulatedGroup] = {}
        self.log: list[Record] = []
        """All records in the order in which they were appended."""
        self.spoiled: set[str] = set()
        """Sagas that got a message that no service can handle, or got a message again after the retention."""
        self.broken: dict[Partition, int] = {}
        """Offset of the unreadable record in each partition that has one."""
        self._network, self._began_ms = network, began_ms
        self._creations: dict[str, int] = {}
        """How often each topic was created."""

    def ensure_topics(self, topics: Sequence[Topic]) -> None:
        for topic in topics:
            there = self.topics.get(topic.name)
            if there is None:
                there = self.topics[topic.name] = self._create_logs(topic.name, topic.partitions)
            if len(there) != topic.partitions:
                raise BrokerError(
                    f"topic {topic.name!r} has {len(there)} partitions, {topic.partitions} partitions are asked for"
                )

    def _create_logs(self, topic: str, partitions: int) -> list[PartitionLog]:
        """Create the logs of a topic, with a log id that was never used before."""
        number = self._creations[topic] = self._creations.get(topic, 0) + 1
        return [PartitionLog(id=f"{topic}-{number}") for _ in range(partitions)]

    def log_id(self, topic: str) -> str:
        """Return the id of a topic's log."""
        return self._logs(topic)[0].id

    def recreate(self, topic: str, *, republish: bool) -> None:
        """Delete a topic and create it again.

        `republish`: True to publish the records again that some group has not finished. Then no record is lost, but
        their offsets change.
        """
        old, new = self._logs(topic), self._create_logs(topic, len(self._logs(topic)))
        self.topics[topic] = new
        self.broken = {partition: at for partition, at in self.broken.items() if partition.topic != topic}
        now_s = asyncio.get_running_loop().time()
        for number, log in enumerate(old if republish else ()):
            for record in log.records[self._find_finished_offset(Partition(topic, number), log) :]:
                self._append(new[number], record, now_s)
        for group in self.groups.values():
            for member in group.members.values():
                self._network.later(LOOK_S * self._network.chance.draw(f"{topic} {new[0].id}"), member.on_change)

    def _find_finished_offset(self, partition: Partition, log: PartitionLog) -> int:
        """Return the offset below which every group that reads the partition has finished; 0 if no group reads it."""
        groups = [each for each in self.groups.values() if partition in each.target]
        ends = [
            each.committed.get(partition, 0) if each.committed_in.get(partition) == log.id else 0 for each in groups
        ]
        return min(ends, default=0)

    def partitions_of(self, topic: str) -> int:
        return len(self._logs(topic))

    def group(self, name: str) -> SimulatedGroup:
        return self.groups.setdefault(name, SimulatedGroup(name))

    def ends(self) -> dict[Partition, int]:
        """Return the end offset of each partition: the offset of its next record."""
        return {Partition(t, n): len(log.records) for t, logs in self.topics.items() for n, log in enumerate(logs)}

    def end(self, partition: Partition) -> int:
        """Return the end offset of the partition. The last records before it may not be visible to readers yet."""
        return len(self.topics[partition.topic][partition.number].records)

    def read(self, partition: Partition, offset: int, records_max: int) -> list[Record]:
        log = self.topics[partition.topic][partition.number]
        return log.records[
            max(offset, log.begins) : min(log.visible, offset + records_max, self.broken.get(partition, log.visible))
        ]

    def remove(self, before: Mapping[Partition, int]) -> None:
        """Remove the records below these offsets, even if they were not read yet."""
        for (topic, number), offset in before.items():
            self.topics[topic][number].begins = offset

    def begins(self, partition: Partition) -> int:
        """Return the offset of the first record that has not been removed."""
        return self.topics[partition.topic][partition.number].begins

    def since(self, partition: Partition, time_ms: int) -> int:
        """Return the offset of the first record that was appended at `time_ms` or later; 0 if `time_ms` is 0."""
        records = self.topics[partition.topic][partition.number].records
        later = (record.offset for record in records if record.time_ms >= time_ms)
        return next(later, len(records)) if time_ms else 0

    def repair(self, partition: Partition) -> None:
        """Make all records of the partition readable again."""
        self.broken.pop(partition, None)
        for group in self.groups.values():
            for member in group.members.values():
                member.has_news(partition)
                member.wake()

    def has_more(self, partition: Partition, offset: int) -> bool:
        """Return True if there are visible records from this offset on."""
        return offset < self.topics[partition.topic][partition.number].visible

    def count_behind(self, partition: Partition, offset: int) -> int:
        """Return the number of visible records from this offset on."""
        return max(0, self.topics[partition.topic][partition.number].visible - offset)

    def check(self, messages: Sequence[Outgoing]) -> None:
        """Raise `BrokerError` for a message that no broker accepts."""
        for message in messages:
            self._logs(message.topic)
            if (size := record_size(message)) > RECORD_BYTES_MAX:
                raise BrokerError(
                    f"a record of {size} bytes for {message.topic} is too large: {RECORD_BYTES_MAX} bytes at most"
                )

    def append(self, message: Outgoing, delay_s: float, beside: int = 0) -> None:
        """Append the message to the partition of its key. The record becomes visible to readers `delay_s` later.

        `beside`: number to add to that of the partition, as if another partitioner had chosen it.
        """
        logs = self._logs(message.topic)
        number = (partition_of(message.key, len(logs)) + beside) % len(logs)
        now_s = asyncio.get_running_loop().time()
        record = Record(message.topic, number, 0, message.key, message.value, message.headers, 0)
        self._append(logs[number], record, now_s + delay_s)

    def _append(self, log: PartitionLog, record: Record, due_s: float) -> None:
        """Append a record with its offset, time and log id. It becomes visible to readers at `due_s`."""
        now_s = asyncio.get_running_loop().time()
        time_ms = self._began_ms + int(now_s * 1000)
        record = record._replace(offset=len(log.records), time_ms=time_ms, log_id=log.id)
        log.records.append(record)
        self.log.append(record)
        log.due_s = max(log.due_s, due_s)
        self._network.later(log.due_s - now_s, lambda: self._deliver(log, record))

    def _deliver(self, log: PartitionLog, record: Record) -> None:
        log.visible = max(log.visible, record.offset + 1)
        partition = Partition(record.topic, record.partition)
        for group in self.groups.values():
            for member in group.members.values():
                member.has_news(partition)

    def _logs(self, topic: str) -> list[PartitionLog]:
        logs = self.topics.get(topic)
        if logs is None:
            raise BrokerError(f"there is no topic {topic!r}: it has to be made first")
        return logs
