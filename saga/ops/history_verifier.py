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
from saga.ops.histories import UnreadableHistory, complete_history, decode_progress, read_document, read_documents
from saga.ops.selection import Deployment
from saga.ops.sources import ServiceStore, missing_broker_file, open_administration
from saga.progress.document import UNREADABLE
from saga.progress.history import HistoryDefect, verify_history
from saga.progress.integrity import has_digests
from saga.store.port import Document
from saga.support.clock import Clock, from_iso, iso

CLOCKS_MS = 60_000
"""Time by which clocks may differ: nothing is called removed that may have expired."""
AGAIN = "restore it from a backup that has it, or have it made anew from the messages: saga sagas rebuild"
BY_HAND = "look at both with the topic's records, and put right what only one of them knows of"


class HistoryId(NamedTuple):
    """One service's part in one saga."""

    service: str
    saga: str


@dataclass(slots=True)
class PublishedHistory:
    """Transitions of one history that were told."""

    digests: dict[int, int] = field(default_factory=dict)
    """Number -> digest of the hash that was told."""
    last: int = -1
    """The highest number."""
    last_ms: int = 0
    """Time of that one."""
    kept_until_ms: int | None = None
    """Time until which its service keeps the saga; `None`: it is open, and never expires."""
    forked: int | None = None
    """First number under which two transitions were told."""
    rebuilt: str | None = None
    """Time at which `saga sagas rebuild` made it anew: what was told before counts no more."""


@dataclass(slots=True)
class HistoryVerifier:
    """All that was told of histories."""

    histories: dict[HistoryId, PublishedHistory] = field(default_factory=dict)
    strange: int = 0
    """Records on the topic that are no transitions."""

    def add(self, told: Told) -> None:
        """Take note of a transition that was told; one may be told several times, in any order."""
        key, mark, time_ms = HistoryId(told.service, told.saga), _digest(told.hash), from_iso(told.time)
        seen = self.histories.get(key)
        if seen is None or (told.number == 0 and (_is_rebuilt(seen, told) or _is_id_reused(seen, mark, time_ms))):
            seen = self.histories[key] = PublishedHistory(rebuilt=told.anew)
        known = seen.digests.setdefault(told.number, mark)
        if known != mark and (seen.forked is None or told.number < seen.forked):
            seen.forked = told.number
        if told.number >= seen.last:
            seen.last, seen.last_ms = told.number, time_ms
            seen.kept_until_ms = None if told.kept_s is None else time_ms + told.kept_s * 1000

    def compare(self, history: HistoryId, transitions: Sequence[Raw]) -> "Contradiction | None":
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
            return Contradiction(HistoryDefect(n, what), BY_HAND)
        for n, raw in enumerate(transitions):
            if seen.digests.get(n, mark := _digest(sha256(bytes(raw)).hexdigest())) != mark:
                what = f"transition {n} is not the one that was told: another history is in the place of this one"
                return Contradiction(HistoryDefect(n, what), AGAIN)
        count = len(transitions)
        if seen.last >= count:
            what = (
                f"transition {seen.last} was told, of {iso(seen.last_ms)}, and only {count} are there: an earlier "
                "version is in the place of a later one"
            )
            return Contradiction(HistoryDefect(count, what), AGAIN)
        return None

    def is_published(self, history: HistoryId, count: int) -> bool | None:
        """True if the last of so many transitions was told; `None` if none of this history was."""
        seen = self.histories.get(history)
        return None if seen is None else seen.last >= count - 1

    def is_rebuilt(self, history: HistoryId) -> bool:
        """True if `saga sagas rebuild` said that it made the history anew."""
        seen = self.histories.get(history)
        return seen is not None and seen.rebuilt is not None

    def find_removed(self, history: HistoryId, now_ms: int) -> "Contradiction | None":
        """The contradiction that there is no document of a history, if it cannot have expired by now."""
        seen = self.histories[history]
        until_ms = seen.kept_until_ms
        if until_ms is not None and now_ms > until_ms - CLOCKS_MS:
            return None
        kept = "it is open, and never expires" if until_ms is None else f"it is kept until {iso(until_ms)}"
        what = f"nothing is there of it, and transition {seen.last} was told, of {iso(seen.last_ms)}: {kept}"
        return Contradiction(HistoryDefect(seen.last, what), AGAIN)

    def histories_of(self, services: Sequence[str], saga: str | None) -> Iterator[HistoryId]:
        """Histories of these services, of all sagas or of one."""
        for history in self.histories:
            if history.service in services and saga in (None, history.saga):
                yield history


class Contradiction(NamedTuple):
    """Difference between what was told and what is there, and what to do."""

    broken: HistoryDefect
    todo: str


def _digest(hash_: str) -> int:
    return int.from_bytes(blake2b(hash_.encode(), digest_size=8).digest())


def _is_rebuilt(seen: PublishedHistory, told: Told) -> bool:
    """True for the first transition of a history that was made anew, as `saga sagas rebuild` tells it."""
    return told.anew is not None and told.anew != seen.rebuilt


def _is_id_reused(seen: PublishedHistory, mark: int, time_ms: int) -> bool:
    """True for the first transition of a saga whose id was used before, and forgotten."""
    until_ms = seen.kept_until_ms
    return seen.digests.get(0) != mark and until_ms is not None and time_ms > until_ms - CLOCKS_MS


async def read_published_histories(settings: Settings, clock: Clock, saga: str | None = None) -> HistoryVerifier | str:
    """All that the topic still tells of histories, of all sagas or of one; or the reason that there is no witness.
    Raises `SagaError` for a broker that cannot be read."""
    topic = settings.told
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
                several = from_record(record)
            except BadInput:
                found.strange += 1
                continue
            for told in several:
                if saga in (None, told.saga):
                    found.add(told)
    return found


# -------------------------------------------------------------------- history check


NOT_COMPARED = "nobody was asked"


@dataclass(frozen=True, slots=True)
class BrokenHistory:
    """A history that is not what was written."""

    saga: str
    service: str
    transition: int | None
    """Number of the transition; `None` where the document as a whole cannot be read."""
    what: str
    todo: str = ""


@dataclass(slots=True)
class VerificationReport:
    """Histories that were looked at, and everything wrong that was found."""

    histories: int = 0
    """One for each saga and service."""
    transitions: int = 0
    services: list[str] = field(default_factory=list)
    older: int = 0
    """Histories that an older version of the toolkit began or went on with: not bound to their saga, and of their
    snapshots only the state is known."""
    broken: list[BrokenHistory] = field(default_factory=list)
    alone: str | None = None
    """Reason that there is no witness: what the services told was not compared."""
    witnessed: int = 0
    """Histories whose last transition was told, as it is there."""
    in_part: int = 0
    """Histories of which transitions were told, and not the last."""
    rebuilt: int = 0
    """Histories that `saga sagas rebuild` made anew: what was told of them before was not compared."""
    strange: int = 0
    """Records among what was told that are no transitions."""


async def verify_histories(
    deployment: Deployment, saga: str | None = None, witness: HistoryVerifier | str = NOT_COMPARED
) -> VerificationReport:
    """Check the histories of all sagas, or of one, in all stores.

    Args:
        witness: The published transitions to compare with, or the reason that there are none.
    """
    async with deployment.open_stores() as sources:
        return await verify_stores(sources, deployment.clock, saga, witness)


async def verify_stores(
    sources: Sequence[ServiceStore],
    clock: Clock,
    saga: str | None = None,
    witness: HistoryVerifier | str = NOT_COMPARED,
) -> VerificationReport:
    """Everything wrong with the histories of these services, as `verified` finds it."""
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
    return found


def _broken_history(history: HistoryId, why: Contradiction) -> BrokenHistory:
    return BrokenHistory(history.saga, history.service, why.broken.n, why.broken.what, why.todo)


async def _verify_saga(found: VerificationReport, source: ServiceStore, saga: str, witness: HistoryVerifier) -> bool:
    """Return whether there is something of the saga."""
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
    """Count one history, and what is wrong with it."""
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
        elif (told := witness.compare(history, whole.transitions)) is not None:
            found.broken.append(_broken_history(history, told))
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
