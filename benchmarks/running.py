"""Run services in this process on the embedded broker and store. A driver starts sagas and waits for their ends."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from saga.broker.embedded.broker import EmbeddedBroker
from saga.broker.port import Broker, Subscription
from saga.configuration import wiring
from saga.configuration.settings import Settings
from saga.declarations.values import Declared
from saga.encryption.port import Keys
from saga.engine.lifecycle import ServiceOptions
from saga.engine.prepared_service import topics_of
from saga.messages import Outgoing, Partition, Record
from saga.messaging.envelope import type_of
from saga.messaging.transition_events import TOPIC
from saga.store.port import Document
from saga.store.sqlite.store import SqliteStore
from saga.support.clock import SystemClock
from saga.telemetry.events import Handled, TelemetryEvent, to_all
from saga.telemetry.traces import Traces


@dataclass
class Counted:
    """Counts of the operations that services made, and of what the runtime reported."""

    reads: int = 0
    writes: int = 0
    published: int = 0
    handled: int = 0
    last_handled_s: float = 0.0
    troubles: list[TelemetryEvent] = field(default_factory=list)

    def report(self, moment: TelemetryEvent) -> None:
        """Count telemetry events of the runtime: handled messages, and everything that went wrong."""
        if isinstance(moment, Handled):
            self.handled += 1
            self.last_handled_s = time.perf_counter()
        elif type(moment).__name__ in ("DeadLettered", "Stuck", "Unavailable", "Escalated", "Lost", "Retrying"):
            self.troubles.append(moment)


class CountingStore(SqliteStore):
    """Store that counts reads and writes."""

    counted: Counted

    async def get(self, collection: str, key: str) -> Document | None:
        self.counted.reads += 1
        return await super().get(collection, key)

    async def insert(self, collection: str, key: str, content: bytes, *, expiry_s: float | None = None) -> int:
        self.counted.writes += 1
        return await super().insert(collection, key, content, expiry_s=expiry_s)

    async def replace(
        self,
        collection: str,
        key: str,
        content: bytes,
        *,
        cas: int,
        expiry_s: float | None = None,
        keep_expiry: bool = False,
    ) -> int:
        self.counted.writes += 1
        return await super().replace(collection, key, content, cas=cas, expiry_s=expiry_s, keep_expiry=keep_expiry)


class CountingBroker(EmbeddedBroker):
    """Broker that counts published messages."""

    counted: Counted

    async def publish(self, messages: Sequence[Outgoing]) -> None:
        self.counted.published += len(messages)
        await super().publish(messages)


@dataclass
class Running:
    """The running services."""

    broker: Broker
    stores: Mapping[str, SqliteStore]
    counted: Counted


@asynccontextmanager
async def running(
    folder: Path,
    services: Sequence[Declared],
    use: Mapping[str, Sequence[object]],
    keys: Keys | None = None,
    *,
    tells: bool = False,
    traces: Traces | None = None,
) -> AsyncIterator[Running]:
    """Run services on files in `folder` until the block ends; then let them drain."""
    clock, counted, settings = SystemClock(), Counted(), Settings()
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(CountingBroker(folder / "broker.db", clock=clock))
        broker.counted = counted
        stores = {}
        for declared in services:
            store = CountingStore(folder / f"{declared.name}.db", clock=clock)
            store.counted = counted
            stores[declared.name] = await stack.enter_async_context(store)
            await broker.ensure_topics(topics_of(declared))
        if tells:
            await broker.ensure_topics([TOPIC])
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            serving = wiring.serve_all(
                services,
                broker,
                stores,
                ServiceOptions(
                    clock=clock,
                    report=counted.report if traces is None else to_all(counted.report, traces),
                    limits=wiring.limits_of(settings),
                    stop=stop,
                    keys=keys,
                    tracing=None if traces is None else traces.tracing,
                    transitions_topic=TOPIC if tells else None,
                ),
                use=use,
            )
            tasks.create_task(serving)
            try:
                yield Running(broker, stores, counted)
            finally:
                stop.set()


class Driver:
    """Publishes the first message of each saga, and waits for its last messages, in a consumer group of its own."""

    def __init__(self, broker: Broker, last_words: Mapping[str, int]) -> None:
        """Store the parameters. `last_words`: event types that end a saga, each with the number of such events that a
        saga emits at its end."""
        self._broker, self._last = broker, {word.encode(): count for word, count in last_words.items()}
        self._waiting: dict[bytes, tuple[asyncio.Future[None], list[bytes]]] = {}
        self._partitions: set[Partition] = set()

    async def on_assigned(self, partitions: Mapping[Partition, int]) -> None:
        self._partitions.update(partitions)

    async def on_revoked(self, partitions: Collection[Partition]) -> None:
        self._partitions.difference_update(partitions)

    def on_lost(self, partitions: Collection[Partition]) -> None:
        self._partitions.difference_update(partitions)

    def on_expired(self, partition: Partition, first: int, after: int) -> None:
        raise AssertionError(f"{after - first} records of {partition} were removed while it was measured")

    def on_replaced(self, partition: Partition, position: int) -> None:
        raise AssertionError(f"{partition}: its topic was created again")

    def on_partitions_added(self, topic: str, before: int, now: int) -> None:
        raise AssertionError(f"{topic} got {now} partitions instead of {before} while it was measured")

    @asynccontextmanager
    async def listening(self, topics: Sequence[str]) -> AsyncIterator[None]:
        """Read the events of these topics until the block ends."""
        async with self._broker.join(Subscription("driver", topics), self) as membership:

            async def hear() -> None:
                while True:
                    for record in await membership.poll(self._partitions, records_max=500, timeout_s=1):
                        self._heard(record)

            task = asyncio.create_task(hear())
            try:
                yield
            finally:
                task.cancel()
                await asyncio.wait([task])

    def _heard(self, record: Record) -> None:
        word = (type_of(record) or "").encode()
        count = self._last.get(word)
        waiting = self._waiting.get(record.key or b"")
        if count is None or waiting is None:
            return
        ended, words = waiting
        words.append(word)
        if len(words) == count:
            del self._waiting[record.key or b""]
            ended.set_result(None)

    async def saga(self, first: Outgoing) -> float:
        """Publish the first message and wait until the saga ends. Return the seconds that it took."""
        began = time.perf_counter()
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[first.key] = ended, []
        await self._broker.publish([first])
        await ended
        return time.perf_counter() - began


async def in_flight(count: int, many: int, saga: Callable[[int], Awaitable[float]]) -> list[float]:
    """Run `count` sagas, with `many` of them in flight. Return their durations in seconds, sorted."""
    numbers = iter(range(count))
    took: list[float] = []

    async def one_after_another() -> None:
        for number in numbers:
            took.append(await saga(number))

    async with asyncio.TaskGroup() as tasks:
        for _ in range(many):
            tasks.create_task(one_after_another())
    return sorted(took)
