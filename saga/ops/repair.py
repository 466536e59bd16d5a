"""Repair: find sagas with something to do that no message may set off, and do it, or send their wakes again; and
publish again what topics have lost that were deleted and created again."""

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

from saga.broker.port import Broker
from saga.configuration import wiring
from saga.configuration.settings import Settings
from saga.declarations.values import Declared
from saga.engine.consumer.worker_ports import WorkerAssignment, make_worker_ports
from saga.engine.lifecycle import open_resources
from saga.engine.outage_watch import OutageWatch
from saga.engine.persistence.progress_repository import outbox_records
from saga.engine.persistence.service_record import known_logs, note_logs, replaced_logs
from saga.engine.persistence.transition_publisher import Telling
from saga.engine.prepared_service import prepare, writes_of
from saga.engine.repair import may_act, republish_saga, republish_timer
from saga.engine.service_runtime import ServiceRuntime, make_service_runtime
from saga.errors import SagaError
from saga.messages import Outgoing
from saga.messaging.names import PROGRESS
from saga.ops.histories import add_archives
from saga.ops.sources import open_administration
from saga.progress.document import UNREADABLE, SagaProgress, decode_progress, decode_transition, progress_key
from saga.progress.stranded_work import StrandedWork, find_stranded_work
from saga.store.port import Document, Store
from saga.support.clock import Clock
from saga.telemetry.events import Report

NAME = "saga sagas repair"
"""Name of the worker in what is told."""
SETTLES_S_MAX = 60.0
"""Seconds, beside those that a handler may take, in which a worker that lives goes on with what is ready."""
NOTHING = StrandedWork()


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairedSaga:
    """A saga of a service with something to do: the transitions that were written, or the reason that none could be."""

    service: str
    saga: str
    work: StrandedWork = NOTHING
    """Work that was found, before anything was done."""
    again: int = 0
    """Records that were published again: their topics have been created again since."""
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
) -> AsyncIterator[RepairedSaga]:
    """Go through the sagas of these services, or through one, and go on with those that need it; each is told as it is
    done. `dry_run`: they are only told. Raises `SagaError` for what cannot be opened, and a saga that none knows."""
    is_known = saga is None
    for declared in services:
        async with _at_work(declared, settings, clock, report, dry_run=dry_run) as (service, broker, telling):
            store, is_whole = service.ports.store, saga is None and not dry_run
            if saga is not None:
                is_known = await store.get(PROGRESS, progress_key(service.name, saga)) is not None or is_known
            log_ids = await broker.fetch_log_ids(writes_of(declared))
            lost = replaced_logs(await known_logs(store, declared.name), log_ids)
            async for each in _find_lost_topics(service, frozenset(lost) - service.wakes.keys(), saga, dry_run=dry_run):
                is_whole = is_whole and each.problem is None
                yield each
            async for each in _find_sagas(service, store, saga):
                done = each if dry_run or each.problem is not None else await _repair_saga(service, each)
                is_whole = is_whole and done.problem is None
                yield done
                if telling is not None:  # what cannot be told now is told by the worker that loads the saga next
                    await telling.tell()
            if is_whole:
                await note_logs(store, declared.name, log_ids)
    if not is_known:
        names = ", ".join(declared.name for declared in services)
        raise SagaError(f"{names} {'knows' if len(services) == 1 else 'know'} no saga {saga}: see its id")


async def _find_lost_topics(
    service: ServiceRuntime, topics: Collection[str], saga: str | None, *, dry_run: bool
) -> AsyncIterator[RepairedSaga]:
    """Publish again what lay in these topics, as transitions have it: in their order, with the same ids."""
    if not topics:
        return
    async for id_, document in _documents(service, service.ports.store, saga):
        try:
            records = await _published_records(service, decode_progress(document.content), topics)
            if not dry_run:
                await service.ports.publisher.publish(records)
        except (SagaError, *UNREADABLE) as why:
            yield RepairedSaga(service=service.name, saga=id_, problem=str(why))
        else:
            if records:
                yield RepairedSaga(service=service.name, saga=id_, again=len(records))


async def _published_records(service: ServiceRuntime, p: SagaProgress, topics: Collection[str]) -> list[Outgoing]:
    """Records that a saga's transitions have published to these topics, oldest first. Raises `SagaError`."""
    records = list[Outgoing]()
    for entry in map(decode_transition, (await add_archives(service.ports.store, p)).transitions):
        if unknown := sorted({event.type for event in entry.events} - service.contracts.keys()):
            raise SagaError(f"transition {entry.n} emitted {', '.join(unknown)}, which this release does not know")
        records += [record for record in outbox_records(service, p, entry) if record.topic in topics]
    return records


async def _repair_saga(service: ServiceRuntime, needing: RepairedSaga) -> RepairedSaga:
    try:
        if needing.work.is_wake_alone:  # whoever runs the service is woken: nothing of it is run twice
            await republish_timer(service, needing.saga)
            return needing
        return replace(needing, did=tuple(await republish_saga(service, needing.saga, needing.work.triggers)))
    except (SagaError, *UNREADABLE) as why:
        return replace(needing, problem=str(why))


async def _find_sagas(service: ServiceRuntime, store: Store, saga: str | None) -> AsyncIterator[RepairedSaga]:
    """Sagas with something to do that may have nobody to do it; or with the reason that they cannot be read."""
    quiet_ms = _quiet_ms(service)
    async for id_, document in _documents(service, store, saga):
        try:
            work = find_stranded_work(
                decode_progress(document.content), service.roles, service.ports.clock.now_ms(), quiet_ms
            )
        except (SagaError, *UNREADABLE) as why:
            yield RepairedSaga(service=service.name, saga=id_, problem=str(why))
            continue
        if work.is_any:
            yield RepairedSaga(service=service.name, saga=id_, work=work)


async def _documents(service: ServiceRuntime, store: Store, saga: str | None) -> AsyncIterator[tuple[str, Document]]:
    """Progress documents of all sagas, or of one, which is read and not looked for."""
    if saga is not None:
        document = await store.get(PROGRESS, progress_key(service.name, saga))
        if document is not None:
            yield saga, document
        return
    prefix = progress_key(service.name, "")
    async for key, document in store.scan(PROGRESS, prefix):
        yield key.removeprefix(prefix), document


def _quiet_ms(service: ServiceRuntime) -> int:
    """Time without a write of a saga after which no worker is taken to be under way with it."""
    return int((max(each.timeout_s for each in service.handlers.values()) + SETTLES_S_MAX) * 1000)


@asynccontextmanager
async def _at_work(
    declared: Declared, settings: Settings, clock: Clock, report: Report, *, dry_run: bool
) -> AsyncIterator[tuple[ServiceRuntime, Broker, Telling | None]]:
    """The service, with its store, the log and its resources open, as at a worker that no partition belongs to, and
    what tells its transitions. For a dry run without resources: no handler is called."""
    keys = wiring.keys_of(settings, clock, [declared])
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(wiring.store_of(declared.name, clock, settings))
        broker = await stack.enter_async_context(wiring.broker_of(None, clock, settings))
        if not dry_run:
            await wiring.with_topics([declared], broker, (), clock, settings.open_s, settings.told)
        prepared, watching = prepare(declared), OutageWatch(declared.name, clock, report)
        telling = Telling(prepared, broker, watching, NAME) if settings.told is not None and not dry_run else None
        assignment = WorkerAssignment(watching)
        if not dry_run:
            async with open_administration(settings, clock) as tools:
                positions = (await tools.describe_group(declared.name)).positions
                may_act(assignment, positions, await broker.fetch_log_ids({each.topic for each in positions}))
        resources = {} if dry_run else await open_resources(declared, stack, clock, settings.open_s)
        ports = make_worker_ports(store, broker, assignment, keys=keys, telling=telling)
        yield make_service_runtime(prepared, resources, ports), broker, telling
