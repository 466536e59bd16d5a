"""A compensation of what confirms the order: a saga that has succeeded does not fail any more.

Rejected by: DeclarationError "take_back wants OrderConfirmed".
"""

from saga import Service
from services.order.events import OrderCancelled, OrderConfirmed, ShipmentBooked

order = Service("order")


@order.handler
async def confirm(booked: ShipmentBooked) -> OrderConfirmed:
    return OrderConfirmed(order_id=booked.order_id)


@order.compensation(confirm)  # bad
async def take_back(cancelled: OrderCancelled, confirmed: OrderConfirmed) -> None:
    return None
