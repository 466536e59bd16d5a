"""Verification: whether what services have written down of their sagas is unchanged and whole."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from saga.configuration.settings import Settings
from saga.ops.histories import Unreadable, document_of, documents_of, snapshot_in, whole_history
from saga.ops.history_verifier import Contradiction, History, Witness
from saga.ops.sources import Source, sources_of
from saga.progress.document import UNREADABLE
from saga.progress.history import verify
from saga.progress.integrity import is_bound
from saga.store.port import Document
from saga.support.clock import Clock

NOBODY = "nobody was asked"


@dataclass(frozen=True, slots=True)
class Broken:
    """A history that is not what was written."""

    saga: str
    service: str
    transition: int | None
    """Number of the transition; `None` where the document as a whole cannot be read."""
    what: str
    todo: str = ""


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
    alone: str | None = None
    """Reason that there is no witness: what the services told was not compared."""
    witnessed: int = 0
    """Histories whose last transition was told, as it is there."""
    in_part: int = 0
    """Histories of which transitions were told, and not the last."""
    rebuilt: int = 0
    """Histories that `saga rebuild` made anew: what was told of them before was not compared."""
    strange: int = 0
    """Records among what was told that are no transitions."""


async def verified(
    addresses: Sequence[str],
    clock: Clock,
    saga: str | None = None,
    witness: Witness | str = NOBODY,
    settings: Settings | None = None,
) -> Verified:
    """Everything wrong with the histories in these stores, of all sagas or of one. `witness`: what the services told
    before, or the reason that nobody knows. `settings`: see `sources_of`."""
    async with sources_of(addresses, clock, settings=settings) as sources:
        return await verified_in(sources, clock, saga, witness)


async def verified_in(
    sources: Sequence[Source], clock: Clock, saga: str | None = None, witness: Witness | str = NOBODY
) -> Verified:
    """Everything wrong with the histories of these services, as `verified` finds it."""
    found = Verified()
    if isinstance(witness, str):
        found.alone, witness = witness, Witness()
    found.strange = witness.strange
    there = set[History]()
    for source in sources:
        found.services.append(source.service)
        if saga is not None:
            if await _look_at(found, source, saga, witness):
                there.add(History(source.service, saga))
            continue
        async for each, document in documents_of(source):
            there.add(History(source.service, each))
            await _verify(found, source, each, document, witness)
    for history in witness.of(found.services, saga):
        if history not in there and (removed := witness.removed(history, clock.now_ms())) is not None:
            found.histories += 1
            found.broken.append(_broken(history, removed))
    return found


def _broken(history: History, why: Contradiction) -> Broken:
    return Broken(history.saga, history.service, why.broken.n, why.broken.what, why.todo)


async def _look_at(found: Verified, source: Source, saga: str, witness: Witness) -> bool:
    """Return whether there is something of the saga."""
    try:
        document = await document_of(source, saga)
    except Unreadable as why:
        found.histories += 1
        found.broken.append(Broken(saga, source.service, None, str(why)))
        return True
    if document is not None:
        await _verify(found, source, saga, document, witness)
    return document is not None


async def _verify(found: Verified, source: Source, saga: str, document: Document, witness: Witness) -> None:
    """Count one history, and what is wrong with it."""
    found.histories += 1
    n, what, history = None, None, History(source.service, saga)
    try:
        whole = await whole_history(source, snapshot_in(source, saga, document))
        found.transitions += len(whole.transitions)
        p = whole.snapshot
        if (p.saga, p.service) != (saga, source.service):
            what = f"it is of saga {p.saga} in {p.service}, under the key of another"
        elif broken := verify(whole.transitions, p):
            n, what = broken.n, broken.what
        elif (told := witness.compared(history, whole.transitions)) is not None:
            found.broken.append(_broken(history, told))
            return
        else:
            found.older += not is_bound(whole.entries)
            is_witnessed = witness.is_witnessed(history, len(whole.transitions))
            found.witnessed += is_witnessed is True
            found.in_part += is_witnessed is False
            found.rebuilt += witness.is_anew(history)
    except Unreadable as why:
        what = str(why)
    except UNREADABLE as why:
        what = f"a transition cannot be read: {why}"
    if what is not None:
        found.broken.append(Broken(saga, source.service, n, what))
