"""A compensation of a handler of another service. Rejected by: DeclarationError "reserve is no handler of"."""

from saga import Service
from services.payment import reserve
from services.payment.events import OrderCancelled, PaymentReleased, PaymentReserved

refunds = Service("refunds")


@refunds.compensation(reserve)  # bad
async def release(cancelled: OrderCancelled, reserved: PaymentReserved) -> PaymentReleased | None:
    return None
