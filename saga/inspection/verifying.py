"""Verification: whether what services have written down of their sagas is unchanged and whole."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from saga.clock import Clock
from saga.inspection.histories import Unreadable, document_of, documents_of, snapshot_in, whole_history
from saga.inspection.sources import Source, sources_of
from saga.progress.binding import is_bound
from saga.progress.document import UNREADABLE
from saga.progress.history import verify
from saga.store.port import Document


@dataclass(frozen=True, slots=True)
class Broken:
    """A history that is not what was written."""

    saga: str
    service: str
    transition: int | None
    """Number of the transition; `None` where the document as a whole cannot be read."""
    what: str


@dataclass(slots=True)
class Verified:
    """Histories that were looked at, and everything wrong that was found."""

    histories: int = 0
    """One for each saga and service."""
    transitions: int = 0
    services: list[str] = field(default_factory=list)
    older: int = 0
    """Histories that an older version of the toolkit began or went on with: not bound to their saga, and of their
    snapshots only the state is known."""
    broken: list[Broken] = field(default_factory=list)


async def verified(addresses: Sequence[str], clock: Clock, saga: str | None = None) -> Verified:
    """Everything wrong with the histories in these stores, of all sagas or of one."""
    found = Verified()
    async with sources_of(addresses, clock) as sources:
        for source in sources:
            found.services.append(source.service)
            if saga is not None:
                await _look_at(found, source, saga)
                continue
            async for each, document in documents_of(source):
                await _verify(found, source, each, document)
    return found


async def _look_at(found: Verified, source: Source, saga: str) -> None:
    try:
        document = await document_of(source, saga)
    except Unreadable as why:
        found.histories += 1
        found.broken.append(Broken(saga, source.service, None, str(why)))
        return
    if document is not None:
        await _verify(found, source, saga, document)


async def _verify(found: Verified, source: Source, saga: str, document: Document) -> None:
    """Count one history, and what is wrong with it."""
    found.histories += 1
    n, what = None, None
    try:
        whole = await whole_history(source, snapshot_in(source, saga, document))
        found.transitions += len(whole.transitions)
        p = whole.snapshot
        if (p.saga, p.service) != (saga, source.service):
            what = f"it is of saga {p.saga} in {p.service}, under the key of another"
        elif broken := verify(whole.transitions, p):
            n, what = broken.n, broken.what
        elif not is_bound(whole.entries):
            found.older += 1
    except Unreadable as why:
        what = str(why)
    except UNREADABLE as why:
        what = f"a transition cannot be read: {why}"
    if what is not None:
        found.broken.append(Broken(saga, source.service, n, what))
