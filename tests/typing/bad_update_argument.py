"""An update with an argument of the wrong type. Rejected by: mypy, basedpyright."""

from saga import Saga
from services.inventory.stock import Stock


async def set_aside(saga: Saga) -> None:
    await saga.update(Stock, "tea", Stock.set_aside, "two")  # bad
