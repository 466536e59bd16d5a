"""Index by time: members in order of a time of each, from either end or from any place, at a cost that grows with what
is looked at and not with what is in it."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from typing import Generic, NamedTuple, Protocol, TypeVar

BUCKET_MS = 4000
"""Length of a bucket: only the members of one are sorted at once."""


class Named(Protocol):
    """Member: its name decides between equal times."""

    @property
    def saga(self) -> str:
        """Name of it."""


Member = TypeVar("Member", bound=Named)


class Part(NamedTuple, Generic[Member]):
    """Members of one bucket that were asked for."""

    found: list[tuple[int, Member]]
    """Each with its time, in order."""
    looked: int
    """Number of members that were looked at."""
    end: tuple[int, str]
    """Place behind which the next bucket begins."""


class ByTime(Generic[Member]):
    """Members with a time each, in milliseconds since 1970."""

    def __init__(self) -> None:
        self._buckets: dict[int, dict[Member, int]] = {}
        self._order: list[int] | None = []
        """Numbers of the buckets in order; `None`: there is a new one, or one less, since they were sorted."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, member: Member, ms: int) -> None:
        """Take in a member that is not in it."""
        number = ms // BUCKET_MS
        bucket = self._buckets.get(number)
        if bucket is None:
            bucket = self._buckets[number] = {}
            self._order = None
        bucket[member] = ms
        self._count += 1

    def remove(self, member: Member, ms: int) -> None:
        """Take away a member that is in it with this time."""
        number = ms // BUCKET_MS
        bucket = self._buckets[number]
        del bucket[member]
        self._count -= 1
        if not bucket:
            del self._buckets[number]
            self._order = None

    def move(self, member: Member, old_ms: int, new_ms: int) -> None:
        """Give a member another time."""
        if old_ms // BUCKET_MS == new_ms // BUCKET_MS:
            self._buckets[old_ms // BUCKET_MS][member] = new_ms
        else:
            self.remove(member, old_ms)
            self.add(member, new_ms)

    def parts(
        self, holds: Callable[[Member], bool], *, latest_first: bool, after: tuple[int, str] | None = None
    ) -> Iterator["Part[Member]"]:
        """Members for which something holds, bucket by bucket: only these are sorted. `after`: time and name behind
        which they begin, in that order."""
        order = self._sorted()
        if latest_first:
            numbers = order[: None if after is None else bisect_right(order, after[0] // BUCKET_MS)][::-1]
        else:
            numbers = order[0 if after is None else bisect_left(order, after[0] // BUCKET_MS) :]
        for number in numbers:
            begin_ms = number * BUCKET_MS
            if latest_first and after is not None and after <= (begin_ms, ""):
                continue
            bucket = self._buckets[number]
            found = [(ms, member.saga, member) for member, ms in bucket.items() if holds(member)]
            if after is not None:
                found = [each for each in found if (each[:2] < after if latest_first else each[:2] > after)]
            found.sort(key=_place, reverse=latest_first)
            end_ms = begin_ms if latest_first else begin_ms + BUCKET_MS
            yield Part([(ms, member) for ms, _, member in found], len(bucket), (end_ms, ""))

    def oldest(self, until_ms: int | None = None) -> Iterator[tuple[int, Member]]:
        """Members with their times, earliest first; up to a time, if it is given."""
        for number in self._sorted():
            if until_ms is not None and number * BUCKET_MS > until_ms:
                return
            bucket = [(ms, member.saga, member) for member, ms in self._buckets[number].items()]
            for ms, _, member in sorted(bucket, key=_place):
                if until_ms is None or ms <= until_ms:
                    yield ms, member

    def _sorted(self) -> list[int]:
        if self._order is None:
            self._order = sorted(self._buckets)
        return self._order


def _place(entry: tuple[int, str, object]) -> tuple[int, str]:
    return entry[:2]
