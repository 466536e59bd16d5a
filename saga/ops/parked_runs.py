"""Runs that wait for their next attempt, as the stores have them: for whoever wants them tried at once."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from saga.errors import NoListing
from saga.messages import Partition
from saga.messaging.timers import tiers_of
from saga.ops.dead_letters import DeadLetter
from saga.ops.histories import UnreadableHistory, decode_progress, read_document
from saga.ops.saga_list import ListedSaga, list_sagas
from saga.ops.selection import Deployment, Selection
from saga.ops.sources import ServiceStore, Warn, open_administration
from saga.progress.actions import ParkedRun
from saga.progress.document import UNREADABLE, SagaProgress, Transition, decode_transition
from saga.progress.failed_attempts import find_parked_runs
from saga.support.clock import LATEST_MS, iso

WHAT = "parked"
"""Kind of these letters: they are on no topic, and need nobody."""
FAILING = "failing"
"""Kind of those whose run failed of the service's own code: a person has to deploy a release that mends it."""


async def list_parked_runs(selection: Selection, deployment: Deployment) -> AsyncIterator[DeadLetter]:
    """Letters of all that is parked and meant, sagas newest first. A letter's id is that of the wait, its time that of
    the last attempt, its reason what that said, and until when. Raises `NoStore`."""
    async with deployment.open_stores(selection.services) as sources:
        async for each in _list_parked(selection, sources, deployment):
            if each is None:
                deployment.warn(f"there are more than {selection.limit} sagas: raise --limit to see them")
                return
            for source in sources:
                for letter in await _parked_in_saga(source, each.saga, deployment.warn):
                    if selection.matches(letter):
                        yield letter


async def _list_parked(
    selection: Selection, sources: Sequence[ServiceStore], deployment: Deployment
) -> AsyncIterator[ListedSaga | None]:
    """Sagas that are chosen. Where a store cannot list them, those that have a wake to come: whatever is parked has."""
    try:
        async for each in list_sagas(selection, deployment):
            yield each
        return
    except NoListing:  # it comes before the first
        sagas = dict[str, None]()
        for source in sources:
            async for saga in _sagas_with_timers(source.service, deployment):
                sagas[saga] = None
    if sagas:
        async for each in list_sagas(replace(selection, sagas=[*sagas]), deployment):
            yield each


async def _sagas_with_timers(service: str, deployment: Deployment) -> AsyncIterator[str]:
    """Sagas with a wake that the service has not handled. Raises `SagaError`: the broker cannot be read."""
    async with open_administration(deployment.broker_settings, deployment.clock) as broker:
        positions = (await broker.describe_group(service)).positions
        for topic in await broker.count_partitions(list(tiers_of(service))):
            async for record in broker.scan(topic):
                at = Partition(record.topic, record.partition)
                if record.key is not None and record.offset >= positions.get(at, 0):
                    yield record.key.decode("utf-8", "backslashreplace")


async def _parked_in_saga(source: ServiceStore, saga: str, warn: Warn) -> list[DeadLetter]:
    try:
        document = await read_document(source, saga)
        p = None if document is None else decode_progress(source, saga, document)
        return [] if p is None else [_parked_as_record(p, run) for run in find_parked_runs(p)]
    except (UnreadableHistory, *UNREADABLE) as why:
        warn(f"saga {saga} in {source.service}: {why}")
        return []


def find_failing(p: SagaProgress) -> list[DeadLetter]:
    """Letters of the runs that are parked because the service's own code fails. Raises `UNREADABLE`."""
    found = [_parked_as_record(p, run) for run in find_parked_runs(p)]
    return [replace(letter, what=FAILING) for letter in found if letter.blame == "code"]


def _parked_as_record(p: SagaProgress, run: ParkedRun) -> DeadLetter:
    last = next((e for e in map(decode_transition, reversed(p.transitions)) if _is_of(e, p, run)), None)
    said = f"`saga sagas show {p.saga}` tells why" if last is None else (last.reason or "")
    again = "looked at each minute" if run.put_off else f"tried again at {iso(min(run.due_ms, LATEST_MS))}"
    return DeadLetter(
        service=p.service,
        id=run.id,
        what=WHAT,
        time="" if last is None else last.time,
        reason=f"{said}; {again}",
        remedy="",
        saga=p.saga,
        type=run.message.type,
        message=run.message.id,
        handler=run.handler if last is None else last.handler,
        attempts=run.attempts,
        blame=last.failures[-1].blame if last is not None and last.failures else None,
    )


def _is_of(entry: Transition, p: SagaProgress, run: ParkedRun) -> bool:
    """True for the transition that parked it. Of several compensations of one outcome each has a name of its own."""
    if (entry.outcome, entry.attempt, entry.message) != ("retrying", run.attempts, run.message.id):
        return False
    if not run.undoes:
        return entry.handler == run.handler
    name = next((i.name for i in p.intents if i.kind == "undo" and i.handler == run.handler), "")
    return entry.handler == name if name else entry.handler != run.handler
