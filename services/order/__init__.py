"""Order: decides once whether an order is confirmed or cancelled, not later than 15 minutes after it was placed."""

import os
from datetime import timedelta

from saga import Service
from services.order.events import (
    InventoryRejected,
    OrderCancelled,
    OrderConfirmed,
    OrderPlaced,
    PaymentDeclined,
    ShipmentBooked,
    ShipmentRefused,
)

order = Service("order")

PATIENCE = timedelta(seconds=float(os.environ.get("ORDER_PATIENCE_S") or 15 * 60))
"""Time after which an order without an answer expires: 15 minutes. The demonstration sets it to some seconds."""


@order.handler
async def confirm(booked: ShipmentBooked) -> OrderConfirmed:
    return OrderConfirmed(order_id=booked.order_id)


@order.handler
async def cancel(why: PaymentDeclined | InventoryRejected | ShipmentRefused) -> OrderCancelled:
    return OrderCancelled(order_id=why.order_id, reason=why.reason)


@order.deadline(within=PATIENCE)
async def expire(placed: OrderPlaced) -> OrderCancelled:
    return OrderCancelled(order_id=placed.order_id, reason="nobody answered in time")
