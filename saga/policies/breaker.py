"""Circuit breaker of a resource: calls stop for a time when many of them fail, then one tries whether it is back.

A frozen value holds the state, and pure functions give the next one: the same calls at the same times give the same.

| state | a call | turns |
|---|---|---|
| closed | is let through | open, when enough of the last calls failed |
| open | is refused | half-open, for the first call after `open_s` |
| half-open | is refused while that one is under way | closed when it succeeds, open when it fails |
"""

from collections import OrderedDict
from dataclasses import dataclass, replace
from math import isfinite
from typing import Generic, Literal, NamedTuple, TypeAlias, TypeGuard, TypeVar

from saga.errors import DeclarationError

State: TypeAlias = Literal["closed", "half-open", "open"]

SLICES = 10
"""Parts into which `within_s` is cut: calls are forgotten a part at a time."""
TRIED_S = 1.0
"""Time after which to ask again while a call tries whether the resource is there."""

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Breaker:
    """Rules by which no calls are made to a resource that fails anyway: that spares it, and those who would wait.

    It opens when `failures` calls failed within `within_s` seconds, and these are at least the `part` of all calls that
    ended meanwhile. Once it has been open for `open_s` seconds one call is let through: if that succeeds the breaker
    closes, if it fails the breaker stays open for as long again.

    A timeout is a failure; an exception in `expected_errors`, or in the `never` of the `Retry` that holds, is none: who
    answers is there. An attempt that meets an open breaker is not counted. Each process has a breaker of its own.
    Raises `DeclarationError` for a number that cannot be.
    """

    failures: int = 5
    within_s: float = 10
    part: float = 0.5
    open_s: float = 10

    def __post_init__(self) -> None:
        if not _is_number(self.failures) or self.failures != int(self.failures) or self.failures < 1:
            raise DeclarationError(f"Breaker(failures={self.failures!r}): give a whole number from 1 on")
        for name in ("within_s", "open_s"):
            value: object = getattr(self, name)
            if not _is_number(value) or value <= 0:
                raise DeclarationError(f"Breaker({name}={value!r}): give seconds, more than 0")
        if not _is_number(self.part) or not 0 <= self.part <= 1:
            raise DeclarationError(f"Breaker(part={self.part!r}): give a number from 0 to 1")


class CallWindow(NamedTuple):
    """Calls that ended within one part of the time that is looked at."""

    number: int
    """Number of the part, counted from the beginning of the clock."""
    ended: int
    failed: int


@dataclass(frozen=True, slots=True)
class Circuit:
    """State of a breaker."""

    state: State = "closed"
    turns: int = 0
    """Number of times that the state changed: what began before the last one says nothing about now."""
    until_s: float = 0.0
    """Time until which an open one refuses all."""
    is_trying: bool = False
    """True while the one call of a half-open one is under way."""
    slices: tuple[CallWindow, ...] = ()


def left_s(circuit: Circuit, now_s: float) -> float:
    """Seconds after which to ask again; 0: a call is let through now.

    >>> left_s(Circuit(), 5), left_s(Circuit("open", until_s=7), 5), left_s(Circuit("open", until_s=7), 7)
    (0.0, 2, 0.0)
    """
    if circuit.state == "open":
        return max(0.0, circuit.until_s - now_s)
    return TRIED_S if circuit.is_trying else 0.0


def admit(circuit: Circuit, now_s: float) -> Circuit | None:
    """The state with one more call under way; `None`: it is refused. The call is told by `turns` of this state."""
    if circuit.state == "closed":
        return circuit
    if left_s(circuit, now_s):
        return None
    return Circuit("half-open", circuit.turns + 1, is_trying=True)


def end_call(breaker: Breaker, circuit: Circuit, call: int, failed: bool | None, now_s: float) -> Circuit:
    """The state after the end of a call. `failed`: `None` if it was given up, and says nothing."""
    if call != circuit.turns:
        return circuit
    if circuit.state == "half-open":
        if failed is None:
            return replace(circuit, is_trying=False)
        return _open(breaker, circuit, now_s) if failed else Circuit(turns=circuit.turns + 1)
    if failed is None:
        return circuit
    slices = _count_call(breaker, circuit.slices, failed, now_s)
    failures, all_ = sum(s.failed for s in slices), sum(s.ended for s in slices)
    if failed and failures >= breaker.failures and failures >= breaker.part * all_:
        return _open(breaker, circuit, now_s)
    return replace(circuit, slices=slices)


def _open(breaker: Breaker, circuit: Circuit, now_s: float) -> Circuit:
    return Circuit("open", circuit.turns + 1, until_s=now_s + breaker.open_s)


def _count_call(breaker: Breaker, slices: tuple[CallWindow, ...], failed: bool, now_s: float) -> tuple[CallWindow, ...]:
    """Slices with one more call, without those that are too old."""
    number = int(now_s * SLICES / breaker.within_s)
    kept = tuple(s for s in slices if s.number > number - SLICES)
    if kept and kept[-1].number == number:
        *kept_, last = kept
        return (*kept_, CallWindow(number, last.ended + 1, last.failed + failed))
    return (*kept, CallWindow(number, 1, int(failed)))


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


# -------------------------------------------------------------------- last good


@dataclass(frozen=True, kw_only=True)
class LastGood:
    """Fallback of a call that only asks: what it gave last for the same arguments, in this process.

    `for_s`: seconds for which a result is good enough. `results_max`: results that are kept, those asked for last.
    Raises `DeclarationError` for a number that cannot be.
    """

    for_s: float
    results_max: int = 1000

    def __post_init__(self) -> None:
        for_s, most = _check_number(self.for_s), _check_number(self.results_max)
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


def _check_number(value: object) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) else None
