"""The servers below a world of processes, in the place of the embedded files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from saga.declarations.values import Declared
from saga.engine.prepared_service import reads_of, topics_of
from saga.errors import BrokerError, BrokerUnavailable
from saga.messages import Outgoing, Record, Topic
from saga.messaging.names import ARCHIVES, PROGRESS, is_wakes
from saga.progress.document import SagaProgress, decode_progress, decode_transition, progress_key
from saga.progress.history import archive_key, decode_archive
from saga.progress.overflow import list_segments, segment_key
from saga.store.port import Document
from saga.support.clock import Clock
from saga.testing.processes.evidence import Left
from saga.testing.processes.servers import Servers
from saga.testing.processes.shared_files import Changed, Group, SharedFiles

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

AGAIN_S = 0.2
ASK_S_MAX = 2.0
"""Time that the world asks for groups: it has to go on, for only it ends what keeps the broker from answering."""


class SharedServers(SharedFiles):
    """One broker and one store for all services. Asked past whatever stands between workers and servers."""

    look_s = 0.2

    def __init__(self, folder: Path, clock: Clock, servers: Servers) -> None:
        self._servers = servers
        self._reads: dict[str, frozenset[str]] = {}
        """Topics that a service reads, by service."""
        super().__init__(folder, clock)

    def _make(self) -> None:
        self._broker = self._administration = self._servers.aside.broker(self._clock)
        self._store = self._servers.aside.store(self._clock)

    async def _open(self) -> None:
        await self._stack.enter_async_context(self._administration)
        await self._stack.enter_async_context(self._store)

    # ---------------------------------------------------------------- writing

    async def _prepare(self, declared: Declared, documents: "Mapping[str, DataclassInstance]") -> None:
        await self._broker.ensure_topics(topics_of(declared))
        self._reads[declared.name] = reads_of(declared)
        collections = {document.kind: document.collection for document in declared.documents}
        for key, document in documents.items():
            if type(document) in collections:
                await self._store.insert(collections[type(document)], key, msgspec.json.encode(document))

    async def _publish(self, said: Sequence[Outgoing | Changed], topics: Sequence[Topic]) -> None:
        while True:
            try:
                await super()._publish(said, topics)
            except BrokerUnavailable:
                await self._clock.sleep(AGAIN_S)
            else:
                return

    # ---------------------------------------------------------------- reading

    def groups(self) -> dict[str, Group]:
        """Groups as they were together at some moment while they were asked for; none while the broker does not
        answer."""
        try:
            return self._runner.run(self._clock.within(ASK_S_MAX, self._groups()))
        except (BrokerError, TimeoutError):
            return {}

    async def _groups(self) -> dict[str, Group]:
        # Positions first, then the ends: a group that has committed up to an end that is asked for later has really
        # nothing before it, and whatever its work has made is counted in the ends of others.
        found = {service: await self._administration.describe_group(service) for service in self._reads}
        bounds = await self._administration.fetch_bounds(frozenset().union(*self._reads.values()))
        groups = {}
        for service, group in found.items():
            lag = wakes = 0
            for partition, at in bounds.items():
                if partition.topic in self._reads[service]:
                    behind = max(0, at.end - group.positions.get(partition, at.begin))
                    lag, wakes = (lag, wakes + behind) if is_wakes(partition.topic) else (lag + behind, wakes)
            groups[service] = Group(len(group.members), lag, wakes)
        return groups

    async def _get(self, service: str, collection: str, key: str) -> Document | None:
        return await self._store.get(collection, key)

    async def _left(self, declared: Declared, log: Sequence[Record]) -> Left:
        """Documents of a service, read by key: progresses of all sagas that the log knows, and documents that these
        name, for not every server lists keys."""
        left: dict[tuple[str, str], bytes] = {}
        for saga in sorted({record.key.decode() for record in log if record.key}):
            content = await self._read(left, PROGRESS, progress_key(declared.name, saga))
            if content is not None:
                await self._read_what_is_named(left, decode_progress(content))
        return left

    async def _read(self, left: dict[tuple[str, str], bytes], collection: str, key: str) -> bytes | None:
        document = await self._store.get(collection, key)
        if document is None:
            return None
        left[collection, key] = document.content
        return document.content

    async def _read_what_is_named(self, left: dict[tuple[str, str], bytes], p: SagaProgress) -> None:
        transitions, archived = [*p.transitions], 0
        while archived < p.first:
            archive = await self._read(left, ARCHIVES, archive_key(p.service, p.saga, archived))
            if archive is None:
                break
            transitions += decode_archive(archive).transitions
            archived += len(decode_archive(archive).transitions)
        pages = [*p.pages]
        while pages:
            page = pages.pop()
            content = await self._read(left, ARCHIVES, segment_key(p.service, p.saga, page))
            pages += () if content is None else list_segments(page, content)
        calls = [call for raw in transitions for call in decode_transition(raw).calls]
        begun = [call for intent in p.intents for call in (*intent.calls, intent.begins) if call is not None]
        for name in {call.document for call in (*calls, *begun) if call.kind == "update" and call.document}:
            collection, _, key = name.partition("/")
            await self._read(left, collection, key)
