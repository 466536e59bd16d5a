"""Two handlers for one event. Rejected by: DeclarationError "handles ShipmentBooked twice"."""

from saga import Service
from services.order.events import OrderCancelled, OrderConfirmed, ShipmentBooked

order = Service("order")


@order.handler
async def confirm(booked: ShipmentBooked) -> OrderConfirmed:
    return OrderConfirmed(order_id=booked.order_id)


@order.handler  # bad
async def cancel(booked: ShipmentBooked) -> OrderCancelled:
    return OrderCancelled(order_id=booked.order_id, reason="")
