"""Index by time: members in order of a time of each, from either end or from any place, at a cost that grows with what
is looked at and not with what is in it."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

BUCKET_MS = 4000
"""Length of a bucket: only the members of one are sorted at once."""


class Named(Protocol):
    """Member: its name decides between equal times."""

    @property
    def saga(self) -> str:
        """Name of it."""


Member = TypeVar("Member", bound=Named)


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

    def newest(self, before: tuple[int, str] | None = None) -> Iterator[tuple[int, Member]]:
        """Members with their times, latest first; only those before a time and name, if they are given."""
        order = self._sorted()
        end = len(order) if before is None else bisect_right(order, before[0] // BUCKET_MS)
        for number in reversed(order[:end]):
            for ms, name, member in sorted(self._in(number), key=_place, reverse=True):
                if before is None or (ms, name) < before:
                    yield ms, member

    def oldest(self, after: tuple[int, str] | None = None) -> Iterator[tuple[int, Member]]:
        """Members with their times, earliest first; only those after a time and name, if they are given."""
        order = self._sorted()
        begin = 0 if after is None else bisect_left(order, after[0] // BUCKET_MS)
        for number in order[begin:]:
            for ms, name, member in sorted(self._in(number), key=_place):
                if after is None or (ms, name) > after:
                    yield ms, member

    def _in(self, number: int) -> list[tuple[int, str, Member]]:
        return [(ms, member.saga, member) for member, ms in self._buckets[number].items()]

    def _sorted(self) -> list[int]:
        if self._order is None:
            self._order = sorted(self._buckets)
        return self._order


def _place(entry: tuple[int, str, object]) -> tuple[int, str]:
    return entry[:2]
