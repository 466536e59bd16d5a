"""`saga verify-history`: a check that the histories of sagas are unchanged and whole."""

import asyncio
import sys
from dataclasses import asdict

import click

from saga.cli.options import broker_option, read_stores_option
from saga.cli.printing import tell, tell_json
from saga.configuration.settings import Settings
from saga.messaging.names import TRANSITIONS
from saga.ops.history_verifier import VerificationReport, read_published_histories, verify_histories
from saga.support.clock import SystemClock

BROKEN_SHOWN_MAX = 50


@click.command()
@click.argument("saga_id", required=False)
@read_stores_option
@broker_option
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of text.")
def verify_history(saga_id: str | None, addresses: tuple[str, ...], broker: str | None, as_json: bool) -> None:
    """Check that what the services have written down of their sagas is unchanged.

    Each transition holds the hash of the one before it, the first one that of its service and saga, the progress that
    of the last one. So a transition that was changed, left out or put in is found, in archives too, and a history in
    the place of another one. Each transition also holds digests of what it changed of the progress: state, outcome,
    inbox, what has run, is closed, can be undone, is queued, waits or is to be undone must be what the transitions
    make of it. So cutting off the last transitions is found, though count and hash are put right.

    What the services told on the topic saga.transitions is the witness: a whole earlier version in the place of a later
    one, another history, no progress at all where it cannot have expired, and two transitions with one number are
    found, for as long as the topic keeps what was told (SAGA_TRANSITIONS_DAYS). Who can write the topic, too, can
    deceive it. `saga rebuild` tells what it makes anew, and from there on that is the history. With
    SAGA_TRANSITIONS=off the witness is left alone.

    \b
    Not found, for nothing in the store tells of it:
    - without the witness: a whole earlier version of a progress in the place of a later one, no progress at all, and
      what somebody changed who computed all hashes anew
    - of what has begun (intents): a change or removal that contradicts nothing, or one more
    - which own events handlers here still wait for (own), or are withdrawn with a result: one that is
      missing, or was put back; and which of them the version takes that wrote last (heard)
    - the times of inbox entries, and one more with the time 0: these stand for own events, too
    - the mark that all is published (published), while something has begun; and from where on (told) the
      transitions are to be told
    - the start of a saga that was not known from the beginning
    - who began a saga (principal), where it is left out: releases that knew nothing of it leave it out, too
    - before the first transition: everything but service, saga and start

    So this finds mistakes and tampering by hand, and proves nothing against those who can write the store and the topic
    and know how. Histories that an older version of saga began are not bound to their saga, and of their progress only
    the state is compared: it is told how many there are.

    \b
    Exit code 0: all histories, or those of SAGA_ID, are as they were written.
    Exit code 1: some are not (saga, service and transition are named), or no service knows SAGA_ID.
    Exit code 2: no store, or one that cannot be read.
    """
    found = asyncio.run(_verified(addresses, Settings.from_environment(broker=broker), saga_id))
    unknown = saga_id is not None and not found.histories
    if as_json:
        tell_json(asdict(found))
    elif unknown:
        tell(f"no service knows saga {saga_id}", err=True)
    else:
        _tell(found)
    sys.exit(1 if found.broken or unknown else 0)


async def _verified(addresses: tuple[str, ...], settings: Settings, saga: str | None) -> VerificationReport:
    # First what was told: then all of it has to be there.
    witness = await read_published_histories(settings, SystemClock(), saga)
    return await verify_histories(addresses, SystemClock(), saga, witness, settings)


def _tell(found: VerificationReport) -> None:
    for broken in found.broken[:BROKEN_SHOWN_MAX]:
        tell(f"saga {broken.saga} in {broken.service}: {broken.what}")
        if broken.todo:
            tell(f"  to do: {broken.todo}")
    if len(found.broken) > BROKEN_SHOWN_MAX:
        tell(f"and {len(found.broken) - BROKEN_SHOWN_MAX} more: --json shows all")
    tell(
        f"{found.transitions} transitions in {found.histories} histories of {', '.join(found.services)}: "
        + (f"{len(found.broken)} histories are not as they were written" if found.broken else "all unchanged")
    )
    if found.alone is not None:
        tell(f"without a witness ({found.alone}): that something earlier lies in the place of it all is not found")
    else:
        untold = found.histories - len(found.broken) - found.witnessed - found.in_part
        tell(
            f"as told on {TRANSITIONS}: {found.witnessed} to their last transition, {found.in_part} in part, {untold} "
            "not at all: it was not told, or is not kept any more"
        )
    if found.rebuilt:
        tell(f"{found.rebuilt} of them were made anew by saga rebuild: what was told of them before is not compared")
    if found.strange:
        tell(f"{found.strange} records on {TRANSITIONS} are no transitions: somebody else writes there")
    if found.older:
        tell(f"{found.older} of an older format: not bound to their saga, and only their state is compared")
