"""A payment that waits for the order's confirmation, two days at most: the example of the README."""

from datetime import timedelta

from saga import Later, Saga, Service
from services.payment.events import OrderConfirmed, OrderPlaced, PaymentCaptured, PaymentDeclined

PATIENCE = timedelta(days=2)

payment = Service("payment")


@payment.handler
async def collect(
    order: OrderPlaced, confirmed: OrderConfirmed | None, saga: Saga
) -> PaymentCaptured | PaymentDeclined | Later[OrderConfirmed]:
    if confirmed is not None:
        return PaymentCaptured(order_id=order.order_id, amount=order.total)
    if saga.elapsed < PATIENCE:
        return Later(until=OrderConfirmed, within=PATIENCE)
    return PaymentDeclined(order_id=order.order_id, reason="nobody confirmed it in time")
