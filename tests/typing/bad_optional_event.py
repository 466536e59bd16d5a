"""An event that may be absent: a race. Rejected by: DeclarationError "may be absent by its annotation"."""

from saga import Service
from services.payment.events import OrderCancelled, OrderPlaced, PaymentReserved

payment = Service("payment")


@payment.handler  # bad
async def reserve(order: OrderPlaced, cancelled: OrderCancelled | None) -> PaymentReserved | None:
    return None
