"""The entries of pages that were read last: pages never change, so what is known of one stays true."""

from collections import OrderedDict

BYTES_MAX = 16 * 2**20
"""Bytes of entries that a worker remembers, at most: those of 1.4 million messages."""
ROOM_BYTES = 200
"""Bytes that a page takes beside its entries."""


class KnownPages:
    """The entries of each page, by its key. Bounded; whatever falls out is read again."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._entries: OrderedDict[str, bytes] = OrderedDict()
        self._bytes, self._bytes_max = 0, bytes_max

    def entries_of(self, key: str) -> bytes | None:
        """Entries of a page; `None` for one that is not known."""
        entries = self._entries.get(key)
        if entries is not None:
            self._entries.move_to_end(key)
        return entries

    def learn(self, key: str, entries: bytes) -> None:
        """Remember the entries of a page."""
        if key in self._entries:
            return
        self._entries[key] = entries
        self._bytes += len(entries) + ROOM_BYTES
        while self._bytes > self._bytes_max:
            _, gone = self._entries.popitem(last=False)
            self._bytes -= len(gone) + ROOM_BYTES
