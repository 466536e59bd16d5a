"""Broker as tools see it: beyond the port, what is there, how far groups are, and the few changes that people make.

Promises, each shown by a test of `tests/broker/test_administration.py`, on every adapter:
- Looking changes nothing: no topic comes into being because it was asked for.
- `move` is refused while the group has a member that may be alive, by the broker itself and not by an earlier look.
- `grow` never takes partitions away.
- Whoever reads outside any group gets each record of its partitions from where it begins on, in the order of each, and
  is told of nothing twice; what is removed meanwhile is passed over, and what cannot be read holds up its partition
  alone. No group, and no position of one, comes into being by it.
Not promised: that what was seen is still so a moment later.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from types import MappingProxyType
from typing import NamedTuple, Protocol

from saga.broker.identity import MemberIdentity
from saga.broker.port import Broker
from saga.messages import Partition, Record, Standstill

DAY_MS = 86_400_000
NO_IDS: Mapping[str, str] = MappingProxyType({})
"""Ids of logs of which none is known yet."""
DATED_BY, BY_LOG = "message.timestamp.type", "LogAppendTime"
"""Setting that says who dates the records of a topic, and its value if the log does. Where a log has no such setting,
it does."""


class Found(NamedTuple):
    """Topic as the broker has it."""

    partitions: int
    retention_ms: int | None
    """Milliseconds for which records are kept; `None`: for ever."""
    replicas: int | None = None
    """Brokers that have each record, of the partition with the fewest; `None`: this log has one place."""
    in_sync: int | None = None
    """Brokers of these that are up to date, likewise."""
    settings: Mapping[str, str] = {}
    """Settings of the topic, by the broker's own names."""
    may: frozenset[str] | None = None
    """Rights that we have: `read`, `write`; `None` where nobody asks who we are."""
    hidden: bool = False
    """True if we may not see its settings: then they are empty, and `retention_ms` means nothing."""

    @property
    def is_dated_by_log(self) -> bool:
        """True if the log dates its records, as far as is known."""
        return self.settings.get(DATED_BY, BY_LOG) == BY_LOG


class Bounds(NamedTuple):
    """Bounds of a partition: the offset of its oldest record, and the one that the next record gets."""

    begin: int
    end: int


class Group(NamedTuple):
    """Group as the broker knows it; without members and positions it may never have been there."""

    members: tuple[str, ...] = ()
    """Members, each in a few words for people: who it is, and where."""
    positions: Mapping[Partition, int] = {}
    """Positions that were committed. A partition that is not in here begins at its oldest record; so does one whose
    position was committed in the log of a topic that has been deleted and created again since."""
    reads: frozenset[str] = frozenset()
    """Topics that its members read now, those too in which nothing was committed yet."""
    identities: frozenset[MemberIdentity] = frozenset()
    """Identities that its members state."""


class Unreadable(NamedTuple):
    """Part of a partition that cannot be read."""

    begin: int
    end: int
    """Offset of the first record behind it that can be read, or of the next one that comes."""
    size: int | None
    """Bytes of it, as far as that can be known."""
    reason: str

    def __str__(self) -> str:
        size = "" if self.size is None else f", {self.size} bytes"
        return f"offsets {self.begin} to {self.end - 1}{size}: {self.reason}"


class Reading(Protocol):
    """Reader of partitions that is in no group, while it is open."""

    async def poll(self, *, records_max: int, timeout_s: float) -> Sequence[Record]:
        """Wait for the next records of any of the partitions; empty after `timeout_s`. Never called concurrently.
        Raises `BrokerError`."""

    def positions(self) -> Mapping[Partition, int]:
        """Offset that is read next of each partition: everything below it was handed out, or is no record, or is
        gone."""

    def log_ids(self) -> Mapping[str, str]:
        """Ids of the logs in which `positions` count, by topic, as far as the broker has told them. One that changes
        says that its topic was deleted and created again, and is read from its beginning."""

    def standstills(self) -> Sequence[Standstill]:
        """Parts that cannot be read now. They are tried again."""


class Away(NamedTuple):
    """Group without members, where nothing but the log itself remembers groups."""

    group: str
    away_ms: int
    """Milliseconds for which it has been seen so."""
    behind: int
    """Records that it has not handled."""
    is_lost: bool
    """True if retention does not wait for it any more."""


class Administration(Broker, Protocol):
    """Broker for tools. Everything may raise `BrokerError`."""

    can_grow: bool
    """True if a topic may get more partitions at all."""

    async def topics(self) -> Collection[str]:
        """Names of all topics that we may see."""

    async def found(self, topics: Collection[str]) -> Mapping[str, Found]:
        """Look for these topics; those that are not there are left out."""

    async def server_settings(self) -> Mapping[str, Mapping[str, str]]:
        """Settings of each server, by their own names; empty where there is no server."""

    async def retain(self, topic: str, retention_ms: int | None) -> None:
        """Keep the records of a topic for so long from now on."""

    async def date_by_log(self, topic: str) -> None:
        """Have the log date the records of a topic from now on, in the place of their senders."""

    async def grow(self, topic: str, partitions: int) -> None:
        """Give a topic so many partitions. The caller has seen that all who read it are drained."""

    async def group(self, name: str) -> Group:
        """Members of a group, and how far it is."""

    async def readers(self, topic: str) -> Mapping[str, Group]:
        """Groups with a position in the topic, or with a member that reads it."""

    async def bounds(self, topics: Collection[str]) -> Mapping[Partition, Bounds]:
        """Bounds of all partitions of these topics that are there."""

    async def since(self, topic: str, time_ms: int) -> Mapping[Partition, int]:
        """First offset of each partition whose record was appended then or later; its end if there is none."""

    def read(
        self, positions: Mapping[Partition, int], log_ids: Mapping[str, str] = NO_IDS
    ) -> AbstractAsyncContextManager[Reading]:
        """Read these partitions from these offsets on, and go on with what comes, inside the block. `log_ids`: the logs
        in which the offsets count, by topic, as an earlier reading told them: a topic that has another one by now is
        read from its beginning. Raises `BrokerError`."""

    async def unreadable(self, partition: Partition, offset: int) -> Unreadable | None:
        """Extent of what cannot be read there, if the record at that offset cannot; `None`: it can, or there is
        none."""

    async def move(self, group: str, positions: Mapping[Partition, int]) -> None:
        """Put these positions in the place of what the group has committed. Raises `BrokerError` while it has
        members."""

    async def away(self) -> Sequence[Away]:
        """Groups without members for which retention waits, or has waited; none where servers forget them by
        themselves."""

    async def forget(self, group: str) -> None:
        """Forget a group, and how far it came: if it comes again, it begins at the oldest record. Raises `BrokerError`
        while it has members, and where servers do that."""

    async def stamp(self) -> int | None:
        """Append a record, read it again, and tell when it was appended by the broker's clock, in milliseconds since
        1970; `None` where that is this machine's own clock, and nothing was appended."""
