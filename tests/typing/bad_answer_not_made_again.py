"""An answer that keeps another text than it was made with: a rerun could not raise it again.

Rejected by: DeclarationError "the answer Declined cannot be made again from its args".
"""

from collections.abc import AsyncIterator

from saga import Service
from services.payment.bank import Bank

payment = Service("payment")


class Declined(Exception):
    def __init__(self, card: str) -> None:
        super().__init__(f"the card {card} was declined")
        self.card = card


@payment.resource(answers=(Declined,))  # bad
async def bank() -> AsyncIterator[Bank]:
    yield Bank()
