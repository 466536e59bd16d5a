"""Offsets that may be committed: the contiguous prefix of finished messages of one partition. Pure.

>>> prefix = Prefix(5)
>>> for offset in (5, 6, 9):
...     prefix.begun(offset)
>>> prefix.finished(6)
>>> prefix.to_commit() is None
True
>>> prefix.finished(5)
>>> prefix.to_commit()
9
>>> prefix.committed(9)
>>> prefix.is_committed(6), prefix.is_committed(9), prefix.to_commit()
(True, False, None)
"""


class Prefix:
    """Messages of one partition during one assignment; another assignment gets another prefix."""

    __slots__ = ("_committed", "_end", "guarded", "log_id", "taken", "unfinished")

    def __init__(self, committed: int, log_id: str = "") -> None:
        """`committed`: the group's position at the assignment. `log_id`: the log in which all offsets count."""
        self._committed = self._end = committed
        self.log_id = log_id
        self.guarded = 0
        """Number of messages yet to be taken in hand that may be those with which a process has died."""
        self.unfinished = 0
        """Number of messages begun and not finished."""
        self.taken: dict[int, bool] = {}
        """Offsets begun and not below the prefix, in order; true for those that are finished."""

    def __len__(self) -> int:
        """Number of messages begun that cannot be committed yet."""
        return len(self.taken)

    def begun(self, offset: int) -> None:
        """Note that a message was taken. Offsets may have gaps; they never go back."""
        self.taken[offset] = False
        self._end = offset + 1
        self.unfinished += 1

    def skipped(self, after: int) -> None:
        """Count offsets below `after` that have not begun as done: nothing is to be done there, or they never come."""
        self._end = max(self._end, after)

    def finished(self, offset: int) -> None:
        """Note that nothing of the message is left to do."""
        if not self.taken[offset]:
            self.taken[offset] = True
            self.unfinished -= 1

    def to_commit(self) -> int | None:
        """Position to commit, if it has moved since the last `committed`."""
        for offset in list(self.taken):
            if not self.taken[offset]:
                return offset if offset > self._committed else None
            del self.taken[offset]
        return self._end if self._end > self._committed else None

    def committed(self, offset: int) -> None:
        """Note that the broker has acknowledged this position."""
        self._committed = max(self._committed, offset)

    @property
    def done(self) -> int:
        """Offset below which nothing is left to do."""
        return next((offset for offset, finished in self.taken.items() if not finished), self._end)

    @property
    def end(self) -> int:
        """Offset after the last message that was taken."""
        return self._end

    @property
    def position(self) -> int:
        """Position that the broker has acknowledged."""
        return self._committed

    def is_committed(self, offset: int) -> bool:
        """Return whether the offset lies below the acknowledged position."""
        return offset < self._committed
