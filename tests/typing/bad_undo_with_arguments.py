"""A call that takes back what was done, without its last argument. Rejected by: mypy, basedpyright."""

from saga import Saga
from services.payment.bank import Bank


async def reserve(bank: Bank, saga: Saga) -> None:
    saga.undo_with(bank.release, saga.key("release"))  # bad
