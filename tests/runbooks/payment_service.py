"""Payment: charges orders at a bank that is as the file `bank` says."""

from collections.abc import AsyncIterator
from pathlib import Path

from saga import Breaker, Saga, Service
from saga.errors import Permanent
from saga.support.clock import SystemClock
from services.payment.events import OrderCancelled, OrderPlaced, PaymentReleased, PaymentReserved

BANK = Path("bank")


class Bank:
    """Bank that a person can close."""

    async def charge(self, key: str, order: str) -> str:
        """Charge an order."""
        how = BANK.read_text()  # noqa: ASYNC240 - a few bytes
        if how == "away":
            raise ConnectionError("the bank does not answer")
        if how == "closed":
            raise Permanent("the bank does not know us")
        if how == "slow":
            await SystemClock().sleep(1)
        return key


payment = Service("payment")
BREAKER = Breaker(failures=3, within_s=60, open_s=2)
"""Breaker that a page may ask for."""


@payment.resource(timeout_s=5)
async def bank() -> AsyncIterator[Bank]:
    yield Bank()


@payment.handler
async def reserve(order: OrderPlaced, bank: Bank, saga: Saga) -> PaymentReserved:
    charge = await saga.step(bank.charge, saga.idempotency_key("charge"), order.order_id)
    return PaymentReserved(order_id=order.order_id, charge_id=charge, amount=order.total)


@payment.compensation(reserve)
async def release(cancelled: OrderCancelled, reserved: PaymentReserved) -> PaymentReleased:
    return PaymentReleased(order_id=cancelled.order_id, charge_id=reserved.charge_id)
