"""A handler that returns an event its annotation does not name. Rejected by: mypy, basedpyright."""

from saga import Service
from services.order.events import OrderCancelled, OrderConfirmed, ShipmentBooked

order = Service("order")


@order.handler
async def confirm(booked: ShipmentBooked) -> OrderConfirmed:
    return OrderCancelled(order_id=booked.order_id, reason="")  # bad
