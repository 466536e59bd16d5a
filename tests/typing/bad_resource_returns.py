"""A resource that returns instead of yielding: nobody could close it. Rejected by: mypy, basedpyright."""

from saga import Service
from services.payment.bank import Bank

payment = Service("payment")


@payment.resource  # bad
async def bank() -> Bank:
    return Bank()
