"""Part g of the benchmarks: how much sagas that fail for a while slow down the others, and whether their order is
kept."""

import asyncio
import os
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from benchmarks.events import OrderPlaced, OrderRequested, Paid
from benchmarks.parts import CHAIN_ENDS, IN_FLIGHT, Figure, first_of
from benchmarks.running import Driver, Running, in_flight, running
from benchmarks.services import order, shipping, stock
from saga import Service
from saga.configuration import wiring
from saga.messaging.names import PROGRESS
from saga.progress.document import decode_progress, decode_transition, progress_key

OTHERS, ROUNDS, OUTAGE_S = 36_000, 4, 30.0
ON_CORE_S = 0.25
"""Time for which a process stays on one core, in seconds."""
PAUSE_S_MAX = 0.05
"""Longest pause before a saga is started, in seconds. Without pauses, the sagas in flight would run in lockstep with
the transactions that they share. Then a single saga that fails or is slow would delay all of them."""
EACH = 20
"""Number of other sagas for each failing saga: 5 % fail."""
FAILING = 1_000_000
"""Lowest number of a saga that fails during the outage."""


@dataclass
class Outage:
    """The outage of the external system: until `until_s`, it does not answer failing sagas."""

    until_s: float = 0.0


outage = Outage()
payment = Service("payment")


@payment.handler
async def look(asked: OrderRequested) -> None:
    """Fail during the outage, for a failing saga. This handler takes the event before the one that `pay` takes."""
    if asked.order_id >= f"order-{FAILING:07}" and time.perf_counter() < outage.until_s:
        raise ConnectionError("away")


@payment.handler
async def pay(placed: OrderPlaced) -> Paid:
    """Take the money."""
    return Paid(order_id=placed.order_id, amount=placed.total, sku=placed.sku, quantity=placed.quantity)


SERVICES = [service.declared for service in (order, payment, stock, shipping)]
ENDS = {**CHAIN_ENDS, "OrderCancelled": 1}


def failing_sagas(others: int = OTHERS, rounds: int = ROUNDS, outage_s: float = OUTAGE_S) -> list[Figure]:
    """(g) Measure the chain beside 5 % more sagas whose payment fails for 30 seconds: the rate of the others"""
    with_, without, attempts = list[float](), list[float](), list[float]()
    for number in range(rounds):
        of_both = _side_by_side(number, others, outage_s)
        with_.append(of_both[True][0])
        without.append(of_both[False][0])
        attempts.append(of_both[True][1])
    ratios = [one / other for one, other in zip(with_, without, strict=True)]
    return [
        Figure("g others, while 5 % fail", statistics.median(with_), "sagas/s"),
        Figure("g others, while none fails", statistics.median(without), "sagas/s"),
        Figure("g of the rate without failures, mean of rounds", statistics.mean(ratios), "ratio"),
        Figure("g the same, least of them", min(ratios), "ratio"),
        Figure("g the same, greatest of them", max(ratios), "ratio"),
        Figure("g attempts that failed, of each failing saga", statistics.median(attempts), "attempts"),
    ]


def _side_by_side(round_: int, others: int, outage_s: float) -> dict[bool, tuple[float, float]]:
    """Measure with and without failing sagas at the same time, in two processes that keep exchanging their cores.

    The speed of a machine changes within seconds, and differs between cores, by more than the difference that is
    measured.
    """
    with ProcessPoolExecutor(2, mp_context=get_context("spawn"), initializer=wiring.tune_collector) as processes:
        both = {
            fails: processes.submit(_measured, (round_ + fails) % 2, others, outage_s if fails else 0.0)
            for fails in (False, True)
        }
        return {fails: run.result() for fails, run in both.items()}


def _measured(number: int, others: int, outage_s: float) -> tuple[float, float]:
    async def beside() -> tuple[float, float]:
        exchange = asyncio.create_task(_exchange_cores(number))
        try:
            return await _run(others, outage_s)
        finally:
            exchange.cancel()

    return asyncio.run(beside())


async def _exchange_cores(number: int) -> None:
    """Pin this process to one core, and move it to another one in each period."""
    cores = sorted(os.sched_getaffinity(0))
    while True:
        now_s = time.time()
        os.sched_setaffinity(0, {cores[(int(now_s / ON_CORE_S) + number) % len(cores)]})
        await asyncio.sleep(ON_CORE_S - now_s % ON_CORE_S)


async def _run(others: int, outage_s: float) -> tuple[float, float]:
    """Return the rate of the other sagas, and the mean number of failed attempts of a failing saga."""
    with TemporaryDirectory() as folder:
        async with running(Path(folder), SERVICES, {}) as run:
            driver, count, comes = Driver(run.broker, ENDS), others // EACH, Random(others)
            async with driver.listening(["orders", "payments"]), asyncio.TaskGroup() as tasks:
                await in_flight(IN_FLIGHT, IN_FLIGHT, lambda n: driver.saga(first_of(2 * FAILING + n)))
                began = time.perf_counter()
                outage.until_s = began + outage_s

                async def one(number: int) -> float:
                    if number % EACH == 0:
                        tasks.create_task(driver.saga(first_of(FAILING + number + 1)))
                    await asyncio.sleep(comes.uniform(0, PAUSE_S_MAX))
                    return await driver.saga(first_of(number))

                await in_flight(others, IN_FLIGHT, one)
                wall_s = time.perf_counter() - began
            failed = [await _in_order(run, f"order-{FAILING + number + 1:07}") for number in range(0, others, EACH)]
    return others / wall_s, sum(failed) / count


async def _in_order(run: Running, saga: str) -> int:
    """Return the number of failed attempts of one saga. Raises `AssertionError` if the saga was not handled once and in
    order."""
    document = await run.stores["payment"].get(PROGRESS, progress_key("payment", saga))
    assert document is not None
    entries = [decode_transition(raw) for raw in decode_progress(document.content).transitions]
    handled = [entry.handler for entry in entries if entry.outcome == "handled"]
    assert handled == ["look", "pay"], f"{saga}: {handled}"
    return sum(len(entry.failures) for entry in entries)
