"""`saga verify-history`: whether what services have written down of their sagas is unchanged and whole."""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import click

from saga.cli.stores import (
    Source,
    Unreadable,
    document_of,
    progresses,
    snapshot_of,
    sources_of,
    store_option,
    whole_history,
)
from saga.cli.telling import tell, tell_json
from saga.clock import Clock, SystemClock
from saga.progress.binding import is_bound
from saga.progress.document import UNREADABLE, decode_entry
from saga.progress.history import verify
from saga.store.port import Document

BROKEN_SHOWN_MAX = 50


@dataclass(frozen=True, slots=True)
class Broken:
    """A history that is not what was written."""

    saga: str
    service: str
    transition: int | None
    """`None` where the document as a whole cannot be read."""
    what: str


@dataclass(slots=True)
class Verified:
    """What was looked at, and what was found."""

    histories: int = 0
    """One for each saga and service."""
    transitions: int = 0
    services: list[str] = field(default_factory=list)
    older: int = 0
    """Histories that an older version of the toolkit began or went on with: not bound to their saga, and of their
    snapshots only the state is known."""
    broken: list[Broken] = field(default_factory=list)


@click.command()
@click.argument("saga_id", required=False)
@store_option
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of text.")
def verify_history(saga_id: str | None, addresses: tuple[str, ...], as_json: bool) -> None:
    """Check that what the services have written down of their sagas is unchanged.

    Each transition holds the hash of the one before it, the first one that of its service and saga, the progress that
    of the last one. So a transition that was changed, left out or put in is found, in archives too, and a history in
    the place of another one. Each transition also holds digests of what it changed of the progress: state, outcome,
    inbox, what has run, is closed, can be undone, is queued, waits or is to be undone must be what the transitions
    make of it. So cutting off the last transitions is found, though count and hash are put right.

    \b
    Not found, for nothing in the store tells of it:
    - a whole earlier version of a progress in the place of a later one, or no progress at all
    - of what has begun (intents): a change or removal that contradicts nothing, or one more
    - which own events handlers here still wait for (own), or are withdrawn with a result: one that is
      missing, or was put back; and which of them the version takes that wrote last (heard)
    - the times of inbox entries, and one more with the time 0: these stand for own events, too
    - the mark that all is published (published), while something has begun
    - the start of a saga that was not known from the beginning
    - before the first transition: everything but service, saga and start
    - what somebody changed who computed all hashes anew

    So this finds mistakes and tampering by hand, and proves nothing against those who can write the store and know
    how. Histories that an older version of saga began are not bound to their saga, and of their progress only the
    state is compared: it is told how many there are.

    \b
    Exit code 0: all histories, or those of SAGA_ID, are as they were written.
    Exit code 1: some are not (saga, service and transition are named), or no service knows SAGA_ID.
    Exit code 2: no store, or one that cannot be read.
    """
    verified = asyncio.run(verified_histories(addresses, SystemClock(), saga_id))
    unknown = saga_id is not None and not verified.histories
    if as_json:
        tell_json(asdict(verified))
    elif unknown:
        tell(f"no service knows saga {saga_id}", err=True)
    else:
        _tell(verified)
    sys.exit(1 if verified.broken or unknown else 0)


async def verified_histories(addresses: Sequence[str], clock: Clock, saga_id: str | None = None) -> Verified:
    """What is wrong with the histories in these stores, of all sagas or of one."""
    verified = Verified()
    async with sources_of(addresses, clock) as sources:
        for source in sources:
            verified.services.append(source.service)
            if saga_id is not None:
                await _look_at(verified, source, saga_id)
                continue
            async for saga, document in progresses(source):
                await _verified(verified, source, saga, document)
    return verified


async def _look_at(verified: Verified, source: Source, saga: str) -> None:
    try:
        document = await document_of(source, saga)
    except Unreadable as why:
        verified.histories += 1
        verified.broken.append(Broken(saga, source.service, None, str(why)))
        return
    if document is not None:
        await _verified(verified, source, saga, document)


async def _verified(verified: Verified, source: Source, saga: str, document: Document) -> None:
    """Count one history, and what is wrong with it."""
    verified.histories += 1
    n, what = None, None
    try:
        whole = await whole_history(source, snapshot_of(source, saga, document))
        verified.transitions += len(whole.transitions)
        p = whole.snapshot
        if (p.saga, p.service) != (saga, source.service):
            what = f"it is of saga {p.saga} in {p.service}, under the key of another"
        elif found := verify(whole.transitions, p):
            n, what = found.n, found.what
        elif not is_bound(list(map(decode_entry, whole.transitions))):
            verified.older += 1
    except Unreadable as why:
        what = str(why)
    except UNREADABLE as why:
        what = f"a transition cannot be read: {why}"
    if what is not None:
        verified.broken.append(Broken(saga, source.service, n, what))


def _tell(verified: Verified) -> None:
    for broken in verified.broken[:BROKEN_SHOWN_MAX]:
        tell(f"saga {broken.saga} in {broken.service}: {broken.what}")
    if len(verified.broken) > BROKEN_SHOWN_MAX:
        tell(f"and {len(verified.broken) - BROKEN_SHOWN_MAX} more: --json shows all")
    tell(
        f"{verified.transitions} transitions in {verified.histories} histories of {', '.join(verified.services)}: "
        + (f"{len(verified.broken)} histories are not as they were written" if verified.broken else "all unchanged")
    )
    if verified.older:
        tell(f"{verified.older} of an older format: not bound to their saga, and only their state is compared")
