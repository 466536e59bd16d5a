"""Order service of the example without its deadline: an order without an answer waits for ever.

For tests of what stands still, and of runs whose every operation they know.
"""

from saga import Service
from services import order as example
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
    return await example.confirm(booked)


@order.handler
async def cancel(why: PaymentDeclined | InventoryRejected | ShipmentRefused) -> OrderCancelled:
    return await example.cancel(why)
