"""Real servers for a world of processes: their addresses, their possible faults, and the function that starts them.

A provider is a function that takes a folder and returns a context manager with servers. Each world needs servers
without data of other worlds, because services and topics have the same names in each. They are either new, or they
outlive the world, which then removes what it has created. The plugin uses `saga.testing.servers.provider:servers`, or
the provider that `--saga-servers` names.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

import msgspec
from msgspec import Struct

from saga.declarations.values import Declared
from saga.engine.prepared_service import reads_of, topics_of
from saga.errors import BrokerError, BrokerUnavailable, SagaError
from saga.messages import Outgoing, Record, Topic
from saga.messaging.names import ARCHIVES, PROGRESS, is_timer_topic
from saga.progress.document import SagaProgress, decode_progress, decode_transition, progress_key
from saga.progress.history import archive_key, decode_archive
from saga.progress.overflow import list_segments, segment_key
from saga.store.port import Document, Store
from saga.support.clock import Clock
from saga.testing.processes.deleted_topics import delete_topics
from saga.testing.processes.shared_files import GroupState, ServiceWrite, SharedFiles, StoredDocuments

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from saga.broker.kafka.administration import KafkaAdministration


SESSION_S, REBALANCE_S, HEARTBEAT_S = 6.0, 8.0, 0.3
"""Consumer timeouts in seconds that every Kafka allows. They are shorter than in production, so that a dead or frozen
worker is replaced within the time of a test.
"""


class ServerAddresses(Struct, frozen=True, kw_only=True):
    """Addresses of a Kafka and a Couchbase that are set up for tests: one node each, no TLS, and writes that are
    acknowledged once they are in memory.
    """

    kafka: str
    """Address of Kafka, such as `127.0.0.1:9092`."""
    couchbase: str
    """Address of Couchbase, such as `couchbase://127.0.0.1`."""
    bucket: str
    username: str = "saga"
    password: str = "secret"
    outlives_world: bool = False
    """True if the servers keep running after the world. The world then refuses topics and sagas that existed before it,
    and deletes at its end what it has created.
    """

    @property
    def settings(self) -> Mapping[str, str]:
        """Environment variables with which `saga run` and the other commands use these servers."""
        return {
            "SAGA_BROKER": f"kafka://{self.kafka}",
            "SAGA_KAFKA_REPLICATION": "1",
            "SAGA_KAFKA_MIN_INSYNC": "1",
            "SAGA_STORE": f"{self.couchbase}/{self.bucket}",
            "SAGA_STORE_DURABILITY": "none",
            "SAGA_COUCHBASE_USERNAME": self.username,
            "SAGA_COUCHBASE_PASSWORD": self.password,
        }

    def broker(self, clock: Clock) -> "KafkaAdministration":
        """Return a Kafka adapter for administration, not open yet."""
        from saga.broker.kafka.adapter import KafkaSettings
        from saga.broker.kafka.administration import KafkaAdministration

        settings = KafkaSettings(
            servers=(self.kafka,),
            replication_factor=1,
            min_insync_replicas=1,
            session_s=SESSION_S,
            rebalance_s=REBALANCE_S,
            heartbeat_s=HEARTBEAT_S,
        )
        return KafkaAdministration(settings, clock=clock)

    def store(self, clock: Clock) -> Store:
        """Return the store, not open yet. All services share it, because document names contain the service's name."""
        from saga.store.couchbase.adapter import CouchbaseSettings
        from saga.store.couchbase.store import CouchbaseStore

        settings = CouchbaseSettings(
            connection=self.couchbase,
            bucket=self.bucket,
            username=self.username,
            password=lambda: self.password,
            durability="none",
        )
        return CouchbaseStore(settings, clock=clock)


class ServerFault(NamedTuple):
    """A fault of a server, such as a killed broker."""

    what: str
    """Description of the fault, such as `the broker killed`."""
    lasts_s: tuple[float, float]
    """Minimum and maximum duration in seconds."""
    begin: Callable[[], None]
    end: Callable[[], None]
    """Function that ends the fault, and returns when the server answers again. It runs on the thread that called
    `begin`.
    """


class Servers(Protocol):
    """A Kafka and a Couchbase. They run within the `with` block of their provider."""

    @property
    def place(self) -> ServerAddresses:
        """Addresses that the workers use."""

    @property
    def aside(self) -> ServerAddresses:
        """Addresses that the world itself uses to publish and observe. They belong to the same servers, but bypass the
        proxies that cause faults.
        """

    @property
    def troubles(self) -> Mapping[str, Sequence[ServerFault]]:
        """Faults that these servers can have, by kind. A world leaves out all other kinds of server faults."""


ServerProvider: TypeAlias = Callable[[Path], AbstractContextManager[Servers]]


def load_provider(name: str) -> ServerProvider:
    """Load the function named by a string `module:function`. Raises `SagaError` if there is no such function."""
    module, _, function = name.partition(":")
    try:
        found: ServerProvider = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as why:
        raise SagaError(f"{name!r} names no function that gives servers ({why}): write module:function") from why
    return found


AGAIN_S = 0.2
ASK_S_MAX = 2.0
"""Maximum time in seconds of a request for group states. The world must not wait longer: a fault may keep the broker
from answering, and only the world can end that fault.
"""


class SharedServers(SharedFiles):
    """The broker and the store of a world on servers, as the world itself uses them: without the proxies between the
    workers and the servers.
    """

    look_s = 0.2

    def __init__(self, folder: Path, clock: Clock, servers: Servers) -> None:
        self._servers = servers
        self._reads: dict[str, frozenset[str]] = {}
        """Topics that each service reads."""
        self._services: list[Declared] = []
        self._created: set[str] = set()
        """Topics that this world has created, if the servers outlive it."""
        self._inserted: list[tuple[str, str]] = []
        """Collection and key of each document that the test passed to `start`."""
        self._sagas: set[str] = set()
        super().__init__(folder, clock)

    def _make(self) -> None:
        self._broker = self._administration = self._servers.aside.broker(self._clock)
        self._store = self._servers.aside.store(self._clock)

    async def _open(self) -> None:
        await self._stack.enter_async_context(self._administration)
        await self._stack.enter_async_context(self._store)
        if self._servers.aside.outlives_world:
            self._stack.push_async_callback(self._remove_all)

    # ---------------------------------------------------------------- writing

    async def _prepare(self, declared: Declared, documents: "Mapping[str, DataclassInstance]") -> None:
        await self._create_topics(topics_of(declared))
        self._reads[declared.name] = reads_of(declared)
        self._services.append(declared)
        collections = {document.kind: document.collection for document in declared.documents}
        for key, document in documents.items():
            if type(document) in collections:
                await self._store.insert(collections[type(document)], key, msgspec.json.encode(document))
                self._inserted.append((collections[type(document)], key))

    async def _publish(self, batch: Sequence[Outgoing | ServiceWrite], topics: Sequence[Topic]) -> None:
        while True:
            try:
                await self._create_topics(topics)
                await self._check_sagas_are_new(batch)
                await super()._publish(batch, topics)
            except BrokerUnavailable:
                await self._clock.sleep(AGAIN_S)
            else:
                return

    async def _create_topics(self, topics: Sequence[Topic]) -> None:
        """Create topics. Raises `SagaError` if the servers outlive this world and a topic existed before it."""
        names = {topic.name for topic in topics} - self._created
        if self._servers.aside.outlives_world and names:
            found = sorted(names.intersection(await self._administration.list_topics()))
            if found:
                raise SagaError(
                    f"Kafka at {self._servers.aside.kafka} has {', '.join(found)} already: a world needs topics of its "
                    "own, and deletes only those that it has created. Use another server, or delete these topics"
                )
            self._created |= names
        await self._broker.ensure_topics(topics)

    async def _check_sagas_are_new(self, batch: Sequence[Outgoing | ServiceWrite]) -> None:
        """Raise `SagaError` if the servers outlive this world and a service has a progress of one of these sagas from
        before it.
        """
        if not self._servers.aside.outlives_world:
            return
        keys = {each.key.decode() for each in batch if isinstance(each, Outgoing) and each.key} - self._sagas
        for key in sorted(keys):
            for service in self._reads:
                if await self._store.get(PROGRESS, progress_key(service, key)) is not None:
                    raise SagaError(
                        f"Couchbase at {self._servers.aside.couchbase} has a progress of saga {key!r} in {service!r} "
                        "already, and a world deletes only what it has created: use an empty bucket, or other saga ids"
                    )
        self._sagas |= keys

    async def _remove_all(self) -> None:
        """Delete the documents and topics of this world. Committed offsets are deleted with the topics.

        Documents are found as in `_read_documents`, or because the test passed them to `start`. Other documents that no
        progress names are not deleted.
        """
        log = [record for topic in sorted(self._created) async for record in self._broker.scan(topic)]
        documents = set(self._inserted)
        for declared in self._services:
            documents |= set(await self._read_documents(declared, log))
        for collection, key in sorted(documents):
            document = await self._store.get(collection, key)
            if document is not None:
                await self._store.remove(collection, key, cas=document.cas)
        await delete_topics(self._servers.aside.kafka, self._created)

    # ---------------------------------------------------------------- reading

    def groups(self) -> dict[str, GroupState]:
        """Return the states of all groups; an empty dictionary if the broker does not answer within `ASK_S_MAX`. While
        a group is working, its lag may be overestimated, but it is never underestimated.
        """
        try:
            return self._runner.run(self._clock.within(ASK_S_MAX, self._groups()))
        except (BrokerError, TimeoutError):
            return {}

    async def _groups(self) -> dict[str, GroupState]:
        # Committed offsets are read before end offsets: a group that has committed up to an end read later really has
        # nothing left to do, and records that its work published are counted in the lag of other groups.
        found = await self._administration.describe_groups(self._reads)
        bounds = await self._administration.fetch_bounds(frozenset().union(*self._reads.values()))
        groups = {}
        for service, group in found.items():
            lag = wakes = 0
            for partition, at in bounds.items():
                if partition.topic in self._reads[service]:
                    behind = max(0, at.end - group.positions.get(partition, at.begin))
                    lag, wakes = (lag, wakes + behind) if is_timer_topic(partition.topic) else (lag + behind, wakes)
            groups[service] = GroupState(len(group.members), lag, wakes)
        return groups

    async def _get(self, service: str, collection: str, key: str) -> Document | None:
        return await self._store.get(collection, key)

    async def _read_documents(self, declared: Declared, log: Sequence[Record]) -> StoredDocuments:
        """Read the documents of a service by key, because not every server can list keys: the progress of each saga in
        the log, and the documents that this progress names.
        """
        left: dict[tuple[str, str], bytes] = {}
        for saga in sorted({record.key.decode() for record in log if record.key}):
            content = await self._read(left, PROGRESS, progress_key(declared.name, saga))
            if content is not None:
                await self._read_named_documents(left, decode_progress(content))
        return left

    async def _read(self, left: dict[tuple[str, str], bytes], collection: str, key: str) -> bytes | None:
        document = await self._store.get(collection, key)
        if document is None:
            return None
        left[collection, key] = document.content
        return document.content

    async def _read_named_documents(self, left: dict[tuple[str, str], bytes], p: SagaProgress) -> None:
        transitions, archived = [*p.transitions], 0
        while archived < p.first:
            archive = await self._read(left, ARCHIVES, archive_key(p.service, p.saga, archived))
            if archive is None:
                break
            transitions += decode_archive(archive).transitions
            archived += len(decode_archive(archive).transitions)
        pages = [*p.segments]
        while pages:
            page = pages.pop()
            content = await self._read(left, ARCHIVES, segment_key(p.service, p.saga, page))
            pages += () if content is None else list_segments(page, content)
        calls = [call for raw in transitions for call in decode_transition(raw).calls]
        begun = [call for intent in p.intents for call in (*intent.calls, intent.begins) if call is not None]
        for name in {call.document for call in (*calls, *begun) if call.kind == "update" and call.document}:
            collection, _, key = name.partition("/")
            await self._read(left, collection, key)
