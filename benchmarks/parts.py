"""The parts of `make bench`. Each returns its figures."""

import asyncio
import resource
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import msgspec

from benchmarks import raw
from benchmarks.events import OrderRequested, Pinged
from benchmarks.running import Driver, Running, in_flight, running
from benchmarks.services import REFUSED, echo, hot, order, payment, shipping, stock, waiting_order
from saga import Service
from saga.clients.events import to_record
from saga.engine.prepared_service import topics_of
from saga.messages import Outgoing
from saga.support.clock import SystemClock
from services.inventory import inventory
from services.inventory.stock import Stock
from services.order import order as example_order
from services.order.events import OrderPlaced
from services.payment import payment as example_payment
from services.payment.bank import Bank
from services.shipping import shipping as example_shipping
from services.shipping.carrier import Carrier

MESSAGES, ROUNDS, SAGAS, FEW, MANY, HOT = 10_000, 3, 3_000, 300, 30_000, 5_000
IN_FLIGHT = 100
CHAIN = [service.declared for service in (order, payment, stock, shipping)]
CHAIN_ENDS = {"OrderConfirmed": 1, "Refunded": 1}
clock = SystemClock()


class Figure(NamedTuple):
    """One measured value."""

    name: str
    value: float
    unit: str


# ---------------------------------------------------------------- (a) messages


def messages() -> list[Figure]:
    """(a) Measure one worker that answers each message with one event, beside a raw loop over the same SQLite files"""
    ours, limit = [], []
    for _ in range(ROUNDS):
        with TemporaryDirectory() as folder:
            ours.append(asyncio.run(handled(Path(folder))))
            limit.append(raw.loop(Path(folder), MESSAGES))
    per_s, cpu_us = (statistics.median(MESSAGES / wall for wall, _ in ours), _cpu_us(ours))
    raw_per_s, raw_cpu_us = (statistics.median(MESSAGES / wall for wall, _ in limit), _cpu_us(limit))
    return [
        Figure("a messages handled", per_s, "messages/s"),
        Figure("a CPU of it", cpu_us, "us/message"),
        Figure("a raw loop", raw_per_s, "messages/s"),
        Figure("a CPU of the raw loop", raw_cpu_us, "us/message"),
        Figure("a runtime overhead beyond the raw loop", cpu_us - raw_cpu_us, "us CPU/message"),
        Figure("a of the raw loop's rate", per_s / raw_per_s, "ratio"),
    ]


def _cpu_us(runs: Sequence[tuple[float, float]]) -> float:
    return statistics.median(cpu / MESSAGES * 1e6 for _, cpu in runs)


async def handled(folder: Path, *, tells: bool = False) -> tuple[float, float]:
    """Let a worker handle all messages in the log. Return the wall time and the CPU time in seconds.

    `tells`: true if the worker also publishes its transitions.
    """
    text = "x" * 100
    pings = [
        to_record(Pinged(order_id=f"p-{n:06}", text=text, amount=Decimal("9.80")), clock.now_ms())
        for n in range(MESSAGES)
    ]
    async with running(folder, [], {}) as before:
        await before.broker.ensure_topics(topics_of(echo.declared))
        for begin in range(0, MESSAGES, 500):
            await before.broker.publish(pings[begin : begin + 500])
    async with running(folder, [echo.declared], {}, tells=tells) as run:
        while not run.counted.handled:
            await asyncio.sleep(0)
        first, wall, cpu = run.counted.handled, time.perf_counter(), time.process_time()
        while run.counted.handled < MESSAGES:
            await asyncio.sleep(0.005)
        wall, cpu = run.counted.last_handled_s - wall, time.process_time() - cpu
        assert not run.counted.troubles, run.counted.troubles[:3]
    share = MESSAGES / (MESSAGES - first)
    return wall * share, cpu * share


# ---------------------------------------------------------------- (f) a hot saga


def hot_saga() -> list[Figure]:
    """(f) Measure one saga with 5,000 messages for one handler: the cost of the last ones beside the first ones"""
    with TemporaryDirectory() as folder:
        first, last = asyncio.run(_hot(Path(folder)))
    return [
        Figure("f CPU a message, of the first 500", first, "us"),
        Figure("f CPU a message, of the last 500", last, "us"),
        Figure("f the last cost, in costs of the first", last / first, "times"),
    ]


async def _hot(folder: Path) -> tuple[float, float]:
    """Return the CPU time per message, in microseconds, of the first messages and of the last messages of one saga."""
    costs = []
    async with running(folder, [hot.declared], {}) as run:
        for begin in range(0, HOT, 500):
            pings = [
                to_record(Pinged(order_id="hot", text=f"{n:06}", amount=Decimal("9.80")), clock.now_ms())
                for n in range(begin, begin + 500)
            ]
            await run.broker.publish(pings)
            cpu = time.process_time()
            while run.counted.handled < begin + 500:
                await asyncio.sleep(0.005)
            costs.append((time.process_time() - cpu) / 500 * 1e6)
    assert not run.counted.troubles, run.counted.troubles[:3]
    return min(costs[:2]), min(costs[-2:])


# ---------------------------------------------------------------- (b) (d) the plain chain


def first_of(number: int) -> Outgoing:
    """Return the first message of a saga of the chain (place, pay, stock, ship, confirm). One saga in ten is refused
    and undone."""
    sku = REFUSED if number % 10 == 0 else "tea"
    asked = OrderRequested(
        order_id=f"order-{number:06}",
        customer_id=f"c-{number % 97}",
        sku=sku,
        quantity=2,
        total=Decimal("9.80"),
        address="Kiel",
    )
    return to_record(asked, clock.now_ms())


async def sagas_of_the_chain(count: int, many: int) -> tuple[float, float, list[float], Running]:
    """Run `count` sagas of the chain, with `many` in flight, after a warm-up that is not measured.

    Return the wall time and the CPU time in seconds, the durations of the sagas in seconds, sorted, and the run.
    """
    with TemporaryDirectory() as folder:
        async with running(Path(folder), CHAIN, {}) as run:
            driver = Driver(run.broker, CHAIN_ENDS)
            async with driver.listening(["orders", "payments"]):
                await in_flight(IN_FLIGHT, many, lambda n: driver.saga(first_of(n + 900_000)))  # warm up all services
                wall, cpu = time.perf_counter(), time.process_time()
                took = await in_flight(count, many, lambda n: driver.saga(first_of(n)))
                wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        assert not run.counted.troubles, run.counted.troubles[:3]
        return wall, cpu, took, run


def chain() -> list[Figure]:
    """(b) Measure place -> pay -> stock -> ship -> confirm, 10 % refused and undone, four services in this process"""
    runs = [asyncio.run(sagas_of_the_chain(SAGAS, IN_FLIGHT)) for _ in range(ROUNDS)]
    return [
        Figure("b sagas, 100 in flight", statistics.median(SAGAS / wall for wall, *_ in runs), "sagas/s"),
        Figure("b CPU of it, driver included", statistics.median(cpu / SAGAS * 1e3 for _, cpu, *_ in runs), "ms/saga"),
        Figure("b p50 at 100 in flight", statistics.median(_p(took, 50) for *_, took, _ in runs), "ms"),
    ]


def one_at_a_time() -> list[Figure]:
    """(d) Measure the same chain, one saga at a time"""
    _, _, took, _ = asyncio.run(sagas_of_the_chain(FEW, 1))
    return [Figure("d p50", _p(took, 50), "ms"), Figure("d p99", _p(took, 99), "ms")]


def _p(took: Sequence[float], percent: int) -> float:
    return took[min(len(took) - 1, len(took) * percent // 100)] * 1e3


# ---------------------------------------------------------------- (c) (i) the example


def example() -> list[Figure]:
    """(c) Measure the example of services/ without its deadline: steps and updates, 10 % declined, all counted"""
    return asyncio.run(example_run("c", waiting_order))


def whole_example() -> list[Figure]:
    """(i) Measure the example unchanged: each order has a deadline of 15 minutes, and ends before it is due"""
    return asyncio.run(example_run("i", example_order))


async def example_run(part: str, deciding: Service, *, sagas: int | None = None, tells: bool = False) -> list[Figure]:
    """Return the figures of the example. `deciding`: the service that decides about orders. `tells`: true if the
    services also publish their transitions."""
    sagas = SAGAS if sagas is None else sagas
    services = [s.declared for s in (deciding, example_payment, inventory, example_shipping)]
    use: Mapping[str, Sequence[object]] = {"payment": [Bank()], "shipping": [Carrier()]}
    items = [f"item-{n}" for n in range(20)]
    # The last events of a saga that succeeds, and of one whose card is declined.
    ends = {"PaymentCaptured": 3, "InventoryHandedOut": 3, "ShipmentDispatched": 3, "InventoryPutBack": 1}
    with TemporaryDirectory() as folder:
        async with running(Path(folder), services, use, tells=tells) as run:
            for item in items:
                await run.stores["inventory"].insert("stock", item, msgspec.json.encode(Stock(left=1_000_000)))

            def first(number: int) -> Outgoing:
                placed = OrderPlaced(
                    order_id=f"order-{number:06}",
                    customer_id=f"c-{number % 97}",
                    sku=items[number % 20],
                    quantity=2,
                    total=Decimal("9.80"),
                    card="declined-1" if number % 10 == 9 else "4242",
                    address="Kiel",
                )
                return to_record(placed, clock.now_ms())

            driver = Driver(run.broker, ends)
            async with driver.listening(["payments", "inventory", "shipments"]):
                await in_flight(IN_FLIGHT, IN_FLIGHT, lambda n: driver.saga(first(n + 900_000)))
                counted = run.counted
                counted.reads = counted.writes = counted.published = 0
                wall, cpu = time.perf_counter(), time.process_time()
                took = await in_flight(sagas, IN_FLIGHT, lambda n: driver.saga(first(n)))
                wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
                figures = [
                    Figure(f"{part} sagas, 100 in flight", sagas / wall, "sagas/s"),
                    Figure(f"{part} CPU of it, driver included", cpu / sagas * 1e3, "ms/saga"),
                    Figure(f"{part} p50 at 100 in flight", _p(took, 50), "ms"),
                    Figure(f"{part} store writes", counted.writes / sagas, "per saga"),
                    Figure(f"{part} store reads", counted.reads / sagas, "per saga"),
                    Figure(f"{part} messages published", counted.published / sagas, "per saga"),
                ]
        assert not run.counted.troubles, run.counted.troubles[:3]
    return figures


# ---------------------------------------------------------------- (e) memory


def memory() -> list[Figure]:
    """(e) Measure the peak memory after 10,000 and after 30,000 sagas of the chain"""
    return asyncio.run(_memory())


async def _memory() -> list[Figure]:
    with TemporaryDirectory() as folder:
        async with running(Path(folder), CHAIN, {}) as run:
            driver = Driver(run.broker, CHAIN_ENDS)
            async with driver.listening(["orders", "payments"]):
                await in_flight(MANY // 3, IN_FLIGHT, lambda n: driver.saga(first_of(n)))
                third = _peak_mb()
                await in_flight(MANY - MANY // 3, IN_FLIGHT, lambda n: driver.saga(first_of(n + MANY // 3)))
                whole = _peak_mb()
    return [
        Figure(f"e peak memory after {MANY // 3:,} sagas", third, "MB"),
        Figure(f"e peak memory after {MANY:,} sagas", whole, "MB"),
        Figure("e growth", whole / third, "ratio"),
    ]


def _peak_mb() -> float:
    """Return the peak memory of this process so far. The unit of `ru_maxrss` differs between systems."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1e6 if sys.platform == "darwin" else 1e3)
