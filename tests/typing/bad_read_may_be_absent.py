"""A document that was read and may be absent, used without asking. Rejected by: mypy, basedpyright."""

from saga import Saga
from services.inventory.stock import Stock


async def look(saga: Saga) -> int:
    stock = await saga.read(Stock, "tea")
    return stock.left  # bad
