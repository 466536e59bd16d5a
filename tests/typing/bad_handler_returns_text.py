"""A handler that returns what is no event. Rejected by: mypy, basedpyright."""

from saga import Service
from services.order.events import ShipmentBooked

order = Service("order")


@order.handler  # bad
async def confirm(booked: ShipmentBooked) -> str:
    return booked.order_id
