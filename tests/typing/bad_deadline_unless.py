"""A deadline closed by something that is no event type. Rejected by: mypy, basedpyright."""

from datetime import timedelta

from saga import Service
from services.order.events import OrderCancelled, OrderPlaced

order = Service("order")


@order.deadline(within=timedelta(minutes=15), unless=("ShipmentBooked",))  # bad
async def expire(placed: OrderPlaced) -> OrderCancelled:
    return OrderCancelled(order_id=placed.order_id, reason="")
