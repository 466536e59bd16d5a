"""Chance that comes from a seed: the same question gets the same answer, whatever else was asked in between.

So taking one fault out of a run leaves the rest of it as it was, as far as it can: that makes runs shrink.
"""

from hashlib import blake2b
from struct import unpack


class Chance:
    """All draws of one run."""

    __slots__ = ("_key", "seed")

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._key = seed.to_bytes(8, "little", signed=True)

    def draw(self, what: str) -> float:
        """A number from 0 to 1, not 1 itself.

        >>> Chance(1).draw("payment-1#3") == Chance(1).draw("payment-1#3") != Chance(2).draw("payment-1#3")
        True
        """
        (number,) = unpack("<Q", blake2b(what.encode(), digest_size=8, key=self._key).digest())
        drawn: float = (number >> 11) / (1 << 53)
        return drawn

    def draws(self, what: str) -> tuple[float, float, float, float]:
        """Four numbers at once: cheaper than four questions."""
        a, b, c, d = unpack("<IIII", blake2b(what.encode(), digest_size=16, key=self._key).digest())
        return a / (1 << 32), b / (1 << 32), c / (1 << 32), d / (1 << 32)
