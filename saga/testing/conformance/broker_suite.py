"""Base of every suite for brokers: fixtures that an adapter gives, and actions that tests share."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

import pytest

from saga.broker.port import Broker, Membership, Subscription
from saga.messages import Outgoing, Partition, Record, Topic
from saga.support.clock import SystemClock


@dataclass
class RecordingListener:
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


Connect: TypeAlias = Callable[[], Broker]
Remove: TypeAlias = Callable[[Mapping[Partition, int]], Awaitable[None]]
"""Removes from the log what lies below these offsets, handled or not."""
Recreate: TypeAlias = Callable[[str, int], Awaitable[None]]
"""Deletes a topic and creates it again, with so many partitions."""

CLOCK = SystemClock()
LOOK_S = 0.005


class BrokerSuite:
    """A log of one topic, and members of groups on it. Its attributes are abilities in which brokers honestly
    differ."""

    partitions = 4
    within_s = 10.0
    """Time within which anything that has to happen must happen."""
    drain_s = 5.0
    """Time, at least, that a partition waits for `revoked` of the member that is to lose it."""

    @pytest.fixture
    def connect(self) -> Connect:
        """A new, closed broker on this test's log."""
        raise NotImplementedError("give the fixture `connect` in the subclass")

    @pytest.fixture
    def remove(self) -> Remove:
        """Function that removes records of this test's log, as retention or a person does."""
        raise NotImplementedError("give the fixture `remove` in the subclass")

    @pytest.fixture
    def recreate(self) -> Recreate:
        """Function that deletes a topic of this test's log and creates it again, as people do."""
        pytest.skip("no topic of this log is ever deleted")

    @pytest.fixture
    def prefix(self) -> str:
        """Prefix that keeps this test's names apart from others, where the log outlives the test."""
        return ""

    @pytest.fixture
    def topic(self, prefix: str) -> str:
        return f"{prefix}orders"

    @pytest.fixture
    def group(self, prefix: str) -> str:
        return f"{prefix}payment"

    @pytest.fixture
    async def broker(self, connect: Connect, topic: str) -> AsyncIterator[Broker]:
        async with connect() as broker:
            await broker.ensure_topics([Topic(topic, self.partitions)])
            yield broker

    # ---------------------------------------------------------------- what tests do

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return once the condition holds; fail after `within_s`."""

        async def holds() -> None:
            while not condition():
                await CLOCK.sleep(LOOK_S)

        await CLOCK.within(self.within_s, holds())

    async def complete(self, listener: RecordingListener) -> None:
        """Return once the listener has all partitions of one topic."""
        await self.until(lambda: len(listener.has) == self.partitions)

    @asynccontextmanager
    async def member(
        self, broker: Broker, group: str, *topics: str
    ) -> AsyncIterator[tuple[Membership, RecordingListener]]:
        """A member that has joined and has got all partitions that are free."""
        listener = RecordingListener()
        async with broker.join(Subscription(group, topics), listener) as membership:
            await self.until(lambda: bool(listener.has))
            yield membership, listener

    async def read(
        self,
        membership: Membership,
        count: int,
        partitions: Collection[Partition] | None = None,
        *,
        listener: RecordingListener,
    ) -> list[Record]:
        """Read the next `count` records, and no more than come with them."""
        records: list[Record] = []

        async def fill() -> None:
            while len(records) < count:
                wanted = list(listener.has) if partitions is None else partitions
                records.extend(await membership.poll(wanted, records_max=100, timeout_s=0.1))

        await CLOCK.within(self.within_s, fill())
        return records

    async def read_all(self, membership: Membership, listener: RecordingListener, wanted: set[str]) -> list[Record]:
        """Read until each of these values has come, at least once; what came last of each place."""
        came: dict[tuple[object, ...], Record] = {}

        async def all_came() -> None:
            while not wanted <= {*values(came.values())}:
                for record in await membership.poll(list(listener.has), records_max=100, timeout_s=0.1):
                    came[record[:3]] = record

        await CLOCK.within(self.within_s, all_came())
        return list(came.values())

    async def read_until(
        self, membership: Membership, listener: RecordingListener, condition: Callable[[], bool]
    ) -> None:
        """Poll until the condition holds; no record is to come."""

        async def holds() -> None:
            while not condition():
                assert not await membership.poll(list(listener.has), records_max=100, timeout_s=0.1)

        await CLOCK.within(self.within_s, holds())
