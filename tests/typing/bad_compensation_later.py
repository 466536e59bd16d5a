"""A compensation that puts itself off. Rejected by: mypy, basedpyright."""

from saga import Later, Service
from services.payment.events import OrderCancelled, OrderPlaced, PaymentReleased, PaymentReserved

payment = Service("payment")


@payment.handler
async def reserve(order: OrderPlaced) -> PaymentReserved | None:
    return None


@payment.compensation(reserve)  # bad
async def release(cancelled: OrderCancelled, reserved: PaymentReserved) -> PaymentReleased | Later:
    return Later()
