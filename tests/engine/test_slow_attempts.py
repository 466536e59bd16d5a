"""Parked runs that are due before their parking is written: each attempt has a turn, and others come between."""

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from saga import Later, Retry, Saga, Service
from saga.progress.actions import HeldBack
from saga.progress.document import PendingMessage, SagaProgress
from saga.progress.journal import new_progress
from saga.progress.next_action import hold_back
from services.order.events import OrderCancelled, OrderConfirmed
from services.payment.events import OrderPlaced, PaymentReserved
from tests.engine.driven_workers import At, Before, Workers, place
from tests.engine.real_worker import SAGA, an_order, message_of
from tests.engine.test_parking import process_when_due, published_timers

SHORT = Retry(attempts_max=1000, delay_s_first=0.5, delay_s_max=0.5, in_place_s=0)
TAKES_S = 2.0
"""Seconds that each write takes."""
CONFIRMED, CANCELLED = OrderConfirmed(order_id=SAGA), OrderCancelled(order_id=SAGA, reason="-")


class Endless(BaseException):
    """Ends a turn that would not."""


class Bank:
    """Fails."""

    asked = 0

    async def charge(self) -> str:
        self.asked += 1
        if self.asked > 10:
            raise Endless
        raise ConnectionError("away")


Declare = Callable[[Service, Bank], None]


def a_handler(payment: Service, bank: Bank) -> None:
    @payment.handler
    async def reserve(order: OrderPlaced, saga: Saga[None]) -> PaymentReserved:
        await saga.step(bank.charge)
        raise AssertionError


def a_handler_that_has_begun_nothing(payment: Service, bank: Bank) -> None:
    @payment.handler
    async def reserve(order: OrderPlaced) -> PaymentReserved:
        await bank.charge()
        raise AssertionError


def a_turn_that_goes_on_later(payment: Service, bank: Bank) -> None:
    @payment.handler
    async def reserve(order: OrderPlaced, saga: Saga[None]) -> PaymentReserved | Later:
        if not saga.elapsed:
            return Later(after=timedelta(seconds=1))
        await bank.charge()
        raise AssertionError


def a_deadline(payment: Service, bank: Bank) -> None:
    @payment.deadline(within=timedelta(seconds=1))
    async def expire(order: OrderPlaced) -> None:
        await bank.charge()


def a_compensation(payment: Service, bank: Bank) -> None:
    @payment.handler
    async def reserve(order: OrderPlaced) -> PaymentReserved:
        return PaymentReserved(order_id=order.order_id, charge_id="c", amount=order.total)

    @payment.compensation(reserve)
    async def release(cancelled: OrderCancelled, reserved: PaymentReserved) -> None:
        await bank.charge()


async def first_attempt(at: Workers, worker: At, bank: Bank, declare: Declare) -> None:
    """Whatever sets off the first attempt, up to its end."""
    await worker.takes(an_order())
    if declare is a_compensation:
        await worker.takes(CANCELLED)
    elif bank.asked == 0:
        await process_when_due(at, worker, published_timers(worker)[-1])


def slowly(at: Workers) -> Before:
    async def passes(_collection: str, _key: str) -> None:
        await at.clock.sleep(TAKES_S)

    return passes


def times_of(p: SagaProgress) -> list[int]:
    kept = [k.due_ms for k in (*p.queue, *p.compensating, *p.deadlines) if k.due_ms]
    return [*kept, *(c.due_ms for c in p.suspended_runs)]


@pytest.mark.parametrize(
    "declare",
    [a_handler, a_handler_that_has_begun_nothing, a_turn_that_goes_on_later, a_deadline, a_compensation],
)
async def test_each_turn_makes_one_attempt_and_what_comes_meanwhile_has_its_own(
    tmp_path: Path, declare: Declare
) -> None:
    async with place(tmp_path) as at:
        payment, bank = Service("payment", retry=SHORT), Bank()
        noted: list[str] = []

        @payment.handler(repeats=OrderConfirmed)
        async def note(confirmed: OrderConfirmed) -> None:
            noted.append(confirmed.order_id)

        declare(payment, bank)
        worker, at.watched.before = await at.worker(payment), slowly(at)
        await first_attempt(at, worker, bank, declare)
        assert bank.asked == 1
        for attempt in (2, 3):
            before = published_timers(worker)
            await process_when_due(at, worker, before[-1])
            assert bank.asked == attempt, "one for each wake"
            *_, newest = published_timers(worker)
            assert newest not in before
            assert [newest.due_ms] == times_of(await worker.progress()), "it is for the next attempt"
        await worker.takes(CONFIRMED)
        p = await worker.progress()
        # What is overdue is settled by any message, once; but an outcome closes a deadline.
        assert bank.asked == (3 if declare is a_deadline else 4)
        assert noted or [k.message.type for k in p.queue][1:] == ["OrderConfirmed"]


async def test_a_failure_for_one_message_blocks_no_other_of_its_handler(tmp_path: Path) -> None:
    async with place(tmp_path) as at:
        payment, asked = Service("payment", retry=SHORT), Counter[str]()

        @payment.handler(repeats=OrderCancelled)
        async def note(cancelled: OrderCancelled, saga: Saga[None]) -> Later | None:
            if not saga.elapsed:
                return Later(after=timedelta(seconds=1))
            asked[cancelled.reason] += 1
            raise ConnectionError("away")

        worker = await at.worker(payment)
        await worker.takes(an_order())
        for reason in ("one", "two"):
            await worker.takes(OrderCancelled(order_id=SAGA, reason=reason))
        at.watched.before = slowly(at)
        await at.clock.sleep(2)
        await process_when_due(at, worker, published_timers(worker)[-1])
        assert asked == {"one": 1, "two": 1}, "both were due"


@pytest.mark.parametrize("undoes", [False, True])
def test_holding_back_one_message_moves_no_due_time_of_others(undoes: bool) -> None:
    messages = [message_of(an_order(), started=None, id=f"order-{n}") for n in (1, 2)]
    kept = tuple(PendingMessage(handler="reserve", message=each, n=n, due_ms=1000) for n, each in enumerate(messages))
    p = new_progress("payment", SAGA, 1)
    p = replace(p, compensating=kept) if undoes else replace(p, queue=kept)
    later = hold_back(p, [HeldBack("reserve", undoes, 1500, kept[0].message.id)], now_ms=3000)
    assert [k.due_ms for k in (*later.queue, *later.compensating)] == [4500, 1000], (
        "as the timer checks what is overdue"
    )
    every = hold_back(p, [HeldBack("reserve", undoes, 5000)], now_ms=3000)
    assert [k.due_ms for k in (*every.queue, *every.compensating)] == [5000, 5000]
