"""Base class of the suites for brokers: fixtures that an adapter's test provides, and actions that the tests share."""

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
    """A listener that records its calls. While `may_let_go` is cleared, it does not give up partitions."""

    has: dict[Partition, int] = field(default_factory=dict)
    calls: list[tuple[str, frozenset[Partition]]] = field(default_factory=list)
    added: list[tuple[str, int, int]] = field(default_factory=list)
    """Topics that got more partitions, with the old and the new number of partitions."""
    expired: dict[Partition, list[range]] = field(default_factory=dict)
    """Ranges of offsets that were removed before they were read, by partition."""
    replaced: dict[Partition, list[int]] = field(default_factory=dict)
    """Offsets at which reading had stopped in the old log, for each partition whose log was replaced by another one."""
    may_let_go: asyncio.Event = field(default_factory=asyncio.Event)
    before_letting_go: Callable[[], Awaitable[None]] | None = None
    """Function called before a partition is given up, at the point where a worker commits its work."""

    def __post_init__(self) -> None:
        self.may_let_go.set()

    async def on_assigned(self, partitions: Mapping[Partition, int]) -> None:
        self.calls.append(("assigned", frozenset(partitions)))
        self.has.update(partitions)

    async def on_revoked(self, partitions: Collection[Partition]) -> None:
        self.calls.append(("revoked", frozenset(partitions)))
        await self.may_let_go.wait()
        if self.before_letting_go is not None:
            await self.before_letting_go()
        for partition in partitions:
            self.has.pop(partition, None)

    def on_lost(self, partitions: Collection[Partition]) -> None:
        without_warning = frozenset(self.has).intersection(partitions)
        self.calls.append(("lost", without_warning) if without_warning else ("gone", frozenset(partitions)))
        for partition in without_warning:
            del self.has[partition]

    def on_expired(self, partition: Partition, first: int, after: int) -> None:
        self.expired.setdefault(partition, []).append(range(first, after))

    def on_replaced(self, partition: Partition, position: int) -> None:
        self.replaced.setdefault(partition, []).append(position)

    def on_partitions_added(self, topic: str, before: int, now: int) -> None:
        self.added.append((topic, before, now))

    def partitions_of(self, what: str) -> frozenset[Partition]:
        """Return all partitions for which the listener got calls of the kind `what`.

        Kinds are `assigned`, `revoked`, `gone` (lost after it was revoked) and `lost` (without being revoked).
        """
        return frozenset().union(*(partitions for kind, partitions in self.calls if kind == what))


def event(topic: str, key: str, value: str | None = "") -> Outgoing:
    """Return a record to publish."""
    return Outgoing(topic, key.encode(), None if value is None else value.encode(), ())


def values(records: Collection[Record]) -> list[str]:
    """Return the values of these records as text, in order."""
    return [(record.value or b"").decode() for record in records]


Connect: TypeAlias = Callable[[], Broker]
Remove: TypeAlias = Callable[[Mapping[Partition, int]], Awaitable[None]]
"""Function that removes all records below these offsets from the log, even records that were not read yet."""
Recreate: TypeAlias = Callable[[str, int], Awaitable[None]]
"""Function that deletes a topic and creates it again with this number of partitions."""

CLOCK = SystemClock()
LOOK_S = 0.005


class BrokerSuite:
    """Base class for tests with one topic, and members of consumer groups that read it. Subclasses set the attributes
    in which brokers may differ.
    """

    partitions = 4
    within_s = 10.0
    """Maximum time in seconds that a test waits for anything."""
    drain_s = 5.0
    """Minimum time in seconds that the broker waits for a member's `on_revoked` to return, before it reassigns the
    partition.
    """

    @pytest.fixture
    def connect(self) -> Connect:
        """Provide a function that creates a broker on this test's log. The broker is not open yet."""
        raise NotImplementedError("give the fixture `connect` in the subclass")

    @pytest.fixture
    def remove(self) -> Remove:
        """Provide a function that removes records of this test's log, as retention or an operator would."""
        raise NotImplementedError("give the fixture `remove` in the subclass")

    @pytest.fixture
    def recreate(self) -> Recreate:
        """Provide a function that deletes a topic of this test's log and creates it again, as an operator would."""
        pytest.skip("no topic of this log is ever deleted")

    @pytest.fixture
    def prefix(self) -> str:
        """Provide a prefix for the names of topics and groups. It is needed for a log that several tests share."""
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

    # ---------------------------------------------------------------- actions of tests

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds; fail after `within_s`."""

        async def holds() -> None:
            while not condition():
                await CLOCK.sleep(LOOK_S)

        await CLOCK.within(self.within_s, holds())

    async def complete(self, listener: RecordingListener) -> None:
        """Wait until the listener has been assigned all partitions of the topic."""
        await self.until(lambda: len(listener.has) == self.partitions)

    @asynccontextmanager
    async def member(
        self, broker: Broker, group: str, *topics: str
    ) -> AsyncIterator[tuple[Membership, RecordingListener]]:
        """Join a group, and yield the member once it has a partition."""
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
        """Poll until at least `count` records have been read, and return all records that were read."""
        records: list[Record] = []

        async def fill() -> None:
            while len(records) < count:
                wanted = list(listener.has) if partitions is None else partitions
                records.extend(await membership.poll(wanted, records_max=100, timeout_s=0.1))

        await CLOCK.within(self.within_s, fill())
        return records

    async def read_all(self, membership: Membership, listener: RecordingListener, wanted: set[str]) -> list[Record]:
        """Read until each of the values `wanted` has arrived at least once. Return the last record read at each
        position.
        """
        latest: dict[tuple[object, ...], Record] = {}

        async def all_came() -> None:
            while not wanted <= {*values(latest.values())}:
                for record in await membership.poll(list(listener.has), records_max=100, timeout_s=0.1):
                    latest[record[:3]] = record

        await CLOCK.within(self.within_s, all_came())
        return list(latest.values())

    async def read_until(
        self, membership: Membership, listener: RecordingListener, condition: Callable[[], bool]
    ) -> None:
        """Poll until the condition holds; fail if a record arrives."""

        async def holds() -> None:
            while not condition():
                assert not await membership.poll(list(listener.has), records_max=100, timeout_s=0.1)

        await CLOCK.within(self.within_s, holds())
