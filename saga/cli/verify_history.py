"""`saga verify-history`: whether the transitions that services have written down are unchanged and whole."""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass, field

import click
import msgspec

from saga.cli.stores import Source, Unreadable, progresses, snapshot_of, sources_of, store_option, whole_history
from saga.cli.telling import tell, tell_json
from saga.clock import Clock, SystemClock
from saga.progress.document import progress_key
from saga.progress.history import verify
from saga.runtime.persistence import COLLECTION
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
    broken: list[Broken] = field(default_factory=list)


@click.command()
@click.argument("saga_id", required=False)
@store_option
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of text.")
def verify_history(saga_id: str | None, addresses: tuple[str, ...], as_json: bool) -> None:
    """Check that what the services have written down of their sagas is unchanged.

    Each transition holds the hash of the one before it, the progress that of the last one, and the state must be what
    the transitions make of it. So a transition that was changed, left out or put in is found, in archives too. Who can
    write the store can also write a whole new chain: this finds mistakes and tampering by hand, it proves nothing
    against somebody who computes all hashes anew.

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
            async for saga, document in progresses(source) if saga_id is None else _one(source, saga_id):
                broken = await _verified(verified, source, saga, document)
                if broken is not None:
                    verified.broken.append(broken)
    return verified


async def _one(source: Source, saga: str) -> AsyncIterator[tuple[str, Document]]:
    document = await source.store.get(COLLECTION, progress_key(source.service, saga))
    if document is not None:
        yield saga, document


async def _verified(verified: Verified, source: Source, saga: str, document: Document) -> Broken | None:
    """Count one history; what is wrong with it."""
    verified.histories += 1
    try:
        whole = await whole_history(source, snapshot_of(source, saga, document))
        verified.transitions += len(whole.transitions)
        if (whole.snapshot.saga, whole.snapshot.service) != (saga, source.service):
            found = f"it is of saga {whole.snapshot.saga} in {whole.snapshot.service}, under the key of another"
            return Broken(saga, source.service, None, found)
        found_break = verify(whole.transitions, whole.snapshot)
    except Unreadable as why:
        return Broken(saga, source.service, None, str(why))
    except msgspec.DecodeError as why:
        return Broken(saga, source.service, None, f"a transition cannot be read: {why}")
    return None if found_break is None else Broken(saga, source.service, found_break.n, found_break.what)


def _tell(verified: Verified) -> None:
    for broken in verified.broken[:BROKEN_SHOWN_MAX]:
        tell(f"saga {broken.saga} in {broken.service}: {broken.what}")
    if len(verified.broken) > BROKEN_SHOWN_MAX:
        tell(f"and {len(verified.broken) - BROKEN_SHOWN_MAX} more: --json shows all")
    tell(
        f"{verified.transitions} transitions in {verified.histories} histories of {', '.join(verified.services)}: "
        + (f"{len(verified.broken)} histories are not as they were written" if verified.broken else "all unchanged")
    )
