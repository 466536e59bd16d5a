"""Sagas in memory, and indexes of them by time.

The transitions of a saga are packed into bytes, so that a million sagas fit. Reading an index from either end, or from
any place, costs as much as is read, whatever its size.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from struct import Struct as Packing
from typing import Generic, Literal, NamedTuple, Protocol, TypeVar

from msgspec import Struct

from saga.monitor.views import TimelineRow

BUCKET_MS = 4000
"""Length of a bucket: only the members of one are sorted at once."""


class HasSagaId(Protocol):
    """Member: its name decides between equal times."""

    @property
    def saga(self) -> str:
        """Name of it."""


Member = TypeVar("Member", bound=HasSagaId)


class IndexSlice(NamedTuple, Generic[Member]):
    """Members of one bucket that were asked for."""

    found: list[tuple[int, Member]]
    """Each with its time, in order."""
    looked: int
    """Number of members that were looked at."""
    end: tuple[int, str]
    """Place behind which the next bucket begins."""


class TimeIndex(Generic[Member]):
    """Members with a time each, in milliseconds since 1970."""

    def __init__(self) -> None:
        self._buckets: dict[int, dict[Member, int]] = {}
        self._order: list[int] | None = []
        """Numbers of the buckets in order; `None`: there is a new one, or one less, since they were sorted."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, member: Member, ms: int) -> None:
        """Add a member that is not in the index yet."""
        number = ms // BUCKET_MS
        bucket = self._buckets.get(number)
        if bucket is None:
            bucket = self._buckets[number] = {}
            self._order = None
        bucket[member] = ms
        self._count += 1

    def remove(self, member: Member, ms: int) -> None:
        """Remove a member that is in the index with this time."""
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

    def scan(
        self, holds: Callable[[Member], bool], *, latest_first: bool, after: tuple[int, str] | None = None
    ) -> Iterator["IndexSlice[Member]"]:
        """Yield the members for which `holds` is true, bucket by bucket; only these are sorted. `after`: time and saga
        id of the last member of the page before."""
        order = self._sort_buckets()
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
            yield IndexSlice([(ms, member) for ms, _, member in found], len(bucket), (end_ms, ""))

    def iterate_oldest(self, until_ms: int | None = None) -> Iterator[tuple[int, Member]]:
        """Members with their times, earliest first; up to a time, if it is given."""
        for number in self._sort_buckets():
            if until_ms is not None and number * BUCKET_MS > until_ms:
                return
            bucket = [(ms, member.saga, member) for member, ms in self._buckets[number].items()]
            for ms, _, member in sorted(bucket, key=_place):
                if until_ms is None or ms <= until_ms:
                    yield ms, member

    def _sort_buckets(self) -> list[int]:
        if self._order is None:
            self._order = sorted(self._buckets)
        return self._order


def _place(entry: tuple[int, str, object]) -> tuple[int, str]:
    return entry[:2]


# -------------------------------------------------------------------- known


LINES_MAX = 500
"""Transitions of one saga that are kept: of more the newest. Each is counted, and known again when it comes twice."""
SPARE = 100
"""Transitions beyond that before the oldest go, all at once."""
WORDS_MAX = (1 << 16) - 1
"""Services and workers that are told apart; of all others the name is not kept."""
UNSEEN_MS = (1 << 32) - 1
"""Packed time that nobody saw."""
PACKING = Packing("<HIqIHIIH")
"""Form of a transition in the bytes of its saga."""
SIZE = PACKING.size
_entries = PACKING.iter_unpack


class TransitionFacts(NamedTuple):
    """Part of a transition that many sagas have in common."""

    handler: str
    outcome: str
    error: str
    type: str
    source: str
    emitted: tuple[str, ...]
    steps: tuple[str, ...]
    is_code: bool = False
    """True for a failure of the service's own code."""


class PackedTransition(NamedTuple):
    """Transition as it is packed: strings by their numbers in the intern table."""

    service: int
    number: int
    time_ms: int
    what: int
    attempt: int
    queued_ms: int
    handler_ms: int
    worker: int


class InternTable:
    """Strings and facts that many sagas share, each stored once and referred to by number."""

    def __init__(self) -> None:
        self.services_and_workers: list[str] = [""]
        self.facts: list[TransitionFacts] = [TransitionFacts("", "", "", "", "", (), ())]
        self._names = {"": 0}
        self._whats: dict[TransitionFacts, int] = {}

    def intern_name(self, text: str) -> int:
        """Number of a service or worker; 0 for those that are too many."""
        number = self._names.get(text)
        if number is None:
            if len(self.services_and_workers) > WORDS_MAX:
                return 0
            number = self._names[text] = len(self.services_and_workers)
            self.services_and_workers.append(text)
        return number

    def find_name(self, text: str) -> int | None:
        """Number of a service or worker, if it has one."""
        return self._names.get(text)

    def intern_facts(self, what: TransitionFacts) -> int:
        """Number of what many transitions have in common. Of too many only handler, outcome and type are kept."""
        number = self._whats.get(what)
        if number is None:
            if len(self.facts) > WORDS_MAX and (what.emitted or what.steps or what.source or what.error):
                return self.intern_facts(
                    TransitionFacts(what.handler, what.outcome, "", what.type, "", (), (), what.is_code)
                )
            number = self._whats[what] = len(self.facts)
            self.facts.append(what)
        return number

    def to_timeline_entry(self, packed: PackedTransition) -> TimelineRow:
        """Transition for people."""
        what = self.facts[packed.what]
        return TimelineRow(
            service=self.services_and_workers[packed.service],
            number=packed.number,
            time_ms=packed.time_ms,
            handler=what.handler,
            outcome=what.outcome,
            type=what.type,
            source=what.source,
            emitted=what.emitted,
            steps=what.steps,
            error=what.error,
            attempt=packed.attempt,
            worker=self.services_and_workers[packed.worker],
            queued_ms=None if packed.queued_ms == UNSEEN_MS else packed.queued_ms,
            handler_ms=None if packed.handler_ms == UNSEEN_MS else packed.handler_ms,
        )


NextRun = Literal["", "attempt", "deadline", "later"]
"""Kind of what happens at a time by itself: the next attempt, a deadline, or a run that asked for it by `Later`."""


class HandlerWait(NamedTuple):
    """Handler that waits."""

    handler: str
    types: tuple[str, ...]
    """Types of events for which it does."""
    until_ms: int
    """Time at which it goes on by itself; 0: it does not."""


class ServiceState(Struct, frozen=True, order=True, gc=False):
    """Latest state of a saga in a service. Ordered: of two with the same number the greater wins, so that the order of
    arrival does not matter."""

    service: int
    number: int
    open: bool
    due_ms: int
    """Time at which it goes on by itself; 0: no time is set."""
    next_run: NextRun
    """Kind of what happens then."""
    awaits: tuple[HandlerWait, ...]

    @property
    def is_idle(self) -> bool:
        """True if the service has nothing left to do in the saga."""
        return not (self.open or self.due_ms or self.awaits)


class TrackedSaga:
    """Saga as far as transition events report it."""

    __slots__ = (
        "_beyond",
        "began_ms",
        "changed_ms",
        "ended",
        "has_start",
        "kind",
        "packed",
        "saga",
        "service_states",
        "stuck_candidates",
    )

    def __init__(self, saga: str) -> None:
        self.saga = saga
        self.packed = b""
        self.began_ms = 0
        self.kind = ""
        """Type of the message with which it began, as far as it was told."""
        self.changed_ms = 0
        self.ended: tuple[int, str, str] | None = None
        """Time, result and event of the outcome that is the first."""
        self.has_start = False
        """True if a service has told its first transition of it: else it may have begun before all that is known."""
        self.service_states: tuple[ServiceState, ...] = ()
        """Services that expect something; all of them, once there are too many transitions to keep each."""
        self.stuck_candidates: tuple[tuple[tuple[str, ...], int], ...] = ()
        """Places in the indexes of what may be stuck, each with its time."""
        self._beyond: dict[int, int] | None = None
        """Numbers that were told, by service, as bits; `None` while each is kept."""

    def __iter__(self) -> Iterator[PackedTransition]:
        """Transitions that are kept, in the order in which they came."""
        return map(PackedTransition._make, _entries(self.packed))

    def involves(self, service: int) -> bool:
        """True if the service has told something of it."""
        if self._beyond is not None:
            return service in self._beyond
        # A saga in which no number begins with that byte, which is nearly every other one, need not be unpacked.
        return (service & 0xFF) in self.packed[::SIZE] and any(entry[0] == service for entry in _entries(self.packed))

    def list_transitions(self, service: int) -> list[PackedTransition]:
        """Transitions of a service that are kept, by number."""
        return sorted((each for each in self if each.service == service), key=lambda each: each.number)

    def find(self, service: int, number: int) -> tuple[bool, PackedTransition | None]:
        """Look whether a transition was told before, and give it if it is kept."""
        if self._beyond is not None and not self._beyond.get(service, 0) >> number & 1:
            return False, None
        for entry in _entries(self.packed):
            if entry[1] == number and entry[0] == service:
                return True, PackedTransition._make(entry)
        return self._beyond is not None, None

    def add(self, new: PackedTransition) -> None:
        """Take in a transition that was not told before."""
        self.packed += PACKING.pack(*new)
        if self._beyond is not None:
            self._beyond[new.service] = self._beyond.get(new.service, 0) | 1 << new.number
        if len(self.packed) > (LINES_MAX + SPARE) * SIZE:
            if self._beyond is None:
                self._beyond = {}
                for each in self:
                    self._beyond[each.service] = self._beyond.get(each.service, 0) | 1 << each.number
            self.packed = b"".join(PACKING.pack(*each) for each in self.list_newest())

    def list_newest(self) -> list[PackedTransition]:
        """Newest transitions, as many as are kept for good, by time."""
        return sorted(self, key=lambda each: (each.time_ms, each.service, each.number))[-LINES_MAX:]

    def replace(self, new: PackedTransition) -> None:
        """Put a transition in the place of the one with its number."""
        self.packed = b"".join(PACKING.pack(*(new if each[:2] == new[:2] else each)) for each in self)

    def forget_service(self, service: int) -> None:
        """Drop the transitions of a service whose history was rebuilt."""
        self.packed = b"".join(PACKING.pack(*each) for each in self if each.service != service)
        if self._beyond is not None:
            self._beyond.pop(service, None)
        self.service_states = tuple(each for each in self.service_states if each.service != service)

    @property
    def count(self) -> int:
        """Number of transitions that were told."""
        if self._beyond is not None:
            return sum(bits.bit_count() for bits in self._beyond.values())
        return len(self.packed) // SIZE

    @property
    def last_numbers(self) -> dict[int, int]:
        """Last number of each service."""
        if self._beyond is not None:
            return {service: bits.bit_length() - 1 for service, bits in self._beyond.items()}
        lasts: dict[int, int] = {}
        for service, number, *_ in _entries(self.packed):
            if number > lasts.get(service, -1):
                lasts[service] = number
        return lasts

    def list_numbers(self) -> Iterator[tuple[int, int]]:
        """Service and number of each transition that was told."""
        if self._beyond is None:
            yield from ((each.service, each.number) for each in self)
            return
        for service, bits in self._beyond.items():
            yield from ((service, number) for number in range(bits.bit_length()) if bits >> number & 1)

    @property
    def missing(self) -> int:
        """Number of transitions below the last of each service that were not told."""
        return sum(last + 1 for last in self.last_numbers.values()) - self.count

    def set_service_state(self, new: ServiceState, others: Sequence[ServiceState]) -> None:
        """Set the latest state of one service, beside those of the others."""
        kept = [*others] if new.is_idle and self._beyond is None else [*others, new]
        self.service_states = tuple(sorted(kept))
