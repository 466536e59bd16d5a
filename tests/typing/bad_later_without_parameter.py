"""Waiting for an event that no parameter takes. Rejected by: DeclarationError "could not be shown it"."""

from datetime import timedelta

from saga import Later, Service
from services.payment.events import OrderConfirmed, OrderPlaced

payment = Service("payment")


@payment.handler  # bad
async def look(order: OrderPlaced) -> Later[OrderConfirmed] | None:
    return Later(until=OrderConfirmed, within=timedelta(days=2))
