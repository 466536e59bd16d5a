"""Retries of a handler that failed: how many, and the delay before each."""

from dataclasses import dataclass
from math import isfinite
from typing import TypeGuard

from saga.errors import DeclarationError

_DOUBLINGS_MAX = 64
"""Most doublings of a delay: beyond them the limits are long reached, and floats overflow."""


@dataclass(frozen=True, kw_only=True)
class Retry:
    """Rules for trying a handler that failed again: first in place, then parked, always in the saga's order.

    Delays double from `delay_s_first` to `delay_s_max`, in seconds, each spread by up to a half. For `in_place_s`
    seconds in all the saga's other messages wait in memory; a longer delay parks it: that is written down, and nothing
    but this saga waits. After `attempts_max` attempts, or at once for an exception in `never`, the message is a dead
    letter and the saga waits for a person. The defaults outlive an outage of an hour.
    Raises `DeclarationError` for less than one attempt, a negative delay, or a `never` that holds no exceptions.
    """

    attempts_max: int = 17
    delay_s_first: float = 0.2
    delay_s_max: float = 3600
    in_place_s: float = 2
    never: tuple[type[Exception], ...] = ()

    def __post_init__(self) -> None:
        if not _is_number(self.attempts_max) or self.attempts_max != int(self.attempts_max) or self.attempts_max < 1:
            raise DeclarationError(
                f"Retry(attempts_max={self.attempts_max!r}): the first attempt counts; give a whole number from 1 on"
            )
        for name in ("delay_s_first", "delay_s_max", "in_place_s"):
            delay: object = getattr(self, name)
            if not _is_number(delay) or delay < 0:
                raise DeclarationError(f"Retry({name}={delay!r}): give seconds, 0 or more")
        if not is_exceptions(self.never):
            raise DeclarationError(
                f"Retry(never={self.never!r}): give a tuple of exception classes; of one it is (KeyError,)"
            )


def delay_s(retry: Retry, attempt: int, chance: float) -> float:
    """Seconds to wait after the `attempt`-th attempt has failed; `chance` from 0 to 1 spreads it by up to a half.

    >>> [delay_s(Retry(), attempt, chance=0) for attempt in (1, 2, 3, 8, 1000)]
    [0.2, 0.4, 0.8, 25.6, 3600.0]
    >>> delay_s(Retry(), 2, chance=1)
    0.2
    >>> delay_s(Retry(delay_s_max=1), 5, chance=0.5)
    0.75
    """
    doubled = retry.delay_s_first * 2.0 ** min(attempt - 1, _DOUBLINGS_MAX)
    return min(doubled, retry.delay_s_max) * (1 - chance / 2)


def parks(retry: Retry, attempt: int) -> bool:
    """Return whether the delay after the `attempt`-th attempt is too long for the saga to wait for it in memory.

    >>> [parks(Retry(), attempt) for attempt in (1, 3, 4, 16)]
    [False, False, True, True]
    >>> parks(Retry(in_place_s=0, delay_s_first=0), 5)
    False
    """
    delays_s = (retry.delay_s_first * 2.0 ** min(before, _DOUBLINGS_MAX) for before in range(attempt))
    return sum(min(delay, retry.delay_s_max) for delay in delays_s) > retry.in_place_s


def is_exceptions(value: object) -> TypeGuard[tuple[type[Exception], ...]]:
    """Return whether `value` is a tuple of exception classes.

    >>> is_exceptions((KeyError, OSError)), is_exceptions(KeyError), is_exceptions((KeyboardInterrupt,))
    (True, False, False)
    """
    return isinstance(value, tuple) and all(isinstance(e, type) and issubclass(e, Exception) for e in value)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


RETRY = Retry()
"""Rules for a handler that names none."""
