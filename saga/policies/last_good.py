"""Last good results of a call, for when it cannot be made: for how long, and of how many. Pure: time is given."""

from collections import OrderedDict
from dataclasses import dataclass
from math import isfinite
from typing import Generic, TypeVar

from saga.errors import DeclarationError

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class LastGood:
    """Fallback of a call that only asks: what it gave last for the same arguments, in this process.

    `for_s`: seconds for which a result is good enough. `results_max`: results that are kept, those asked for last.
    Raises `DeclarationError` for a number that cannot be.
    """

    for_s: float
    results_max: int = 1000

    def __post_init__(self) -> None:
        for_s, most = _number(self.for_s), _number(self.results_max)
        if for_s is None or for_s <= 0:
            raise DeclarationError(f"LastGood(for_s={self.for_s!r}): give seconds, more than 0")
        if most is None or most != int(most) or most < 1:
            raise DeclarationError(f"LastGood(results_max={self.results_max!r}): give a whole number from 1 on")


class LastGoodCache(Generic[T]):
    """Results that are remembered of one call, each with the time at which it was given.

    >>> memory = LastGoodCache[str](LastGood(for_s=10, results_max=2))
    >>> for n, key in enumerate("abc"):
    ...     memory.learn(key, key.upper(), now_s=n)
    >>> memory.recall("a", now_s=3), memory.recall("b", now_s=3), memory.recall("b", now_s=12)
    (None, 'B', None)
    """

    def __init__(self, rules: LastGood) -> None:
        self._rules = rules
        self._results: OrderedDict[str, tuple[float, T]] = OrderedDict()

    def learn(self, key: str, result: T, now_s: float) -> None:
        """Take note of a result; of too many the one goes that was asked for or given longest ago."""
        self._results[key] = now_s, result
        self._results.move_to_end(key)
        if len(self._results) > self._rules.results_max:
            self._results.popitem(last=False)

    def recall(self, key: str, now_s: float) -> T | None:
        """The result, if it is young enough."""
        given = self._results.get(key)
        if given is None or now_s - given[0] >= self._rules.for_s:
            return None
        self._results.move_to_end(key)
        return given[1]


def _number(value: object) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) else None
