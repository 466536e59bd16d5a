"""A compensation that does not take the result it undoes. Rejected by: mypy, basedpyright."""

from saga import Service
from services.payment.events import OrderCancelled, OrderPlaced, PaymentReleased, PaymentReserved

payment = Service("payment")


@payment.handler
async def reserve(order: OrderPlaced) -> PaymentReserved | None:
    return None


@payment.compensation(reserve)  # bad
async def release(cancelled: OrderCancelled) -> PaymentReleased | None:
    return None
