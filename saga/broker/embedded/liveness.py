"""Signs of life between the members of a group: our own, in time, and those that the others have stopped giving."""

from collections.abc import Sequence
from pathlib import Path

from saga.broker.embedded.groups import Fellow
from saga.broker.embedded.seats import is_vacant
from saga.clock import Clock


class Liveness:
    """Knowledge of one member about the others: who left its seat is dead, who has not stirred for too long a zombie.

    Silence is measured by our own monotonic clock, and only while we stirred in time ourselves: somebody who was
    frozen, or could not write because somebody frozen held the lock, knows nothing of the others' silence.
    """

    def __init__(self, folder: Path, clock: Clock, silence_s: float) -> None:
        """`folder`: that of the broker's file, and of the seats."""
        self._folder, self._clock, self._silence_s = folder, clock, silence_s
        self._stirred_s = self._clock.monotonic_s()
        self._seen: dict[int, tuple[int, float]] = {}
        """Member -> its beats, and since when we have seen no more."""

    def is_time_to_stir(self) -> bool:
        """True if the next sign of life of our own is due."""
        return self._clock.monotonic_s() - self._stirred_s >= self._silence_s / 5

    def stirred(self) -> None:
        """Note our own sign of life; if it is late, nothing is known of the others any more."""
        now_s = self._clock.monotonic_s()
        if now_s - self._stirred_s > self._silence_s / 2:
            self._seen.clear()
        self._stirred_s = now_s

    def gone(self, fellows: Sequence[Fellow], *, but: int) -> list[Fellow]:
        """Take note of the members' beats; those to be taken for dead, never `but`, which is ourselves."""
        now_s, seen = self._clock.monotonic_s(), self._seen
        gone: list[Fellow] = []
        self._seen = {}
        for fellow in fellows:
            beats, since_s = seen.get(fellow.id, (-1, now_s))
            if beats != fellow.beats:
                since_s = now_s
            self._seen[fellow.id] = fellow.beats, since_s
            if fellow.id != but and (now_s - since_s >= self._silence_s or is_vacant(self._folder / fellow.seat)):
                gone.append(fellow)
        return gone
