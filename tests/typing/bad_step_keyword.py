"""A step called with a keyword that the call does not have (a misspelt option too). Rejected by: mypy, basedpyright."""

from saga import Saga
from services.payment.bank import Bank


async def release(bank: Bank, saga: Saga) -> None:
    await saga.step(bank.release, saga.key("release"), "c-1", undo=bank.capture)  # bad
