"""A state of another type assigned. Rejected by: mypy, basedpyright."""

from saga import Saga
from tests.typing.values import Account


async def credit(saga: Saga[Account]) -> None:
    saga.state = {"paid": 3}  # bad
