"""Bounded caches of stored documents: progress documents, which may be outdated, and overflow segments, which never
are."""

from collections import OrderedDict
from math import inf

from saga.progress.document import SagaProgress


class ProgressCache:
    """Progress documents by saga, each with its version and the time at which it was written."""

    def __init__(self, entries_max: int, age_s_max: float = inf) -> None:
        """`age_s_max`: age in seconds beyond which an entry is not returned.

        An older document may have expired in the store, and another worker may have begun a new saga with the same id
        and the same message ids.
        """
        self._entries: OrderedDict[str, tuple[SagaProgress, int, float]] = OrderedDict()
        self._entries_max, self._age_s_max = entries_max, age_s_max

    def take(self, saga: str, now_s: float = 0.0) -> tuple[SagaProgress, int, float] | None:
        """Remove and return a saga's progress, with its version and the time at which it was written. `None` if it is
        not cached, or too old.
        """
        entry = self._entries.pop(saga, None)
        return None if entry is None or now_s - entry[2] > self._age_s_max else entry

    def put(self, saga: str, progress: SagaProgress, cas: int, written_s: float = 0.0) -> None:
        self._entries[saga] = (progress, cas, written_s)
        if len(self._entries) > self._entries_max:
            self._entries.popitem(last=False)

    def clear(self) -> None:
        self._entries.clear()

    def __len__(self) -> int:
        return len(self._entries)


BYTES_MAX = 16 * 2**20
"""Maximum bytes of entries that a worker caches: enough for 1.4 million messages."""
ROOM_BYTES = 200
"""Bytes of memory that a segment takes besides its entries."""


class OverflowCache:
    """The inbox entries of overflow segments, by key. The cache is bounded; entries that were dropped from it are read
    again."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._entries: OrderedDict[str, bytes] = OrderedDict()
        self._bytes, self._bytes_max = 0, bytes_max

    def entries_of(self, key: str) -> bytes | None:
        """Return the entries of a segment; `None` if they are not cached."""
        entries = self._entries.get(key)
        if entries is not None:
            self._entries.move_to_end(key)
        return entries

    def learn(self, key: str, entries: bytes) -> None:
        """Cache the entries of a segment."""
        if key in self._entries:
            return
        self._entries[key] = entries
        self._bytes += len(entries) + ROOM_BYTES
        while self._bytes > self._bytes_max:
            _, gone = self._entries.popitem(last=False)
            self._bytes -= len(gone) + ROOM_BYTES
