"""Measure sagas per second of the plain chain and of the example, with the four services in one process and in four."""

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from decimal import Decimal
from functools import partial
from typing import NamedTuple

import msgspec
from aiokafka import AIOKafkaConsumer
from aiokafka.structs import ConsumerRecord

from benchmarks.events import OrderRequested
from benchmarks.parts import CHAIN_ENDS, Figure
from benchmarks.running import Driver, in_flight
from benchmarks.servers.ground import Ground, Work, child, rounds
from benchmarks.servers.latency import at_the_end
from benchmarks.servers.ours import CAST, serve
from benchmarks.services import REFUSED
from saga.broker.port import Broker
from saga.clients.events import to_record
from saga.configuration import adapters
from saga.engine.prepared_service import topics_of
from saga.messages import Outgoing, Record
from saga.support.clock import SystemClock
from services.inventory.stock import Stock
from services.order.events import OrderPlaced

IN_FLIGHT, WARM, ROUNDS = 100, 200, 3
ENDED_WITHIN_S = 120
ITEMS = [f"item-{n}" for n in range(20)]
clock = SystemClock()


class Play(NamedTuple):
    """A workload: the services that run, and the sagas that are started."""

    cast: str
    sagas: int
    """Number of sagas that are measured."""
    ends: Mapping[str, int]
    topics: Sequence[str]
    """Topics on which the last events of the sagas are published."""
    first: Callable[[str, int], Outgoing]
    """Function that returns the first message of a saga, given its id and its number."""


class Took(NamedTuple):
    """Time that the sagas of a round took."""

    wall_s: float
    cpu_s: float
    """CPU time of the processes that run services, in seconds."""
    each_s: Sequence[float]


def _requested(saga: str, number: int) -> Outgoing:
    """Return an order request. One in ten is refused and undone."""
    asked = OrderRequested(
        order_id=saga,
        customer_id=f"c-{number % 97}",
        sku=REFUSED if number % 10 == 0 else "tea",
        quantity=2,
        total=Decimal("9.80"),
        address="Kiel",
    )
    return to_record(asked, clock.now_ms())


def _placed(saga: str, number: int) -> Outgoing:
    """Return an order. One card in ten is declined."""
    placed = OrderPlaced(
        order_id=saga,
        customer_id=f"c-{number % 97}",
        sku=ITEMS[number % len(ITEMS)],
        quantity=2,
        total=Decimal("9.80"),
        card="declined-1" if number % 10 == 9 else "4242",
        address="Kiel",
    )
    return to_record(placed, clock.now_ms())


CHAIN = Play("chain", 1_500, CHAIN_ENDS, ["orders", "payments"], _requested)
EXAMPLE = Play(
    "example",
    500,
    # Events of compensations do not count: an order that is cancelled early enough has nothing to undo.
    {"PaymentCaptured": 3, "InventoryHandedOut": 3, "ShipmentDispatched": 3, "OrderCancelled": 1},
    ["orders", "payments", "inventory", "shipments"],
    _placed,
)


def chain(ground: Ground) -> list[Figure]:
    """(d) Measure place -> pay -> stock -> ship -> confirm, 10 % refused and undone"""
    return _played(ground, CHAIN, "d")


def example(ground: Ground) -> list[Figure]:
    """(e) Measure the example of services/: steps and document updates, 10 % declined"""
    return _played(ground, EXAMPLE, "e")


def _played(ground: Ground, play: Play, part: str) -> list[Figure]:
    names: list[str | None] = [declared.name for declared in CAST[play.cast]]
    ways: dict[str, tuple[list[str | None], list[Took]]] = {"one process": ([None], []), "four processes": (names, [])}
    asyncio.run(_prepared(ground, play))
    for number in rounds(ROUNDS):
        for who, (processes, took) in enumerate(ways.values()):
            with ExitStack() as stack:
                children = [stack.enter_context(child(serve, Work(), ground, play.cast, only)) for only in processes]
                wall_s, each_s = asyncio.run(_driven(ground, play, f"{part}{number}{who}"))
                took.append(Took(wall_s, sum(running.stopped().cpu_s for running in children), each_s))
    figures = []
    for way, (_, took) in ways.items():
        figures += [
            Figure(f"{part} sagas, 100 in flight, {way}", _median(play.sagas / t.wall_s for t in took), "sagas/s"),
            Figure(f"{part} CPU of it", _median(t.cpu_s / (play.sagas + WARM) * 1e3 for t in took), "ms/saga"),
            Figure(f"{part} p50 at 100 in flight", _median(statistics.median(t.each_s) * 1e3 for t in took), "ms"),
        ]
    return figures


def _median(values: Iterable[float]) -> float:
    return statistics.median(values)


async def _prepared(ground: Ground, play: Play) -> None:
    """Create the topics, and fill the stock."""
    async with adapters.broker_at(ground.settings, clock) as broker:
        for declared in CAST[play.cast]:
            await broker.ensure_topics(topics_of(declared))
    if play is EXAMPLE:
        async with adapters.store_at(ground.settings, "inventory", clock) as store:
            for item in ITEMS:
                await store.insert("stock", item, msgspec.json.encode(Stock(left=10_000_000)))


async def _driven(ground: Ground, play: Play, name: str) -> tuple[float, list[float]]:
    """Run the sagas. Return the seconds that all took, and those of each."""
    async with adapters.broker_at(ground.settings, clock) as broker:
        driver = KafkaDriver(broker, play.ends, ground.kafka)
        async with driver.listening(play.topics):
            begin = partial(_one, driver, play)
            async with asyncio.timeout(ENDED_WITHIN_S):
                await in_flight(WARM, IN_FLIGHT, partial(begin, f"{name}-warm"))  # warm up all services
                wall = time.perf_counter()
                each_s = await in_flight(play.sagas, IN_FLIGHT, partial(begin, name))
                return time.perf_counter() - wall, each_s


async def _one(driver: Driver, play: Play, name: str, number: int) -> float:
    return await driver.saga(play.first(f"{name}-{number:06}", number))


class KafkaDriver(Driver):
    """Driver that reads only new records, without a consumer group, so that it does not see events of earlier
    rounds."""

    def __init__(self, broker: Broker, last_words: Mapping[str, int], kafka: str) -> None:
        super().__init__(broker, last_words)
        self._kafka = kafka

    @asynccontextmanager
    async def listening(self, topics: Sequence[str]) -> AsyncIterator[None]:
        async with AIOKafkaConsumer(bootstrap_servers=self._kafka, group_id=None, fetch_max_wait_ms=100) as consumer:
            await at_the_end(consumer, list(topics))

            async def hear() -> None:
                while True:
                    for records in (await consumer.getmany(timeout_ms=1000)).values():
                        for record in records:
                            self._heard(_received(record))

            task = asyncio.create_task(hear())
            try:
                yield
            finally:
                task.cancel()
                await asyncio.wait([task])


def _received(record: ConsumerRecord) -> Record:
    return Record(
        record.topic, record.partition, record.offset, record.key, record.value, record.headers, record.timestamp
    )
