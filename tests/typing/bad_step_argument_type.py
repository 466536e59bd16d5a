"""A step called with an argument of the wrong type. Rejected by: mypy, basedpyright."""

from saga import Saga
from services.payment.bank import Bank


async def reserve(bank: Bank, saga: Saga) -> None:
    await saga.step(bank.reserve, saga.key("charge"), "4242", "9.80")  # bad
