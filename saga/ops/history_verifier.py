"""Witness of histories: what services told of them, compared with what their stores hold now.

A store alone cannot show that a whole earlier version lies in the place of a later one, or that nothing is left of a
saga. The topic of transitions can, for as long as it keeps them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b, sha256
from typing import NamedTuple

from msgspec import Raw

from saga.configuration.settings import Settings
from saga.errors import BadInput
from saga.messaging.transition_events import Told, from_record
from saga.ops.sources import administration_of, unmade
from saga.progress.history import Break
from saga.support.clock import Clock, from_iso, iso

CLOCKS_MS = 60_000
"""Time by which clocks may differ: nothing is called removed that may have expired."""
AGAIN = "restore it from a backup that has it, or have it made anew from the messages: saga rebuild"
BY_HAND = "look at both with the topic's records, and put right what only one of them knows of"


class History(NamedTuple):
    """One service's part in one saga."""

    service: str
    saga: str


@dataclass(slots=True)
class Seen:
    """Transitions of one history that were told."""

    marks: dict[int, int] = field(default_factory=dict)
    """Number -> digest of the hash that was told."""
    last: int = -1
    """The highest number."""
    last_ms: int = 0
    """Time of that one."""
    kept_until_ms: int | None = None
    """Time until which its service keeps the saga; `None`: it is open, and never expires."""
    forked: int | None = None
    """First number under which two transitions were told."""
    anew: str | None = None
    """Time at which `saga rebuild` made it anew: what was told before counts no more."""


@dataclass(slots=True)
class Witness:
    """All that was told of histories."""

    histories: dict[History, Seen] = field(default_factory=dict)
    strange: int = 0
    """Records on the topic that are no transitions."""

    def hear(self, told: Told) -> None:
        """Take note of a transition that was told; one may be told several times, in any order."""
        key, mark, time_ms = History(told.service, told.saga), _mark(told.hash), from_iso(told.time)
        seen = self.histories.get(key)
        if seen is None or (told.number == 0 and (_is_rebuilt(seen, told) or _is_anew(seen, mark, time_ms))):
            seen = self.histories[key] = Seen(anew=told.anew)
        known = seen.marks.setdefault(told.number, mark)
        if known != mark and (seen.forked is None or told.number < seen.forked):
            seen.forked = told.number
        if told.number >= seen.last:
            seen.last, seen.last_ms = told.number, time_ms
            seen.kept_until_ms = None if told.kept_s is None else time_ms + told.kept_s * 1000

    def compared(self, history: History, transitions: Sequence[Raw]) -> "Contradiction | None":
        """The first contradiction between what was told and a whole history that agrees with itself."""
        seen = self.histories.get(history)
        if seen is None:
            return None
        if seen.forked is not None:
            n = seen.forked
            what = (
                f"two transitions {n} were written, one after another: the store lost one that it had acknowledged, "
                "or an earlier version was put in the place of a later one while the service ran"
            )
            return Contradiction(Break(n, what), BY_HAND)
        for n, raw in enumerate(transitions):
            if seen.marks.get(n, mark := _mark(sha256(bytes(raw)).hexdigest())) != mark:
                what = f"transition {n} is not the one that was told: another history is in the place of this one"
                return Contradiction(Break(n, what), AGAIN)
        count = len(transitions)
        if seen.last >= count:
            what = (
                f"transition {seen.last} was told, of {iso(seen.last_ms)}, and only {count} are there: an earlier "
                "version is in the place of a later one"
            )
            return Contradiction(Break(count, what), AGAIN)
        return None

    def is_witnessed(self, history: History, count: int) -> bool | None:
        """True if the last of so many transitions was told; `None` if none of this history was."""
        seen = self.histories.get(history)
        return None if seen is None else seen.last >= count - 1

    def is_anew(self, history: History) -> bool:
        """True if `saga rebuild` said that it made the history anew."""
        seen = self.histories.get(history)
        return seen is not None and seen.anew is not None

    def removed(self, history: History, now_ms: int) -> "Contradiction | None":
        """The contradiction that there is no document of a history, if it cannot have expired by now."""
        seen = self.histories[history]
        until_ms = seen.kept_until_ms
        if until_ms is not None and now_ms > until_ms - CLOCKS_MS:
            return None
        kept = "it is open, and never expires" if until_ms is None else f"it is kept until {iso(until_ms)}"
        what = f"nothing is there of it, and transition {seen.last} was told, of {iso(seen.last_ms)}: {kept}"
        return Contradiction(Break(seen.last, what), AGAIN)

    def of(self, services: Sequence[str], saga: str | None) -> Iterator[History]:
        """Histories of these services, of all sagas or of one."""
        for history in self.histories:
            if history.service in services and saga in (None, history.saga):
                yield history


class Contradiction(NamedTuple):
    """Difference between what was told and what is there, and what to do."""

    broken: Break
    todo: str


def _mark(hash_: str) -> int:
    return int.from_bytes(blake2b(hash_.encode(), digest_size=8).digest())


def _is_rebuilt(seen: Seen, told: Told) -> bool:
    """True for the first transition of a history that was made anew, as `saga rebuild` tells it."""
    return told.anew is not None and told.anew != seen.anew


def _is_anew(seen: Seen, mark: int, time_ms: int) -> bool:
    """True for the first transition of a saga whose id was used before, and forgotten."""
    until_ms = seen.kept_until_ms
    return seen.marks.get(0) != mark and until_ms is not None and time_ms > until_ms - CLOCKS_MS


async def witness_of(settings: Settings, clock: Clock, saga: str | None = None) -> Witness | str:
    """All that the topic still tells of histories, of all sagas or of one; or the reason that there is no witness.
    Raises `SagaError` for a broker that cannot be read."""
    topic = settings.told
    if topic is None:
        return "SAGA_TRANSITIONS is off"
    if (file := unmade(settings)) is not None:
        return f"no file {file}: say with SAGA_BROKER where the log is"
    found = Witness()
    async with administration_of(settings, clock) as broker:
        if not await broker.found([topic.name]):
            return f"there is no topic {topic.name}: saga topics apply MODULES makes it"
        async for record in broker.scan(topic.name):
            try:
                several = from_record(record)
            except BadInput:
                found.strange += 1
                continue
            for told in several:
                if saga in (None, told.saga):
                    found.hear(told)
    return found
