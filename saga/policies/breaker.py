"""Circuit breaker of a resource: calls stop for a time when many of them fail, then one tries whether it is back.

A frozen value holds the state, and pure functions give the next one: the same calls at the same times give the same.

| state | a call | turns |
|---|---|---|
| closed | is let through | open, when enough of the last calls failed |
| open | is refused | half-open, for the first call after `open_s` |
| half-open | is refused while that one is under way | closed when it succeeds, open when it fails |
"""

from dataclasses import dataclass, replace
from math import isfinite
from typing import Literal, NamedTuple, TypeAlias, TypeGuard

from saga.errors import DeclarationError

State: TypeAlias = Literal["closed", "half-open", "open"]

SLICES = 10
"""Parts into which `within_s` is cut: calls are forgotten a part at a time."""
TRIED_S = 1.0
"""Time after which to ask again while a call tries whether the resource is there."""


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


class Slice(NamedTuple):
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
    slices: tuple[Slice, ...] = ()


def left_s(circuit: Circuit, now_s: float) -> float:
    """Seconds after which to ask again; 0: a call is let through now.

    >>> left_s(Circuit(), 5), left_s(Circuit("open", until_s=7), 5), left_s(Circuit("open", until_s=7), 7)
    (0.0, 2, 0.0)
    """
    if circuit.state == "open":
        return max(0.0, circuit.until_s - now_s)
    return TRIED_S if circuit.is_trying else 0.0


def admitted(circuit: Circuit, now_s: float) -> Circuit | None:
    """The state with one more call under way; `None`: it is refused. The call is told by `turns` of this state."""
    if circuit.state == "closed":
        return circuit
    if left_s(circuit, now_s):
        return None
    return Circuit("half-open", circuit.turns + 1, is_trying=True)


def ended(breaker: Breaker, circuit: Circuit, call: int, failed: bool | None, now_s: float) -> Circuit:
    """The state after the end of a call. `failed`: `None` if it was given up, and says nothing."""
    if call != circuit.turns:
        return circuit
    if circuit.state == "half-open":
        if failed is None:
            return replace(circuit, is_trying=False)
        return _opened(breaker, circuit, now_s) if failed else Circuit(turns=circuit.turns + 1)
    if failed is None:
        return circuit
    slices = _counted(breaker, circuit.slices, failed, now_s)
    failures, all_ = sum(s.failed for s in slices), sum(s.ended for s in slices)
    if failed and failures >= breaker.failures and failures >= breaker.part * all_:
        return _opened(breaker, circuit, now_s)
    return replace(circuit, slices=slices)


def _opened(breaker: Breaker, circuit: Circuit, now_s: float) -> Circuit:
    return Circuit("open", circuit.turns + 1, until_s=now_s + breaker.open_s)


def _counted(breaker: Breaker, slices: tuple[Slice, ...], failed: bool, now_s: float) -> tuple[Slice, ...]:
    """Slices with one more call, without those that are too old."""
    number = int(now_s * SLICES / breaker.within_s)
    kept = tuple(s for s in slices if s.number > number - SLICES)
    if kept and kept[-1].number == number:
        *kept_, last = kept
        return (*kept_, Slice(number, last.ended + 1, last.failed + failed))
    return (*kept, Slice(number, 1, int(failed)))


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
