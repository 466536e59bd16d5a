"""A parameter of a type that no resource of the service gives. Rejected by: DeclarationError "nothing gives a Bank"."""

from saga import Service
from services.order.events import OrderConfirmed, ShipmentBooked
from services.payment.bank import Bank

order = Service("order")


@order.handler  # bad
async def confirm(booked: ShipmentBooked, bank: Bank) -> OrderConfirmed:
    return OrderConfirmed(order_id=booked.order_id)
