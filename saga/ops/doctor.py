"""The doctor. It checks brokers, stores, keys and the schema registry, and reports problems and risks with their
remedies."""

import asyncio
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from saga.broker.administration import Administration, GroupDescription, OffsetBounds, TopicDescription
from saga.configuration import adapters, wiring
from saga.configuration.settings import Settings
from saga.contracts.library import Library
from saga.declarations.values import Declared
from saga.encryption.port import Keys, KeyState
from saga.encryption.sensitive_fields import find_key_names
from saga.engine.lifecycle import collections_of
from saga.engine.persistence.overflow_store import EXPIRY_S_MORE
from saga.engine.persistence.service_record import begun_topics, known_logs, read_record, replaced_logs
from saga.engine.prepared_service import prepare, reads_of, writes_of
from saga.errors import BadInput, BrokerError, ConfigurationError, KeyMissing, Problems, SagaError, StoreError
from saga.messages import Partition, Record
from saga.messaging.names import PROBE, PROBED, PROGRESS, dead_letter_topic, is_without_events
from saga.ops import connectors, findings
from saga.ops.event_fields import recognize_record
from saga.ops.histories import UnreadableHistory, complete_history, decode_progress, read_documents
from saga.ops.offsets import list_partition_states, read_manual_moves
from saga.ops.schema_registration import check_registry
from saga.ops.sources import ServiceStore, missing_broker_file, open_administration
from saga.ops.tail import POLL_S, RECORDS_MAX, is_at_end
from saga.ops.topic_plans import TopicNeeds, collect_needs
from saga.progress.document import UNREADABLE, progress_key
from saga.registry.port import RegistryOptions
from saga.store.port import Store
from saga.support.clock import Clock
from saga.support.printable import count_noun, printable, quote_text, shorten
from saga.support.settings import Finding, Severity

PROBE_S = 60.0
"""Time in seconds after which the probe document expires, in case the process dies before it removes the document."""
AGAIN = "correct that, and run saga doctor again"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The findings, and whether every system could be checked."""

    findings: tuple[Finding, ...]
    reached: bool
    """True if every system could be checked; False if one is down or refuses access."""

    def count(self, severity: Severity) -> int:
        return sum(finding.severity == severity for finding in self.findings)


@dataclass(slots=True)
class _StoreKnowledge:
    """What broker and stores report about each service. It is collected so that the two can be compared."""

    groups: dict[str, tuple[GroupDescription, int]] = field(default_factory=dict)
    """The consumer group of each service, and the number of records in the topics of its events."""
    stores: dict[str, str | None] = field(default_factory=dict)
    """Store id of each service; `None` if it has never run on that store."""


async def diagnose(services: Sequence[Declared], settings: Settings, clock: Clock) -> Diagnosis:
    """Check the broker, stores, keys and registry of these services. Raises `ConfigurationError` if the settings are
    invalid."""
    wanted, known = collect_needs(services, settings.transition_topic), _StoreKnowledge()
    async with asyncio.TaskGroup() as tasks:  # concurrently: each check may use its whole time limit
        asked = [tasks.create_task(_check_broker(services, wanted, settings, clock, known))]
        asked.append(tasks.create_task(_check_registry(services, settings, clock)))
        asked.append(tasks.create_task(_check_keys(services, settings, clock)))
        asked.append(tasks.create_task(_check_changes(services, settings)))
        asked.append(tasks.create_task(_check_logs(services, settings, clock)))
        shared = _group_by_store(services, settings).values()
        asked += [tasks.create_task(_check_store(each, settings, clock, known)) for each in shared]
    answers = [task.result() for task in asked]
    found = [finding for answer in answers for finding in answer.findings]
    found += _compare(services, known)
    order = findings.SEVERITIES
    return Diagnosis(
        tuple(sorted(dict.fromkeys(found), key=lambda finding: order.index(finding.severity))),
        all(answer.reached for answer in answers),
    )


def _compare(services: Sequence[Declared], known: _StoreKnowledge) -> Iterator[Finding]:
    """Yield findings that follow from comparing broker and store, for each service for which both have answered."""
    for service in services:
        if service.name in known.groups and service.name in known.stores:
            (group, records), store = known.groups[service.name], known.stores[service.name]
            yield from findings.check_members(service, group, store)
            yield from findings.check_first_start(service, group, records, store)


# -------------------------------------------------------------------- the broker


async def _check_broker(
    services: Sequence[Declared],
    wanted: Mapping[str, TopicNeeds],
    settings: Settings,
    clock: Clock,
    known: _StoreKnowledge,
) -> Diagnosis:
    about = f"broker {settings.broker}"
    if missing_broker_file(settings) is not None:
        return Diagnosis((Finding("ok", about, "it does not exist yet: the first service creates it"),), True)
    seen: list[Finding] = []
    try:
        async with open_administration(settings, clock) as broker:
            seen.append(Finding("ok", about, "it can be reached"))
            await _check_topics(seen, services, wanted, settings, broker, known)
            seen += await check_types(services, await _keep_readable(wanted, broker), broker, clock)
            seen += await _check_clock(settings, broker, clock)
    except SagaError as why:
        return Diagnosis((*seen, _report_failed(about, why) if seen else _report_unreachable(about, why)), bool(seen))
    return Diagnosis(tuple(seen), True)


async def _check_topics(
    seen: list[Finding],
    services: Sequence[Declared],
    wanted: Mapping[str, TopicNeeds],
    settings: Settings,
    broker: Administration,
    known: _StoreKnowledge,
) -> None:
    """Add findings about topics, groups and brokers to `seen`. If the broker fails, the findings made until then are
    kept in `seen`."""
    found = await broker.describe_topics(list(wanted))
    adapter = adapters.broker_adapter(settings.broker)
    asked = findings.TopicRequirements(
        adapter.required_replicas(settings), settings.record_bytes_max, creates_topics=adapter.creates_topics
    )
    for name, each in wanted.items():
        wrong = list(findings.check_topic(each, found.get(name), asked))
        seen += wrong or [Finding("ok", name, "as the contracts require")]
    for service in services:
        reads = reads_of(service)
        seen += findings.check_partitions(service, found, reads)
        group = await broker.describe_group(service.name)
        states = list_partition_states(group, await broker.fetch_bounds(sorted(reads & set(found))))
        seen += findings.check_positions(service, states)
        seen += findings.check_waiting(service, group, states)
        begun = begun_topics(service)
        known.groups[service.name] = group, sum(b.end - b.begin for p, (b, _) in states.items() if p.topic in begun)
    seen += [finding for away in await broker.list_inactive_groups() for finding in findings.check_inactive_group(away)]
    seen += await _check_servers(found, broker)


async def _keep_readable(wanted: Mapping[str, TopicNeeds], broker: Administration) -> list[str]:
    """Return the existing topics that this user may read."""
    found = await broker.describe_topics(list(wanted))
    return [name for name, each in found.items() if each.may is None or "read" in each.may]


async def _check_servers(found: Mapping[str, TopicDescription], broker: Administration) -> Sequence[Finding]:
    retentions = [each.retention_ms for name, each in found.items() if not is_without_events(name) and not each.hidden]
    known = [ms for ms in retentions if ms is not None]
    longest_ms = max(known, default=0) if len(known) == len(retentions) else None
    try:
        servers = await broker.fetch_server_settings()
    except BrokerError as why:
        unseen = Finding(
            "warning",
            "brokers",
            f"their settings cannot be seen ({why})",
            "whether topics are created automatically, and how long offsets are kept, was not checked",
            "allow this user DescribeConfigs on the cluster, or run saga doctor as an administrator",
        )
        return [unseen]
    return [each for name, values in servers.items() for each in findings.check_server(name, values, longest_ms)]


async def _check_clock(settings: Settings, broker: Administration, clock: Clock) -> Sequence[Finding]:
    about = f"broker {settings.broker}"
    before_ms = clock.now_ms()
    try:
        reported_ms = await broker.append_probe()
    except BrokerError as why:
        unwritten = Finding(
            "warning",
            about,
            f"no record could be written as a probe ({why})",
            "whether messages can be published, and the broker's clock, was not checked",
            f"{AGAIN}; its user needs Create, Read and Write on the topic {PROBED}",
        )
        return [unwritten]
    if reported_ms is None:
        return [Finding("ok", about, "it can be written to")]
    ahead_ms = findings.compute_ahead_ms(reported_ms, before_ms, clock.now_ms())
    return [Finding("ok", about, "a record was written and read back"), findings.report_clock(about, ahead_ms)]


async def _check_registry(services: Sequence[Declared], settings: Settings, clock: Clock) -> Diagnosis:
    try:
        return Diagnosis(tuple(await check_registry(services, settings, clock)), True)
    except SagaError as why:
        return Diagnosis((_report_unreachable(f"registry {settings.of(RegistryOptions).registry}", why),), False)


async def _check_keys(services: Sequence[Declared], settings: Settings, clock: Clock) -> Diagnosis:
    return Diagnosis(tuple(await check_keys(services, settings, clock)), True)


async def _check_changes(services: Sequence[Declared], settings: Settings) -> Diagnosis:
    found = await connectors.check_connectors(services, settings, connectors.make_query(settings.connect))
    return Diagnosis(tuple(found), True)


# -------------------------------------------------------------------- stores


def _group_by_store(services: Sequence[Declared], settings: Settings) -> Mapping[str, list[Declared]]:
    """Group services by the store that they share."""
    adapter = adapters.store_adapter(settings.store)
    shared: dict[str, list[Declared]] = {}
    for service in services:
        shared.setdefault(adapter.store_address(settings, service.name), []).append(service)
    return shared


async def _check_store(
    services: Sequence[Declared], settings: Settings, clock: Clock, known: _StoreKnowledge
) -> Diagnosis:
    adapter, name = adapters.store_adapter(settings.store), services[0].name
    about = f"store {adapter.store_address(settings, name)}"
    if (file := adapter.missing_file(settings, name)) is not None:
        known.stores.update(dict.fromkeys((each.name for each in services), None))
        return Diagnosis((_report_missing_file(about, file),), True)
    try:
        store = adapters.store_at(settings, name, clock)
        await clock.within(settings.open_s, store.__aenter__())
    except TimeoutError:
        return Diagnosis((_report_unreachable(about, f"it did not open within {settings.open_s:g} s"),), False)
    except SagaError as why:
        return Diagnosis((_report_unreachable(about, why),), False)
    try:
        before_ms = clock.now_ms()
        cas = await _measure_clock(store, clock)
        after_ms = clock.now_ms()
        lasting = await _check_durability(about, store, services)
        untaken = [finding for service in services for finding in connectors.check_watched_collections(service, store)]
        for each in services:
            record = await read_record(store, each.name)
            known.stores[each.name] = None if record is None else record.store
    except StoreError as why:
        return Diagnosis((_report_failed(about, why),), True)
    finally:
        await store.__aexit__(None, None, None)
    version = findings.check_store_clock(about, adapter.version_time_ms(cas), before_ms, after_ms)
    return Diagnosis((adapter.report_probe(settings, about), *lasting, *untaken, *version), True)


async def _check_durability(about: str, store: Store, services: Sequence[Declared]) -> Sequence[Finding]:
    """Return findings about settings of a store that let documents expire too early."""
    collections = {collection for service in services for collection in collections_of(service)}
    longest_s = max(service.retention.total_seconds() for service in services)
    try:
        await store.check_expiry(
            sorted(collections), longest_s + EXPIRY_S_MORE
        )  # the same check that a starting service makes
    except ConfigurationError as why:
        return [findings.report_durability(about, problem) for problem in why.problems]
    return []


async def _measure_clock(store: Store, clock: Clock) -> int:
    """Write a probe document, read it back and remove it. Return its CAS value."""
    key = f"{PROBE}doctor-{round(clock.chance() * 2**52):x}"
    cas = await store.insert(PROGRESS, key, b"{}", expiry_s=PROBE_S)
    document = await store.get(PROGRESS, key)
    if document is None or document.cas != cas:
        raise StoreError("a document that was written and acknowledged is read differently")
    await store.remove(PROGRESS, key, cas=cas)
    return cas


async def _check_logs(services: Sequence[Declared], settings: Settings, clock: Clock) -> Diagnosis:
    """Return findings about a lost log, a lost store, or a log and a store that do not belong together.

    An unreachable broker or store is skipped, because its own check reports it.
    """
    adapter, found = adapters.store_adapter(settings.store), list[Finding]()
    with suppress(SagaError, TimeoutError):
        async with AsyncExitStack() as stack:
            is_there = missing_broker_file(settings) is None
            broker = await stack.enter_async_context(open_administration(settings, clock)) if is_there else None
            for service in services:
                known, is_empty = dict[str, str](), True
                if adapter.missing_file(settings, service.name) is None:
                    known, is_empty = await _read_positions(service, settings, clock)
                if broker is not None:
                    found += await _compare_log(service, broker, known, is_empty=is_empty)
                elif known:
                    found.append(findings.report_lost_log(service, f"broker {settings.broker}"))
    return Diagnosis(tuple(found), True)


async def _read_positions(service: Declared, settings: Settings, clock: Clock) -> tuple[dict[str, str], bool]:
    """Return the log ids that the service's store has recorded, and whether the store is empty, which means that it has
    neither log ids nor sagas."""
    async with AsyncExitStack() as stack:
        opening = stack.enter_async_context(adapters.store_at(settings, service.name, clock))
        store = await clock.within(settings.open_s, opening)
        if known := await known_logs(store, service.name):
            return known, False
        async for _ in store.scan(PROGRESS, progress_key(service.name, "")):
            return {}, False
        return {}, True


async def _compare_log(
    service: Declared, broker: Administration, known: Mapping[str, str], *, is_empty: bool
) -> Sequence[Finding]:
    """Return findings about the store and the log of a service. An error of the broker is one, too: a user without the
    right to read a topic must not take a lost store for one that is well."""
    try:
        return await _check_service_log(service, broker, known, is_empty=is_empty)
    except BrokerError as why:
        return [
            Finding(
                "warning",
                service.name,
                f"its store and its log cannot be compared ({why})",
                "whether one of them is lost was not checked",
                f"{AGAIN}; its user needs Read on {dead_letter_topic(service.name)}",
            )
        ]


async def _check_service_log(
    service: Declared, broker: Administration, known: Mapping[str, str], *, is_empty: bool
) -> Sequence[Finding]:
    found = list(findings.check_log_ids(service, replaced_logs(known, await broker.fetch_log_ids(writes_of(service)))))
    if is_empty:
        positions = (await broker.describe_group(service.name)).positions
        handled = {p: at for p, at in positions.items() if at and not is_without_events(p.topic)}
        if handled:  # an operator may have set the offset at which a new service begins
            moved = await read_manual_moves(service.name, broker)
            handled = {p: at for p, at in handled.items() if at > moved.get(p, 0)}
        found += findings.check_empty_store(service, len(handled))
    return found


def _report_missing_file(about: str, file: Path) -> Finding:
    folder = file.absolute().parent
    while not folder.exists():
        folder = folder.parent
    if os.access(folder, os.W_OK | os.X_OK):
        return Finding("ok", about, "it does not exist yet: the service creates it")
    return Finding(
        "error", about, f"{folder} may not be written", "the service does not start", "let its user write there"
    )


# -------------------------------------------------------------------- unreachable systems


def _report_unreachable(about: str, why: object) -> Finding:
    return Finding("error", about, f"it cannot be used: {_describe(why)}", "no service starts or continues", AGAIN)


def _report_failed(about: str, why: object) -> Finding:
    what = f"it can be reached, but then fails: {_describe(why)}"
    return Finding("error", about, what, "services are stuck, and not everything was checked", AGAIN)


def _describe(why: object) -> str:
    """Format an error as one line."""
    return f"{why.heading.rstrip(':')}: {'; '.join(why.problems)}" if isinstance(why, Problems) else str(why)


# -------------------------------------------------------------------- keys


SAMPLED_MAX = 200
"""Maximum number of sagas of a service that are searched for encrypted values."""
SHOWN_MAX = 5
"""Maximum number of unreadable keys that are reported individually."""


async def check_keys(services: Sequence[Declared], settings: Settings, clock: Clock) -> list[Finding]:
    """Check that these services can encrypt all sensitive values, and that the keys which they have used can be
    read."""
    if not settings.keys:
        return []
    about = f"keys {settings.keys}"
    try:
        wiring.open_keys(settings, clock, services)
        ring = wiring.key_ring(Path(settings.keys), clock)
        state = await asyncio.to_thread(ring.summarize)
    except ConfigurationError as why:
        return [Finding("error", about, problem, "no service starts", AGAIN) for problem in why.problems]
    found = list(_check_folder(about, state))
    for service in services:
        with suppress(
            SagaError, TimeoutError
        ):  # a store that is unreachable, or cannot scan, is reported by its own check
            found += await _check_encrypted(about, service, settings, clock, ring)
    return found


async def _check_encrypted(
    about: str, service: Declared, settings: Settings, clock: Clock, keys: Keys
) -> Sequence[Finding]:
    """Return a finding if the service has encrypted values whose keys are missing from this key folder."""
    if adapters.store_adapter(settings.store).missing_file(settings, service.name) is not None:
        return []
    names, looked = set[str](), 0
    async with AsyncExitStack() as stack:
        opening = stack.enter_async_context(adapters.store_at(settings, service.name, clock, readonly=True))
        source = ServiceStore(service.name, await clock.within(settings.open_s, opening), clock)
        async for saga, document in read_documents(source):
            with suppress(UnreadableHistory, *UNREADABLE):  # saga sagas verify names what is damaged
                history = await complete_history(source, decode_progress(source, saga, document))
                names |= find_key_names(*(event.value for entry in history.entries for event in entry.events))
            looked += 1
            if looked == SAMPLED_MAX:
                break
    missing = [name for name in sorted(names) if await _is_missing(name, keys)]
    return list(describe_missing(about, service.name, len(missing), len(names)))


async def _is_missing(name: str, keys: Keys) -> bool:
    try:
        await keys.get_key(name)
    except KeyMissing:
        return True
    return False


def describe_missing(about: str, service: str, missing: int, sampled: int) -> Iterator[Finding]:
    """Yield a finding if keys of a service's encrypted values are missing from the folder.

    If all sampled keys are missing, the folder is probably the wrong one.
    """
    if missing:
        yield Finding(
            "error" if missing == sampled else "warning",
            about,
            f"of {count_noun(sampled, 'secret')} with which {service} has encrypted values, {missing} "
            f"{'is' if missing == 1 else 'are'} not in this folder",
            "the processes of the service use another key folder, or this one has lost keys: one side cannot decrypt "
            "what the other side encrypts, and its runs are parked",
            "set SAGA_KEYS to one folder in all processes, and restore missing keys from a copy",
        )


def _check_folder(about: str, state: KeyState) -> Iterator[Finding]:
    for trouble in state.troubles[:SHOWN_MAX]:
        yield Finding(
            "error",
            about,
            trouble,
            "values that were encrypted with it cannot be read: runs that need them are parked",
            "restore it",
        )
    if (more := len(state.troubles) - SHOWN_MAX) > 0:
        yield Finding("error", about, f"{more} more cannot be read", "the same as above", "restore them")
    if state.unwritable:
        yield Finding(
            "error",
            about,
            f"{state.unwritable} may not be written",
            "the first event of a new subject waits, and no subject can be forgotten",
            "let the user of the services write there",
        )
    if state.unneeded:
        yield Finding(
            "warning",
            about,
            f"no secret is wrapped any more with {', '.join(state.unneeded)}",
            "with these keys and a backup of the folder, erased values can be decrypted",
            "remove them, and their copies, once every erasure is older than the last backup that you would restore",
        )
    if not state.troubles:
        yield Finding("ok", about, f"secrets of {state.subjects} subjects can be read; {state.erased} are forgotten")


# -------------------------------------------------------------------- unknown types


NEWEST_MAX = 500
"""Maximum number of records of a topic that are examined. They are the newest ones."""
TYPES_MAX = 5
"""Maximum number of unknown types of a topic that are reported. The most frequent ones are."""
TYPE_BYTES_MAX = 100
LOOK_S_MAX = 10.0
"""Time limit in seconds for examining all topics."""


@dataclass(slots=True)
class UnknownTypeSample:
    """The number of examined records of a topic that have one unknown type, and the first of these records."""

    count: int
    first: Record
    contract: str
    """Name of the contract that the records' bytes or schema match; empty if none does."""


@dataclass(slots=True)
class TopicSample:
    """The number of examined records of one topic, and the unknown types among them."""

    count: int = 0
    unknown: dict[str, UnknownTypeSample] = field(default_factory=dict)

    def add(self, record: Record, libraries: Iterable[Library]) -> None:
        """Count a record. Count its type, too, if no contract has it."""
        self.count += 1
        unknown = find_unknown_type(record, libraries)
        if unknown is not None:
            type_, contract = unknown
            found = self.unknown.setdefault(type_, UnknownTypeSample(0, record, contract))
            found.count += 1


def find_unknown_type(record: Record, libraries: Iterable[Library]) -> tuple[str, str] | None:
    """Find a type that no contract has. Return the type that the record states, and the name of the contract to which
    the record's bytes or schema belong instead; the name is empty if they belong to none.

    Return `None` if a contract has the type, or if the record has no type. Dead letters and tombstones have none.
    """
    found = None
    for library in libraries:
        try:
            _, recognized = recognize_record(record, library)
        except BadInput:
            return None
        if recognized.name and not recognized.doubt:
            return None
        if found is None or recognized.name:
            found = shorten(printable(recognized.unknown_type), TYPE_BYTES_MAX), recognized.name
    return found


async def check_types(
    services: Sequence[Declared], topics: Collection[str], broker: Administration, clock: Clock
) -> list[Finding]:
    """Return findings about the types of the newest records in those of `topics` from which these services read events.
    Raises `BrokerError` if the broker fails."""
    libraries = dict[str, list[Library]]()
    for service in services:
        if read := begun_topics(service) & set(topics):
            library = prepare(service).schemas.library
            for topic in read:
                libraries.setdefault(topic, []).append(library)
    bounds = {at: each for at, each in (await broker.fetch_bounds(sorted(libraries))).items() if each.begin < each.end}
    looked = {topic: TopicSample() for topic in sorted({at.topic for at in bounds})}
    if not looked:
        return []
    found, late = list[Finding](), False
    try:
        await clock.within(LOOK_S_MAX, _read_sample(looked, libraries, bounds, broker))
    except TimeoutError:
        late = True
    for topic, each in looked.items():
        found += describe_types(topic, each, late=late)
    return found


async def _read_sample(
    looked: Mapping[str, TopicSample],
    libraries: Mapping[str, Sequence[Library]],
    bounds: Mapping[Partition, OffsetBounds],
    broker: Administration,
) -> None:
    """Read the newest records of each topic: an equal share from each partition."""
    partitions = {topic: sum(at.topic == topic for at in bounds) for topic in looked}
    ends = {at: each.end for at, each in bounds.items()}
    begins = {at: max(each.begin, each.end - max(1, NEWEST_MAX // partitions[at.topic])) for at, each in bounds.items()}
    async with broker.open_reader(begins) as reading:
        while not is_at_end(reading, ends):
            for record in await reading.poll(records_max=RECORDS_MAX, timeout_s=POLL_S):
                if record.offset < ends[Partition(*record[:2])]:
                    looked[record.topic].add(record, libraries[record.topic])


def describe_types(topic: str, looked: TopicSample, *, late: bool = False) -> Iterator[Finding]:
    """Yield findings about the unknown types in one topic."""
    most = sorted(looked.unknown.items(), key=lambda each: (-each[1].count, each[0]))
    for type_, each in most[:TYPES_MAX]:
        at = f"{topic}/{each.first.partition} has one at offset {each.first.offset}"
        among = f"{count_noun(each.count, 'record')} of the newest {looked.count}"
        if each.contract:
            yield Finding(
                "warning",
                topic,
                f"{among} are of the type {quote_text(type_)}, which no contract has, and of {each.contract} by "
                f"their bytes; {at}",
                f"services that consume {each.contract} make each of them a dead letter, others ignore it",
                f"have the sender write {each.contract} in ce_type, and replay the dead letters",
            )
        else:
            yield Finding(
                "warning",
                topic,
                f"{among} are of the type {quote_text(type_)}, which no contract has; {at}",
                "services ignore them: if one is meant for a service, it is lost",
                f"look at them: saga topics tail {topic}; if they are meant for services, have the sender write "
                "the name of the contract in ce_type, or add the contract to contracts/; if not, move them to a topic "
                "of their own",
            )
    if late:
        yield Finding(
            "warning",
            topic,
            f"only {looked.count} of its newest records could be read within {LOOK_S_MAX:g} s",
            "records of types that no contract has may be among the others",
            f"run saga doctor again when the broker is less busy, or look at them: saga topics tail {topic}",
        )
