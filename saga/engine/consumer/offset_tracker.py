"""Track which offset of a partition may be committed: that of its first unfinished message. Pure functions.

>>> tracker = OffsetTracker(5)
>>> for offset in (5, 6, 9):
...     tracker.begin(offset)
>>> tracker.finish(6)
>>> tracker.offset_to_commit() is None
True
>>> tracker.finish(5)
>>> tracker.offset_to_commit()
9
>>> tracker.acknowledge(9)
>>> tracker.is_committed(6), tracker.is_committed(9), tracker.offset_to_commit()
(True, False, None)
"""


class OffsetTracker:
    """The messages of one partition during one assignment. Each assignment gets a tracker of its own."""

    __slots__ = ("_committed", "_end", "guarded", "log_id", "may_have_moved", "repeats_max", "taken", "unfinished")

    def __init__(self, committed: int, log_id: str = "") -> None:
        """`committed`: the group's committed offset when the partition was assigned. `log_id`: id of the log to which
        the offsets belong."""
        self._committed = self._end = committed
        self.log_id = log_id
        self.may_have_moved = False
        """False if nothing can have moved the offset to commit since `offset_to_commit` last returned `None`."""
        self.guarded = 0
        """How many of the next messages may have crashed a process."""
        self.repeats_max = 0
        """How many of the next messages do not count towards `guarded` if they turn out to be handled already."""
        self.unfinished = 0
        """Number of messages received and not finished."""
        self.taken: dict[int, bool] = {}
        """Offsets that were received and cannot be committed yet, in order; true if finished."""

    def __len__(self) -> int:
        """Return the number of received messages that cannot be committed yet."""
        return len(self.taken)

    def begin(self, offset: int) -> None:
        """Register a received message. Offsets only grow, and may have gaps."""
        self.taken[offset] = False
        if offset != self._end:  # a gap, which may be committed before anything is finished
            self.may_have_moved = True
        self._end = offset + 1
        self.unfinished += 1

    def skip_to(self, after: int) -> None:
        """Treat every offset below `after` that was never registered with `begin` as finished: it needs no work or does
        not exist. Registered messages still have to finish."""
        if after > self._end:
            self._end = after
        self.may_have_moved = True

    def finish(self, offset: int) -> None:
        """Mark a message as finished."""
        if not self.taken[offset]:
            self.taken[offset] = True
            self.unfinished -= 1
            self.may_have_moved = True

    def offset_to_commit(self) -> int | None:
        """Return the offset to commit, or `None` if it has not moved since the last acknowledged commit."""
        for offset in list(self.taken):
            if not self.taken[offset]:
                self.may_have_moved = offset > self._committed
                return offset if self.may_have_moved else None
            del self.taken[offset]
        self.may_have_moved = self._end > self._committed
        return self._end if self.may_have_moved else None

    def acknowledge(self, offset: int) -> None:
        """Record that the broker has acknowledged this commit."""
        self._committed = max(self._committed, offset)

    @property
    def done(self) -> int:
        """Offset below which all messages are finished."""
        return next((offset for offset, finished in self.taken.items() if not finished), self._end)

    @property
    def end(self) -> int:
        """Offset after the last received message."""
        return self._end

    @property
    def position(self) -> int:
        """Committed offset, as acknowledged by the broker."""
        return self._committed

    def is_committed(self, offset: int) -> bool:
        """Return whether the offset is below the committed one."""
        return offset < self._committed
