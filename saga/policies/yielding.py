"""Yielding of what may wait to what may not, while a worker has much in flight. Pure."""

YIELDS_S_MAX = 30.0
"""Longest time that a message yields: then it goes as any other, however much there is to do."""
HELD_PART = 10
"""Messages that yield, at most, as a part of what may be in flight: they take no room in it, but memory."""
BUSY_PART = 0.5
"""Part of a bound from which on a worker counts as saturated, even if it has read all there is."""


def is_saturated(busy: int, limit: int, inflight: int, most: int, *, is_behind: bool) -> bool:
    """Return whether a worker has so much to do that what may wait does. `busy`: messages that may be waiting for store
    or log, of which it takes `limit` now; `inflight`: all, of which it takes `most` ever; `is_behind`: there is more
    than it has read.

    >>> is_saturated(32, 64, 40, 1000, is_behind=False), is_saturated(31, 64, 40, 1000, is_behind=False)
    (True, False)
    >>> is_saturated(3, 64, 500, 1000, is_behind=False), is_saturated(3, 64, 3, 1000, is_behind=True)
    (True, True)
    """
    return is_behind or busy >= limit * BUSY_PART or inflight >= most * BUSY_PART


def held_max(most: int) -> int:
    """Number of messages that yield at a time, at most.

    >>> held_max(1000), held_max(3)
    (100, 1)
    """
    return max(1, most // HELD_PART)
