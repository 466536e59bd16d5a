"""Port of the broker for tools: queries about topics, groups and positions, and the few changes that operators make.

Every adapter keeps these promises. Each has a test in `tests/broker/test_administration.py`:
- Queries change nothing: describing a topic does not create it.
- The broker itself refuses `move_positions` while the group has a member that may be alive; an earlier check would not
  be enough.
- `add_partitions` never removes partitions.
- A reader outside of groups gets each record of its partitions once, in order, from its start offsets on. It skips
  records that are removed meanwhile, and an unreadable record stalls only its partition. Reading creates no group and
  no position.

Not promised: that an answer is still true when the caller uses it.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from types import MappingProxyType
from typing import NamedTuple, Protocol

from saga.broker.port import Broker, MemberIdentity
from saga.messages import Partition, Record, StalledPartition

DAY_MS = 86_400_000
NO_IDS: Mapping[str, str] = MappingProxyType({})
"""Default for `log_ids` of `Administration.open_reader`: no log id is known."""
DATED_BY, BY_LOG = "message.timestamp.type", "LogAppendTime"
"""Name of the topic setting that says who assigns the timestamps of records, and its value if the log does. If the
setting is unknown, the log is assumed to do it."""


class TopicDescription(NamedTuple):
    """A topic, as the broker describes it."""

    partitions: int
    retention_ms: int | None
    """Time for which records are kept, in milliseconds; `None` if they are kept for ever."""
    replicas: int | None = None
    """Smallest number of replicas of any partition; `None` if this log is not replicated."""
    in_sync: int | None = None
    """Smallest number of in-sync replicas of any partition; `None` if this log is not replicated."""
    settings: Mapping[str, str] = {}
    """Settings of the topic, under the broker's names."""
    may: frozenset[str] | None = None
    """Rights that this user has on the topic, out of `read` and `write`; `None` on a broker without users."""
    hidden: bool = False
    """True if this user may not see the settings. Then `settings` is empty and `retention_ms` has no meaning."""

    @property
    def is_dated_by_log(self) -> bool:
        """Return whether the log assigns the timestamps of the records. Return True if this is unknown."""
        return self.settings.get(DATED_BY, BY_LOG) == BY_LOG


class OffsetBounds(NamedTuple):
    """Bounds of a partition: the offset of its oldest record, and the offset that the next appended record will get."""

    begin: int
    end: int


class GroupDescription(NamedTuple):
    """A consumer group, as the broker describes it. A group without members and positions may never have existed."""

    members: tuple[str, ...] = ()
    """Members of the group. Each is described by its identity and the host on which it runs."""
    positions: Mapping[Partition, int] = {}
    """Committed positions by partition. In a partition without an entry the group begins at the oldest record. This is
    also the case if the topic was deleted and created again since the commit."""
    reads: frozenset[str] = frozenset()
    """Topics that the members read at present, including those without a committed position."""
    identities: frozenset[MemberIdentity] = frozenset()
    """Identities that the members report."""


class UnreadableRange(NamedTuple):
    """A range of offsets in a partition that cannot be read."""

    begin: int
    end: int
    """Offset of the next readable record, or of the next record to be appended. If the search took too long, a smaller
    offset."""
    size: int | None
    """Size of the range in bytes; `None` if unknown."""
    reason: str

    def __str__(self) -> str:
        size = "" if self.size is None else f", {self.size} bytes"
        return f"offsets {self.begin} to {self.end - 1}{size}: {self.reason}"


class PartitionReader(Protocol):
    """Reader of partitions outside of any group."""

    async def poll(self, *, records_max: int, timeout_s: float) -> Sequence[Record]:
        """Return the next records of any of the partitions; none if there are no new ones within `timeout_s`. Must not
        be called concurrently. Raises `BrokerError`."""

    def positions(self) -> Mapping[Partition, int]:
        """Return, for each partition, the next offset to read. Every record below it was returned or has been
        removed."""

    def log_ids(self) -> Mapping[str, str]:
        """Return, by topic, the ids of the logs to which `positions` refer; empty if the broker has no log ids.

        A new id means that the topic was deleted and created again. Then it is read from its beginning.
        """

    def stalled_partitions(self) -> Sequence[StalledPartition]:
        """Return the partitions that cannot be read at present. Reading them is retried."""


class InactiveGroup(NamedTuple):
    """A group without members, on a broker that keeps groups until `Administration.forget_group` removes them."""

    group: str
    away_ms: int
    """Time for which the group has been observed without members, in milliseconds."""
    behind: int
    """Number of records that the group has not processed yet."""
    is_lost: bool
    """True if the group has been away for so long that retention no longer keeps records for it."""


class Administration(Broker, Protocol):
    """The broker, with the additional operations that operators' tools need. Every method may raise `BrokerError`."""

    can_add_partitions: bool
    """True if the broker can add partitions to a topic."""

    async def list_topics(self) -> Collection[str]:
        """Return the names of all topics that this user may see."""

    async def describe_topics(self, topics: Collection[str]) -> Mapping[str, TopicDescription]:
        """Describe these topics. Missing topics are left out."""

    async def fetch_server_settings(self) -> Mapping[str, Mapping[str, str]]:
        """Return the settings of each server, under the broker's names; empty for a broker without servers."""

    async def set_retention(self, topic: str, retention_ms: int | None) -> None:
        """Set the retention of a topic."""

    async def use_log_append_time(self, topic: str) -> None:
        """Let the log, instead of producers, assign the timestamps of a topic's records from now on."""

    async def add_partitions(self, topic: str, partitions: int) -> None:
        """Increase a topic's number of partitions. The caller must ensure that all readers of the topic are drained."""

    async def describe_group(self, name: str) -> GroupDescription:
        """Return the members and positions of a group."""

    async def describe_groups(self, names: Collection[str]) -> Mapping[str, GroupDescription]:
        """Return the members and positions of groups, by name. A broker on the network is asked about several groups at
        once."""

    async def find_readers(self, topic: str) -> Mapping[str, GroupDescription]:
        """Return the groups that have a position in the topic, or a member that reads it."""

    async def fetch_bounds(self, topics: Collection[str]) -> Mapping[Partition, OffsetBounds]:
        """Return the offset bounds of all partitions of these topics; missing topics are left out."""

    async def find_offsets(self, topic: str, time_ms: int) -> Mapping[Partition, int]:
        """Return, for each partition, the offset of the first record that was appended at this time or later; the end
        of the partition if there is none."""

    def open_reader(
        self, positions: Mapping[Partition, int], log_ids: Mapping[str, str] = NO_IDS
    ) -> AbstractAsyncContextManager[PartitionReader]:
        """Open a reader that starts at these offsets and follows the log.

        `log_ids`: the ids of the logs to which the offsets belong, by topic, as an earlier reader reported them. A
        topic whose log id has changed since then is read from its beginning.
        """

    async def find_unreadable(self, partition: Partition, offset: int) -> UnreadableRange | None:
        """Return the unreadable range at this offset; `None` if there is no record at the offset, or it can be read."""

    async def move_positions(self, group: str, positions: Mapping[Partition, int]) -> None:
        """Set the group's committed positions. Raises `BrokerError` while the group has members."""

    async def list_inactive_groups(self) -> Sequence[InactiveGroup]:
        """Return the groups that have positions but no live member, whether or not retention still keeps records for
        them. The result is empty on servers that remove inactive groups by themselves."""

    async def forget_group(self, group: str) -> None:
        """Remove a group and its positions. If the group comes back, it begins at the oldest record. Raises
        `BrokerError` while it has members, and on servers that remove inactive groups by themselves."""

    async def append_probe(self) -> int | None:
        """Append a record, read it back, and return its timestamp by the broker's clock, in milliseconds since 1970. If
        the broker uses this machine's clock, append nothing and return `None`."""
