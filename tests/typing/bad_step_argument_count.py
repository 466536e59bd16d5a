"""A step called with too few arguments. Rejected by: mypy, basedpyright."""

from saga import Saga
from services.payment.bank import Bank


async def reserve(bank: Bank, saga: Saga) -> None:
    await saga.step(bank.reserve, saga.key("charge"), "4242")  # bad
