"""The time by which SQLite files decide what has expired. A single wrong reading of the clock must not remove
anything."""

from typing import NamedTuple

import msgspec
from msgspec import Struct

from saga.support.clock import Clock

JUMP_MS = 60_000
"""Largest difference, in milliseconds, between the time that has passed by the time of day and by the monotonic clock.
A larger difference counts as a jump of the time of day."""
BELIEVED_AFTER_S = 3600.0
"""Time after which a jump of the time of day is accepted, in seconds, if the clock has run steadily since the jump."""
NOTE_EVERY_S = 60.0
"""Pause between two notes of the time in the file, in seconds."""


class TimeBounds(NamedTuple):
    """The earliest and the latest time that it may be now, in milliseconds since 1970."""

    earliest_ms: int
    latest_ms: int


class TimeNote(Struct, frozen=True, kw_only=True):
    """Time that a process trusted, stored in the file for the next process that opens it."""

    believed_ms: int
    doubted_ms: int = 0
    """Time to which the clock has jumped, while the jump is not accepted yet; otherwise 0."""


def decode_note(content: bytes) -> TimeNote | None:
    """Decode a note; return `None` if it is damaged. Then the clock is trusted, as for a new file."""
    try:
        return msgspec.json.decode(content, type=TimeNote)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


class SteadyTime:
    """Time of day that tolerates a wrong clock. After a jump of the clock, both the old and the new time count as
    possible until the jump is accepted.

    The time of day at creation is trusted, unless `resume` passes the time that an earlier process has noted.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._at_ms, self._at_s = clock.now_ms(), clock.monotonic_s()
        self._new_ms, self._new_s = 0, 0.0
        """Time to which the clock jumped, and the monotonic time of the jump. The first is 0 if there was no jump."""
        self._note_s = 0.0

    def resume(self, note: TimeNote | None) -> None:
        """Continue from the time that an earlier process has noted in the file.

        Nothing shows how long the file was closed. So a difference from the noted time counts as a jump of the clock,
        whether it comes from a long pause or from a wrong clock. A jump that the earlier process had already noticed is
        accepted an hour after that process noticed it.
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
