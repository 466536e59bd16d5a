"""What tools ask of a broker beyond the port: what is there, how far groups are, and the few changes that people make.

Promises, each shown by a test of `tests/broker/test_administration.py`, on every adapter:
- Looking changes nothing: no topic comes into being because it was asked for.
- `move` is refused while the group has a member that may be alive, by the broker itself and not by an earlier look.
- `grow` never takes partitions away.
Not promised: that what was seen is still so a moment later.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple, Protocol

from saga.broker.port import Broker
from saga.messages import Partition

DAY_MS = 86_400_000


class Found(NamedTuple):
    """A topic as it is there."""

    partitions: int
    retention_ms: int | None
    """How long records are kept; `None`: for ever."""
    replicas: int | None = None
    """How many brokers have each record, of the partition with the fewest; `None`: this log has one place."""
    in_sync: int | None = None
    """How many of them are up to date, likewise."""
    settings: Mapping[str, str] = {}
    """The broker's own, by their own names."""
    may: frozenset[str] | None = None
    """What we are allowed: `read`, `write`; `None` where nobody asks who we are."""
    hidden: bool = False
    """Whether we may not see its settings: then they are empty, and `retention_ms` means nothing."""


class Bounds(NamedTuple):
    """What a partition holds: the offset of its oldest record, and the one that the next record gets."""

    begin: int
    end: int


class Group(NamedTuple):
    """A group as the broker knows it; without members and positions it may never have been there."""

    members: tuple[str, ...] = ()
    """Each in a few words for people: who it is, and where."""
    positions: Mapping[Partition, int] = {}
    """Those that were committed. A partition that is not in here begins at its oldest record."""


class Unreadable(NamedTuple):
    """Part of a partition that cannot be read."""

    begin: int
    end: int
    """The offset of the first record behind it that can be read, or of the next one that comes."""
    size: int | None
    """In bytes, as far as that can be known."""
    reason: str

    def __str__(self) -> str:
        size = "" if self.size is None else f", {self.size} bytes"
        return f"offsets {self.begin} to {self.end - 1}{size}: {self.reason}"


class Administration(Broker, Protocol):
    """A broker, for tools. Everything may raise `BrokerError`."""

    can_grow: bool
    """Whether a topic may get more partitions at all."""

    async def found(self, topics: Collection[str]) -> Mapping[str, Found]:
        """Those of these topics that are there."""

    async def server_settings(self) -> Mapping[str, Mapping[str, str]]:
        """Of each server its own settings, by their own names; empty where there is no server."""

    async def retain(self, topic: str, retention_ms: int | None) -> None:
        """Keep its records for so long from now on."""

    async def grow(self, topic: str, partitions: int) -> None:
        """Have it have so many. The caller has seen that all who read it are drained."""

    async def group(self, name: str) -> Group:
        """Who is in it, and how far it is."""

    async def readers(self, topic: str) -> Mapping[str, Group]:
        """Every group with a position in the topic, or with a member that reads it."""

    async def bounds(self, topics: Collection[str]) -> Mapping[Partition, Bounds]:
        """Of all partitions of these topics that are there."""

    async def since(self, topic: str, time_ms: int) -> Mapping[Partition, int]:
        """Of each partition the first offset whose record was appended then or later; its end if there is none."""

    async def unreadable(self, partition: Partition, offset: int) -> Unreadable | None:
        """What cannot be read there, if the record at that offset cannot; `None`: it can, or there is none."""

    async def move(self, group: str, positions: Mapping[Partition, int]) -> None:
        """Put these in the place of what the group has committed. Raises `BrokerError` while it has members."""

    async def stamp(self) -> int | None:
        """Append a record, read it again, and tell when it was appended by the broker's clock, in milliseconds since
        1970; `None` where that is this machine's own clock, and nothing was appended."""
