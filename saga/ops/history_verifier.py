"""Verification of histories: checks of their hash chains, and comparison with the transition events on
`saga.transitions`.

A store alone cannot show that a document was removed, or that it was replaced with an earlier version of itself. The
transition events can show this while their topic keeps them.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b, sha256
from typing import NamedTuple

from msgspec import Raw

from saga.configuration.settings import Settings
from saga.errors import BadInput
from saga.messaging.transition_events import TransitionEvent, parse_transitions
from saga.ops.histories import UnreadableHistory, complete_history, decode_progress, read_document, read_documents
from saga.ops.selection import Deployment
from saga.ops.sources import ServiceStore, missing_broker_file, open_administration
from saga.progress.document import UNREADABLE
from saga.progress.history import HistoryDefect, verify_history
from saga.progress.integrity import has_digests
from saga.store.port import Document
from saga.support.clock import Clock, from_iso, iso

CLOCKS_MS = 60_000
"""Assumed maximum difference between clocks, in milliseconds. A missing document is not reported as removed if it may
have expired by a clock that is ahead by this much."""
AGAIN = "restore it from a backup that has it, or rebuild it from the messages: saga sagas rebuild"
BY_HAND = "compare both with the records of the topic, and correct what only one of them contains"


class HistoryId(NamedTuple):
    """Identity of a history: its service and its saga."""

    service: str
    saga: str


@dataclass(slots=True)
class PublishedHistory:
    """The published transition events of one history."""

    digests: dict[int, int] = field(default_factory=dict)
    """Digest of the published hash of each transition, by the transition's number."""
    last: int = -1
    """Highest number of a published transition; -1 if there is none."""
    last_ms: int = 0
    """Time of the transition with the highest number, in milliseconds since 1970."""
    kept_until_ms: int | None = None
    """Time until which the service keeps the saga; `None` if the saga is open and therefore never expires."""
    forked: int | None = None
    """Lowest number under which two different transitions were published; `None` if there is none."""
    rebuilt: str | None = None
    """Time at which `saga sagas rebuild` rebuilt the history; `None` if it was not rebuilt. Earlier events are
    ignored."""


@dataclass(slots=True)
class HistoryVerifier:
    """Compares the histories in the services' stores with the transition events that the services have published.

    `add` every published event first. Then `compare` each history, and look for removed ones with `find_removed`.
    """

    histories: dict[HistoryId, PublishedHistory] = field(default_factory=dict)
    strange: int = 0
    """Number of records on the topic that are not transition events."""

    def add(self, event: TransitionEvent) -> None:
        """Add a published transition event. Events may be added in any order, and the same event more than once."""
        key, digest, time_ms = HistoryId(event.service, event.saga), _digest(event.hash), from_iso(event.time)
        seen = self.histories.get(key)
        if seen is None or (event.number == 0 and (_is_rebuilt(seen, event) or _is_id_reused(seen, digest, time_ms))):
            seen = self.histories[key] = PublishedHistory(rebuilt=event.rebuilt_at)
        first = seen.digests.setdefault(event.number, digest)
        if first != digest and (seen.forked is None or event.number < seen.forked):
            seen.forked = event.number
        if event.number >= seen.last:
            seen.last, seen.last_ms = event.number, time_ms
            seen.kept_until_ms = None if event.kept_s is None else time_ms + event.kept_s * 1000

    def compare(self, history: HistoryId, transitions: Sequence[Raw]) -> "Contradiction | None":
        """Compare a complete history, whose hash chain is valid, with the published events. Return the first
        contradiction; `None` if there is none."""
        seen = self.histories.get(history)
        if seen is None:
            return None
        if seen.forked is not None:
            n = seen.forked
            what = (
                f"two different transitions {n} were written: the store lost one that it had acknowledged, or the "
                "document was replaced by an earlier version while the service ran"
            )
            return Contradiction(HistoryDefect(n, what), BY_HAND)
        for n, raw in enumerate(transitions):
            if seen.digests.get(n, digest := _digest(sha256(bytes(raw)).hexdigest())) != digest:
                what = f"transition {n} is not the published one: this history was replaced by another one"
                return Contradiction(HistoryDefect(n, what), AGAIN)
        count = len(transitions)
        if seen.last >= count:
            what = (
                f"transition {seen.last} was published, of {iso(seen.last_ms)}, and the store has only {count}: the "
                "document was replaced by an earlier version"
            )
            return Contradiction(HistoryDefect(count, what), AGAIN)
        return None

    def is_published(self, history: HistoryId, count: int) -> bool | None:
        """Return whether the last of a history's `count` transitions was published; `None` if none of them was."""
        seen = self.histories.get(history)
        return None if seen is None else seen.last >= count - 1

    def is_rebuilt(self, history: HistoryId) -> bool:
        """Return whether the published events of a history come from `saga sagas rebuild`."""
        seen = self.histories.get(history)
        return seen is not None and seen.rebuilt is not None

    def find_removed(self, history: HistoryId, now_ms: int) -> "Contradiction | None":
        """Return a contradiction for a history that was published and has no document; `None` if the document may have
        expired."""
        seen = self.histories[history]
        until_ms = seen.kept_until_ms
        if until_ms is not None and now_ms > until_ms - CLOCKS_MS:
            return None
        expiry = "it is open, and never expires" if until_ms is None else f"it is kept until {iso(until_ms)}"
        what = f"the store has no document, and transition {seen.last} was published, of {iso(seen.last_ms)}: {expiry}"
        return Contradiction(HistoryDefect(seen.last, what), AGAIN)

    @property
    def services(self) -> frozenset[str]:
        """Services that published transition events."""
        return frozenset(history.service for history in self.histories)

    def histories_of(self, services: Collection[str], saga: str | None) -> Iterator[HistoryId]:
        """Yield the ids of the published histories of these services: of all sagas, or of `saga` alone."""
        for history in self.histories:
            if history.service in services and saga in (None, history.saga):
                yield history


class Contradiction(NamedTuple):
    """A difference between the published events and the store, and what to do about it."""

    broken: HistoryDefect
    todo: str


def _digest(hash_: str) -> int:
    return int.from_bytes(blake2b(hash_.encode(), digest_size=8).digest())


def _is_rebuilt(seen: PublishedHistory, event: TransitionEvent) -> bool:
    """Return whether this event, which is the first of a history, begins a history that `saga sagas rebuild` has
    rebuilt."""
    return event.rebuilt_at is not None and event.rebuilt_at != seen.rebuilt


def _is_id_reused(seen: PublishedHistory, digest: int, time_ms: int) -> bool:
    """Return whether this event, which is the first of a history, begins a new saga with the id of an expired one."""
    until_ms = seen.kept_until_ms
    return seen.digests.get(0) != digest and until_ms is not None and time_ms > until_ms - CLOCKS_MS


async def read_published_histories(settings: Settings, clock: Clock, saga: str | None = None) -> HistoryVerifier | str:
    """Read the transition events of all sagas, or of one. If there can be no events, return the reason as a string
    instead. Raises `SagaError` if the broker cannot be read."""
    topic = settings.transition_topic
    if topic is None:
        return "SAGA_TRANSITIONS is off"
    if (file := missing_broker_file(settings)) is not None:
        return f"no file {file}: say with SAGA_BROKER where the log is"
    found = HistoryVerifier()
    async with open_administration(settings, clock) as broker:
        if not await broker.describe_topics([topic.name]):
            return f"there is no topic {topic.name}: saga topics apply MODULES makes it"
        async for record in broker.scan(topic.name):
            try:
                several = parse_transitions(record)
            except BadInput:
                found.strange += 1
                continue
            for event in several:
                if saga in (None, event.saga):
                    found.add(event)
    return found


# -------------------------------------------------------------------- history check


NOT_COMPARED = "not compared"


@dataclass(frozen=True, slots=True)
class BrokenHistory:
    """A history with a defect."""

    saga: str
    service: str
    transition: int | None
    """Number of the defective transition; `None` if the whole document cannot be read."""
    what: str
    todo: str = ""


@dataclass(slots=True)
class VerificationReport:
    """Numbers of verified histories, and the defects that were found."""

    histories: int = 0
    """Number of histories. There is one for each saga and service."""
    transitions: int = 0
    services: list[str] = field(default_factory=list)
    older: int = 0
    """Number of histories with transitions from an older version of saga, which wrote no integrity digests. It cannot
    be verified that such a history belongs to its saga, and of its snapshot only the state is verified."""
    broken: list[BrokenHistory] = field(default_factory=list)
    alone: str | None = None
    """Reason why histories were not compared with published events; `None` if they were."""
    witnessed: int = 0
    """Number of histories whose last transition was published and is the same in the store."""
    in_part: int = 0
    """Number of histories of which only earlier transitions were published, but not the last one."""
    rebuilt: int = 0
    """Number of histories that `saga sagas rebuild` has rebuilt. They were not compared with events from before."""
    strange: int = 0
    """Number of records on the topic that are not transition events."""
    without_store: dict[str, int] = field(default_factory=dict)
    """Services of which no store was read, each with the number of its published histories that cannot have expired."""


async def verify_histories(
    deployment: Deployment, saga: str | None = None, witness: HistoryVerifier | str = NOT_COMPARED
) -> VerificationReport:
    """Verify the histories of all sagas, or of one, in all stores.

    Args:
        saga: The only saga to verify; `None` for all.
        witness: The published transition events to compare with, or the reason why there are none.
    """
    async with deployment.open_stores() as sources:
        return await verify_stores(sources, deployment.clock, saga, witness)


async def verify_stores(
    sources: Sequence[ServiceStore],
    clock: Clock,
    saga: str | None = None,
    witness: HistoryVerifier | str = NOT_COMPARED,
) -> VerificationReport:
    """Verify the histories in these stores, as `verify_histories` does."""
    found = VerificationReport()
    if isinstance(witness, str):
        found.alone, witness = witness, HistoryVerifier()
    found.strange = witness.strange
    there = set[HistoryId]()
    for source in sources:
        found.services.append(source.service)
        if saga is not None:
            if await _verify_saga(found, source, saga, witness):
                there.add(HistoryId(source.service, saga))
            continue
        async for each, document in read_documents(source):
            there.add(HistoryId(source.service, each))
            await _verify_document(found, source, each, document, witness)
    for history in witness.histories_of(found.services, saga):
        if history not in there and (removed := witness.find_removed(history, clock.now_ms())) is not None:
            found.histories += 1
            found.broken.append(_broken_history(history, removed))
    for history in witness.histories_of(witness.services - {*found.services}, saga):
        if witness.find_removed(history, clock.now_ms()) is not None:
            found.without_store[history.service] = found.without_store.get(history.service, 0) + 1
    return found


def _broken_history(history: HistoryId, why: Contradiction) -> BrokenHistory:
    return BrokenHistory(history.saga, history.service, why.broken.n, why.broken.what, why.todo)


async def _verify_saga(found: VerificationReport, source: ServiceStore, saga: str, witness: HistoryVerifier) -> bool:
    """Verify one saga in one service. Return whether the service has a document of it."""
    try:
        document = await read_document(source, saga)
    except UnreadableHistory as why:
        found.histories += 1
        found.broken.append(BrokenHistory(saga, source.service, None, str(why)))
        return True
    if document is not None:
        await _verify_document(found, source, saga, document, witness)
    return document is not None


async def _verify_document(
    found: VerificationReport, source: ServiceStore, saga: str, document: Document, witness: HistoryVerifier
) -> None:
    """Verify one history, and add it and its first defect to the report."""
    found.histories += 1
    n, what, history = None, None, HistoryId(source.service, saga)
    try:
        whole = await complete_history(source, decode_progress(source, saga, document))
        found.transitions += len(whole.transitions)
        p = whole.progress
        if (p.saga, p.service) != (saga, source.service):
            what = f"it is of saga {p.saga} in {p.service}, under the key of another"
        elif broken := verify_history(whole.transitions, p):
            n, what = broken.n, broken.what
        elif (contradiction := witness.compare(history, whole.transitions)) is not None:
            found.broken.append(_broken_history(history, contradiction))
            return
        else:
            found.older += not has_digests(whole.entries)
            is_witnessed = witness.is_published(history, len(whole.transitions))
            found.witnessed += is_witnessed is True
            found.in_part += is_witnessed is False
            found.rebuilt += witness.is_rebuilt(history)
    except UnreadableHistory as why:
        what = str(why)
    except UNREADABLE as why:
        what = f"a transition cannot be read: {why}"
    if what is not None:
        found.broken.append(BrokenHistory(saga, source.service, n, what))
