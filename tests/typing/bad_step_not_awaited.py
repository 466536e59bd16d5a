"""A step that is not awaited, so never made. Rejected by: mypy, basedpyright."""

from saga import Saga
from services.payment.bank import Bank


async def release(bank: Bank, saga: Saga) -> None:
    saga.step(bank.release, saga.key("release"), "c-1")  # bad
