"""Listening from a place that there is not. Rejected by: mypy, basedpyright."""

from saga import Client
from services.payment.events import OrderConfirmed


async def hear(client: Client) -> None:
    async for confirmed in client.listen(OrderConfirmed, begin="yesterday"):  # bad
        assert confirmed
