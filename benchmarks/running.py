"""Services running in this process on the embedded broker and store, and a driver that keeps sagas in flight."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from saga import wiring
from saga.broker.port import Broker
from saga.clock import SystemClock
from saga.config import Settings
from saga.declarations.values import Declared
from saga.messages import Outgoing, Partition, Record
from saga.observe.moments import Handled, Moment


@dataclass
class Running:
    """Services that run, and what they have reported."""

    broker: Broker
    handled: int = 0
    transitions: int = 0
    moments: list[Moment] = field(default_factory=list)

    def report(self, moment: Moment) -> None:
        if isinstance(moment, Handled):
            self.handled += 1
            self.transitions += len(moment.outcomes)
        else:
            self.moments.append(moment)


@asynccontextmanager
async def running(folder: Path, services: Sequence[Declared]) -> AsyncIterator[Running]:
    """Run services on files in `folder` until the block ends; then they drain."""
    clock = SystemClock()
    settings = Settings(
        broker=f"embedded:///{folder}/broker.db", store=f"sqlite:///{folder}/{{service}}.db", inflight_max=1000
    )
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(wiring.broker_of(None, clock, settings))
        run = Running(broker)
        for declared in services:
            await broker.ensure(wiring.topics_of(declared))
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(wiring.run_on(broker, services, settings, run.report, stop, clock))
            try:
                yield run
            finally:
                stop.set()
                await asyncio.wait([task])


class Driver:
    """Publishes and waits for the last word of each saga: a member of a group of its own."""

    def __init__(self, broker: Broker, last_words: Collection[str]) -> None:
        self._broker, self._last = broker, {word.encode() for word in last_words}
        self._waiting: dict[bytes, asyncio.Future[None]] = {}
        self._partitions: set[Partition] = set()

    async def assigned(self, partitions: Mapping[Partition, int]) -> None:
        self._partitions.update(partitions)

    async def revoked(self, partitions: Collection[Partition]) -> None:
        self._partitions.difference_update(partitions)

    def lost(self, partitions: Collection[Partition]) -> None:
        self._partitions.difference_update(partitions)

    @asynccontextmanager
    async def listening(self, topics: Sequence[str]) -> AsyncIterator[None]:
        """Hear what is said on these topics, inside the block."""
        async with self._broker.join("driver", topics, self) as membership:

            async def hear() -> None:
                while True:
                    for record in await membership.poll(self._partitions, records_max=500, timeout_s=1):
                        self._heard(record)

            task = asyncio.get_running_loop().create_task(hear())
            try:
                yield
            finally:
                task.cancel()
                await asyncio.wait([task])

    def _heard(self, record: Record) -> None:
        if any(name == "ce_type" and value in self._last for name, value in record.headers):
            waiting = self._waiting.pop(record.key or b"", None)
            if waiting is not None:
                waiting.set_result(None)

    async def saga(self, first: Outgoing) -> float:
        """Publish, wait for the end; how many seconds it took."""
        began = time.perf_counter()
        ended = self._waiting[first.key] = asyncio.get_running_loop().create_future()
        await self._broker.publish([first])
        await ended
        return time.perf_counter() - began


async def in_flight(count: int, many: int, saga: Callable[[int], object]) -> list[float]:
    """`count` sagas, `many` at a time; how long each took."""
    numbers = iter(range(count))
    took: list[float] = []

    async def one_after_another() -> None:
        for number in numbers:
            took.append(await saga(number))  # type: ignore[misc]

    async with asyncio.TaskGroup() as tasks:
        for _ in range(many):
            tasks.create_task(one_after_another())
    return took
