"""The documents of the services, and the card company. Plain Python, without the toolkit."""

from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Self


class SoldOut(Exception):
    """Raised if there is nothing left to reserve."""


class Refused(Exception):
    """Raised if the card company refuses a card."""


@dataclass(frozen=True, kw_only=True)
class Offer:
    """Seats, rooms or cars: how many are left, the price of one, and the fee that a cancellation costs."""

    left: int
    price: Decimal
    fee: Decimal = Decimal(0)

    def reserve(self) -> tuple[Self, Self]:
        """Take one. Return the offer with one less, and the offer before that, with the price and the fee of the
        reservation."""
        if not self.left:
            raise SoldOut("sold out")
        return replace(self, left=self.left - 1), self

    def release(self) -> Self:
        return replace(self, left=self.left + 1)


@dataclass(frozen=True, kw_only=True)
class Flight(Offer):
    """Seats of a flight."""


@dataclass(frozen=True, kw_only=True)
class Hotel(Offer):
    """Rooms of a hotel."""

    overbooked: bool = False
    """True if the hotel will not confirm a room that was reserved."""


@dataclass(frozen=True, kw_only=True)
class Car(Offer):
    """Cars of a class."""


class CardCompany:
    """A company that takes money from cards and gives it back. A call that is repeated with the same key has no further
    effect."""

    def __init__(self) -> None:
        self.answered: dict[str, str] = {}
        self.taken = Decimal(0)
        self.returned = Decimal(0)

    async def charge(self, key: str, card: str, amount: Decimal) -> str:
        """Take the amount from the card. Return the number of the charge. Raises `Refused`."""
        if card.startswith("declined"):
            raise Refused("card refused")
        if key not in self.answered:
            self.answered[key] = f"charge-{len(self.answered) + 1}"
            self.taken += amount
        return self.answered[key]

    async def refund(self, key: str, charge: str, amount: Decimal) -> None:
        """Give a part of a charge back."""
        if key not in self.answered:
            self.answered[key] = charge
            self.returned += amount
