"""Waiting for another event than the annotation names. Rejected by: mypy, basedpyright."""

from datetime import timedelta

from saga import Later
from services.payment.events import OrderCancelled, OrderConfirmed, OrderPlaced


async def look(order: OrderPlaced, confirmed: OrderConfirmed | None) -> Later[OrderConfirmed] | None:
    return Later(until=OrderCancelled, within=timedelta(days=2))  # bad


async def remind(order: OrderPlaced) -> Later | None:
    return Later(until=OrderConfirmed, within=timedelta(days=2))  # bad
