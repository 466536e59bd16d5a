"""A handler that is not async. Rejected by: mypy, basedpyright."""

from saga import Service
from services.order.events import OrderConfirmed, ShipmentBooked

order = Service("order")


@order.handler  # bad
def confirm(booked: ShipmentBooked) -> OrderConfirmed:
    return OrderConfirmed(order_id=booked.order_id)
