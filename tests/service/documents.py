"""Service whose sagas are begun by documents that an application writes."""

from dataclasses import dataclass
from decimal import Decimal

from saga import Change, Service
from services.order.events import OrderPlaced


@dataclass(frozen=True, kw_only=True)
class OrderDocument:
    """Order as the application has it."""

    customer_id: str
    sku: str
    total: Decimal
    quantity: int = 1


intake = Service("intake")
intake.document(OrderDocument, "orders")


@intake.handler
async def place(change: Change[OrderDocument]) -> OrderPlaced | None:
    order = change.document
    if order is None:
        return None
    return OrderPlaced(
        order_id=change.key,
        customer_id=order.customer_id,
        sku=order.sku,
        quantity=order.quantity,
        total=order.total,
        card="4242",
        address="Kiel",
    )
