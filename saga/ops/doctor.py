"""The doctor: asks brokers and stores all there is to ask, and says what is wrong or at risk, and what to do."""

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from saga.broker.administration import Administration, GroupDescription, TopicDescription
from saga.configuration import adapters
from saga.configuration.settings import Settings
from saga.declarations.values import Declared
from saga.engine.lifecycle import collections_of
from saga.engine.persistence.overflow_store import EXPIRY_S_MORE
from saga.engine.persistence.service_record import begun_topics, known_logs, read_record, replaced_logs
from saga.engine.prepared_service import reads_of, writes_of
from saga.errors import BrokerError, ConfigurationError, Problems, SagaError, StoreError
from saga.messaging.names import PROBE, PROBED, PROGRESS, is_without_events
from saga.ops import connectors, findings, keys, unknown_types
from saga.ops.offsets import partition_states, read_manual_moves
from saga.ops.schema_registration import check_registry
from saga.ops.sources import missing_broker_file, open_administration
from saga.ops.topic_plans import TopicNeeds, collect_needs
from saga.progress.document import progress_key
from saga.registry.settings import RegistryOptions
from saga.store.port import Store
from saga.support.adapter_description import Finding, Severity
from saga.support.clock import Clock

PROBE_S = 60.0
"""Time to expiry of the document that is written as a probe, if we die before it is removed."""
AGAIN = "mend that, and run saga doctor again"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Findings, and whether everything could be asked."""

    findings: tuple[Finding, ...]
    reached: bool
    """True if everything could be asked; if not, something is down, or does not let us in."""

    def count(self, severity: Severity) -> int:
        return sum(finding.severity == severity for finding in self.findings)


@dataclass(slots=True)
class _StoreKnowledge:
    """What broker and stores say of the services, to be compared."""

    groups: dict[str, tuple[GroupDescription, int]] = field(default_factory=dict)
    """Group of each service, with the number of records in the topics of its events."""
    stores: dict[str, str | None] = field(default_factory=dict)
    """Id of the store of each service; `None`: it has never run on it."""


async def diagnose(services: Sequence[Declared], settings: Settings, clock: Clock) -> Diagnosis:
    """Diagnosis of the broker and the stores of these services. Raises `ConfigurationError` for settings that cannot
    work."""
    wanted, known = collect_needs(services, settings.told), _StoreKnowledge()
    async with asyncio.TaskGroup() as tasks:  # at once: each may take all of the time there is
        asked = [tasks.create_task(_broker(services, wanted, settings, clock, known))]
        asked.append(tasks.create_task(_registry(services, settings, clock)))
        asked.append(tasks.create_task(_keys(services, settings, clock)))
        asked.append(tasks.create_task(_changes(services, settings)))
        asked.append(tasks.create_task(_logs(services, settings, clock)))
        shared = _by_store(services, settings).values()
        asked += [tasks.create_task(_store(each, settings, clock, known)) for each in shared]
    answers = [task.result() for task in asked]
    found = [finding for answer in answers for finding in answer.findings]
    found += _compare(services, known)
    order = findings.SEVERITIES
    return Diagnosis(
        tuple(sorted(dict.fromkeys(found), key=lambda finding: order.index(finding.severity))),
        all(answer.reached for answer in answers),
    )


def _compare(services: Sequence[Declared], known: _StoreKnowledge) -> Iterator[Finding]:
    """Findings about what broker and store say of each service, where both have answered."""
    for service in services:
        if service.name in known.groups and service.name in known.stores:
            (group, records), store = known.groups[service.name], known.stores[service.name]
            yield from findings.about_members(service, group, store)
            yield from findings.about_beginning(service, group, records, store)


# -------------------------------------------------------------------- the broker


async def _broker(
    services: Sequence[Declared],
    wanted: Mapping[str, TopicNeeds],
    settings: Settings,
    clock: Clock,
    known: _StoreKnowledge,
) -> Diagnosis:
    about = f"broker {settings.broker}"
    if missing_broker_file(settings) is not None:
        return Diagnosis((Finding("ok", about, "not there yet: the first service makes it"),), True)
    seen: list[Finding] = []
    try:
        async with open_administration(settings, clock) as broker:
            seen.append(Finding("ok", about, "it lets us in"))
            await _see(seen, services, wanted, settings, broker, known)
            seen += await unknown_types.check_types(services, await _readable(wanted, broker), broker, clock)
            seen += await _clock(settings, broker, clock)
    except SagaError as why:
        return Diagnosis((*seen, _unasked(about, why) if seen else _unreachable(about, why)), bool(seen))
    return Diagnosis(tuple(seen), True)


async def _see(
    seen: list[Finding],
    services: Sequence[Declared],
    wanted: Mapping[str, TopicNeeds],
    settings: Settings,
    broker: Administration,
    known: _StoreKnowledge,
) -> None:
    """Add to what was seen, which is told even if the broker then fails."""
    found = await broker.describe_topics(list(wanted))
    adapter = adapters.broker_adapter(settings.broker)
    asked = findings.TopicRequirements(
        adapter.required_replicas(settings), settings.record_bytes_max, creates_topics=adapter.creates_topics
    )
    for name, each in wanted.items():
        wrong = list(findings.about_topic(each, found.get(name), asked))
        seen += wrong or [Finding("ok", name, "as the contracts want it")]
    for service in services:
        reads = reads_of(service)
        seen += findings.about_partitions(service, found, reads)
        group = await broker.describe_group(service.name)
        states = partition_states(group, await broker.fetch_bounds(sorted(reads & set(found))))
        seen += findings.about_positions(service, states)
        seen += findings.about_waiting(service, group, states)
        begun = begun_topics(service)
        known.groups[service.name] = group, sum(b.end - b.begin for p, (b, _) in states.items() if p.topic in begun)
    seen += [finding for away in await broker.list_inactive_groups() for finding in findings.about_away(away)]
    seen += await _servers(found, broker)


async def _readable(wanted: Mapping[str, TopicNeeds], broker: Administration) -> list[str]:
    """Topics that are there and that this user may read."""
    found = await broker.describe_topics(list(wanted))
    return [name for name, each in found.items() if each.may is None or "read" in each.may]


async def _servers(found: Mapping[str, TopicDescription], broker: Administration) -> Sequence[Finding]:
    kept = [each.retention_ms for name, each in found.items() if not is_without_events(name) and not each.hidden]
    known = [ms for ms in kept if ms is not None]
    longest_ms = max(known, default=0) if len(known) == len(kept) else None
    try:
        servers = await broker.fetch_server_settings()
    except BrokerError as why:
        unseen = Finding(
            "warning",
            "brokers",
            f"their settings cannot be seen ({why})",
            "whether topics make themselves, and for how long positions are kept, was not looked at",
            "have this user allowed DescribeConfigs on the cluster, or run saga doctor as an administrator",
        )
        return [unseen]
    return [each for name, said in servers.items() for each in findings.about_server(name, said, longest_ms)]


async def _clock(settings: Settings, broker: Administration, clock: Clock) -> Sequence[Finding]:
    about = f"broker {settings.broker}"
    before_ms = clock.now_ms()
    try:
        told_ms = await broker.append_probe()
    except BrokerError as why:
        unwritten = Finding(
            "warning",
            about,
            f"no record could be written as a probe ({why})",
            "whether messages can be published, and what time it is there, was not looked at",
            f"{AGAIN}; its user needs Create, Read and Write on the topic {PROBED}",
        )
        return [unwritten]
    if told_ms is None:
        return [Finding("ok", about, "it can be written")]
    ahead_ms = findings.ahead_ms(told_ms, before_ms, clock.now_ms())
    return [Finding("ok", about, "a record was written, and read again"), findings.about_clock(about, ahead_ms)]


async def _registry(services: Sequence[Declared], settings: Settings, clock: Clock) -> Diagnosis:
    try:
        return Diagnosis(tuple(await check_registry(services, settings, clock)), True)
    except SagaError as why:
        return Diagnosis((_unreachable(f"registry {settings.of(RegistryOptions).registry}", why),), False)


async def _keys(services: Sequence[Declared], settings: Settings, clock: Clock) -> Diagnosis:
    return Diagnosis(tuple(await keys.check_keys(services, settings, clock)), True)


async def _changes(services: Sequence[Declared], settings: Settings) -> Diagnosis:
    found = await connectors.check_connectors(services, settings, connectors.make_query(settings.connect))
    return Diagnosis(tuple(found), True)


# -------------------------------------------------------------------- stores


def _by_store(services: Sequence[Declared], settings: Settings) -> Mapping[str, list[Declared]]:
    """Services by the store that they share."""
    adapter = adapters.store_adapter(settings.store)
    shared: dict[str, list[Declared]] = {}
    for service in services:
        shared.setdefault(adapter.store_address(settings, service.name), []).append(service)
    return shared


async def _store(services: Sequence[Declared], settings: Settings, clock: Clock, known: _StoreKnowledge) -> Diagnosis:
    adapter, name = adapters.store_adapter(settings.store), services[0].name
    about = f"store {adapter.store_address(settings, name)}"
    if (file := adapter.missing_file(settings, name)) is not None:
        known.stores.update(dict.fromkeys((each.name for each in services), None))
        return Diagnosis((_not_made_yet(about, file),), True)
    try:
        store = adapters.store_at(settings, name, clock)
        await clock.within(settings.open_s, store.__aenter__())
    except TimeoutError:
        return Diagnosis((_unreachable(about, f"it did not open within {settings.open_s:g} s"),), False)
    except SagaError as why:
        return Diagnosis((_unreachable(about, why),), False)
    try:
        before_ms = clock.now_ms()
        cas = await _probe(store, clock)
        after_ms = clock.now_ms()
        lasting = await _lasting(about, store, services)
        untaken = [finding for service in services for finding in connectors.check_watched_collections(service, store)]
        for each in services:
            record = await read_record(store, each.name)
            known.stores[each.name] = None if record is None else record.store
    except StoreError as why:
        return Diagnosis((_unasked(about, why),), True)
    finally:
        await store.__aexit__(None, None, None)
    version = findings.about_version(about, adapter.version_time_ms(cas), before_ms, after_ms)
    return Diagnosis((adapter.report_probe(settings, about), *lasting, *untaken, *version), True)


async def _lasting(about: str, store: Store, services: Sequence[Declared]) -> Sequence[Finding]:
    """Findings about settings that let documents go before their time."""
    collections = {collection for service in services for collection in collections_of(service)}
    longest_s = max(service.retention.total_seconds() for service in services)
    try:
        await store.check_expiry(sorted(collections), longest_s + EXPIRY_S_MORE)  # as services do that start
    except ConfigurationError as why:
        return [findings.about_lasting(about, problem) for problem in why.problems]
    return []


async def _probe(store: Store, clock: Clock) -> int:
    """Write a document, read it and remove it; its version."""
    key = f"{PROBE}doctor-{round(clock.chance() * 2**52):x}"
    cas = await store.insert(PROGRESS, key, b"{}", expiry_s=PROBE_S)
    document = await store.get(PROGRESS, key)
    if document is None or document.cas != cas:
        raise StoreError("what was written and acknowledged is not what is read")
    await store.remove(PROGRESS, key, cas=cas)
    return cas


async def _logs(services: Sequence[Declared], settings: Settings, clock: Clock) -> Diagnosis:
    """Findings about a log and a store of which one is lost, or not the other's. What cannot be asked is told where
    each is looked at by itself."""
    adapter, found = adapters.store_adapter(settings.store), list[Finding]()
    with suppress(SagaError, TimeoutError):
        async with AsyncExitStack() as stack:
            is_there = missing_broker_file(settings) is None
            broker = await stack.enter_async_context(open_administration(settings, clock)) if is_there else None
            for service in services:
                known, is_empty = dict[str, str](), True
                if adapter.missing_file(settings, service.name) is None:
                    known, is_empty = await _known(service, settings, clock)
                if broker is not None:
                    found += await _log_of(service, broker, known, is_empty=is_empty)
                elif known:
                    found.append(findings.about_lost_log(service, f"broker {settings.broker}"))
    return Diagnosis(tuple(found), True)


async def _known(service: Declared, settings: Settings, clock: Clock) -> tuple[dict[str, str], bool]:
    """Logs that the service's store knows; and true if it knows neither a log nor a saga."""
    async with AsyncExitStack() as stack:
        opening = stack.enter_async_context(adapters.store_at(settings, service.name, clock))
        store = await clock.within(settings.open_s, opening)
        if known := await known_logs(store, service.name):
            return known, False
        async for _ in store.scan(PROGRESS, progress_key(service.name, "")):
            return {}, False
        return {}, True


async def _log_of(
    service: Declared, broker: Administration, known: Mapping[str, str], *, is_empty: bool
) -> Sequence[Finding]:
    found = list(findings.about_logs(service, replaced_logs(known, await broker.fetch_log_ids(writes_of(service)))))
    if is_empty:
        positions = (await broker.describe_group(service.name)).positions
        handled = {p: at for p, at in positions.items() if at and not is_without_events(p.topic)}
        if handled:  # a person may have said where a new service begins
            moved = await read_manual_moves(service.name, broker)
            handled = {p: at for p, at in handled.items() if at > moved.get(p, 0)}
        found += findings.about_empty_store(service, len(handled))
    return found


def _not_made_yet(about: str, file: Path) -> Finding:
    folder = file.absolute().parent
    while not folder.exists():
        folder = folder.parent
    if os.access(folder, os.W_OK | os.X_OK):
        return Finding("ok", about, "not there yet: the service makes it")
    return Finding(
        "error", about, f"{folder} may not be written", "the service does not start", "let its user write there"
    )


# -------------------------------------------------------------------- what could not be asked


def _unreachable(about: str, why: object) -> Finding:
    return Finding("error", about, f"it cannot be used: {_words(why)}", "no service starts, or goes on", AGAIN)


def _unasked(about: str, why: object) -> Finding:
    what = f"it lets us in, and then fails: {_words(why)}"
    return Finding("error", about, what, "services stand still, and not all was looked at", AGAIN)


def _words(why: object) -> str:
    """Error in one line."""
    return f"{why.heading.rstrip(':')}: {'; '.join(why.problems)}" if isinstance(why, Problems) else str(why)
