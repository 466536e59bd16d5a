"""Cache of progresses: those that were touched last, with their versions. Bounded; what is in it may be old."""

from collections import OrderedDict
from math import inf

from saga.progress.document import Snapshot


class Cache:
    """Progresses by saga, each with its version and when it was written."""

    def __init__(self, entries_max: int, age_s_max: float = inf) -> None:
        """`age_s_max`: what was written longer ago is not given. The store may have forgotten it, and another worker
        have begun the saga anew, with messages of the same ids."""
        self._entries: OrderedDict[str, tuple[Snapshot, int, float]] = OrderedDict()
        self._entries_max, self._age_s_max = entries_max, age_s_max

    def take(self, saga: str, now_s: float = 0.0) -> tuple[Snapshot, int, float] | None:
        """Remove and return what is known of a saga, with when it was written."""
        entry = self._entries.pop(saga, None)
        return None if entry is None or now_s - entry[2] > self._age_s_max else entry

    def put(self, saga: str, progress: Snapshot, cas: int, written_s: float = 0.0) -> None:
        self._entries[saga] = (progress, cas, written_s)
        if len(self._entries) > self._entries_max:
            self._entries.popitem(last=False)

    def clear(self) -> None:
        self._entries.clear()

    def __len__(self) -> int:
        return len(self._entries)
