"""An awaited event used without asking whether it came. Rejected by: mypy, basedpyright."""

from saga import Later
from services.payment.events import OrderCancelled, OrderPlaced, PaymentDeclined


async def look(order: OrderPlaced, why: OrderCancelled | None) -> PaymentDeclined | Later[OrderCancelled]:
    return PaymentDeclined(order_id=order.order_id, reason=why.reason)  # bad
