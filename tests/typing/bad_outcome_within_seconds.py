"""Asking for an outcome within a bare number, of which nobody can tell the unit. Rejected by: mypy, basedpyright."""

from saga import Client
from services.payment.events import OrderCancelled, OrderConfirmed


async def ask(client: Client) -> None:
    await client.outcome("order-17", OrderConfirmed, OrderCancelled, within=5)  # bad
