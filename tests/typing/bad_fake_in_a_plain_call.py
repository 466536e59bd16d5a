"""A fake that is no subclass of what it stands for. Rejected by: mypy, basedpyright."""

from saga.testing import a_saga
from services.payment import reserve
from services.payment.events import OrderPlaced


class FakeBank:
    async def reserve(self, key: str, card: str, amount: int) -> str:
        return key


async def test_reserve(order: OrderPlaced) -> None:
    await reserve(order, FakeBank(), a_saga())  # bad
