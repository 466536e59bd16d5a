"""A pure function of another document than the one updated. Rejected by: mypy, basedpyright."""

from saga import Saga
from services.inventory.stock import Stock
from tests.typing.values import take


async def set_aside(saga: Saga) -> None:
    await saga.update(Stock, "tea", take, "Ada")  # bad
