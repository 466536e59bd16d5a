"""The result of an update used as another type. Rejected by: mypy, basedpyright."""

from saga import Saga
from tests.typing.values import Cabin, take


async def hold(saga: Saga) -> int:
    return await saga.update(Cabin, "LH1", take, "Ada")  # bad
