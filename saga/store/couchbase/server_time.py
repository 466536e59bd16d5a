"""Clock of the server, as its answers tell it, and an expiry as the SDK is to be given it."""

from datetime import timedelta
from math import ceil

from saga.support.clock import Clock, SystemClock

RELATIVE_S_MAX = 30 * 86_400
"""Shortest expiry that is sent as a point in time; a shorter one is sent as seconds from now. So the SDK has it."""
AT_S_MAX = 2**32 - 1
"""Last point in time that can be sent: 2106-02-07."""
MARGIN_S = 86_400
"""Most that the server's clock may be ahead of ours before a longest expiry does not fit any more."""
SANE_S = range(1_420_070_400, AT_S_MAX)
"""Seconds that a version may tell, from 2015 on. Not every server that speaks Couchbase's protocol makes versions of a
clock: CouchbaseMock counts."""
CAS_PER_S = 1_000_000_000
"""Versions per second: a version is the node's clock, in nanoseconds, and never goes back."""


def longest_s(clock: Clock) -> float:
    """Longest expiry that can be sent now."""
    return AT_S_MAX - MARGIN_S - clock.now_ms() / 1000


class ServerTime:
    """Time at the server, by the latest version that it made and the time since then."""

    def __init__(self) -> None:
        self._clock: Clock = SystemClock()  # the SDK takes the machine's time, whatever clock we are given
        self._told_s = 0.0
        self._told_at_s = 0.0

    def learn(self, cas: int) -> None:
        """Learn the time from a version that the server has made just now."""
        if cas // CAS_PER_S in SANE_S:
            self._told_s, self._told_at_s = cas / CAS_PER_S, self._clock.monotonic_s()

    def expiry(self, expiry_s: float) -> timedelta:
        """Expiry to hand to the SDK, which adds our own time of day to what is long: rather later than sooner."""
        seconds = max(1, ceil(expiry_s))
        if seconds >= RELATIVE_S_MAX and self._told_s:
            there_s = self._told_s + self._clock.monotonic_s() - self._told_at_s
            seconds += max(0, ceil(there_s - self._clock.now_ms() / 1000))
        return timedelta(seconds=seconds)
