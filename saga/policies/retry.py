"""Retries of a handler that failed: how many, and the delay before each."""

from dataclasses import dataclass
from math import isfinite
from typing import TypeGuard

from saga.errors import DeclarationError

_DOUBLINGS_MAX = 64
"""Most doublings of a delay: beyond them the limits are long reached, and floats overflow."""


@dataclass(frozen=True, kw_only=True)
class Retry:
    """Rules for trying a handler that failed again: in place, always in the saga's order.

    Delays double from `delay_s_first` to `delay_s_max`, in seconds, each spread by up to a half. After `attempts_max`
    attempts, or at once for an exception in `never`, the message is a dead letter and the saga waits for a person. Made
    in place, attempts are at most 30 seconds apart: the defaults outlive an outage of two to four minutes.
    Raises `DeclarationError` for less than one attempt, a negative delay, or a `never` that holds no exceptions.
    """

    attempts_max: int = 16
    delay_s_first: float = 0.2
    delay_s_max: float = 3600
    never: tuple[type[Exception], ...] = ()

    def __post_init__(self) -> None:
        if not _is_number(self.attempts_max) or self.attempts_max != int(self.attempts_max) or self.attempts_max < 1:
            raise DeclarationError(
                f"Retry(attempts_max={self.attempts_max!r}): the first attempt counts; give a whole number from 1 on"
            )
        for name in ("delay_s_first", "delay_s_max"):
            delay: object = getattr(self, name)
            if not _is_number(delay) or delay < 0:
                raise DeclarationError(f"Retry({name}={delay!r}): give seconds, 0 or more")
        if not is_exceptions(self.never):
            raise DeclarationError(
                f"Retry(never={self.never!r}): give a tuple of exception classes; of one it is (KeyError,)"
            )


def delay_s(retry: Retry, attempt: int, chance: float, *, limit_s: float = 30.0) -> float:
    """Seconds to wait after the `attempt`-th attempt has failed; `chance` from 0 to 1 spreads it by up to a half.

    Never more than `limit_s` or the retry's `delay_s_max`, whichever is less.

    >>> [delay_s(Retry(), attempt, chance=0) for attempt in (1, 2, 3, 8, 9, 1000)]
    [0.2, 0.4, 0.8, 25.6, 30.0, 30.0]
    >>> delay_s(Retry(), 2, chance=1)
    0.2
    >>> delay_s(Retry(delay_s_max=1), 5, chance=0.5)
    0.75
    """
    doubled = retry.delay_s_first * 2.0 ** min(attempt - 1, _DOUBLINGS_MAX)
    return min(doubled, retry.delay_s_max, limit_s) * (1 - chance / 2)


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
