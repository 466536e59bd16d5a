"""Quotas of lines that are written of each kind: an outage, or somebody who sends rubbish, must not fill a disk."""

import threading
from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple

from saga.support.clock import Clock

LINES_MAX = 20
"""Most lines of one kind within `WITHIN_S`."""
WITHIN_S = 60.0
KINDS_MAX = 500
"""Most kinds that are told apart."""
OTHERS = "others"
"""Kind of all lines whose own kind comes later."""


class Held(NamedTuple):
    """Lines of one kind that were not written."""

    kind: Hashable
    lines: int
    within_s: float


@dataclass(slots=True)
class _Quota:
    since_s: float
    lines: int = 0


class Quotas:
    """Decision, line by line, whether it is written. What is held back is counted, and told when its time is over:
    `over`.

    May be asked from several threads.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._quotas: dict[Hashable, _Quota] = {}
        self._lock = threading.Lock()
        self.held_until_s: float | None = None
        """Time at which the first quota ends that has held something back; `None`: none has."""

    def has_room(self, kind: Hashable) -> bool:
        """True if one more line of this kind may be written now."""
        with self._lock:
            now_s = self._clock.monotonic_s()
            kind = self._told_apart(kind, now_s)
            quota = self._quotas.setdefault(kind, _Quota(now_s))
            if now_s - quota.since_s >= WITHIN_S and quota.lines <= LINES_MAX:
                quota.since_s, quota.lines = now_s, 0
            quota.lines += 1
            if quota.lines <= LINES_MAX:
                return True
            ends_s = quota.since_s + WITHIN_S
            if self.held_until_s is None or ends_s < self.held_until_s:
                self.held_until_s = ends_s
            return False

    def over(self, *, all_: bool = False) -> list[Held]:
        """Counts of held-back lines whose time is over, or all of them: they begin anew."""
        with self._lock:
            now_s = self._clock.monotonic_s()
            held = {kind: quota for kind, quota in self._quotas.items() if quota.lines > LINES_MAX}
            told = {kind: quota for kind, quota in held.items() if all_ or now_s - quota.since_s >= WITHIN_S}
            for kind in told:
                del self._quotas[kind]
            self.held_until_s = min(
                (quota.since_s + WITHIN_S for kind, quota in held.items() if kind not in told), default=None
            )
            return [Held(kind, quota.lines - LINES_MAX, now_s - quota.since_s) for kind, quota in told.items()]

    def _told_apart(self, kind: Hashable, now_s: float) -> Hashable:
        """Tell a kind apart, or give that of all those for which there is no room."""
        if kind in self._quotas or len(self._quotas) < KINDS_MAX:
            return kind
        for old in [k for k, q in self._quotas.items() if now_s - q.since_s >= WITHIN_S and q.lines <= LINES_MAX]:
            del self._quotas[old]
        return kind if len(self._quotas) < KINDS_MAX else OTHERS
