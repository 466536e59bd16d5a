"""Listener of the suite for brokers, and short forms for records."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field

from saga.messages import Outgoing, Partition, Record


@dataclass
class Listening:
    """A listener that remembers what it was told, and does not let go of a partition before `may_end` is set."""

    has: dict[Partition, int] = field(default_factory=dict)
    told: list[tuple[str, frozenset[Partition]]] = field(default_factory=list)
    raises: list[tuple[str, int, int]] = field(default_factory=list)
    """Topics that have got more partitions, with how many before and now."""
    gone: dict[Partition, list[range]] = field(default_factory=dict)
    """Offsets that were removed before they were read."""
    begun_anew: dict[Partition, list[int]] = field(default_factory=dict)
    """Positions that counted in a log that was replaced."""
    may_end: asyncio.Event = field(default_factory=asyncio.Event)
    commits: Callable[[], Awaitable[None]] | None = None
    """Called before a partition is let go, as a worker commits its work then."""

    def __post_init__(self) -> None:
        self.may_end.set()

    async def on_assigned(self, partitions: Mapping[Partition, int]) -> None:
        self.told.append(("assigned", frozenset(partitions)))
        self.has.update(partitions)

    async def on_revoked(self, partitions: Collection[Partition]) -> None:
        self.told.append(("revoked", frozenset(partitions)))
        await self.may_end.wait()
        if self.commits is not None:
            await self.commits()
        for partition in partitions:
            self.has.pop(partition, None)

    def on_lost(self, partitions: Collection[Partition]) -> None:
        unwarned = frozenset(self.has).intersection(partitions)
        self.told.append(("lost", unwarned) if unwarned else ("gone", frozenset(partitions)))
        for partition in unwarned:
            del self.has[partition]

    def on_expired(self, partition: Partition, first: int, after: int) -> None:
        self.gone.setdefault(partition, []).append(range(first, after))

    def on_replaced(self, partition: Partition, position: int) -> None:
        self.begun_anew.setdefault(partition, []).append(position)

    def on_partitions_added(self, topic: str, before: int, now: int) -> None:
        self.raises.append((topic, before, now))

    def heard(self, what: str) -> frozenset[Partition]:
        """All partitions that were told with this word: `assigned`, `revoked`, then `gone`, or `lost` without it."""
        return frozenset().union(*(partitions for told, partitions in self.told if told == what))


def event(topic: str, key: str, value: str | None = "") -> Outgoing:
    """A record to append, written shortly."""
    return Outgoing(topic, key.encode(), None if value is None else value.encode(), ())


def values(records: Collection[Record]) -> list[str]:
    """Values of these records as text, in order."""
    return [(record.value or b"").decode() for record in records]
