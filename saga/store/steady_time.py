"""Time of day that is doubted for a while after it has jumped: so that one wrong moment removes no document.

Somebody sets the clock a year ahead, and back. Whatever is written meanwhile must not take all that expires within the
year for expired and remove it; and what is written while the clock is behind must not be born expired. The monotonic
clock tells how late it ought to be. Where the two differ, the earlier time decides what has expired, and the later one
until when a document stays, until the new time has held for an hour.
"""

from typing import NamedTuple

from saga.support.clock import Clock

JUMP_MS = 60_000
"""Most that the time of day may differ, between two looks, from what the monotonic clock says."""
BELIEVED_AFTER_S = 3600.0
"""Time for which a new time of day has to hold until it is the right one."""


class Moment(NamedTuple):
    """Bounds of the time: not before the one, and not after the other."""

    earliest_ms: int
    latest_ms: int


class SteadyTime:
    """Time by a clock that may be set."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._at_ms, self._at_s = clock.now_ms(), clock.monotonic_s()
        self._new_ms, self._new_s = 0, 0.0
        """Time that it jumped to, and when; 0 if it did not."""

    def look(self) -> Moment:
        now_ms, now_s = self._clock.now_ms(), self._clock.monotonic_s()
        due_ms = self._at_ms + round((now_s - self._at_s) * 1000)
        if abs(now_ms - due_ms) <= JUMP_MS:
            self._at_ms, self._at_s, self._new_ms = now_ms, now_s, 0
            return Moment(now_ms, now_ms)
        if not self._new_ms or abs(now_ms - self._new_ms - round((now_s - self._new_s) * 1000)) > JUMP_MS:
            self._new_ms, self._new_s = now_ms, now_s
        elif now_s - self._new_s >= BELIEVED_AFTER_S:
            self._at_ms, self._at_s, self._new_ms = now_ms, now_s, 0
            return Moment(now_ms, now_ms)
        return Moment(min(now_ms, due_ms), max(now_ms, due_ms))
