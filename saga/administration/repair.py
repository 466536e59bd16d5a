"""Repair: find sagas with something to do that no message will set off, and do it."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

from saga import wiring
from saga.clock import Clock
from saga.config import Settings
from saga.declarations.values import Declared
from saga.errors import SagaError
from saga.names import PROGRESS
from saga.observe.moments import Report
from saga.progress import takeover
from saga.progress.document import UNREADABLE, decode, progress_key
from saga.runtime.lifecycle import OPEN_S_MAX, open_resources
from saga.runtime.participant import Participant, participant_of
from saga.runtime.prepared import prepare
from saga.runtime.repairing import may_act, repaired
from saga.runtime.telling import Telling
from saga.runtime.watching import Watching
from saga.runtime.worker_ports import WorkerAssignment, worker_ports
from saga.store.port import Store

NAME = "saga repair"
"""Name of the worker in what is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repaired:
    """A saga of a service with something to do: the transitions that were written, or the reason that none could be."""

    service: str
    saga: str
    heard: tuple[str, ...] = ()
    """Types of own events that the last version did not take, and this one does."""
    did: tuple[tuple[str, str, str | None], ...] = ()
    """Handler, outcome and reason of each transition that was written."""
    problem: str | None = None


async def repair(
    services: Sequence[Declared],
    settings: Settings,
    clock: Clock,
    report: Report,
    *,
    saga: str | None = None,
    dry_run: bool = False,
) -> AsyncIterator[Repaired]:
    """Go through the sagas of these services, or through one, and go on with those that need it; each is told as it is
    done. `dry_run`: they are only told. Raises `SagaError` for what cannot be opened."""
    for declared in services:
        async with _at_work(declared, settings, clock, report, dry_run=dry_run) as (service, store, telling):
            async for each in _needing(service, store, saga):
                yield each if dry_run or each.problem is not None else await _done(service, each)
                if telling is not None:  # what cannot be told now is told by the worker that loads the saga next
                    await telling.tell()


async def _done(service: Participant, needing: Repaired) -> Repaired:
    try:
        return replace(needing, did=tuple(await repaired(service, needing.saga)))
    except (SagaError, *UNREADABLE) as why:
        return replace(needing, problem=str(why))


async def _needing(service: Participant, store: Store, saga: str | None) -> AsyncIterator[Repaired]:
    """Sagas whose progress an older version wrote, with the types that are newly taken; or with the reason that it
    cannot be read."""
    prefix = progress_key(service.name, "")
    async for key, document in store.scan(PROGRESS, progress_key(service.name, saga or "")):
        id_ = key.removeprefix(prefix)
        if saga is not None and id_ != saga:
            continue
        try:
            p = decode(document.content)
        except SagaError as why:
            yield Repaired(service=service.name, saga=id_, problem=str(why))
            continue
        if takeover.is_due(p, service.roles):
            newly = sorted(set(service.roles.heard) - set(p.heard))
            yield Repaired(service=service.name, saga=id_, heard=tuple(newly))


@asynccontextmanager
async def _at_work(
    declared: Declared, settings: Settings, clock: Clock, report: Report, *, dry_run: bool
) -> AsyncIterator[tuple[Participant, Store, Telling | None]]:
    """The service, with its store, the log and its resources open, as at a worker that no partition belongs to, and
    what tells its transitions. For a dry run without resources: no handler is called."""
    keys, open_by_s = wiring.keys_of(settings, clock, [declared]), clock.monotonic_s() + OPEN_S_MAX
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(wiring.store_of(declared.name, clock, settings, open_by_s))
        broker = await stack.enter_async_context(wiring.broker_of(None, clock, settings, open_by_s))
        if not dry_run:
            await wiring.with_topics([declared], broker, (), clock, open_by_s, settings.told)
        prepared, watching = prepare(declared), Watching(declared.name, clock, report)
        telling = Telling(prepared, broker, watching, NAME) if settings.told is not None and not dry_run else None
        assignment = WorkerAssignment(watching)
        may_act(assignment)
        resources = {} if dry_run else await open_resources(declared, stack, clock, open_by_s)
        ports = worker_ports(store, broker, assignment, keys=keys, telling=telling)
        yield participant_of(prepared, resources, ports), store, telling
