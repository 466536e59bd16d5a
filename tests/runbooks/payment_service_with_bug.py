"""Payment: a release with a bug."""

from collections.abc import AsyncIterator

from saga import Retry, Saga, Service
from services.payment.events import OrderCancelled, OrderPlaced, PaymentReleased, PaymentReserved


class Bank:
    """Bank that is always open."""

    async def charge(self, key: str, order: str) -> str:
        """Charge an order."""
        return key


payment = Service("payment")


@payment.resource(timeout_s=5)
async def bank() -> AsyncIterator[Bank]:
    yield Bank()


@payment.handler(retry=Retry(attempts_max=1))
async def reserve(order: OrderPlaced, bank: Bank, saga: Saga) -> PaymentReserved:
    charge = await saga.step(bank.charge, saga.idempotency_key("charge"), order.order_id)
    currency = order.currency  # type: ignore[attr-defined] # the bug
    return PaymentReserved(order_id=order.order_id, charge_id=charge + currency, amount=order.total)


@payment.compensation(reserve)
async def release(cancelled: OrderCancelled, reserved: PaymentReserved) -> PaymentReleased:
    return PaymentReleased(order_id=cancelled.order_id, charge_id=reserved.charge_id)
