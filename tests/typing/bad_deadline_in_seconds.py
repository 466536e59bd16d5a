"""A deadline as a number. Rejected by: mypy, basedpyright."""

from saga import Service
from services.order.events import OrderCancelled, OrderPlaced

order = Service("order")


@order.deadline(within=900)  # bad
async def expire(placed: OrderPlaced) -> OrderCancelled:
    return OrderCancelled(order_id=placed.order_id, reason="")
