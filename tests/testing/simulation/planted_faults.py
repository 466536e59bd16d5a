"""Stores and brokers on a loop of their own, with faults planted by hand and no restart of what dies."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from saga.broker.port import Subscription
from saga.messages import Outgoing, Partition, Topic
from saga.testing.fault_plans import Chance, FaultKind, PlannedFault, ScheduledPlan
from saga.testing.simulation.broker import SimulatedBroker, SimulatedMember
from saga.testing.simulation.cluster import Cluster
from saga.testing.simulation.loop import CURRENT, Process, SimulatedLoop
from saga.testing.simulation.network import Disruptions, Network, Trace
from saga.testing.simulation.store import Disk, SimulatedStore

T = TypeVar("T")

NAME, OTHER, SERVICE, TOPIC = "payment-1", "payment-2", "payment", "orders"
SEEDS = range(12)
"""Seeds, which decide how long a fault lasts and how much of it happens: what a test says holds for any."""


def fault(number: int, kind: FaultKind, way: Literal["", "after", "of the process"] = "") -> PlannedFault:
    """On the operation of `NAME` with this number."""
    return PlannedFault(NAME, number, kind, bool(way))


def record(key: str, value: str = "") -> Outgoing:
    return Outgoing(TOPIC, key.encode(), value.encode(), (("ce_id", value.encode()),))


class Noting(Disruptions):
    """Kills; notes the rest."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self.noted: list[tuple[str, str]] = []
        self.frozen_s = 0.0

    def crash(self, process: Process, after_s: float) -> None:
        self.noted.append(("crash", process.name))
        self._loop.kill(process)

    def freeze(self, process: Process, time_s: float) -> None:
        self.noted.append(("freeze", process.name))
        self.frozen_s = time_s

    def silence(self, who: str, time_s: float) -> None:
        self.noted.append(("silence", who))

    def rebalance(self, process: Process, draws: tuple[float, float, float, float]) -> str:
        self.noted.append(("rebalance", process.name))
        return ""


@dataclass
class FaultGround:
    """One loop, one network, one disk for each service, one cluster."""

    loop: SimulatedLoop
    network: Network
    cluster: Cluster
    noted: list[tuple[str, str]]
    disks: dict[str, Disk] = field(default_factory=dict)
    processes: dict[str, Process] = field(default_factory=dict)

    @classmethod
    def with_(cls, seed: int, *planned: PlannedFault) -> "FaultGround":
        loop = SimulatedLoop(seed)
        network = Network(Chance(seed), ScheduledPlan(planned), Trace())
        noting = Noting(loop)
        network.disruptions = noting
        cluster = Cluster(network)
        return cls(loop, network, cluster, noting.noted)

    def process(self, name: str) -> Process:
        return self.processes.setdefault(name, Process(name, name.rpartition("-")[0]))

    def disk(self, service: str = SERVICE) -> Disk:
        return self.disks.setdefault(service, Disk())

    @asynccontextmanager
    async def store(self, name: str = NAME) -> AsyncIterator[SimulatedStore]:
        process = self.process(name)
        async with SimulatedStore(self.disk(process.service), process, self.network) as store:
            yield store

    @asynccontextmanager
    async def broker(self, name: str = NAME, retention_s: float = 1000.0) -> AsyncIterator[SimulatedBroker]:
        async with SimulatedBroker(self.cluster, self.process(name), self.network, retention_s) as broker:
            await broker.ensure_topics([Topic(TOPIC, 2)])
            yield broker

    def runs(self, work: Coroutine[object, object, T]) -> T:
        """To its end, and on until nothing is under way."""
        task = self.loop.create_task(work)
        try:
            self.loop.run()
            if not task.done():
                self.loop.run(self.loop.time() + 100)  # a poll's timeout is nothing that a world waits for
            assert task.done(), "it waits for something that does not come"
            return task.result()
        finally:
            self.loop.end()

    def dies(self, work: Coroutine[object, object, object], name: str = NAME) -> None:
        """Let the process do it, until nothing is under way."""
        task = self.begin(work, name)
        self.loop.run()
        assert not task.done(), "it was to die in the middle"
        self.loop.end()

    def begin(self, work: Coroutine[object, object, T], name: str) -> "asyncio.Task[T]":
        """In that process, which may freeze or die."""
        return begin(self.loop, self.process(name), work)

    def now_s(self) -> float:
        return self.loop.time()

    def values(self) -> list[str]:
        """Values that were appended, in that order."""
        return [(each.value or b"").decode(errors="replace") for each in self.cluster.log]

    def content(self, key: str, service: str = SERVICE) -> bytes | None:
        kept = self.disk(service).documents.get(("saga", key))
        return None if kept is None else kept.content


async def passes(seconds: float) -> None:
    await asyncio.sleep(seconds)  # noqa: TID251 - the time of a simulated loop is virtual


async def describe_result(asked: Awaitable[object]) -> str:
    """`done`, or the name of the error."""
    try:
        await asked
    except Exception as why:  # noqa: BLE001 - which one it is, is what is asked
        return type(why).__name__
    return "done"


async def until_done(ask: Callable[[], Awaitable[object]], attempts_max: int = 10_000) -> list[str]:
    """Ask until it is done; what was answered before."""
    log: list[str] = []
    for _ in range(attempts_max):
        log.append(await describe_result(ask()))
        if log[-1] == "done":
            return log[:-1]
    raise AssertionError(f"never done: {log[-3:]}")


def by_seed(outcome: Callable[[int], T], seeds: Iterable[int] = SEEDS) -> Sequence[T]:
    """Outcome for each seed."""
    return [outcome(seed) for seed in seeds]


def begin(
    loop: SimulatedLoop, process: Process | None, work: Coroutine[object, object, T], name: str = "task"
) -> "asyncio.Task[T]":
    """A task of that process."""
    return loop.create_task(work, name=name, context=context_of(process))


def context_of(process: Process | None) -> Context:
    """Context in which everything that is begun is that process's."""
    context = copy_context()
    context.run(CURRENT.set, process)
    return context


async def ticks(times: list[float]) -> None:
    while True:
        await passes(1)
        times.append(asyncio.get_running_loop().time())


@dataclass
class Hears:
    """A listener that writes down what it hears, and when."""

    ground: FaultGround
    has: set[Partition] = field(default_factory=set)
    lost_s: list[float] = field(default_factory=list)
    drains_s: float = 0.0
    """Time that it takes to let go of a partition."""

    async def on_assigned(self, partitions: Mapping[Partition, int]) -> None:
        self.has |= partitions.keys()

    async def on_revoked(self, partitions: Collection[Partition]) -> None:
        await passes(self.drains_s)
        self.has -= set(partitions)

    def on_lost(self, partitions: Collection[Partition]) -> None:
        if self.has & set(partitions):  # else they were let go before
            self.lost_s.append(self.ground.now_s())
            self.has -= set(partitions)

    def on_expired(self, partition: Partition, first: int, after: int) -> None:
        raise AssertionError(f"{partition} has lost {first} to {after - 1}")

    def on_replaced(self, partition: Partition, position: int) -> None:
        raise AssertionError(f"{partition}: its topic was created again")

    def on_partitions_added(self, topic: str, before: int, now: int) -> None:
        raise AssertionError(f"{topic} has {now} partitions")


@asynccontextmanager
async def joined(ground: FaultGround, broker: SimulatedBroker) -> AsyncIterator[tuple[SimulatedMember, Hears]]:
    hears = Hears(ground)
    async with broker.join(Subscription(SERVICE, [TOPIC]), hears) as member:
        await passes(1)
        yield member, hears


async def read(member: SimulatedMember, hears: Hears) -> list[str]:
    """All that there is to read."""
    values: list[str] = []
    while records := await member.poll(hears.has, records_max=10, timeout_s=1):
        values += [(each.value or b"").decode() for each in records]
    return values
