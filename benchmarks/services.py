"""The services that are measured: a plain chain of four services without steps, and echo services."""

from dataclasses import dataclass
from decimal import Decimal

from benchmarks.events import (
    GoodsRefused,
    GoodsSetAside,
    OrderCancelled,
    OrderConfirmed,
    OrderPlaced,
    OrderRequested,
    Paid,
    Pinged,
    Ponged,
    Refunded,
    Shipped,
)
from saga import Saga, Service
from services.order import cancel as cancel_example
from services.order import confirm as confirm_example

order, payment, stock, shipping = Service("order"), Service("payment"), Service("stock"), Service("shipping")
echo = Service("echo")

REFUSED = "gone"
"""Article that is never in stock, so that an order for it is refused."""


@order.handler
async def place(asked: OrderRequested) -> OrderPlaced:
    return OrderPlaced(order_id=asked.order_id, sku=asked.sku, quantity=asked.quantity, total=asked.total)


@payment.handler
async def pay(placed: OrderPlaced) -> Paid:
    return Paid(order_id=placed.order_id, amount=placed.total, sku=placed.sku, quantity=placed.quantity)


@payment.compensation(pay)
async def refund(cancelled: OrderCancelled, paid: Paid) -> Refunded:
    return Refunded(order_id=cancelled.order_id, amount=paid.amount)


@stock.handler
async def set_aside(paid: Paid) -> GoodsSetAside | GoodsRefused:
    if paid.sku == REFUSED:
        return GoodsRefused(order_id=paid.order_id, reason="sold out")
    return GoodsSetAside(order_id=paid.order_id, sku=paid.sku, quantity=paid.quantity)


@shipping.handler
async def ship(goods: GoodsSetAside) -> Shipped:
    return Shipped(order_id=goods.order_id, tracking=f"t-{goods.order_id}")


@order.handler
async def confirm(shipped: Shipped) -> OrderConfirmed:
    return OrderConfirmed(order_id=shipped.order_id)


@order.handler
async def cancel(refused: GoodsRefused) -> OrderCancelled:
    return OrderCancelled(order_id=refused.order_id, reason=refused.reason)


@echo.handler
async def answer(pinged: Pinged) -> Ponged:
    return Ponged(order_id=pinged.order_id, text=pinged.text, amount=pinged.amount)


reader = Service("echo")
"""Service that reads a missing document for each message."""


@dataclass(frozen=True)
class Price:
    """Price of an article."""

    amount: str


reader.document(Price, "prices")


@reader.handler
async def look_up(pinged: Pinged, saga: Saga) -> Ponged:
    price = await saga.read(Price, pinged.order_id)
    return Ponged(order_id=pinged.order_id, text=pinged.text, amount=Decimal(price.amount if price else pinged.amount))


hot = Service("echo")


@hot.handler(repeats=Pinged)
async def again(pinged: Pinged) -> Ponged:
    return Ponged(order_id=pinged.order_id, text=pinged.text, amount=pinged.amount)


waiting_order = Service("order")
"""Order service of the example without its deadline, as earlier versions had it, so that figures can be compared."""
waiting_order.handler(confirm_example)
waiting_order.handler(cancel_example)
