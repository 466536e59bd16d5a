"""Fake of rooms to rent, for the party's services: it honours keys, and remembers calls that no correct client
makes."""

from itertools import count


class Taken(Exception):
    """The hall is taken: an answer."""


class Rooms:
    """Halls and chairs to be rented. A price is different on each call."""

    def __init__(self) -> None:
        self.held: dict[str, str] = {}
        """Rents that hold, by key."""
        self.contradictions: list[str] = []
        """Calls that no correct client makes."""
        self._calls: dict[str, tuple[str, ...]] = {}
        self._prices = count(100)

    async def price(self, what: str) -> int:
        return next(self._prices)

    async def rent(self, key: str, what: str, price: int, remark: str) -> str:
        """Raises `Taken`."""
        if self._is_new(key, "rent", what, str(price), remark):
            if what == "taken":
                raise Taken(what)
            self.held[key] = what
        elif what == "taken":
            raise Taken(what)
        return key

    async def give_back(self, key: str, charge: str) -> None:
        if self._is_new(key, "give back", charge) and self.held.pop(charge, None) is None:
            self.contradictions.append(f"{charge} was given back, and was not rented")

    async def announce(self, key: str, reason: str) -> None:
        self._is_new(key, "announce", reason)

    def _is_new(self, key: str, *call: str) -> bool:
        before = self._calls.setdefault(key, call)
        if before is not call and before != call:
            self.contradictions.append(f"{key} was used for {before}, and for {call}")
        return before is call
