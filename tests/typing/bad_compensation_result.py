"""A compensation of a result that its original never returns.

Rejected by: DeclarationError "reserve never returns PaymentCaptured".
"""

from saga import Service
from services.payment.events import OrderCancelled, OrderPlaced, PaymentCaptured, PaymentReleased, PaymentReserved

payment = Service("payment")


@payment.handler
async def reserve(order: OrderPlaced) -> PaymentReserved | None:
    return None


@payment.compensation(reserve)  # bad
async def release(cancelled: OrderCancelled, captured: PaymentCaptured) -> PaymentReleased | None:
    return None
