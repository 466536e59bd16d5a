"""Repair and rebuild of sagas.

`repair` resumes sagas that have ready work but no message or timer to trigger it. It also publishes records again that
were lost because their topics were deleted and created again. `rebuild` finds sagas whose progress a service has lost,
and reconstructs the progress from the topics.
"""

from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec import Raw, structs

from saga.broker.administration import Administration, OffsetBounds
from saga.broker.port import Broker, partition_of
from saga.configuration import adapters, wiring
from saga.configuration.settings import Settings
from saga.declarations.values import Declared
from saga.encryption.port import Keys
from saga.engine.consumer.record_router import route_record
from saga.engine.consumer.worker_ports import WorkerAssignment, make_worker_ports
from saga.engine.foreign_values import to_single_object
from saga.engine.lifecycle import open_resources
from saga.engine.outage_watch import OutageWatch
from saga.engine.persistence.outbox import outbox_records
from saga.engine.persistence.service_record import known_logs, note_logs, replaced_logs
from saga.engine.persistence.transition_publisher import TransitionPublisher, make_transition_event
from saga.engine.prepared_service import PreparedService, prepare, writes_of
from saga.engine.repair import (
    RebuildEnvironment,
    RebuiltProgress,
    ReceivedMessage,
    Unknowable,
    may_act,
    rebuild_progress,
    republish_saga,
    republish_timer,
)
from saga.engine.service_runtime import ServiceRuntime, make_service_runtime
from saga.errors import BadInput, ConfigurationError, Exists, SagaError
from saga.messages import Message, Outgoing, Partition, Position, Record
from saga.messaging import envelope, timers
from saga.messaging.message_ids import could_be_own
from saga.messaging.names import ARCHIVES, PROGRESS
from saga.messaging.transition_events import TransitionEvent, make_line, transitions_to_records
from saga.ops.histories import add_archives
from saga.ops.offsets import check_broker_exists
from saga.ops.sources import missing_broker_file, open_administration
from saga.progress.document import UNREADABLE, SagaProgress, decode_progress, decode_transition, progress_key
from saga.progress.history import archive_key, decode_archive
from saga.progress.stranded_work import StrandedWork, find_stranded_work
from saga.store.port import Document, Store
from saga.support.clock import Clock, iso
from saga.telemetry.events import Report

NAME = "saga sagas repair"
"""Name of the worker in the transition events that a repair publishes."""
SETTLES_S_MAX = 60.0
"""Seconds that are added to the longest timeout of a handler. If work has been ready for longer than the sum, it is
assumed that no worker is processing it."""
NOTHING = StrandedWork()
NAME_IT = "name the store of the service with --store or SAGA_STORE, or leave out a service that has never run"


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairedSaga:
    """Result of repairing one saga in one service: the transitions that were written, or the reason of a failure."""

    service: str
    saga: str
    work: StrandedWork = NOTHING
    """The stranded work that was found before anything was done."""
    again: int = 0
    """Number of records that were published again because their topics had been deleted and created again."""
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
    """Resume those sagas of these services that have stranded work, or only `saga`. Yield each result when it is done.

    Args:
        dry_run: Only yield the sagas that need repair, and change nothing.

    Raises:
        SagaError: A store is missing, a store or the broker cannot be opened, or no service knows `saga`.
    """
    is_known = saga is None
    if missing := [file for each in services if (file := _missing_store(each, settings)) is not None]:
        raise ConfigurationError(
            "there is no store to be repaired:", [f"no file {file}; {NAME_IT}" for file in missing]
        )
    for declared in services:
        async with _run_worker(declared, settings, clock, report, dry_run=dry_run) as (service, broker, telling):
            store, is_whole = service.ports.store, saga is None and not dry_run
            if saga is not None:
                is_known = await store.get(PROGRESS, progress_key(service.name, saga)) is not None or is_known
            log_ids = await broker.fetch_log_ids(writes_of(declared))
            # Topics that are missing would be created, but not by a dry run.
            would_be_new = dict.fromkeys(writes_of(declared), "") if dry_run and broker.creates_topics else {}
            lost = replaced_logs(await known_logs(store, declared.name), {**would_be_new, **log_ids})
            async for each in _find_lost_topics(service, frozenset(lost) - service.wakes.keys(), saga, dry_run=dry_run):
                is_whole = is_whole and each.problem is None
                yield each
            async for each in _find_sagas(service, store, saga):
                done = each if dry_run or each.problem is not None else await _repair_saga(service, each)
                is_whole = is_whole and done.problem is None
                yield done
                if (
                    telling is not None
                ):  # the worker that next loads the saga publishes the events that could not be published now
                    await telling.publish()
            if is_whole:
                await note_logs(store, declared.name, log_ids)
    if not is_known:
        names = ", ".join(declared.name for declared in services)
        raise SagaError(f"{names} {'knows' if len(services) == 1 else 'know'} no saga {saga}: see its id")


async def _find_lost_topics(
    service: ServiceRuntime, topics: Collection[str], saga: str | None, *, dry_run: bool
) -> AsyncIterator[RepairedSaga]:
    """Publish the records again that were lost because these topics were deleted and created again. They are published
    in the order of the transitions, and with the same ids."""
    if not topics:
        return
    async for id_, document in _read_documents(service, service.ports.store, saga):
        try:
            records = await _list_published(service, decode_progress(document.content), topics)
            if not dry_run:
                await service.ports.publisher.publish(records)
        except (SagaError, *UNREADABLE) as why:
            yield RepairedSaga(service=service.name, saga=id_, problem=str(why))
        else:
            if records:
                yield RepairedSaga(service=service.name, saga=id_, again=len(records))


async def _list_published(service: ServiceRuntime, p: SagaProgress, topics: Collection[str]) -> list[Outgoing]:
    """Return the records that a saga's transitions have published to these topics, oldest first. Raises `SagaError` if
    the release does not know an event, or if the history cannot be read."""
    records = list[Outgoing]()
    for entry in map(decode_transition, (await add_archives(service.ports.store, p)).transitions):
        if unknown := sorted({event.type for event in entry.events} - service.contracts.keys()):
            raise SagaError(f"transition {entry.n} emitted {', '.join(unknown)}, which this release does not know")
        records += [record for record in outbox_records(service, p, entry) if record.topic in topics]
    return records


async def _repair_saga(service: ServiceRuntime, needing: RepairedSaga) -> RepairedSaga:
    try:
        if needing.work.is_wake_alone:  # the timer makes a running worker load the saga; no handler runs twice
            await republish_timer(service, needing.saga)
            return needing
        return replace(needing, did=tuple(await republish_saga(service, needing.saga, needing.work.triggers)))
    except (SagaError, *UNREADABLE) as why:
        return replace(needing, problem=str(why))


async def _find_sagas(service: ServiceRuntime, store: Store, saga: str | None) -> AsyncIterator[RepairedSaga]:
    """Yield sagas with ready work that may have no trigger, and sagas that cannot be read, with the reason."""
    quiet_ms = _compute_quiet_ms(service)
    async for id_, document in _read_documents(service, store, saga):
        try:
            work = find_stranded_work(
                decode_progress(document.content), service.roles, service.ports.clock.now_ms(), quiet_ms
            )
        except (SagaError, *UNREADABLE) as why:
            yield RepairedSaga(service=service.name, saga=id_, problem=str(why))
            continue
        if work.is_any:
            yield RepairedSaga(service=service.name, saga=id_, work=work)


async def _read_documents(
    service: ServiceRuntime, store: Store, saga: str | None
) -> AsyncIterator[tuple[str, Document]]:
    """Yield the progress documents of all sagas, or of one. The document of one saga is read by its key instead of by a
    scan."""
    if saga is not None:
        document = await store.get(PROGRESS, progress_key(service.name, saga))
        if document is not None:
            yield saga, document
        return
    prefix = progress_key(service.name, "")
    async for key, document in store.scan(PROGRESS, prefix):
        yield key.removeprefix(prefix), document


def _compute_quiet_ms(service: ServiceRuntime) -> int:
    """Return the time in milliseconds for which a saga must be unchanged before it is assumed that no worker is
    processing it."""
    return int((max(each.timeout_s for each in service.handlers.values()) + SETTLES_S_MAX) * 1000)


@asynccontextmanager
async def _run_worker(
    declared: Declared, settings: Settings, clock: Clock, report: Report, *, dry_run: bool
) -> AsyncIterator[tuple[ServiceRuntime, Broker, TransitionPublisher | None]]:
    """Open the service with its store, broker and resources, like a worker without assigned partitions.

    Yield the service, the broker, and the publisher of transition events (`None` if none are published). A dry run
    opens no resources, because it calls no handler.
    """
    keys = wiring.open_keys(settings, clock, [declared])
    async with AsyncExitStack() as stack:
        if dry_run:
            settings = _without_missing_files(declared, settings, stack)
        store = await stack.enter_async_context(wiring.open_store(declared.name, clock, settings, readonly=dry_run))
        broker = await stack.enter_async_context(wiring.open_broker(None, clock, settings))
        if not dry_run:
            await wiring.with_topics([declared], broker, (), clock, settings.open_s, settings.transition_topic)
        prepared, watching = prepare(declared), OutageWatch(declared.name, clock, report)
        telling = (
            TransitionPublisher(prepared, broker, watching, NAME)
            if settings.transition_topic is not None and not dry_run
            else None
        )
        assignment = WorkerAssignment(watching)
        if not dry_run:
            async with open_administration(settings, clock) as tools:
                positions = (await tools.describe_group(declared.name)).positions
                may_act(assignment, positions, await broker.fetch_log_ids({each.topic for each in positions}))
        resources = {} if dry_run else await open_resources(declared, stack, clock, settings.open_s)
        ports = replace(make_worker_ports(store, broker, assignment), keys=keys, transition_listener=telling)
        yield make_service_runtime(prepared, resources, ports), broker, telling


def _missing_store(declared: Declared, settings: Settings) -> Path | None:
    return adapters.store_adapter(settings.store).missing_file(settings, declared.name)


def _without_missing_files(declared: Declared, settings: Settings, stack: AsyncExitStack) -> Settings:
    """Return settings with which a dry run creates no file. If the file of the broker or of the service's store is
    missing, they name an empty one in a temporary folder, which `stack` removes."""
    folder = stack.enter_context(TemporaryDirectory())
    if missing_broker_file(settings) is not None:
        settings = replace(settings, broker=f"embedded:///{folder}/broker.db")
    if _missing_store(declared, settings) is not None:
        settings = replace(settings, store=f"sqlite:///{folder}/store.db")
    return settings


# -------------------------------------------------------------------- rebuild


RECORDS_MAX = 1_000_000
"""Maximum number of records that are kept in memory, over all sagas to be rebuilt."""
AHEAD_S = 30
"""Delay in seconds of the first of two timers for a rebuilt saga. That timer is published before the progress is
inserted, so that a crash right after the insert does not leave the saga without a timer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuiltSaga:
    """Result of rebuilding a saga whose progress was lost: what was reconstructed, or the reason why that is
    impossible."""

    service: str
    saga: str
    did: tuple[tuple[str, str], ...] = ()
    """Handler and outcome of each reconstructed transition."""
    open: bool = False
    unsaid: tuple[str, ...] = ()
    """Types of events that are in the rebuilt progress but not in the log. The rebuild publishes them."""
    left: tuple[str, ...] = ()
    """Handlers whose runs the service will execute again, with the same idempotency keys."""
    problem: str | None = None


@dataclass(slots=True)
class _FoundMessages:
    """Messages of one saga that were found in the topics."""

    taken: list[ReceivedMessage] = field(default_factory=list)
    emitted: dict[str, Message] = field(default_factory=dict)
    commanded: bool = False
    places: Sequence[Partition] = ()
    """Partitions that may contain records of the saga."""


async def rebuild(
    services: Sequence[Declared], settings: Settings, clock: Clock, *, saga: str | None = None, apply: bool = False
) -> AsyncIterator[RebuiltSaga]:
    """Rebuild the progress of sagas that are in the topics of these services but not in their stores. With `saga`,
    rebuild only that one.

    Args:
        apply: True to write each rebuilt progress. Otherwise nothing is changed.

    Raises:
        SagaError: A store or the broker cannot be opened or read, or the file of the broker is missing.
    """
    check_broker_exists(settings)
    for declared in services:
        keys = wiring.open_keys(settings, clock, [declared])
        async with _open(declared, settings, clock, dry_run=not apply) as (broker, store):
            found, oldest = await _find_messages(prepare(declared), broker, store, saga)
            publishes_transitions = settings.transition_topic is not None and bool(
                await broker.describe_topics([settings.transition_topic.name])
            )
            place = _RebuildTarget(prepare(declared), broker, store, keys, clock, oldest, publishes_transitions)
            for id_, of in sorted(found.items()):
                one = await _rebuild_saga(place, id_, of, apply=apply)
                if one is not None:
                    yield one


async def is_known(saga: str, services: Sequence[Declared], settings: Settings, clock: Clock) -> bool:
    """Return whether the store of any of these services has a progress of the saga. Raises `SagaError` if a store
    cannot be opened."""
    for declared in services:
        if _missing_store(declared, settings) is not None:
            continue
        async with wiring.open_store(declared.name, clock, settings, readonly=True) as store:
            if not await _is_lost(declared.name, store, saga):
                return True
    return False


@asynccontextmanager
async def _open(
    declared: Declared, settings: Settings, clock: Clock, *, dry_run: bool
) -> AsyncIterator[tuple[Administration, Store]]:
    async with AsyncExitStack() as stack:
        is_store_missing = _missing_store(declared, settings) is not None
        if dry_run:
            settings = _without_missing_files(declared, settings, stack)
        broker = await stack.enter_async_context(open_administration(settings, clock))
        is_readonly = dry_run and not is_store_missing
        opening = wiring.open_store(declared.name, clock, settings, readonly=is_readonly)
        yield broker, await stack.enter_async_context(opening)


# -------------------------------------------------------------------- search


async def _find_messages(
    service: PreparedService, broker: Administration, store: Store, saga: str | None
) -> tuple[Mapping[str, _FoundMessages], Mapping[Partition, int | None]]:
    """Find the sagas of which the service has handled messages but has no progress. Return their messages by saga.

    Also return the partitions that have lost records, each with the time of its oldest remaining record (`None` if none
    remains).
    """
    positions = (await broker.describe_group(service.name)).positions
    topics = list(await broker.describe_topics({contract.topic for contract in service.contracts.values()}))
    bounds = await broker.fetch_bounds(topics)
    oldest: dict[Partition, int | None] = {at: None for at, (begin, _) in bounds.items() if begin > 0}
    keys: dict[bytes, set[Partition]] = {}
    for topic in topics:
        async for record in broker.scan(topic):
            at = Partition(record.topic, record.partition)
            if at in oldest and record.offset >= bounds[at].begin:
                oldest[at] = oldest[at] or record.time_ms
            if record.key and record.offset < positions.get(at, 0) and saga in (None, _decode_text(record.key)):
                keys.setdefault(record.key, set()).add(at)
    lost = {key: _FoundMessages() for key in keys if await _is_lost(service.name, store, _decode_text(key))}
    if lost:
        async for record in _scan_all(broker, [*topics, service.commands], lost):
            _sort(service, record, lost[record.key or b""], positions)
    for key, of in lost.items():
        of.places = sorted(
            {*_count_partitions(key, bounds), *keys[key]}
        )  # foreign producers may use another partitioner
    return {_decode_text(key): of for key, of in lost.items() if of.taken}, oldest


def _count_partitions(key: bytes, bounds: Mapping[Partition, OffsetBounds]) -> Sequence[Partition]:
    """Return the partition of each topic to which the toolkit's partitioner assigns this key."""
    sizes = Counter(at.topic for at in bounds)
    return [Partition(topic, partition_of(key, size)) for topic, size in sizes.items()]


async def _is_lost(service: str, store: Store, saga: str) -> bool:
    return await store.get(PROGRESS, progress_key(service, saga)) is None


async def _scan_all(
    broker: Administration, topics: Iterable[str], of: Mapping[bytes, _FoundMessages]
) -> AsyncIterator[Record]:
    """Yield the records of these sagas. Raises `ConfigurationError` if there are more than `RECORDS_MAX`."""
    count = 0
    there = await broker.describe_topics(list(topics))
    for topic in there:
        async for record in broker.scan(topic):
            if record.key in of:
                count += 1
                if count > RECORDS_MAX:
                    raise ConfigurationError(
                        "nothing was made:", [f"more than {RECORDS_MAX:,} records: make sagas one by one with --saga"]
                    )
                yield record


def _sort(service: PreparedService, record: Record, of: _FoundMessages, positions: Mapping[Partition, int]) -> None:
    """Add a record to the messages that the service has handled, or to those that it has emitted. Other records are
    ignored."""
    if record.topic == service.commands:
        of.commanded = True
        return
    own = _decode_own(service, record)
    if own is not None:
        of.emitted[own.id] = own
    elif record.offset < positions.get(Partition(record.topic, record.partition), 0):
        taken = route_record(record, service)
        if isinstance(taken, Message):
            position = Position(*record[:3], record.log_id)
            of.taken.append(ReceivedMessage(taken, position, record.time_ms))


def _decode_own(service: PreparedService, record: Record) -> Message | None:
    """Decode the event in a record if this service has emitted it; otherwise return `None`."""
    type_ = envelope.type_of(record)
    if type_ is None or type_ not in service.contracts:
        return None
    try:
        message = envelope.to_message(record, type_=type_, schema="", contract=service.contracts[type_])
    except BadInput:
        return None
    message = to_single_object(message, record.writer, service.schemas.library)
    return message if message.source == service.name and could_be_own(message.id, type_) else None


def _decode_text(key: bytes) -> str:
    return key.decode("utf-8", "replace")


# -------------------------------------------------------------------- reconstruction


@dataclass(frozen=True, slots=True)
class _RebuildTarget:
    """The service whose sagas are rebuilt, with its broker, store and keys."""

    service: PreparedService
    broker: Administration
    store: Store
    keys: Keys | None
    clock: Clock
    oldest: Mapping[Partition, int | None]
    publishes_transitions: bool
    """True if the rebuilt transitions are published as transition events."""


async def _rebuild_saga(place: _RebuildTarget, saga: str, found: _FoundMessages, *, apply: bool) -> RebuiltSaga | None:
    """Rebuild one saga. Return `None` if nothing of it is missing."""
    service = place.service
    try:
        if found.commanded:
            raise Unknowable("a person has decided about it, by commands: what became of them is not in the topics")
        environment = RebuildEnvironment(place.broker.record_bytes_max, place.store.document_bytes_max, place.keys)
        rebuilt = await rebuild_progress(service, saga, found.taken, found.emitted, place.clock.now_ms(), environment)
        if rebuilt is None or _is_forgotten(place, rebuilt, found):
            return None
        _check_begun(place, rebuilt, found)
        result = _describe(service, saga, rebuilt)
        if apply:
            await _write(place, saga, rebuilt)
    except (Unknowable, Exists) as why:
        return RebuiltSaga(service=service.name, saga=saga, problem=str(why))
    return result


def _is_forgotten(place: _RebuildTarget, rebuilt: RebuiltProgress, found: _FoundMessages) -> bool:
    """Return whether the progress is missing because it has expired after the retention, so that nothing was lost."""
    last_ms = max(each.time_ms for each in found.taken)
    return not rebuilt.snapshot.is_open and last_ms + place.service.retention_s * 1000 < place.clock.now_ms()


def _check_begun(place: _RebuildTarget, rebuilt: RebuiltProgress, found: _FoundMessages) -> None:
    """Raise `Unknowable` if the log may no longer contain everything since the saga began."""
    started = rebuilt.snapshot.started
    if started is None:
        raise Unknowable("none of its messages has the start of the saga, so some may be missing from the log")
    for at in found.places:
        time_ms = place.oldest.get(at, 0)
        since = "now" if time_ms is None else iso(time_ms)
        if started <= since:
            raise Unknowable(
                f"it began at {started}, and the log has lost what was in {at.topic} before {since}: what it was then "
                "is not known"
            )


def _describe(service: PreparedService, saga: str, rebuilt: RebuiltProgress) -> RebuiltSaga:
    entries = [decode_transition(raw) for raw in rebuilt.snapshot.transitions]
    return RebuiltSaga(
        service=service.name,
        saga=saga,
        did=tuple((entry.handler, entry.outcome) for entry in entries),
        open=rebuilt.snapshot.is_open,
        unsaid=tuple(event.type for event in rebuilt.unpublished),
        left=tuple(rebuilt.left_to_service),
    )


async def _write(place: _RebuildTarget, saga: str, rebuilt: RebuiltProgress) -> None:
    """Write a rebuilt saga. Publish a timer, the transition events, and the events that are missing from the log. Then
    insert the archives and the progress, and publish a second timer.

    The transition events are published before the progress is inserted. Otherwise a worker could see the progress
    first, and publish its own events about it, as a different history of the saga.

    Raises:
        Exists: The saga has a progress, or another archive, by now. Documents that were inserted are removed again.
    """
    await place.broker.publish([_find_timer(place, saga, AHEAD_S)])
    if place.publishes_transitions:
        await place.broker.publish(transitions_to_records(map(make_line, _list_transitions(place, rebuilt))))
    if rebuilt.unpublished:
        contracts = place.service.contracts
        await place.broker.publish([envelope.to_record(event, contracts[event.type]) for event in rebuilt.unpublished])
    inserted: list[tuple[str, str, int]] = []
    for (collection, key), (content, expiry_s) in rebuilt.documents.items():
        try:
            cas = await place.store.insert(collection, key, content, expiry_s=expiry_s)
        except Exists as why:
            there = await place.store.get(collection, key)
            if collection == ARCHIVES and there is not None and there.content == content:
                continue  # from a rebuild that was interrupted
            for document in inserted:
                await place.store.remove(document[0], document[1], cas=document[2])
            what = "an archive of it" if collection == ARCHIVES else "its progress"
            raise Exists(f"{what} is there by now: it is left as it is") from why
        inserted.append((collection, key, cas))
    await place.broker.publish([_find_timer(place, saga, 0)])


def _list_transitions(place: _RebuildTarget, rebuilt: RebuiltProgress) -> Iterator[TransitionEvent]:
    """Yield all rebuilt transitions as a worker would report them; the first one is marked as rebuilt."""
    p, raws = rebuilt.snapshot, list[Raw]()
    while len(raws) < p.first:
        content, _ = rebuilt.documents[ARCHIVES, archive_key(p.service, p.saga, len(raws))]
        raws += decode_archive(content).transitions
    for number, raw in enumerate((*raws, *p.transitions)):
        event = make_transition_event(place.service, "", p, decode_transition(raw), sha256(bytes(raw)).hexdigest())
        yield event if number else structs.replace(event, rebuilt_at=iso(place.clock.now_ms()))


def _find_timer(place: _RebuildTarget, saga: str, in_s: int) -> Outgoing:
    """Return the record of a timer that makes the service resume all ready work of the saga in `in_s` seconds."""
    now_ms = place.clock.now_ms()
    return timers.timer_to_record(place.service.name, saga, "rebuilt", now_ms + in_s * 1000, now_ms)
