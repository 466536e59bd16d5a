"""Rules under which attempts are made again: of handler, resource, service and kind of failure, in a run."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from pathlib import Path
from typing import TypeVar

from saga import Retry, Saga, Service
from saga.telemetry.events import Escalated, Parked, Retrying
from saga.testing.trials import TrialClock
from services.order.events import OrderCancelled
from services.payment.events import OrderPlaced, PaymentReserved
from tests.engine.driven_workers import At, place
from tests.engine.real_worker import SAGA, an_order
from tests.engine.test_parking import only, process_when_due, published_timers

T = TypeVar("T")
CANCELLED = OrderCancelled(order_id=SAGA, reason="-")
LONG = Retry(attempts_max=1000, in_place_s=1e9)


class RateLimited(Exception): ...


class Bank:
    """Fails as its script says."""

    def __init__(self, script: Sequence[Exception]) -> None:
        self.script = list(script)
        self.asked = 0

    async def prepare(self) -> str:
        return "prepared"

    async def charge(self) -> str:
        self.asked += 1
        if self.script:
            raise self.script.pop(0)
        return "c"


def served(
    bank: Bank, *, own: Retry | None = None, of_bank: Retry | None = None, service: Retry | None = None
) -> Service:
    payment = Service("payment", retry=service)

    @payment.resource(retry=of_bank)
    async def the_bank() -> AsyncIterator[Bank]:
        yield bank

    @payment.handler(retry=own)
    async def reserve(order: OrderPlaced, bank: Bank, saga: Saga) -> PaymentReserved:
        await saga.step(bank.prepare)
        if bank.script and isinstance(bank.script[0], LookupError):
            raise bank.script.pop(0)
        charge = await saga.step(bank.charge)
        return PaymentReserved(order_id=order.order_id, charge_id=charge, amount=order.total)

    @payment.compensation(reserve)
    async def release(cancelled: OrderCancelled, reserved: PaymentReserved, bank: Bank, saga: Saga) -> None:
        await saga.step(bank.charge)

    return payment


def retrying(worker: At) -> list[tuple[int, int]]:
    """Attempts and most attempts that it reported."""
    return [(m.attempt, m.attempts_max) for m in worker.moments if isinstance(m, Retrying)]


async def ended(tmp_path: Path, script: Sequence[Exception], **rules: Retry | None) -> tuple[str, int, At]:
    """How it came out, after how many attempts, in place."""
    async with place(tmp_path) as at:
        worker = await at.worker(served(Bank(script), **rules))
        await worker.takes(an_order())
        entry = (await worker.history())[-1]
        return entry.outcome, entry.attempt, worker


async def test_a_resource_has_rules_for_what_fails_on_it_and_for_nothing_else(tmp_path: Path) -> None:
    on_bank = [OSError("away")] * 9
    outcome, attempts, worker = await ended(tmp_path, on_bank, of_bank=Retry(attempts_max=3), service=LONG)
    assert (outcome, attempts, retrying(worker)) == ("dead", 3, [(1, 3), (2, 3)])


async def test_a_failure_outside_a_resource_follows_the_retry_rules_of_the_service(tmp_path: Path) -> None:
    beside = [KeyError("no bank's fault")] * 9
    outcome, attempts, _ = await ended(tmp_path, beside, of_bank=LONG, service=Retry(attempts_max=4))
    assert (outcome, attempts) == ("dead", 4)


async def test_the_retry_of_the_handler_itself_goes_before_all_others(tmp_path: Path) -> None:
    on_bank = [OSError("away")] * 9
    outcome, attempts, _ = await ended(tmp_path, on_bank, own=Retry(attempts_max=2), of_bank=LONG, service=LONG)
    assert (outcome, attempts) == ("dead", 2)


async def test_never_of_a_resource_holds_for_its_steps_alone(tmp_path: Path) -> None:
    never = Retry(never=(ValueError, KeyError))
    assert (await ended(tmp_path / "on", [ValueError()], of_bank=never))[:2] == ("dead", 1)
    assert (await ended(tmp_path / "beside", [KeyError()], of_bank=never))[:2] == ("handled", 2)


class Expiring(TrialClock):
    """Clock on which the time of a handler ends when a test says so, however busy the machine is."""

    def __init__(self) -> None:
        super().__init__()
        self.timeouts: list[asyncio.Timeout] = []

    async def within(self, seconds: float, what: Awaitable[T]) -> T:
        async with asyncio.timeout(None) as timeout:
            self.timeouts.append(timeout)
            return await what

    def expire(self) -> None:
        self.timeouts[0].reschedule(asyncio.get_running_loop().time())


async def test_a_step_that_ran_out_of_the_handlers_time_has_failed_on_its_resource(tmp_path: Path) -> None:
    clock = Expiring()

    class Slow(Bank):
        async def charge(self) -> str:
            clock.expire()
            await asyncio.Event().wait()
            return "never"

    payment = Service("payment")

    @payment.resource(retry=Retry(attempts_max=1))
    async def the_bank() -> AsyncIterator[Slow]:
        yield Slow([])

    @payment.handler(timeout_s=60)
    async def reserve(order: OrderPlaced, bank: Slow, saga: Saga) -> None:
        await saga.step(bank.charge)

    async with place(tmp_path) as at:
        at.clock = clock
        worker = await at.worker(payment)
        await worker.takes(an_order())
        assert [(e.outcome, e.attempt) for e in await worker.history()] == [("dead", 1)]


async def test_attempts_under_rules_of_a_kind_are_counted_apart(tmp_path: Path) -> None:
    script = [RateLimited(), OSError(), RateLimited(), OSError(), RateLimited(), RateLimited(), OSError()]
    patient = Retry(attempts_max=3, in_place_s=1e9, by={RateLimited: Retry(attempts_max=5, in_place_s=1e9)})
    outcome, attempts, worker = await ended(tmp_path, script, service=patient)
    assert (outcome, attempts) == ("dead", 7)
    assert retrying(worker) == [(1, 5), (1, 3), (2, 5), (2, 3), (3, 5), (4, 5)], "the third of the plain ones ends it"


async def test_the_counts_outlive_parking_whichever_worker_handles_the_timer(tmp_path: Path) -> None:
    script = [RateLimited(), OSError(), RateLimited(), OSError(), RateLimited(), OSError()]
    parks = Retry(attempts_max=4, in_place_s=0, by={RateLimited: Retry(attempts_max=4, in_place_s=0)})
    async with place(tmp_path) as at:
        workers = [await at.worker(served(Bank(script[n::2]), service=parks)) for n in range(2)]
        await workers[0].takes(an_order())
        for n in range(1, 7):
            publishes = workers[(n - 1) % 2]
            kept = only((await workers[0].progress()).queue)
            assert (kept.attempts, kept.under) == (n, {"/RateLimited": (n + 1) // 2})
            await process_when_due(at, workers[n % 2], published_timers(publishes)[-1])
        assert all(isinstance(m, Parked) for w in workers for m in w.moments if isinstance(m, Retrying | Parked))
        entries = await workers[0].history()
        assert [e.outcome for e in entries] == ["retrying"] * 6 + ["handled"]
        assert entries[-1].attempt == 7
        assert [f.rule for e in entries for f in e.failures] == ["/RateLimited", ""] * 3


async def test_a_compensation_follows_them_too_and_is_tried_without_end(tmp_path: Path) -> None:
    bank = Bank([])
    async with place(tmp_path) as at:
        rules = Retry(attempts_max=2, in_place_s=1e9)
        worker = await at.worker(served(bank, of_bank=rules, service=LONG))
        await worker.takes(an_order())
        bank.script = [OSError("away")] * 5
        await worker.takes(CANCELLED)
        assert [(e.outcome, e.attempt) for e in await worker.history()] == [("handled", 1), ("compensated", 6)]
        assert len([m for m in worker.moments if isinstance(m, Escalated)]) == 2
