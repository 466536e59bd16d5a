"""An event that may be absent, never waited for: a race. Rejected by: DeclarationError "never waits for it"."""

from saga import Service
from services.payment.events import OrderCancelled, OrderPlaced, PaymentReserved

payment = Service("payment")


@payment.handler  # bad
async def reserve(order: OrderPlaced, cancelled: OrderCancelled | None) -> PaymentReserved | None:
    return None
