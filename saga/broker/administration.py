"""Port of the broker for tools: topics, groups and positions, and the few changes that operators make.

Promised by every adapter, each promise with a test in `tests/broker/test_administration.py`:
- Queries change nothing: asking for a topic does not create it.
- The broker itself refuses `move` while the group has a member that may be alive; an earlier check is not enough.
- `grow` never removes partitions.
- A reader outside of groups gets each record of its partitions once, in order, from its start on. It passes over
  records that are removed meanwhile, and an unreadable record stalls only its partition. Reading creates no group and
  no position.

Not promised: that an answer is still true a moment later.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from types import MappingProxyType
from typing import NamedTuple, Protocol

from saga.broker.port import Broker, MemberIdentity
from saga.messages import Partition, Record, StalledPartition

DAY_MS = 86_400_000
NO_IDS: Mapping[str, str] = MappingProxyType({})
"""Default of `Administration.open_reader`: no log id is known yet."""
DATED_BY, BY_LOG = "message.timestamp.type", "LogAppendTime"
"""Setting that says who assigns the timestamps of a topic's records, and its value if the log does, which is also the
default here."""


class TopicDescription(NamedTuple):
    """A topic as it is on the broker."""

    partitions: int
    retention_ms: int | None
    """How long records are kept, in milliseconds; `None`: for ever."""
    replicas: int | None = None
    """Fewest replicas of any partition; `None`: this log is not replicated."""
    in_sync: int | None = None
    """Fewest in-sync replicas of any partition, likewise."""
    settings: Mapping[str, str] = {}
    """Settings of the topic, under the broker's names."""
    may: frozenset[str] | None = None
    """Rights that this user has: `read`, `write`; `None` on a broker without users."""
    hidden: bool = False
    """True if this user may not see the settings: then they are empty, and `retention_ms` is meaningless."""

    @property
    def is_dated_by_log(self) -> bool:
        """True if, as far as known, the log assigns the timestamps of the records."""
        return self.settings.get(DATED_BY, BY_LOG) == BY_LOG


class OffsetBounds(NamedTuple):
    """Offsets of a partition's oldest record and of the next one to be appended."""

    begin: int
    end: int


class GroupDescription(NamedTuple):
    """A consumer group as it is on the broker. One without members and positions may never have existed."""

    members: tuple[str, ...] = ()
    """Members, each described in a few words: who it is, and where it runs."""
    positions: Mapping[Partition, int] = {}
    """Committed positions. A partition without one begins at its oldest record; so does a partition whose topic was
    deleted and created again since the commit."""
    reads: frozenset[str] = frozenset()
    """Topics that its members read now, also those without a committed position."""
    identities: frozenset[MemberIdentity] = frozenset()
    """Identities that its members report."""


class UnreadableRange(NamedTuple):
    """Part of a partition that cannot be read."""

    begin: int
    end: int
    """Offset of the next readable record, or of the next record to be appended."""
    size: int | None
    """Its size in bytes, if known."""
    reason: str

    def __str__(self) -> str:
        size = "" if self.size is None else f", {self.size} bytes"
        return f"offsets {self.begin} to {self.end - 1}{size}: {self.reason}"


class PartitionReader(Protocol):
    """A reader of partitions outside of any group."""

    async def poll(self, *, records_max: int, timeout_s: float) -> Sequence[Record]:
        """Return the next records of any of the partitions; empty after `timeout_s`. Not to be called concurrently.
        Raises `BrokerError`."""

    def positions(self) -> Mapping[Partition, int]:
        """Return the next offset to read of each partition. Everything below it was returned, is not a record, or was
        removed."""

    def log_ids(self) -> Mapping[str, str]:
        """Return the ids, by topic, of the logs to which `positions` belong, as far as the broker has ids. A new id
        means that the topic was deleted and created again, and is read from its beginning."""

    def stalled_partitions(self) -> Sequence[StalledPartition]:
        """Return the partitions that cannot be read now. They are retried."""


class InactiveGroup(NamedTuple):
    """A group without members, on a broker that keeps groups until they are forgotten explicitly."""

    group: str
    away_ms: int
    """How long it has been observed without members, in milliseconds."""
    behind: int
    """Records that it has not processed."""
    is_lost: bool
    """True if retention no longer waits for it."""


class Administration(Broker, Protocol):
    """Broker for tools. Every method may raise `BrokerError`."""

    can_add_partitions: bool
    """True if the broker can add partitions to a topic."""

    async def list_topics(self) -> Collection[str]:
        """Return the names of all topics that this user may see."""

    async def describe_topics(self, topics: Collection[str]) -> Mapping[str, TopicDescription]:
        """Describe these topics; missing ones are left out."""

    async def fetch_server_settings(self) -> Mapping[str, Mapping[str, str]]:
        """Return the settings of each server, under the broker's names; empty without servers."""

    async def set_retention(self, topic: str, retention_ms: int | None) -> None:
        """Set the retention of a topic."""

    async def use_log_append_time(self, topic: str) -> None:
        """Let the log assign the timestamps of a topic's records from now on, instead of the producers."""

    async def add_partitions(self, topic: str, partitions: int) -> None:
        """Raise a topic's number of partitions. The caller has made sure that all its readers are drained."""

    async def describe_group(self, name: str) -> GroupDescription:
        """Return the members and positions of a group."""

    async def find_readers(self, topic: str) -> Mapping[str, GroupDescription]:
        """Return the groups that have a position in the topic, or a member that reads it."""

    async def fetch_bounds(self, topics: Collection[str]) -> Mapping[Partition, OffsetBounds]:
        """Return the offset bounds of all partitions of these topics; missing topics are left out."""

    async def find_offsets(self, topic: str, time_ms: int) -> Mapping[Partition, int]:
        """Return the first offset of each partition that was appended at this time or later; without one its end."""

    def open_reader(
        self, positions: Mapping[Partition, int], log_ids: Mapping[str, str] = NO_IDS
    ) -> AbstractAsyncContextManager[PartitionReader]:
        """Open a reader that starts at these offsets and follows the log.

        `log_ids`: the logs to which the offsets belong, by topic, as an earlier reader reported them. A topic with
        another log id by now is read from its beginning."""

    async def find_unreadable(self, partition: Partition, offset: int) -> UnreadableRange | None:
        """Return the unreadable range at this offset; `None` if the record there can be read, or there is none."""

    async def move_positions(self, group: str, positions: Mapping[Partition, int]) -> None:
        """Replace the group's committed positions by these. Raises `BrokerError` while the group has members."""

    async def list_inactive_groups(self) -> Sequence[InactiveGroup]:
        """Return the groups without members for which retention waits, or has waited; none on servers that expire
        groups by themselves."""

    async def forget_group(self, group: str) -> None:
        """Remove a group and its positions: if it returns, it begins at the oldest record. Raises `BrokerError` while
        it has members, and on servers that expire groups by themselves."""

    async def append_probe(self) -> int | None:
        """Append a record, read it back, and return its timestamp by the broker's clock, in milliseconds since 1970.
        `None` if the broker uses this machine's clock; then nothing is appended."""
