"""Circuit breaker of a resource, and the fallback of a call that is refused.

When many calls fail, calls stop for a time; then one call tests whether the resource is back. A frozen value holds the
state, and pure functions return the next one: the same calls at the same times give the same states.

| state | a call | next state |
|---|---|---|
| closed | is let through | open, when enough of the last calls failed |
| open | is refused | half-open, for the first call after `open_s` |
| half-open | is refused while the test call is under way | closed when it succeeds, open when it fails |

`LastGood` is a fallback: the last result of the same call, which `LastGoodCache` remembers.
"""

from collections import OrderedDict
from dataclasses import dataclass, replace
from math import isfinite
from typing import Generic, Literal, NamedTuple, TypeAlias, TypeGuard, TypeVar

from saga.errors import DeclarationError

State: TypeAlias = Literal["closed", "half-open", "open"]

SLICES = 10
"""Number of slices into which `within_s` is divided; calls are forgotten a slice at a time."""
TRIED_S = 1.0
"""Seconds after which to ask again while a test call is in progress."""

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Breaker:
    """Rules for a circuit breaker. It protects a failing resource, and the sagas that would wait for it.

    It opens when `failures` calls failed within `within_s` seconds, and these are at least the share `part` of all
    calls that ended in that time. Once it has been open for `open_s` seconds, one call is let through. If that call
    succeeds, the breaker closes. If it fails, the breaker stays open for as long again.

    A timeout is a failure. An exception in `expected_errors`, or in the `never` of the `Retry` that applies, is not,
    because the resource has answered. An attempt that meets an open breaker is not counted. Each process has its own
    breaker. Raises `DeclarationError` for an invalid number.
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
    """Counts of the calls that ended within one slice of the time window."""

    number: int
    """Number of the slice, counted from the start of the clock."""
    ended: int
    failed: int


@dataclass(frozen=True, slots=True)
class Circuit:
    """The state of a breaker."""

    state: State = "closed"
    turns: int = 0
    """Number of state changes so far. Results of calls that began before the last change are ignored."""
    until_s: float = 0.0
    """Time until which an open breaker refuses all calls."""
    is_trying: bool = False
    """True while the test call of a half-open breaker is in progress."""
    slices: tuple[CallWindow, ...] = ()


def left_s(circuit: Circuit, now_s: float) -> float:
    """Return the seconds after which to ask again; 0 if a call is admitted now.

    >>> left_s(Circuit(), 5), left_s(Circuit("open", until_s=7), 5), left_s(Circuit("open", until_s=7), 7)
    (0.0, 2, 0.0)
    """
    if circuit.state == "open":
        return max(0.0, circuit.until_s - now_s)
    return TRIED_S if circuit.is_trying else 0.0


def admit(circuit: Circuit, now_s: float) -> Circuit | None:
    """Return the state with one more call in progress; `None` if the call is refused.

    The call is identified by `turns` of the returned state.
    """
    if circuit.state == "closed":
        return circuit
    if left_s(circuit, now_s):
        return None
    return Circuit("half-open", circuit.turns + 1, is_trying=True)


def end_call(breaker: Breaker, circuit: Circuit, call: int, failed: bool | None, now_s: float) -> Circuit:
    """Return the state after the end of a call.

    `call`: the `turns` of the state that `admit` returned for this call. `failed`: `None` if the call was abandoned, so
    its result is unknown.
    """
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
    """Return the slices with one more call counted, and without slices that are too old."""
    number = int(now_s * SLICES / breaker.within_s)
    recent = tuple(s for s in slices if s.number > number - SLICES)
    if recent and recent[-1].number == number:
        *earlier, last = recent
        return (*earlier, CallWindow(number, last.ended + 1, last.failed + failed))
    return (*recent, CallWindow(number, 1, int(failed)))


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


# -------------------------------------------------------------------- last good


@dataclass(frozen=True, kw_only=True)
class LastGood:
    """A fallback for a read-only call: its last result for the same arguments in this process.

    `for_s`: seconds for which a result may be used. `results_max`: largest number of results that are kept; the least
    recently used one is dropped. Raises `DeclarationError` for an invalid number.
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
    """Cached results of one call, each with the time at which it was returned.

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
        """Store a result; if there are too many, the least recently used one is dropped."""
        self._results[key] = now_s, result
        self._results.move_to_end(key)
        if len(self._results) > self._rules.results_max:
            self._results.popitem(last=False)

    def recall(self, key: str, now_s: float) -> T | None:
        """Return the cached result; `None` if there is none, or if it is too old."""
        given = self._results.get(key)
        if given is None or now_s - given[0] >= self._rules.for_s:
            return None
        self._results.move_to_end(key)
        return given[1]


def _check_number(value: object) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) else None
