"""Time by which SQLite files decide what has expired. One wrong reading of the clock must remove nothing."""

from typing import NamedTuple

import msgspec
from msgspec import Struct

from saga.support.clock import Clock

JUMP_MS = 60_000
"""Largest difference, in milliseconds, between the times that passed according to the time of day and to the monotonic
clock. A larger difference counts as a jump of the time of day."""
BELIEVED_AFTER_S = 3600.0
"""Time for which a changed time of day must stay consistent until it is accepted, in seconds."""
NOTE_EVERY_S = 60.0
"""Pause between two notes of the time in the file, in seconds."""


class TimeBounds(NamedTuple):
    """Earliest and latest possible current time."""

    earliest_ms: int
    latest_ms: int


class TimeNote(Struct, frozen=True, kw_only=True):
    """Time that a process believed, as it is stored in a file for the next one that opens it."""

    believed_ms: int
    doubted_ms: int = 0
    """Time to which the clock has jumped, if that is not believed yet; otherwise 0."""


def decode_note(content: bytes) -> TimeNote | None:
    """Decode a note; `None` if it is damaged. Then the clock is believed, as in a new file."""
    try:
        return msgspec.json.decode(content, type=TimeNote)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


class SteadyTime:
    """Time by a clock that people may set. After a jump of the clock, the old and the new time both count as possible
    for a while. The time at which this is created is believed, unless `resume` gives the time of an earlier process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._at_ms, self._at_s = clock.now_ms(), clock.monotonic_s()
        self._new_ms, self._new_s = 0, 0.0
        """Time to which the clock jumped, and when it did; 0 if it did not jump."""
        self._note_s = 0.0

    def resume(self, note: TimeNote | None) -> None:
        """Continue from the time that a file has from an earlier process.

        It is unknown how long the file was closed. So a difference from the noted time counts as a jump of the clock,
        whether the pause was long or the clock is wrong. A jump that the earlier process had seen is believed an hour
        after it was first seen.
        """
        if note is None:
            return
        now_ms, now_s = self._clock.now_ms(), self._clock.monotonic_s()
        self._at_ms, self._at_s = note.believed_ms, now_s
        if note.doubted_ms and now_ms >= note.doubted_ms:
            self._new_ms, self._new_s = note.doubted_ms, now_s - (now_ms - note.doubted_ms) / 1000
        self.look()

    def look(self) -> TimeBounds:
        now_ms, now_s = self._clock.now_ms(), self._clock.monotonic_s()
        due_ms = self._due_ms(now_s)
        if abs(now_ms - due_ms) <= JUMP_MS:
            self._at_ms, self._at_s, self._new_ms = now_ms, now_s, 0
            return TimeBounds(now_ms, now_ms)
        if not self._new_ms or abs(now_ms - self._new_ms - round((now_s - self._new_s) * 1000)) > JUMP_MS:
            self._new_ms, self._new_s = now_ms, now_s
        elif now_s - self._new_s >= BELIEVED_AFTER_S:
            self._at_ms, self._at_s, self._new_ms = now_ms, now_s, 0
            return TimeBounds(now_ms, now_ms)
        return TimeBounds(min(now_ms, due_ms), max(now_ms, due_ms))

    def make_note(self) -> bytes | None:
        """Return the note to store in the file with the current transaction; `None` if the last one is recent."""
        now_s = self._clock.monotonic_s()
        if now_s < self._note_s:
            return None
        self._note_s = now_s + NOTE_EVERY_S
        return msgspec.json.encode(TimeNote(believed_ms=self._due_ms(now_s), doubted_ms=self._new_ms))

    def _due_ms(self, now_s: float) -> int:
        return self._at_ms + round((now_s - self._at_s) * 1000)
