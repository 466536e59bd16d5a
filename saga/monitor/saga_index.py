"""Sagas in memory, and indexes of them by time.

The transitions of a saga are packed into bytes, so that a million sagas fit into memory. An index can be read from
either end, or from any position. This takes time in proportion to what is read, not to the size of the index.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from struct import Struct as Packing
from typing import Generic, Literal, NamedTuple, Protocol, TypeVar

from msgspec import Struct

from saga.monitor.views import TimelineRow

BUCKET_MS = 4000
"""Length of a bucket in milliseconds. It is short, because a scan sorts one bucket at a time."""


class HasSagaId(Protocol):
    """A member of an index. Its saga id orders members with equal times."""

    @property
    def saga(self) -> str:
        """Saga id."""


Member = TypeVar("Member", bound=HasSagaId)


class IndexSlice(NamedTuple, Generic[Member]):
    """The members of one bucket that match a scan."""

    found: list[tuple[int, Member]]
    """The matching members with their times, in the order of the scan."""
    looked: int
    """Number of members of the bucket that were examined."""
    end: tuple[int, str]
    """Cursor from which a scan continues with the next bucket."""


class TimeIndex(Generic[Member]):
    """Index of members, sorted by a time in milliseconds since 1970."""

    def __init__(self) -> None:
        self._buckets: dict[int, dict[Member, int]] = {}
        self._order: list[int] | None = []
        """Sorted bucket numbers; `None` if a bucket was added or removed since they were sorted."""
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
        """Change the time of a member."""
        if old_ms // BUCKET_MS == new_ms // BUCKET_MS:
            self._buckets[old_ms // BUCKET_MS][member] = new_ms
        else:
            self.remove(member, old_ms)
            self.add(member, new_ms)

    def scan(
        self, holds: Callable[[Member], bool], *, latest_first: bool, after: tuple[int, str] | None = None
    ) -> Iterator["IndexSlice[Member]"]:
        """Yield the members for which `holds` is true, bucket by bucket. Only these members are sorted.

        `after`: time and saga id of the last member of the previous page; `None` for the first page.
        """
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

    def iterate_oldest(self, until_ms: int | None = None, since_ms: int = 0) -> Iterator[tuple[int, Member]]:
        """Yield members with their times, earliest first. Only times from `since_ms` on are included, and up to
        `until_ms` if it is given."""
        order = self._sort_buckets()
        for number in order[bisect_left(order, since_ms // BUCKET_MS) :]:
            if until_ms is not None and number * BUCKET_MS > until_ms:
                return
            bucket = [(ms, member.saga, member) for member, ms in self._buckets[number].items()]
            for ms, _, member in sorted(bucket, key=_place):
                if since_ms <= ms and (until_ms is None or ms <= until_ms):
                    yield ms, member

    def count_until(self, until_ms: int) -> int:
        """Return the number of members with a time up to `until_ms`."""
        last = until_ms // BUCKET_MS
        whole = sum(len(bucket) for number, bucket in self._buckets.items() if number < last)
        return whole + sum(ms <= until_ms for ms in self._buckets.get(last, {}).values())

    def _sort_buckets(self) -> list[int]:
        if self._order is None:
            self._order = sorted(self._buckets)
        return self._order


def _place(entry: tuple[int, str, object]) -> tuple[int, str]:
    return entry[:2]


# -------------------------------------------------------------------- known


LINES_MAX = 500
"""Maximum number of transitions that are kept per saga. These are the newest ones.

Of older transitions only the numbers are kept, so that duplicates are recognised.
"""
SPARE = 100
"""A saga may have this many transitions more than `LINES_MAX`. When it has more, all above `LINES_MAX` are dropped at
once, the oldest first."""
WORDS_MAX = (1 << 16) - 1
"""Maximum number of names of services and workers that are stored. All further names share the number 0, which has no
name."""
WORKERS_MAX = 1 << 15
"""Number of names up to which the name of a new worker is stored. Each start of a process makes another name, so
workers alone would use up the numbers, and leave none to a new service."""
UNSEEN_MS = (1 << 32) - 1
"""Packed value of a duration that is unknown."""
PACKING = Packing("<HIqIHIIH")
"""Binary layout of a transition within the bytes of its saga."""
SIZE = PACKING.size
_entries = PACKING.iter_unpack


class TransitionFacts(NamedTuple):
    """The part of a transition that is the same in many sagas. It is stored only once."""

    handler: str
    outcome: str
    error: str
    type: str
    source: str
    emitted: tuple[str, ...]
    steps: tuple[str, ...]
    is_code: bool = False
    """True if the service's own code failed."""
    closed: tuple[str, ...] = ()
    """Handlers whose parked run or dead letter has ended with the transition."""


class PackedTransition(NamedTuple):
    """A transition in packed form. Strings are replaced with their numbers in the intern table."""

    service: int
    number: int
    time_ms: int
    what: int
    attempt: int
    queued_ms: int
    handler_ms: int
    worker: int


class InternTable:
    """Strings and facts that many sagas share. Each is stored once and referred to by its number."""

    def __init__(self) -> None:
        self.services_and_workers: list[str] = [""]
        self.facts: list[TransitionFacts] = [TransitionFacts("", "", "", "", "", (), ())]
        self._names = {"": 0}
        self._whats: dict[TransitionFacts, int] = {}

    def intern_name(self, text: str) -> int:
        """Return the number of the name of a service or worker. A new name gets a new number, or 0 if there are too
        many names."""
        number = self._names.get(text)
        if number is None:
            if len(self.services_and_workers) > WORDS_MAX:
                return 0
            number = self._names[text] = len(self.services_and_workers)
            self.services_and_workers.append(text)
        return number

    def intern_worker(self, text: str) -> int:
        """Return the number of the name of a worker; 0 if there are too many names to add one of a worker."""
        is_full = len(self.services_and_workers) > WORKERS_MAX
        return self._names.get(text, 0) if is_full else self.intern_name(text)

    def find_name(self, text: str) -> int | None:
        """Return the number of the name of a service or worker; `None` if it has none."""
        return self._names.get(text)

    def intern_facts(self, what: TransitionFacts) -> int:
        """Return the index of these facts in `facts`. New facts are added. If there are too many, only handler, outcome
        and type are kept of them."""
        number = self._whats.get(what)
        if number is None:
            if len(self.facts) > WORDS_MAX and (what.emitted or what.steps or what.source or what.error):
                return self.intern_facts(
                    TransitionFacts(what.handler, what.outcome, "", what.type, "", (), (), what.is_code, what.closed)
                )
            number = self._whats[what] = len(self.facts)
            self.facts.append(what)
        return number

    def to_timeline_entry(self, packed: PackedTransition) -> TimelineRow:
        """Convert a packed transition to a timeline row."""
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
"""Kind of run with which a service resumes the saga at a set time: the next attempt of a run, a deadline, or the next
part of a run that `Later` suspended. Empty if no time is set."""


class HandlerWait(NamedTuple):
    """A handler that waits for events."""

    handler: str
    types: tuple[str, ...]
    """Types of the events that the handler waits for."""
    until_ms: int
    """Time at which the handler runs even without an event; 0 if there is no such time."""


class ServiceState(Struct, frozen=True, order=True, gc=False):
    """The latest state of a saga in a service.

    States are ordered. If two states have the same transition number, the greater one is kept, so that the order of
    arrival does not matter.
    """

    service: int
    number: int
    open: bool
    due_ms: int
    """Time at which the service resumes the saga by itself; 0 if no time is set."""
    next_run: NextRun
    """What happens at `due_ms`."""
    awaits: tuple[HandlerWait, ...]
    postponed_by: str = ""
    """Class of the reason that postpones the parked run, such as `BreakerOpen`; empty if the run is not postponed."""

    @property
    def is_idle(self) -> bool:
        """True if the service has nothing left to do in the saga."""
        return not (self.open or self.due_ms or self.awaits)


class TrackedSaga:
    """A saga as reported by transition events."""

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
        """Type of the message that started the saga, if known."""
        self.changed_ms = 0
        self.ended: tuple[int, str, str] | None = None
        """Time, result and event type of the first outcome; `None` if there is none."""
        self.has_start = False
        """True if some service has reported its first transition. If not, the saga may be older than all known
        transitions.
        """
        self.service_states: tuple[ServiceState, ...] = ()
        """States of the services that wait for something. If the saga has too many transitions to keep, states of all
        services.
        """
        self.stuck_candidates: tuple[tuple[tuple[str, ...], int], ...] = ()
        """Reasons and times under which the indexes of sagas that may be stuck contain this saga."""
        self._beyond: dict[int, int] | None = None
        """For each service, a bit set of the numbers of the transitions that were seen; `None` while every transition
        is kept.
        """

    def __iter__(self) -> Iterator[PackedTransition]:
        """Yield the kept transitions in order of arrival."""
        return map(PackedTransition._make, _entries(self.packed))

    def involves(self, service: int) -> bool:
        """Return whether a service has reported a transition of this saga."""
        if self._beyond is not None:
            return service in self._beyond
        # Nearly all sagas contain no number that begins with this byte, so they need not be unpacked.
        return (service & 0xFF) in self.packed[::SIZE] and any(entry[0] == service for entry in _entries(self.packed))

    def list_transitions(self, service: int) -> list[PackedTransition]:
        """Return the kept transitions of a service, ordered by number."""
        return sorted((each for each in self if each.service == service), key=lambda each: each.number)

    def find(self, service: int, number: int) -> tuple[bool, PackedTransition | None]:
        """Return whether a transition was seen before, and the transition itself (`None` if it is not kept)."""
        if self._beyond is not None and not self._beyond.get(service, 0) >> number & 1:
            return False, None
        for entry in _entries(self.packed):
            if entry[1] == number and entry[0] == service:
                return True, PackedTransition._make(entry)
        return self._beyond is not None, None

    def add(self, new: PackedTransition) -> None:
        """Add a transition that was not seen before."""
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
        """Return the newest transitions, ordered by time; at most `LINES_MAX`."""
        return sorted(self, key=lambda each: (each.time_ms, each.service, each.number))[-LINES_MAX:]

    def replace(self, new: PackedTransition) -> None:
        """Replace the transition with the same service and number."""
        self.packed = b"".join(PACKING.pack(*(new if each[:2] == new[:2] else each)) for each in self)

    def forget_service(self, service: int) -> None:
        """Drop the transitions of a service whose history was rebuilt."""
        self.packed = b"".join(PACKING.pack(*each) for each in self if each.service != service)
        if self._beyond is not None:
            self._beyond.pop(service, None)
        self.service_states = tuple(each for each in self.service_states if each.service != service)

    @property
    def count(self) -> int:
        """Number of transitions that were seen."""
        if self._beyond is not None:
            return sum(bits.bit_count() for bits in self._beyond.values())
        return len(self.packed) // SIZE

    @property
    def last_numbers(self) -> dict[int, int]:
        """The highest transition number of each service."""
        if self._beyond is not None:
            return {service: bits.bit_length() - 1 for service, bits in self._beyond.items()}
        lasts: dict[int, int] = {}
        for service, number, *_ in _entries(self.packed):
            if number > lasts.get(service, -1):
                lasts[service] = number
        return lasts

    def list_numbers(self) -> Iterator[tuple[int, int]]:
        """Yield the service and the number of each transition that was seen."""
        if self._beyond is None:
            yield from ((each.service, each.number) for each in self)
            return
        for service, bits in self._beyond.items():
            yield from ((service, number) for number in range(bits.bit_length()) if bits >> number & 1)

    @property
    def missing(self) -> int:
        """Number of transitions that were not seen although the same service reported one with a higher number."""
        return sum(last + 1 for last in self.last_numbers.values()) - self.count

    def set_service_state(self, new: ServiceState, others: Sequence[ServiceState]) -> None:
        """Set the latest state of one service. `others`: the states of the other services."""
        states = [*others] if new.is_idle and self._beyond is None else [*others, new]
        self.service_states = tuple(sorted(states))
