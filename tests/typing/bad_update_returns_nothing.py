"""A function that changes nothing: it returns no new document. Rejected by: mypy, basedpyright."""

from saga import Saga
from services.inventory.stock import Stock


def forget(stock: Stock) -> None: ...


async def set_aside(saga: Saga) -> None:
    await saga.update(Stock, "tea", forget)  # bad
