"""A handler that may run again, for each event that starts the saga: which comes once.

Rejected by: DeclarationError "put the one that may come several times first".
"""

from saga import Service
from services.payment.events import OrderPlaced, PaymentReserved

payment = Service("payment")


@payment.handler(many=True)  # bad
async def note(order: OrderPlaced, reserved: PaymentReserved) -> None:
    return None
