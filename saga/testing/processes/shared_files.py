"""Access of a test to the files that all processes of a world share: one for the broker, and one for the store of each
service.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self, TypeAlias

import msgspec

from saga.broker.administration import Administration
from saga.broker.embedded.broker import EmbeddedAdministration
from saga.broker.embedded.membership import Timing
from saga.declarations.values import Declared
from saga.engine.prepared_service import prepare, topics_of
from saga.errors import Conflict, Exists
from saga.messages import Outgoing, Partition, Record, Topic
from saga.messaging.names import ARCHIVES, PROGRESS, is_timer_topic
from saga.progress.document import progress_key
from saga.progress.overflow import parse_saga
from saga.store.port import Document
from saga.store.sqlite.store import SqliteStore
from saga.support.clock import Clock
from saga.testing.invariants.evidence import Evidence, ServiceEvidence
from saga.testing.world import DocumentWrite, keep_markers

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


TIMING = Timing(silence_s=1.5, drain_s=1.0, watch_s=0.05)
"""Time limits of the embedded broker. They are shorter than in production, so that the partitions of a dead or frozen
worker are taken over within the time of a test.
"""

GROUPS = """
SELECT groups.name,
    topics.name,
    (SELECT count(*) FROM members WHERE grp = groups.name),
    sum(next - offset),
    sum(owner IS NOT target)
FROM groups JOIN positions ON grp = groups.name JOIN logs ON logs.id = log
JOIN topics ON log >= first_log AND log < first_log + partitions
GROUP BY groups.name, topics.name
"""

StoredDocuments: TypeAlias = Mapping[tuple[str, str], bytes]
"""The documents of a service: content by collection and key."""


class GroupState(NamedTuple):
    """State of a service's consumer group."""

    members: int = 0
    lag: int = 0
    """Number of uncommitted records other than timers."""
    wakes: int = 0
    """Number of uncommitted timers. A timer stays in the log until it is due, even if its saga no longer waits for it.
    """
    moving: int = 0
    """Number of partitions whose owner is not the member to which they are assigned."""

    def is_whole(self, size: int) -> bool:
        """Return True if the group has `size` members, and each has its share of the partitions."""
        return self.members == size and self.moving == 0


class ServiceWrite(NamedTuple):
    """A document that the test writes to, or removes from, a service's store, as an application would."""

    service: str
    written: DocumentWrite


class SharedFiles:
    """The broker and the stores that all processes of a world share, used within a `with` block."""

    look_s = 0.02
    """Pause in seconds between two checks of the world."""

    _broker: Administration

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._folder, self._clock = folder, clock
        self._make()
        self._runner = asyncio.Runner()
        self._publishing: list[asyncio.Task[None]] = []
        self._removed: dict[str, set[str]] = {}
        """Documents of each service that the test has removed, as `collection/key`."""

    def __enter__(self) -> Self:
        self._stack = AsyncExitStack()
        try:
            self._runner.run(self._open())
        except BaseException:
            self._runner.run(self._stack.aclose())
            self._runner.close()
            raise
        return self

    def _make(self) -> None:
        """Create the broker, without opening it."""
        self._broker = self._embedded = EmbeddedAdministration(self.broker_file, clock=self._clock)

    async def _open(self) -> None:
        await self._stack.enter_async_context(self._broker)

    def __exit__(self, kind: type[BaseException] | None, why: BaseException | None, at: TracebackType | None) -> None:
        try:
            self._runner.run(self._stack.aclose())
        finally:
            self._runner.close()

    @property
    def broker_file(self) -> Path:
        """File that contains the broker's log."""
        return self._folder / "broker.db"

    def store_file(self, service: str) -> Path:
        """Return the file in which a service stores its documents."""
        return self._folder / f"{service}.db"

    def wait(self, seconds: float) -> None:
        """Sleep in real time, while publishing continues in the background. If publishing has failed, raise its first
        error."""
        self._runner.run(self._clock.sleep(seconds))
        for done in [task for task in self._publishing if task.done()]:
            self._publishing.remove(done)
            done.result()

    # ---------------------------------------------------------------- writing

    def prepare(self, declared: Declared, documents: "Mapping[str, DataclassInstance]") -> None:
        """Create the topics and the store of a service. Store those of `documents` whose kind the service declares."""
        self._runner.run(self._prepare(declared, documents))

    async def _prepare(self, declared: Declared, documents: "Mapping[str, DataclassInstance]") -> None:
        await self._broker.ensure_topics(topics_of(declared))
        collections = {document.kind: document.collection for document in declared.documents}
        async with SqliteStore(self.store_file(declared.name), clock=self._clock) as store:
            for key, document in documents.items():
                if type(document) in collections:
                    await store.insert(collections[type(document)], key, msgspec.json.encode(document))

    def publish(self, batch: "Sequence[Outgoing | ServiceWrite]", topics: Sequence[Topic] = ()) -> None:
        """Begin to publish records and write documents, in this order. `topics`: topics to create if they do not exist.

        The work itself happens later, during `wait`. It may need a lock that a frozen process holds, and only the world
        can thaw that process.
        """
        self._publishing.append(self._runner.get_loop().create_task(self._publish(batch, topics)))

    async def _publish(self, batch: "Sequence[Outgoing | ServiceWrite]", topics: Sequence[Topic]) -> None:
        await self._broker.ensure_topics(topics)
        for kind, group in groupby(batch, type):
            if kind is ServiceWrite:
                for service, written in (each for each in group if isinstance(each, ServiceWrite)):
                    await self._write(service, written)
            else:
                await self._broker.publish([each for each in group if isinstance(each, Outgoing)])

    async def _write(self, service: str, written: DocumentWrite) -> None:
        """Write or remove a document, even while the service may also write it. Keep the toolkit's markers."""
        collection, key, content, _ = written
        async with SqliteStore(self.store_file(service), clock=self._clock) as store:
            while True:
                there = await store.get(collection, key)
                try:
                    if there is None and content is not None:
                        await store.insert(collection, key, content)
                    elif there is not None and content is None:
                        await store.remove(collection, key, cas=there.cas)
                        self._removed.setdefault(service, set()).add(f"{collection}/{key}")
                    elif there is not None and content is not None:
                        await store.replace(collection, key, keep_markers(there.content, content), cas=there.cas)
                except (Conflict, Exists):
                    continue
                return

    def is_relaying(self, service: str) -> bool:
        """Return True if changes of the service's documents may still be missing from the log."""
        return self._runner.run(self._is_relaying(service))

    async def _is_relaying(self, service: str) -> bool:
        async with self._open_readonly(service) as store:
            return bool(store.read_recorded(service, 1))

    @property
    def is_publishing(self) -> bool:
        """True if a record or document given to `publish` is not durable yet."""
        return bool(self._publishing)

    # ---------------------------------------------------------------- reading

    def groups(self) -> dict[str, GroupState]:
        """Return the state of each group that has ever had a member. All states are from the same moment."""
        groups: dict[str, GroupState] = {}
        for name, topic, members, behind, moving in self._embedded.connection.execute(GROUPS).fetchall():
            group = groups.get(name, GroupState())
            lag, wakes = (0, behind) if is_timer_topic(topic) else (behind, 0)
            groups[name] = GroupState(members, group.lag + lag, group.wakes + wakes, group.moving + moving)
        return groups

    def get(self, service: str, collection: str, key: str) -> bytes | None:
        """Return the current content of a document; `None` if it does not exist."""
        document = self._runner.run(self._get(service, collection, key))
        return None if document is None else document.content

    async def _get(self, service: str, collection: str, key: str) -> Document | None:
        async with self._open_readonly(service) as store:
            return await store.get(collection, key)

    def evidence(self, services: Sequence[Declared]) -> Evidence:
        """Collect the current evidence of these services."""
        return self._runner.run(self._evidence(services))

    async def _evidence(self, services: Sequence[Declared]) -> Evidence:
        topics = sorted({topic.name for declared in services for topic in topics_of(declared)})
        bounds = await self._broker.fetch_bounds(topics)
        log = [record for topic in topics async for record in self._broker.scan(topic)]
        witnessed = {}
        for declared in services:
            positions = (await self._broker.describe_group(declared.name)).positions
            committed = {partition: positions.get(partition, at.begin) for partition, at in bounds.items()}
            found = make_service_evidence(declared, await self._read_documents(declared, log), committed)
            witnessed[declared.name] = replace(found, removed=frozenset(self._removed.get(declared.name, ())))
        ends = {partition: at.end for partition, at in bounds.items()}
        return Evidence(services=witnessed, log=log, ends=ends, spoiled=frozenset(), partial=True)

    async def _read_documents(self, declared: Declared, log: Sequence[Record]) -> StoredDocuments:
        """Return all documents of a service."""
        async with self._open_readonly(declared.name) as store:
            return {
                (collection, key): document.content
                for collection in (PROGRESS, ARCHIVES, *(kind.collection for kind in declared.documents))
                async for key, document in store.scan(collection)
            }

    def _open_readonly(self, service: str) -> SqliteStore:
        return SqliteStore(self.store_file(service), clock=self._clock, readonly=True)


def make_service_evidence(
    declared: Declared, documents: StoredDocuments, committed: Mapping[Partition, int]
) -> ServiceEvidence:
    """Return the evidence of one service, made from its documents and committed offsets."""
    mine = progress_key(declared.name, "")
    archives: dict[str, list[tuple[str, bytes]]] = {}
    for (collection, key), content in documents.items():
        if collection == ARCHIVES:
            archives.setdefault(parse_saga(key), []).append((key, content))
    return ServiceEvidence(
        service=prepare(declared),
        versions={
            key.removeprefix(mine): (content,) for (where, key), content in documents.items() if where == PROGRESS
        },
        archives=archives,
        documents={at: (content,) for at, content in documents.items() if at[0] not in (PROGRESS, ARCHIVES)},
        committed=committed,
    )
