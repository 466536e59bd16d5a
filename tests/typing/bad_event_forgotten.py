"""A path on which nothing is returned, where something must be. Rejected by: mypy, basedpyright."""

from saga import Service
from services.order.events import OrderConfirmed, ShipmentBooked

order = Service("order")


@order.handler
async def confirm(booked: ShipmentBooked) -> OrderConfirmed:  # bad
    if booked.booking_id:
        return OrderConfirmed(order_id=booked.order_id)
