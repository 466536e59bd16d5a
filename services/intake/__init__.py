"""Intake: emits an `OrderPlaced` event for an order that an application has written as a document."""

from dataclasses import dataclass
from decimal import Decimal

from saga import Change, Service
from services.intake.events import OrderPlaced


@dataclass(frozen=True, kw_only=True)
class OrderDocument:
    """The order document that the application writes."""

    customer_id: str
    sku: str
    quantity: int
    total: Decimal
    card: str
    address: str


intake = Service("intake")
intake.document(OrderDocument, "orders")


@intake.handler
async def place(change: Change[OrderDocument]) -> OrderPlaced | None:
    """Return an order for a new document. A document that has already been removed is not an order."""
    order = change.document
    if order is None:
        return None
    return OrderPlaced(
        order_id=change.key,
        customer_id=order.customer_id,
        sku=order.sku,
        quantity=order.quantity,
        total=order.total,
        card=order.card,
        address=order.address,
    )
