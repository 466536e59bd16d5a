"""A state and a document whose updates give something back, for the expressions that checkers look at."""

from dataclasses import dataclass, replace
from decimal import Decimal


@dataclass(frozen=True)
class Account:
    """A state."""

    paid: Decimal = Decimal(0)


@dataclass(frozen=True)
class Cabin:
    """A document."""

    seats: tuple[str, ...] = ("1A",)


def take(cabin: Cabin, passenger: str) -> tuple[Cabin, str]:
    """An update with a result: the seat."""
    return replace(cabin, seats=cabin.seats[1:]), f"{cabin.seats[0]} {passenger}"


def free(cabin: Cabin | None, seat: str) -> Cabin:
    """An update without one, that also takes an absent document."""
    return Cabin(seats=(seat, *cabin.seats) if cabin else (seat,))
