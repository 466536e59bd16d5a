"""An in-memory store behind the simulated network. It gives the same guarantees as the adapters, and keeps every
version of each document for the checks.
"""

import asyncio
from asyncio import Future
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, NamedTuple, Self

from saga.change import DocumentChange, RecordedChange
from saga.errors import (
    Ambiguous,
    ConfigurationError,
    Conflict,
    Exists,
    SagaError,
    StoreError,
    StoreUnavailable,
    TooLarge,
)
from saga.messaging.names import ARCHIVES, PROGRESS
from saga.store.port import Document
from saga.testing.fault_plans import OperationKind
from saga.testing.simulation.loop import BEGINNING_MS, Process
from saga.testing.simulation.network import Backend, Effect, Network
from saga.testing.world import keep_markers

DOCUMENT_BYTES_MAX = 20 * 2**20
"""Maximum size of a document in bytes. It is the smallest limit of any real store."""
EXPIRY_S_MAX = 1000 * 365 * 86_400.0
REMOVED = b""
"""Stands among the versions of a business document where it was removed or has expired."""
WRITES_MAX = 100
"""Number of remembered writes above which finished writes are forgotten."""


class StoredDocument(NamedTuple):
    """A stored document."""

    content: bytes
    cas: int
    expires_s: float | None


class Mutation(NamedTuple):
    """A change of a document that has taken effect."""

    kind: Literal["insert", "update", "delete", "expiry"]
    collection: str
    key: str
    cas: int
    """CAS of the version that the change created or removed."""
    before: bytes | None
    after: bytes | None


@dataclass(slots=True)
class Disk:
    """The documents of one service, shared by its workers."""

    documents: dict[tuple[str, str], StoredDocument] = field(default_factory=dict)
    versions: dict[tuple[str, str], list[bytes]] = field(default_factory=dict)
    """Every content that each document has had, oldest first. For business documents with `REMOVED` in between."""
    document_bytes_max: int = DOCUMENT_BYTES_MAX
    listeners: list[Callable[[Mutation], None]] = field(default_factory=list)
    """Functions that are called for each change of a document."""
    _cas: int = 0

    def find(self, collection: str, key: str, now_s: float) -> StoredDocument | None:
        entry = self.documents.get((collection, key))
        if entry is not None and entry.expires_s is not None and now_s >= entry.expires_s:
            self._drop("expiry", collection, key)
            return None
        return entry

    def put(self, collection: str, key: str, content: bytes, expires_s: float | None) -> int:
        """Write a document. Raises `TooLarge` if it exceeds `document_bytes_max`."""
        if len(content) > self.document_bytes_max:
            raise TooLarge(
                f"{key!r} in {collection!r} would have {len(content)} bytes: {self.document_bytes_max} may be"
            )
        self._cas += 1
        before = self.documents.get((collection, key))
        self.documents[collection, key] = StoredDocument(content, self._cas, expires_s)
        self.versions.setdefault((collection, key), []).append(content)
        if before is None:
            self._notify(Mutation("insert", collection, key, self._cas, None, content))
        else:
            self._notify(Mutation("update", collection, key, self._cas, before.content, content))
        return self._cas

    def write(self, collection: str, key: str, content: bytes | None, expires: timedelta | None, now_s: float) -> None:
        """Write or remove a document as a program without the toolkit would. Keep the markers. Do nothing if a document
        to be removed does not exist.
        """
        entry = self.find(collection, key, now_s)
        if content is not None:
            content = content if entry is None else keep_markers(entry.content, content)
            self.put(collection, key, content, None if expires is None else now_s + expires.total_seconds())
        elif entry is not None:
            self.remove(collection, key)

    def remove(self, collection: str, key: str) -> None:
        """Remove an existing document."""
        self._drop("delete", collection, key)

    def _drop(self, kind: Literal["delete", "expiry"], collection: str, key: str) -> None:
        entry = self.documents.pop((collection, key))
        if collection not in (PROGRESS, ARCHIVES):
            self.versions[collection, key].append(REMOVED)
        self._notify(Mutation(kind, collection, key, entry.cas, entry.content, None))

    def _notify(self, mutation: Mutation) -> None:
        for tell in self.listeners:
            tell(mutation)


class SimulatedStore:
    """A store for one process; all processes of a service share one disk. See `saga.store.port.Store` for the
    guarantees.
    """

    def __init__(self, disk: Disk, process: Process, network: Network) -> None:
        self._disk, self._process, self._network = disk, process, network
        self._backend = Backend(f"{process.service}'s store", StoreUnavailable, Ambiguous)
        self._open = False
        self._writing: list[Future[Any]] = []

    @property
    def document_bytes_max(self) -> int:
        return self._disk.document_bytes_max

    async def __aenter__(self) -> Self:
        self._open = True
        return self

    async def __aexit__(self, *exc: object) -> None:
        if under_way := [write for write in self._writing if not write.done()]:
            await asyncio.wait(under_way)
        self._open = False

    async def check_expiry(self, collections: Collection[str], expiry_s: float) -> None:
        if not 0 <= expiry_s <= EXPIRY_S_MAX:
            problem = f"{expiry_s} s is more than {EXPIRY_S_MAX} s: choose a shorter retention="
            raise ConfigurationError("The simulated store cannot keep documents so long", [problem])

    async def get(self, collection: str, key: str) -> Document | None:
        def land(*_: object) -> Document | None:
            entry = self._disk.find(collection, key, _now_s())
            return None if entry is None else Document(entry.content, entry.cas)

        document: Document | None = await self._ask("get", collection, key, land)
        return document

    async def insert(self, collection: str, key: str, content: bytes, *, expiry_s: float | None = None) -> int:
        _check(expiry_s)

        def land(*_: object) -> int:
            if self._disk.find(collection, key, _now_s()) is not None:
                raise Exists(f"{key!r} is in {collection!r} already")
            return self._disk.put(collection, key, content, None if expiry_s is None else _now_s() + expiry_s)

        cas: int = await self._ask("insert", collection, key, land)
        return cas

    async def replace(
        self,
        collection: str,
        key: str,
        content: bytes,
        *,
        cas: int,
        expiry_s: float | None = None,
        keep_expiry: bool = False,
    ) -> int:
        _check(expiry_s)

        def land(*_: object) -> int:
            entry = self._of(collection, key, cas)
            if keep_expiry:
                return self._disk.put(collection, key, content, entry.expires_s)
            return self._disk.put(collection, key, content, None if expiry_s is None else _now_s() + expiry_s)

        new: int = await self._ask("replace", collection, key, land)
        return new

    async def remove(self, collection: str, key: str, *, cas: int) -> None:
        def land(*_: object) -> None:
            self._of(collection, key, cas)
            self._disk.remove(collection, key)

        await self._ask("remove", collection, key, land)

    async def scan(self, collection: str, prefix: str = "") -> AsyncIterator[tuple[str, Document]]:
        for there, key in sorted(self._disk.documents):
            entry = self._disk.find(there, key, _now_s()) if there == collection and key.startswith(prefix) else None
            if entry is not None:
                yield key, Document(entry.content, entry.cas)

    def _of(self, collection: str, key: str, cas: int) -> StoredDocument:
        """Return the document if the CAS of its current version is `cas`. Raises `Conflict` otherwise."""
        entry = self._disk.find(collection, key, _now_s())
        if entry is None or entry.cas != cas:
            raise Conflict(f"{key!r} in {collection!r} is another version by now")
        return entry

    def _ask(self, what: OperationKind, collection: str, key: str, land: Effect) -> "Future[Any]":
        if not self._open:
            raise SagaError("the store is not open: use it inside `async with`")
        asked = self._network.ask(self._process, self._backend, what, f"{collection}/{key}", (), land)
        if what == "get":
            return asked
        if len(self._writing) > WRITES_MAX:
            self._writing = [write for write in self._writing if not write.done()]
        self._writing.append(asked)
        return asyncio.shield(asked)  # cancelling the caller does not undo a write that was sent


def _check(expiry_s: float | None) -> None:
    if expiry_s is not None and not 0 <= expiry_s <= EXPIRY_S_MAX:
        raise StoreError(f"an expiry of {expiry_s} s cannot be kept; from 0 to {EXPIRY_S_MAX} s can")


def _now_s() -> float:
    return asyncio.get_running_loop().time()


class RecordedChanges:
    """Records the changes of the documents on one disk, separately for each service that watches some of the
    collections.
    """

    def __init__(self, disk: Disk, now_s: Callable[[], float]) -> None:
        self._disk, self._now_s, self._number = disk, now_s, 0
        self.watched: dict[str, set[str]] = {}
        self.recorded: dict[str, list[RecordedChange]] = {}
        self.leaders: dict[str, ChangeRecordingStore] = {}
        """For each service, the store of the process that publishes the recorded changes."""
        self.waiting: list[Future[None]] = []
        """Futures of stores that wait until a change is recorded."""
        disk.listeners.append(self._record)

    def watch(self, service: str, collections: Collection[str], from_beginning: bool) -> None:
        before = self.watched.setdefault(service, set())
        self.recorded.setdefault(service, [])
        for collection in sorted(set(collections) - before) if from_beginning else ():
            for there, key in list(self._disk.documents):
                entry = self._disk.find(there, key, self._now_s()) if there == collection else None
                if entry is not None:
                    self._add(service, Mutation("insert", collection, key, entry.cas, None, entry.content))
        self.watched[service] = before | set(collections)

    def unwatch(self, service: str, collections: Collection[str]) -> None:
        self.watched[service] = self.watched.get(service, set()) - set(collections)
        self.recorded[service] = [each for each in self.recorded.get(service, []) if each.collection not in collections]

    def _record(self, mutation: Mutation) -> None:
        if mutation.collection not in (PROGRESS, ARCHIVES):
            for service, collections in self.watched.items():
                if mutation.collection in collections:
                    self._add(service, mutation)

    def _add(self, service: str, made: Mutation) -> None:
        self._number += 1
        time_ms = BEGINNING_MS + int(self._now_s() * 1000)
        changed = DocumentChange(
            kind=made.kind, key=made.key, version=made.cas, time_ms=time_ms, before=made.before, after=made.after
        )
        self.recorded[service].append(RecordedChange(self._number, made.collection, changed))
        waiting, self.waiting = self.waiting, []
        for each in waiting:
            wake(each)


class ChangeRecordingStore(SimulatedStore):
    """A store for one process that also records changes. See `saga.change.ChangeSource` for the guarantees."""

    def __init__(self, disk: Disk, process: Process, network: Network, notes: RecordedChanges) -> None:
        super().__init__(disk, process, network)
        self._notes = notes

    async def __aexit__(self, *exc: object) -> None:
        await super().__aexit__(*exc)
        for service in [service for service, leader in self._notes.leaders.items() if leader is self]:
            del self._notes.leaders[service]

    async def watch(self, service: str, collections: Collection[str], *, from_beginning: bool) -> None:
        self._notes.watch(service, collections, from_beginning)

    def list_watched(self, service: str) -> Collection[str]:
        return self._notes.watched.get(service, set())

    async def unwatch(self, service: str, collections: Collection[str]) -> None:
        self._notes.unwatch(service, collections)

    def read_recorded(self, service: str, count_max: int, *, before_ms: int | None = None) -> Sequence[RecordedChange]:
        noted = self._notes.recorded.get(service, [])
        if before_ms is not None and (not noted or noted[0].changed.time_ms >= before_ms):
            return ()
        return tuple(noted[:count_max])

    async def forget(self, service: str, number: int) -> None:
        def land(*_: object) -> None:
            self._notes.recorded[service] = [each for each in self._notes.recorded[service] if each.number > number]

        await self._ask("remove", "changes", service, land)

    async def pause(self, seconds: float) -> None:
        """Wait until another change is recorded, but at most `seconds` if there are recorded changes already.

        Such a limited wait keeps the world running only in the process that publishes the changes.
        """
        waiting: Future[None] = asyncio.get_running_loop().create_future()
        self._notes.waiting.append(waiting)
        lying = [service for service, noted in self._notes.recorded.items() if noted]
        if any(self._notes.leaders.get(service) is self for service in lying):
            asyncio.get_running_loop().call_later(seconds, wake, waiting)
        elif lying:
            self._network.idle_later(seconds, lambda: wake(waiting))
        await waiting

    def leads(self, service: str) -> bool:
        leader = self._notes.leaders.get(service)
        if leader is None or not leader._process.alive:
            self._notes.leaders[service] = self
        return self._notes.leaders[service] is self


def wake(waiting: "Future[None]") -> None:
    """Wake a process that waits for recorded changes."""
    if not waiting.done():
        waiting.set_result(None)
