"""Two resources of one type. Rejected by: DeclarationError "gives Bank and bank gives Bank"."""

from collections.abc import AsyncIterator

from saga import Service
from services.payment.bank import Bank

payment = Service("payment")


@payment.resource
async def bank() -> AsyncIterator[Bank]:
    yield Bank()


@payment.resource  # bad
async def second() -> AsyncIterator[Bank]:
    yield Bank()
