"""A parked run becomes due while other work of its saga is done: its timer is set once, and it is tried again."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from decimal import Decimal

from saga import Retry, Saga, Service
from saga.testing.simulation.simulated_world import SimulatedWorld
from services.payment.events import OrderPlaced, PaymentCaptured, PaymentReleased, PaymentReserved
from tests.testing.simulation.orders import an_order


class SlowBank:
    """Bank whose reservations fail after two seconds, and whose reminders take five."""

    reservations = 0

    async def reserve(self) -> str:
        self.reservations += 1
        await asyncio.sleep(2)  # noqa: TID251 - a slow system, in virtual time
        raise ConnectionError("no answer")

    async def remind(self) -> None:
        await asyncio.sleep(5)  # noqa: TID251 - a slow system, in virtual time


def a_payment() -> Service:
    payment = Service("payment")

    @payment.resource
    async def bank() -> AsyncIterator[SlowBank]:
        yield SlowBank()

    @payment.handler(retry=Retry(attempts_max=1000, delay_s_first=3, delay_s_max=3, in_place_s=0))
    async def reserve(order: OrderPlaced, bank: SlowBank, saga: Saga[None]) -> PaymentReserved:
        charge = await saga.step(bank.reserve)
        return PaymentReserved(order_id=order.order_id, charge_id=charge, amount=order.total)

    @payment.deadline(within=timedelta(seconds=9))
    async def remind(order: OrderPlaced, bank: SlowBank, saga: Saga[None]) -> PaymentReleased:
        await saga.step(bank.remind)
        return PaymentReleased(order_id=order.order_id, charge_id="-")

    @payment.deadline(within=timedelta(days=1))
    async def capture_late(released: PaymentReleased) -> PaymentCaptured:
        return PaymentCaptured(order_id=released.order_id, amount=Decimal(1))

    return payment


def test_a_run_that_is_overdue_after_a_slow_deadline_is_tried_again() -> None:
    bank = SlowBank()
    with SimulatedWorld(1, guarded=False) as world:
        world.start(a_payment(), use=[bank])
        world.publish(an_order(1))
        world.run_for(timedelta(minutes=1))
        at_a_minute = bank.reservations
        world.run_for(timedelta(minutes=1))
        writes = sum("replace" in str(line) for line in world.trace.lines)
    assert at_a_minute > 5
    assert bank.reservations > at_a_minute + 5
    assert writes < 200, "a timer that is set again after each write"
