"""Turns of calls to a resource that takes only so many: at once, and a second. And when to ask again for one.

Calls beyond the limits wait in memory, first come first served, as long as there is time for the call itself; what is
beyond that is sent away, and comes back about when its turn would have been.
"""

from dataclasses import dataclass, replace
from math import inf
from zlib import crc32

BURST_S = 0.1
"""Time whose calls may begin at once; the others follow evenly. A timer for each of a thousand calls a second would be
too many."""
WAITING_MAX = 100
"""Calls to one resource that wait in memory, at most: they hold messages in flight, of which others need some."""
STAYS_S = 2.0
"""Longest time that a message waits in memory, from the start of its turn, before it is parked. It is that of failed
attempts, too."""
STAYS_S_MIN = 0.2
"""Shortest pause before it is asked again in memory."""
AWAY_S_MAX = 60.0
"""Longest time that what was sent away stays away."""
AWAY_LEAST = 0.75
"""Part of that from which on pauses grow no longer: the rest spreads them."""
LASTS_S = 0.1
"""Time that a call is taken to last while none has ended."""
NEWEST = 0.2
"""Part that the last call has in how long calls last."""


@dataclass(frozen=True, slots=True)
class Line:
    """State of the turns of one resource. Times are those of a monotonic clock."""

    running: int = 0
    waiting: int = 0
    free_s: float = -inf
    """Time from which on the next call may begin, were there no bursts."""
    back_s: float = -inf
    """Time at which what was last sent away is to be back."""
    lasts_s: float = LASTS_S
    """Time that a call lasts, about."""

    def runs(self) -> "Line":
        """The state with one more that runs."""
        return replace(self, running=self.running + 1)

    def waits(self, more: int) -> "Line":
        """The state with more, or fewer, that wait."""
        return replace(self, waiting=self.waiting + more)


def has_place(line: Line, at_once_max: int | None) -> bool:
    """Return whether a call that comes now runs now: nobody waits, and not too many run."""
    return at_once_max is None or (line.running < at_once_max and not line.waiting)


def reserved(line: Line, rate_per_s: float, now_s: float) -> tuple[Line, float]:
    """The next turn: the state in which it is taken, and the time at which it is.

    >>> line, times = Line(), []
    >>> for _ in range(3):
    ...     line, begins_s = reserved(line, 4, now_s=10)
    ...     times.append(begins_s)
    >>> times
    [10, 10.25, 10.5]
    """
    apart_s = 1 / rate_per_s
    begins_s = max(now_s, line.free_s - max(0, BURST_S - apart_s))
    return replace(line, free_s=max(line.free_s, now_s) + apart_s), begins_s


def over(line: Line, lasted_s: float | None) -> Line:
    """The state after the end of a call. `lasted_s`: `None` if it was given up, and says nothing."""
    lasts_s = line.lasts_s if lasted_s is None else line.lasts_s + NEWEST * (lasted_s - line.lasts_s)
    return replace(line, running=line.running - 1, lasts_s=lasts_s)


def sent_away(line: Line, at_once_max: int | None, rate_per_s: float | None, now_s: float) -> tuple[Line, float]:
    """The state with one more that comes back later, and after how many seconds: behind those that wait, and those that
    were sent away before.

    >>> line = Line(waiting=8, lasts_s=0.5)
    >>> line, first_s = sent_away(line, 2, None, now_s=10)
    >>> line, second_s = sent_away(line, 2, None, now_s=10)
    >>> first_s, second_s
    (2.25, 2.5)
    """
    apart_s = max(line.lasts_s / at_once_max if at_once_max else 0, 1 / rate_per_s if rate_per_s else 0)
    back_s = min(max(line.back_s, now_s + line.waiting * apart_s) + apart_s, now_s + AWAY_S_MAX)
    return replace(line, back_s=back_s), back_s - now_s


def stays(left_s: float, passed_s: float) -> bool:
    """Return whether a message waits in memory until it is asked again, and is not parked. `passed_s`: since its turn
    began."""
    return passed_s + left_s <= STAYS_S


def away_s(left_s: float, spread: float) -> float:
    """Seconds after which what may be asked again in `left_s` is: spread, so that not all come back together, and never
    beyond a minute. `spread`: from 0 to 1.

    >>> [away_s(left_s, spread) for left_s in (0, 10, 3600) for spread in (0, 1)]
    [0.2, 0.4, 10, 20, 45.0, 60.0]
    """
    least_s = min(max(left_s, STAYS_S_MIN), AWAY_S_MAX * AWAY_LEAST)
    return least_s + spread * min(least_s, AWAY_S_MAX - least_s)


def spread_of(saga: str, transition: int) -> float:
    """Number from 0 to 1 that differs from saga to saga, and from one time to the next.

    >>> round(spread_of("order-17", 3), 3), round(spread_of("order-17", 4), 3)
    (0.673, 0.196)
    """
    return crc32(f"{saga} {transition}".encode()) / 0xFFFFFFFF
