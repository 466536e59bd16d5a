"""Memory of one saga: its transitions packed into bytes, so that there is room for a million sagas, and what each
service said of it last."""

from collections.abc import Iterator, Sequence
from struct import Struct as Packing
from typing import Literal, NamedTuple

from msgspec import Struct

from saga.monitor.views import Line

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


class What(NamedTuple):
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


class Packed(NamedTuple):
    """Transition as it is packed: words by their numbers."""

    service: int
    number: int
    time_ms: int
    what: int
    attempt: int
    queued_ms: int
    handler_ms: int
    worker: int


class Words:
    """Words of all sagas, each kept once."""

    def __init__(self) -> None:
        self.names: list[str] = [""]
        self.whats: list[What] = [What("", "", "", "", "", (), ())]
        self._names = {"": 0}
        self._whats: dict[What, int] = {}

    def name(self, text: str) -> int:
        """Number of a service or worker; 0 for those that are too many."""
        number = self._names.get(text)
        if number is None:
            if len(self.names) > WORDS_MAX:
                return 0
            number = self._names[text] = len(self.names)
            self.names.append(text)
        return number

    def known(self, text: str) -> int | None:
        """Number of a service or worker, if it has one."""
        return self._names.get(text)

    def what(self, what: What) -> int:
        """Number of what many transitions have in common. Of too many only handler, outcome and type are kept."""
        number = self._whats.get(what)
        if number is None:
            if len(self.whats) > WORDS_MAX and (what.emitted or what.steps or what.source or what.error):
                return self.what(What(what.handler, what.outcome, "", what.type, "", (), (), what.is_code))
            number = self._whats[what] = len(self.whats)
            self.whats.append(what)
        return number

    def line(self, packed: Packed) -> Line:
        """Transition for people."""
        what = self.whats[packed.what]
        return Line(
            service=self.names[packed.service],
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
            worker=self.names[packed.worker],
            queued_ms=None if packed.queued_ms == UNSEEN_MS else packed.queued_ms,
            handler_ms=None if packed.handler_ms == UNSEEN_MS else packed.handler_ms,
        )


Goes = Literal["", "attempt", "deadline", "later"]
"""Kind of what happens at a time by itself: the next attempt, a deadline, or a run that asked for it by `Later`."""


class Awaits(NamedTuple):
    """Handler that waits."""

    handler: str
    types: tuple[str, ...]
    """Types of events for which it does."""
    until_ms: int
    """Time at which it goes on by itself; 0: it does not."""


class Standing(Struct, frozen=True, order=True, gc=False):
    """Last word of a service on a saga. Ordered: of two by one number the greater counts, whichever came first."""

    service: int
    number: int
    open: bool
    due_ms: int
    """Time at which it goes on by itself; 0: no time is set."""
    goes: Goes
    """Kind of what happens then."""
    awaits: tuple[Awaits, ...]

    @property
    def is_quiet(self) -> bool:
        """True if nothing is expected of the service."""
        return not (self.open or self.due_ms or self.awaits)


class Known:
    """Saga as far as it was told."""

    __slots__ = ("_beyond", "began_ms", "changed_ms", "ended", "kind", "packed", "places", "saga", "standings", "whole")

    def __init__(self, saga: str) -> None:
        self.saga = saga
        self.packed = b""
        self.began_ms = 0
        self.kind = ""
        """Type of the message with which it began, as far as it was told."""
        self.changed_ms = 0
        self.ended: tuple[int, str, str] | None = None
        """Time, result and event of the outcome that is the first."""
        self.whole = False
        """True if a service has told its first transition of it: else it may have begun before all that is known."""
        self.standings: tuple[Standing, ...] = ()
        """Services that expect something; all of them, once there are too many transitions to keep each."""
        self.places: tuple[tuple[tuple[str, ...], int], ...] = ()
        """Places in the indexes of what may be stuck, each with its time."""
        self._beyond: dict[int, int] | None = None
        """Numbers that were told, by service, as bits; `None` while each is kept."""

    def __iter__(self) -> Iterator[Packed]:
        """Transitions that are kept, in the order in which they came."""
        return map(Packed._make, _entries(self.packed))

    def has(self, service: int) -> bool:
        """True if the service has told something of it."""
        if self._beyond is not None:
            return service in self._beyond
        # A saga in which no number begins with that byte, which is nearly every other one, need not be unpacked.
        return (service & 0xFF) in self.packed[::SIZE] and any(entry[0] == service for entry in _entries(self.packed))

    def of(self, service: int) -> list[Packed]:
        """Transitions of a service that are kept, by number."""
        return sorted((each for each in self if each.service == service), key=lambda each: each.number)

    def find(self, service: int, number: int) -> tuple[bool, Packed | None]:
        """Look whether a transition was told before, and give it if it is kept."""
        if self._beyond is not None and not self._beyond.get(service, 0) >> number & 1:
            return False, None
        for entry in _entries(self.packed):
            if entry[1] == number and entry[0] == service:
                return True, Packed._make(entry)
        return self._beyond is not None, None

    def add(self, new: Packed) -> None:
        """Take in a transition that was not told before."""
        self.packed += PACKING.pack(*new)
        if self._beyond is not None:
            self._beyond[new.service] = self._beyond.get(new.service, 0) | 1 << new.number
        if len(self.packed) > (LINES_MAX + SPARE) * SIZE:
            if self._beyond is None:
                self._beyond = {}
                for each in self:
                    self._beyond[each.service] = self._beyond.get(each.service, 0) | 1 << each.number
            self.packed = b"".join(PACKING.pack(*each) for each in self.newest())

    def newest(self) -> list[Packed]:
        """Newest transitions, as many as are kept for good, by time."""
        return sorted(self, key=lambda each: (each.time_ms, each.service, each.number))[-LINES_MAX:]

    def put(self, new: Packed) -> None:
        """Put a transition in the place of the one with its number."""
        self.packed = b"".join(PACKING.pack(*(new if each[:2] == new[:2] else each)) for each in self)

    def forget(self, service: int) -> None:
        """Forget what a service told: its history was made anew."""
        self.packed = b"".join(PACKING.pack(*each) for each in self if each.service != service)
        if self._beyond is not None:
            self._beyond.pop(service, None)
        self.standings = tuple(each for each in self.standings if each.service != service)

    @property
    def count(self) -> int:
        """Number of transitions that were told."""
        if self._beyond is not None:
            return sum(bits.bit_count() for bits in self._beyond.values())
        return len(self.packed) // SIZE

    @property
    def lasts(self) -> dict[int, int]:
        """Last number of each service."""
        if self._beyond is not None:
            return {service: bits.bit_length() - 1 for service, bits in self._beyond.items()}
        lasts: dict[int, int] = {}
        for service, number, *_ in _entries(self.packed):
            if number > lasts.get(service, -1):
                lasts[service] = number
        return lasts

    def numbers(self) -> Iterator[tuple[int, int]]:
        """Service and number of each transition that was told."""
        if self._beyond is None:
            yield from ((each.service, each.number) for each in self)
            return
        for service, bits in self._beyond.items():
            yield from ((service, number) for number in range(bits.bit_length()) if bits >> number & 1)

    @property
    def missing(self) -> int:
        """Number of transitions below the last of each service that were not told."""
        return sum(last + 1 for last in self.lasts.values()) - self.count

    def stands(self, new: Standing, others: Sequence[Standing]) -> None:
        """Note what a service expects, beside the others."""
        kept = [*others] if new.is_quiet and self._beyond is None else [*others, new]
        self.standings = tuple(sorted(kept))
