"""A handler whose `Saga[...]` is not of the service's state.

Rejected by: DeclarationError "the state of .* is Account".
"""

from dataclasses import dataclass

from saga import Saga, Service
from services.payment.events import OrderPlaced


@dataclass(frozen=True)
class Account:
    owed: int = 0


@dataclass(frozen=True)
class Other:
    owed: int = 0


dunning = Service("dunning", state=Account)


@dunning.handler  # bad
async def remind(order: OrderPlaced, saga: Saga[Other]) -> None:
    return
