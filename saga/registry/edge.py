"""A broker that wraps another broker, and translates values to and from the wire format of a schema registry.

A published value gets the id of its schema in front, and a record that is read gets the schema of its id. Everything
else is passed on unchanged. While the registry does not answer, publishing waits, as it does for a broker that does not
acknowledge, and a partition whose next record has an unknown schema id is stalled. No record is skipped, and the
waiting does not count as an attempt of a handler.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Self, cast

from saga.broker.administration import NO_IDS, Administration, PartitionReader
from saga.broker.port import Broker, Listener, Membership, Subscription
from saga.contracts.codec import HEADER_SIZE, MARKER
from saga.contracts.contract import Contract, Version
from saga.contracts.foreign_values import frame, is_version, schema_id_of
from saga.errors import ConfigurationError, RegistryUnavailable, SagaError
from saga.messages import Outgoing, Partition, Record, StalledPartition, Topic, Writer
from saga.messaging.names import is_without_events
from saga.registry.port import ID_MAX, RegistryOptions, SchemaIncomplete, SchemaRegistry
from saga.support.clock import Clock

AGAIN_S = 0.5
"""Pause before repeating a request that the registry did not answer, in seconds."""
UNSET = '{topic}/topic.json says "wire": "registry", and no schema registry is set: SAGA_REGISTRY'

MISSING_S = 30.0
"""Time after which the registry is asked again for an id that it does not have, in seconds."""
IDS_MAX = 10_000
"""Largest number of cached ids. When it is reached, the cache is cleared."""
log = logging.getLogger("saga.registry")


class RegistryBroker:
    """A broker with a schema registry. See `saga.broker.port.Broker` for the promises."""

    def __init__(self, broker: Broker, registry: SchemaRegistry, clock: Clock) -> None:
        self._broker, self._registry, self._clock = broker, registry, clock
        self.known = RegistryCache(registry, clock)
        self.record_bytes_max, self.creates_topics = broker.record_bytes_max, broker.creates_topics

    async def __aenter__(self) -> Self:
        await self._registry.__aenter__()
        try:
            await self._broker.__aenter__()
        except BaseException:
            await self._registry.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        try:
            await self._broker.__aexit__(*exc)
        finally:
            await self._registry.__aexit__(None, None, None)

    async def unregistered(self, versions: Iterable[tuple[Contract, Version]]) -> list[str]:
        """Return a line for each of these versions that is not registered. Raises `RegistryUnavailable`."""
        return [
            f"{version.path} is not registered as {contract.subject} in the schema registry at {self._registry.address}"
            for contract, version in versions
            if await self.known.id_of(contract, version) is None
        ]

    async def writer(self, id_: int) -> Writer:
        """Return the schema of an id, from a new request to the registry even if the schema is cached. Raises
        `RegistryUnavailable`."""
        return await self.known.ask(id_)

    async def ensure_topics(self, topics: Sequence[Topic]) -> None:
        await self._broker.ensure_topics(topics)

    async def count_partitions(self, topics: Collection[str]) -> Mapping[str, int]:
        return await self._broker.count_partitions(topics)

    async def fetch_log_ids(self, topics: Collection[str]) -> Mapping[str, str]:
        return await self._broker.fetch_log_ids(topics)

    async def find_missing_rights(
        self, reads: Collection[str], writes: Collection[str], groups: Collection[str] = ()
    ) -> Sequence[str]:
        return await self._broker.find_missing_rights(reads, writes, groups)

    def publish(self, messages: Sequence[Outgoing]) -> Coroutine[Any, Any, None]:
        if any(message.subject for message in messages):
            return self._to_outgoing(messages)
        return self._broker.publish(messages)

    async def _to_outgoing(self, messages: Sequence[Outgoing]) -> None:
        await self._broker.publish([await self.known.to_wire_format(message) for message in messages])

    @asynccontextmanager
    async def join(self, subscription: Subscription, listener: Listener) -> AsyncIterator[Membership]:
        blocked = BlockedPartitions(self.known, self._clock)
        joining = self._broker.join(subscription, RegistryListener(listener, blocked))
        async with joining as membership:
            task = asyncio.get_running_loop().create_task(
                blocked.ask(membership.wake), name=f"{subscription.group} schemas"
            )
            try:
                yield _Member(membership, blocked, self._clock)
            finally:
                task.cancel()
                await asyncio.wait([task])

    async def scan(self, topic: str) -> AsyncIterator[Record]:
        async for record in self._broker.scan(topic):
            if (id_ := self.known.missing_id(record)) is not None:
                await self.known.learn(id_)
            yield self.known.resolve(record)


class RegistryAdministration(RegistryBroker):
    """A broker with a schema registry, with the interface for tools. Everything that needs no translation is passed on
    to the wrapped broker."""

    def __getattr__(self, name: str) -> object:
        return getattr(self._broker, name)

    @asynccontextmanager
    async def open_reader(
        self, positions: Mapping[Partition, int], log_ids: Mapping[str, str] = NO_IDS
    ) -> AsyncIterator[PartitionReader]:
        async with cast("Administration", self._broker).open_reader(positions, log_ids) as reading:
            yield _RegistryReader(reading, self.known)


class _RegistryReader:
    """Reader that returns records with their schemas. See `saga.broker.administration.PartitionReader` for the
    promises."""

    def __init__(self, reading: PartitionReader, known: "RegistryCache") -> None:
        self._reading, self._known = reading, known
        self._taken: Sequence[Record] = ()
        """Records that were polled from the wrapped reader and wait for an answer of the registry."""

    async def poll(self, *, records_max: int, timeout_s: float) -> Sequence[Record]:
        """Poll as the port promises. Raises `RegistryUnavailable` while the registry does not answer; no record is
        lost."""
        self._taken = self._taken or await self._reading.poll(records_max=records_max, timeout_s=timeout_s)
        for record in self._taken:
            if (id_ := self._known.missing_id(record)) is not None:
                await self._known.learn(id_)
        records, self._taken = [self._known.resolve(record) for record in self._taken], ()
        return records

    def positions(self) -> Mapping[Partition, int]:
        first = {Partition(*record[:2]): record.offset for record in reversed(self._taken)}
        return {**self._reading.positions(), **first}

    def log_ids(self) -> Mapping[str, str]:
        return self._reading.log_ids()

    def stalled_partitions(self) -> Sequence[StalledPartition]:
        return self._reading.stalled_partitions()


async def problems_of(
    broker: Broker, written: Collection[tuple[Contract, Version]], read: Collection[Contract] = ()
) -> list[str]:
    """Return a line for each problem that prevents events from being published or read in the wire format of their
    topic.

    `written`: versions that are published; `read`: contracts that are consumed. Raises `RegistryUnavailable`.
    """
    if isinstance(broker, RegistryBroker):
        wanted = [(contract, version) for contract, version in written if contract.subject]
        return [f"{problem}: saga contracts register" for problem in await broker.unregistered(wanted)]
    contracts = [*(contract for contract, _ in written), *read]
    return [UNSET.format(topic=topic) for topic in dict.fromkeys(each.topic for each in contracts if each.subject)]


class BlockedPartitions:
    """Records that the broker has delivered, but that wait for an answer of the registry: by partition, in order."""

    def __init__(self, known: "RegistryCache", clock: Clock) -> None:
        self._known, self._clock = known, clock
        self.records: dict[Partition, list[Record]] = {}
        self.trouble: dict[int, str] = {}
        """For each schema id about which the registry could not be asked, the reason."""
        self._has_requests = asyncio.Event()

    def pass_ready(self, records: Sequence[Record]) -> Sequence[Record]:
        """Return the records that need no request to the registry. From the first record of a partition that needs one,
        keep all records of that partition."""
        if not self.records and not any(record.value and record.value[0] == 0 for record in records):
            return records  # the usual case: no record needs a request
        passed: list[Record] = []
        for record in records:
            partition = Partition(*record[:2])
            if partition in self.records:
                self.records[partition].append(record)
            elif self._known.missing_id(record) is None:
                passed.append(self._known.resolve(record))
            else:
                self.records[partition] = [record]
                self._has_requests.set()
        return passed

    def release_ready(self, partitions: Collection[Partition], records_max: int) -> list[Record]:
        """Return at most `records_max` kept records of these partitions: in each partition the records before the first
        one that still needs a request. They are no longer kept."""
        released: list[Record] = []
        for partition in [each for each in partitions if each in self.records]:
            records = self.records.pop(partition)
            room = records_max - len(released)
            upto = next((n for n, each in enumerate(records) if self._known.missing_id(each) is not None), len(records))
            upto = min(upto, room)
            released += [self._known.resolve(each) for each in records[:upto]]
            if records[upto:]:
                self.records[partition] = records[upto:]
                self._has_requests.set()
        return released

    def forget(self, partitions: Collection[Partition]) -> None:
        """Drop the kept records of these partitions. The next owner receives them again."""
        for partition in partitions:
            self.records.pop(partition, None)

    def stalled_partitions(self) -> list[StalledPartition]:
        """Return the partitions that wait for a registry that does not answer."""
        found = []
        for partition, (first, *_) in self.records.items():
            id_ = self._known.missing_id(first)
            if id_ is not None and id_ in self.trouble:
                found.append(StalledPartition(*partition, first.offset, self.trouble[id_]))
        return found

    async def ask(self, wake: Callable[[], None]) -> None:
        """Request the schemas that kept records need, until cancelled. After a failure, try again.

        `wake`: function to call whenever a poll may return other records than before.
        """
        while True:
            await self._has_requests.wait()
            self._has_requests.clear()
            ids = {self._known.missing_id(records[0]) for records in self.records.values()}
            lookups = [self._learn(id_, wake) for id_ in ids if id_ is not None]
            if not all(await asyncio.gather(*lookups)):
                self._has_requests.set()
                await self._clock.sleep(AGAIN_S)

    async def _learn(self, id_: int, wake: Callable[[], None]) -> bool:
        try:
            await self._known.learn(id_)
        except Exception as why:  # this task has to go on asking, whatever happens
            trouble = str(why)
            if not isinstance(why, SagaError):
                trouble = f"asking for the schema with id {id_} failed: {type(why).__name__}: {why}; it is tried again"
            if self.trouble.get(id_) != trouble:
                self.trouble[id_] = trouble
                if not isinstance(why, SagaError):
                    log.error("a schema registry could not be asked; it is asked again", exc_info=why)
                wake()
            return False
        self.trouble.pop(id_, None)
        wake()
        return True


class RegistryListener:
    """Listener that drops the blocked records of partitions that are revoked or lost."""

    def __init__(self, listener: Listener, blocked: BlockedPartitions) -> None:
        self._listener, self._blocked = listener, blocked

    async def on_assigned(self, partitions: Mapping[Partition, int]) -> None:
        self._blocked.forget(partitions)
        await self._listener.on_assigned(partitions)

    async def on_revoked(self, partitions: Collection[Partition]) -> None:
        self._blocked.forget(partitions)
        await self._listener.on_revoked(partitions)

    def on_lost(self, partitions: Collection[Partition]) -> None:
        self._blocked.forget(partitions)
        self._listener.on_lost(partitions)

    def on_expired(self, partition: Partition, first: int, after: int) -> None:
        self._listener.on_expired(partition, first, after)

    def on_replaced(self, partition: Partition, position: int) -> None:
        self._listener.on_replaced(partition, position)

    def on_partitions_added(self, topic: str, before: int, now: int) -> None:
        self._listener.on_partitions_added(topic, before, now)


class _Member:
    """Member of a group that returns records with their schemas. See `saga.broker.port.Membership` for the promises."""

    def __init__(self, membership: Membership, blocked: BlockedPartitions, clock: Clock) -> None:
        self._membership, self._blocked, self._clock = membership, blocked, clock
        self._woken = False
        self._reported: Sequence[StalledPartition] = []
        """Stalled partitions at the last return of a poll."""

    async def poll(self, partitions: Collection[Partition], *, records_max: int, timeout_s: float) -> Sequence[Record]:
        blocked, until_s = self._blocked, self._clock.monotonic_s() + timeout_s
        while True:
            open_ = partitions
            if blocked.records:
                if released := blocked.release_ready(partitions, records_max):
                    return released
                open_ = [each for each in partitions if each not in blocked.records]
            records = await self._membership.poll(open_, records_max=records_max, timeout_s=timeout_s)
            if passed := blocked.pass_ready(records):
                return passed
            # All records are kept, or the poll was woken, for example by this member when the registry answered.
            timeout_s = until_s - self._clock.monotonic_s()
            stalled = self.stalled_partitions()
            if self._woken or stalled != self._reported or timeout_s <= 0:
                self._woken, self._reported = False, stalled
                return ()

    def wake(self) -> None:
        self._woken = True
        self._membership.wake()

    async def commit(self, offsets: Mapping[Partition, int]) -> None:
        await self._membership.commit(offsets)

    async def mark_in_progress(self, offsets: Mapping[Partition, int]) -> Collection[Partition]:
        return await self._membership.mark_in_progress(offsets)

    async def clear_in_progress(self, offsets: Mapping[Partition, int]) -> None:
        await self._membership.clear_in_progress(offsets)

    def log_id(self, partition: Partition) -> str:
        return self._membership.log_id(partition)

    def lag(self) -> Mapping[Partition, int] | None:
        lag = self._membership.lag()
        if lag is None:
            return None
        return {partition: count + len(self._blocked.records.get(partition, ())) for partition, count in lag.items()}

    def disagreeing_members(self) -> Sequence[str]:
        return self._membership.disagreeing_members()

    def polled_offsets(self) -> Mapping[Partition, int]:
        blocked = self._blocked.records
        return {
            partition: blocked[partition][0].offset if partition in blocked else offset
            for partition, offset in self._membership.polled_offsets().items()
        }

    async def fetch_ends(self) -> Mapping[Partition, int | None]:
        return await self._membership.fetch_ends()

    async def fetch_positions(self, partitions: Collection[Partition]) -> Mapping[Partition, int]:
        return await self._membership.fetch_positions(partitions)

    def stalled_partitions(self) -> Sequence[StalledPartition]:
        return [*self._membership.stalled_partitions(), *self._blocked.stalled_partitions()]


# -------------------------------------------------------------------- opening


def create_registry(options: RegistryOptions) -> SchemaRegistry | None:
    """Return the registry that these options configure; `None` if they configure none.

    Raises `ConfigurationError` if its client is not installed.
    """
    if not options.registry:
        return None
    try:
        from saga.registry.http import HttpRegistry
    except ImportError as why:
        problem = f"SAGA_REGISTRY is set: {why}; pip install 'saga-choreography[registry]'"
        raise ConfigurationError("nothing was started:", [problem]) from why
    return HttpRegistry(options)


def tools_with_registry(broker: Administration, options: RegistryOptions, clock: Clock) -> Administration:
    """Wrap the broker for tools with the schema registry that these options configure. If they configure none, return
    the broker unchanged.

    Raises `ConfigurationError`.
    """
    registry = create_registry(options)
    return broker if registry is None else cast("Administration", RegistryAdministration(broker, registry, clock))


def with_registry(broker: Broker, options: RegistryOptions, clock: Clock) -> Broker:
    """Wrap the broker with the schema registry that these options configure. If they configure none, return the broker
    unchanged.

    Raises `ConfigurationError`.
    """
    registry = create_registry(options)
    return broker if registry is None else RegistryBroker(broker, registry, clock)


# -------------------------------------------------------------------- cache


@dataclass(slots=True)
class RegistryCache:
    """Cache of the ids and schemas of a registry."""

    registry: SchemaRegistry
    clock: Clock
    _writers: dict[int, tuple[Writer, float | None]] = field(default_factory=dict)
    """Schemas by id. If the registry does not have an id, the entry also has the time at which to ask again."""
    _ids: dict[tuple[str, bytes], int] = field(default_factory=dict)
    """Ids of the schemas that this process publishes, by subject and fingerprint."""
    _versions: dict[tuple[str, bytes], Version] = field(default_factory=dict)
    """All versions of the known contracts, because a published event may have an older version."""

    # ---------------------------------------------------------------- reading

    def missing_id(self, record: Record) -> int | None:
        """Return the schema id that must be requested before a record can be passed on; `None` if no request is
        needed."""
        id_ = schema_id_of(record)
        if id_ is None or is_without_events(record.topic):
            return None
        return id_ if self._writer(id_) is None else None

    def resolve(self, record: Record) -> Record:
        """Return the record together with the schema of its value, if the value is in the wire format. Otherwise return
        the record unchanged. Call this only if `missing_id` is `None`."""
        id_ = schema_id_of(record)
        if id_ is None or is_without_events(record.topic):
            return record
        return record._replace(writer=self._writer(id_))

    async def learn(self, id_: int) -> None:
        """Request the schema of an id, unless it is cached. Raises `RegistryUnavailable`."""
        if self._writer(id_) is None:
            await self.ask(id_)

    async def ask(self, id_: int) -> Writer:
        """Request the schema of an id from the registry, and cache it. Return it. An id that no registry can have is
        not requested. Raises `RegistryUnavailable`."""
        try:
            schema = await self.registry.schema(id_) if id_ <= ID_MAX else ""
            writer = Writer(id_, schema, self.registry.address)
        except SchemaIncomplete as why:
            writer = Writer(id_, "", self.registry.address, str(why))
        until_s = None if writer.schema else self.clock.monotonic_s() + MISSING_S
        if len(self._writers) >= IDS_MAX:
            self._writers.clear()
        self._writers[id_] = writer, until_s
        return writer

    def _writer(self, id_: int) -> Writer | None:
        writer, until_s = self._writers.get(id_, (None, None))
        return None if until_s is not None and self.clock.monotonic_s() >= until_s else writer

    # ---------------------------------------------------------------- writing

    async def id_of(self, contract: Contract, version: Version) -> int | None:
        """Return the id of a version of a contract; `None` if it is not registered. Raises `RegistryUnavailable`."""
        self._versions |= {(contract.subject, each.fingerprint): each for each in contract.versions}
        known = self._ids.get((contract.subject, version.fingerprint))
        return await self._find_id(contract.subject, version.fingerprint) if known is None else known

    async def to_wire_format(self, message: Outgoing) -> Outgoing:
        """Return the message in the registry's wire format. A message that does not use the registry is returned
        unchanged.

        Raises `RegistryUnavailable` while the id of its schema is unknown, even if the schema is not registered,
        because the message is never published in another format.
        """
        value = message.value
        if not message.subject or value is None or not value.startswith(MARKER):
            return message
        fingerprint = value[len(MARKER) : HEADER_SIZE]
        id_ = self._ids.get((message.subject, fingerprint))
        if id_ is None:
            id_ = await self._find_id(message.subject, fingerprint)
        if id_ is None:
            raise RegistryUnavailable(
                f"the schema registry at {self.registry.address} does not have the schema with the fingerprint "
                f"{fingerprint.hex()} under {message.subject}: register it, by saga contracts register"
            )
        return message._replace(value=frame(id_, value))

    async def _find_id(self, subject: str, fingerprint: bytes) -> int | None:
        version = self._versions.get((subject, fingerprint))
        for number in reversed(await self.registry.versions(subject)):
            try:
                registered = await self.registry.version(subject, number)
            except SchemaIncomplete:  # it cannot be compared, and must not hide the other versions
                continue
            if is_version(registered.schema, fingerprint, version):
                self._ids[subject, fingerprint] = registered.id
                return registered.id
        return None
