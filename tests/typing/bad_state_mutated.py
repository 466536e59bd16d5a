"""The state changed in place. Rejected by: mypy, basedpyright."""

from decimal import Decimal

from saga import Saga
from tests.typing.values import Account


async def credit(saga: Saga[Account]) -> None:
    saga.state.paid = Decimal(3)  # bad
