"""A compensation that takes all results at once. Rejected by: DeclarationError "is given one event at a time"."""

from saga import Service
from services.payment.events import OrderCancelled, OrderPlaced, PaymentReleased, PaymentReserved

payment = Service("payment")


@payment.handler
async def reserve(order: OrderPlaced) -> PaymentReserved | None:
    return None


@payment.compensation(reserve)  # bad
async def release(cancelled: OrderCancelled, reserved: list[PaymentReserved]) -> PaymentReleased | None:
    return None
