"""Order: decides, once, what becomes of an order."""

from saga import Service
from services.order.events import (
    InventoryRejected,
    OrderCancelled,
    OrderConfirmed,
    PaymentDeclined,
    ShipmentBooked,
    ShipmentRefused,
)

order = Service("order")


@order.handler
async def confirm(booked: ShipmentBooked) -> OrderConfirmed:
    return OrderConfirmed(order_id=booked.order_id)


@order.handler
async def cancel(why: PaymentDeclined | InventoryRejected | ShipmentRefused) -> OrderCancelled:
    return OrderCancelled(order_id=why.order_id, reason=why.reason)
