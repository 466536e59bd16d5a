"""Part j of the benchmarks: how often an unavailable bank is called in vain, and how long it takes until all sagas have
ended, with and without a circuit breaker."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.events import OrderRequested, Paid
from benchmarks.parts import Figure, first_of
from benchmarks.running import Driver, Running, running
from saga import Breaker, Saga, Service
from saga.messaging.names import PROGRESS
from saga.progress.document import decode_progress, decode_transition, progress_key
from saga.support.clock import SystemClock

ASKING, AWAY_S, HANGS_S, TAKES_S = 300, 8.0, 0.2, 0.005
OPEN_S = 3.0

clock = SystemClock()


@dataclass
class Bank:
    """A bank that is unavailable for a while: its calls hang, and then fail."""

    back_s: float = 0.0
    """Time at which the bank is available again. It is infinite until the first call, which begins an outage of
    `AWAY_S`."""
    in_vain: int = 0

    async def charge(self, order_id: str) -> str:
        self.back_s = min(self.back_s, time.perf_counter() + AWAY_S)
        if time.perf_counter() < self.back_s:
            self.in_vain += 1
            await clock.sleep(HANGS_S)
            raise ConnectionError("away")
        await clock.sleep(TAKES_S)
        return order_id


bank = Bank()


def service_of(breaker: Breaker | None) -> Service:
    """Make the service that calls the bank."""
    payment = Service("payment")

    @payment.resource(breaker=breaker, at_once_max=50)
    async def the_bank() -> AsyncIterator[Bank]:
        yield bank

    @payment.handler
    async def pay(asked: OrderRequested, bank: Bank, saga: Saga) -> Paid:
        await saga.step(bank.charge, asked.order_id)
        return Paid(order_id=asked.order_id, amount=asked.total, sku=asked.sku, quantity=asked.quantity)

    return payment


def breaker() -> list[Figure]:
    """(j) Measure 300 sagas that call a bank during its outage of 8 seconds, with a breaker and without"""
    figures = []
    for name, rules in (("with", Breaker(open_s=OPEN_S)), ("without", None)):
        late_s, attempts = asyncio.run(_run(service_of(rules)))
        figures += [
            Figure(f"j calls in vain, {name} a breaker", bank.in_vain, "calls"),
            Figure(f"j attempts that failed, {name}", attempts, "per saga"),
            Figure(f"j from its return until half are through, {name}", late_s[len(late_s) // 2], "s"),
            Figure(f"j from its return until all are through, {name}", late_s[-1], "s"),
        ]
    return figures


async def _run(payment: Service) -> tuple[list[float], float]:
    """Return the times from the end of the outage until each saga ended, in seconds and sorted, and the mean number of
    failed attempts per saga."""
    with TemporaryDirectory() as folder:
        async with running(Path(folder), [payment.declared], {}) as run:
            driver = Driver(run.broker, {"Paid": 1})
            async with driver.listening(["payments"]):
                bank.back_s, bank.in_vain = inf, 0

                async def one(number: int) -> float:
                    await driver.saga(first_of(number))
                    return time.perf_counter() - bank.back_s

                late_s = sorted(await asyncio.gather(*map(one, range(ASKING))))
            failed = [await _failed(run, f"order-{number:06}") for number in range(ASKING)]
    return late_s, sum(failed) / ASKING


async def _failed(run: Running, saga: str) -> int:
    document = await run.stores["payment"].get(PROGRESS, progress_key("payment", saga))
    assert document is not None
    entries = [decode_transition(raw) for raw in decode_progress(document.content).transitions]
    assert entries[-1].outcome == "handled", f"{saga}: {entries[-1].outcome}"
    return sum(len(entry.failures) for entry in entries)
