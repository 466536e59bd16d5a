"""Store on one SQLite file: the default store of a service. Several processes may use one file at the same time.

Statements run where they are called, on the event loop's thread: a `get` takes microseconds, and handing it to a worker
thread takes up to 5 ms under load. Writes share transactions: see `saga.store.sqlite.writer`.
"""

import sqlite3
import sys
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Self

from saga.change import RecordedChange
from saga.errors import ConfigurationError, StoreError, StoreUnavailable, TooLarge
from saga.store.port import Document
from saga.store.sqlite import documents
from saga.store.sqlite.connection import BUSY_S, open_to_read
from saga.store.sqlite.documents import (
    EXPIRY_S_MAX,
    PURPOSE,
    DocumentWriter,
    find_missing_write,
    read_time_note,
    verify_content,
)
from saga.store.sqlite.errors import Damage, FileOperation, is_busy, to_owner_error
from saga.store.sqlite.state_file import StateFile, WriteLock
from saga.store.sqlite.steady_time import SteadyTime
from saga.store.sqlite.writer import GroupCommitter
from saga.support.clock import Clock

WRITES_MAX = 256
"""Largest number of writes in one transaction. More would block the event loop for longer than about 5 ms."""
LOOK_EVERY_S = 1.0
"""Shortest time between two checks, before reads, that the path still leads to the open file, in seconds. Every
transaction that writes checks it anyway."""
LOCK_WAIT_S = 10.0
"""Longest time for which a write waits for other processes, in seconds. Then it raises `StoreUnavailable`."""
DOCUMENT_BYTES_MAX = 1_000_000_000 - 65_536
"""Largest size of a document, in bytes. SQLite's default limit of a row is 1,000,000,000 bytes; the difference is room
for key and collection."""
REFUSALS = (StoreError, sqlite3.DataError, ValueError, TypeError, OverflowError)
"""Errors of a write that changed nothing, because it was refused or SQLite cannot store its values. Only the caller of
that write gets the error."""

GET = "SELECT content, sum, cas, expires_at_ms FROM documents WHERE collection = ? AND key = ?"
PAGE_KEYS = 200
"""Number of documents that a scan reads at a time."""
PAGE = 64
"""Number of documents that `scan_newest` reads at a time. It is small, because callers seldom read many."""
ID_MAX = 2**63 - 1
SCAN = (
    "SELECT key, content, sum, cas, expires_at_ms FROM documents"
    " WHERE collection = ? AND key >= ? AND key > ? ORDER BY key LIMIT ?"
)
WHATEVER_IT_IS = (
    "key, CAST(content AS BLOB), CAST(cas AS INTEGER), CASE typeof(expires_at_ms) WHEN 'integer' THEN expires_at_ms END"
)
"""Columns of a document for listing.

The casts are needed for damaged or manually edited rows. A string that is not UTF-8 would make the whole query fail.
"""
NEXT = "SELECT key FROM documents WHERE collection = ? AND key > ? ORDER BY key LIMIT 1"
NEWEST = (
    # In order of the row ids, which grow: `+` keeps SQLite from using the index of keys and sorting everything.
    f"SELECT id, {WHATEVER_IT_IS} FROM documents"
    " WHERE id < ? AND +collection = ? AND key >= ? AND key < ? ORDER BY id DESC LIMIT ?"
)
KEPT = (
    # Both parts read only indexes, which are a small part of the file.
    "SELECT id FROM documents WHERE collection = ? AND key >= ? AND key < ?"
    " EXCEPT SELECT id FROM documents INDEXED BY expiring WHERE expiry_hour IS NOT NULL"
)
FEW = "SELECT id FROM documents WHERE collection = ? AND key >= ? AND key < ? LIMIT ?"
FEW_MAX = 1000
"""If fewer documents than this have the prefix, `scan_newest` reads them one by one, newest first. Otherwise it walks
through all rows of the table, newest first."""
ONE = f"SELECT {WHATEVER_IT_IS} FROM documents WHERE id = ?"


class SqliteStore:
    """Store of documents in one SQLite file. See `saga.store.port.Store` for the promises.

    `readonly`: true for tools; nothing is created or changed, and writes raise `StoreUnavailable`. `bytes_max`: maximum
    size of the file; when it is reached, writes raise `StoreUnavailable`. `document_bytes_max`: maximum size of a
    document. `connection`: class of the connection, for tests.
    """

    def __init__(
        self,
        path: Path,
        *,
        clock: Clock,
        readonly: bool = False,
        bytes_max: int | None = None,
        document_bytes_max: int = DOCUMENT_BYTES_MAX,
        connection: type[sqlite3.Connection] = sqlite3.Connection,
    ) -> None:
        self.path = path
        self.document_bytes_max = document_bytes_max
        self._clock, self._readonly, self._bytes_max, self._factory = clock, readonly, bytes_max, connection
        self._time = SteadyTime(clock)
        self._reading: sqlite3.Connection | None = None
        self._file: StateFile | None = None
        """State file, if the store is open for writing. The next two attributes are also set only then."""
        self._documents: DocumentWriter
        self._writer: GroupCommitter
        self._look_at_s = 0.0
        self._leading: dict[str, WriteLock] = {}
        """Locks by service. The process that holds a service's lock publishes the recorded changes of the service."""

    async def __aenter__(self) -> Self:
        """Open the file, and create it if it is missing.

        Raises `ConfigurationError` for a file that cannot be the store's file, and `StoreUnavailable` for a file that
        cannot be written at present.
        """
        if self._readonly:
            self._reading = await self._open_to_read()
            return self
        clock = self._clock
        file = StateFile(
            self.path, PURPOSE, clock=clock, lock_s=LOCK_WAIT_S, bytes_max=self._bytes_max, factory=self._factory
        )
        self._documents = DocumentWriter(self.path, self._time)
        await file.open(find_missing_write)
        try:
            self._time.resume(read_time_note(file.connection()))
        except sqlite3.Error as why:
            file.close()
            raise file.make_error(why, FileOperation.READ) from why
        self._writer = GroupCommitter(file, self._documents, room=WRITES_MAX, refusals=REFUSALS)
        self._file = file
        return self

    async def _open_to_read(self) -> sqlite3.Connection:
        """Open a connection that cannot write.

        A service that starts holds SQLite's lock for a moment. So while the file is busy, this tries again, for as long
        as a write would wait for its lock.
        """
        deadline_s = self._clock.monotonic_s() + LOCK_WAIT_S
        while True:
            try:
                return open_to_read(self.path, PURPOSE, self._factory)
            except sqlite3.Error as why:
                if not is_busy(why) or self._clock.monotonic_s() >= deadline_s:
                    raise to_owner_error(why, FileOperation.READ, self.path, PURPOSE) from why
            await self._clock.sleep(BUSY_S)

    async def __aexit__(self, *exc: object) -> None:
        """Close the store. Raises `StoreBroken` if the file was removed or replaced since the last write, unless a
        caller has already received that error."""
        for lock in self._leading.values():
            lock.release()
            lock.close()
        self._leading.clear()
        if self._reading is not None:
            self._reading.close()
            self._reading = None
        if self._file is not None:
            try:
                await self._writer.close()
            finally:
                file, self._file = self._file, None
                file.close()

    async def check_expiry(self, collections: Collection[str], expiry_s: float) -> None:
        if not 0 <= expiry_s <= EXPIRY_S_MAX:
            problem = f"{expiry_s:.0f} s are more than {EXPIRY_S_MAX:.0f}, 1000 years: choose a shorter retention="
            raise ConfigurationError(f"The store {self.path} cannot keep documents so long", [problem])

    # ---------------------------------------------------------------- reading

    async def get(self, collection: str, key: str) -> Document | None:
        try:
            row = self._connection().execute(GET, (collection, key)).fetchone()
            if row is None or (row[3] is not None and self._is_past(row[3])):
                return None
            return Document(verify_content(collection, key, row[0], row[1]), row[2])
        except sqlite3.Error as why:
            raise self._error(why) from why
        except TypeError as why:
            damage = Damage(f"document {key!r} of {collection!r} has a column of another type")
            raise self._error(damage) from why

    def _connection(self) -> sqlite3.Connection:
        """Return the connection for all reads. Raises `StoreBroken`, `StoreUnavailable`, `sqlite3.Error`."""
        file = self._file
        if file is None:
            if self._reading is None:
                raise StoreUnavailable(f"the store {self.path} is not open: use it inside `async with`")
            return self._reading
        now_s = self._clock.monotonic_s()
        if now_s >= self._look_at_s:
            self._look_at_s = now_s + LOOK_EVERY_S
            file.check_names()
        return file.connection()

    def _error(self, why: sqlite3.Error) -> Exception:
        """Create the store's error for an error of SQLite in a read."""
        return (
            self._file.make_error(why, FileOperation.READ)
            if self._file
            else to_owner_error(why, FileOperation.READ, self.path, PURPOSE)
        )

    def _is_past(self, at_ms: int) -> bool:
        """Return whether an expiry time has certainly passed. The cheaper comparison comes first, because most
        documents have not expired."""
        return at_ms <= self._clock.now_ms() and at_ms <= self._time.look().earliest_ms

    async def scan(self, collection: str, prefix: str = "") -> AsyncIterator[tuple[str, Document]]:
        after = ""
        while page := self._rows(SCAN, (collection, prefix, after, PAGE_KEYS)):
            for key, content, sum_, cas, expires_at_ms in page:
                if not key.startswith(prefix):
                    return
                if expires_at_ms is None or not self._is_past(expires_at_ms):
                    try:
                        content = verify_content(collection, key, content, sum_)
                    except sqlite3.Error as why:
                        raise self._error(why) from why
                    yield key, Document(content, cas)
            if len(page) < PAGE_KEYS:
                return
            after = page[-1][0]

    async def scan_newest(
        self, collection: str, prefix: str = "", *, kept: bool = False
    ) -> AsyncIterator[tuple[str, Document]]:
        """Read documents as `saga.store.port.NewestFirst` promises."""
        before, within = ID_MAX, (collection, prefix, f"{prefix}{chr(sys.maxunicode)}")
        ids = [row[0] for row in (self._rows(KEPT, within) if kept else self._rows(FEW, (*within, FEW_MAX)))]
        if kept or len(ids) < FEW_MAX:
            for id_ in sorted(ids, reverse=True):
                for key, content, cas, expires_at_ms in self._rows(ONE, (id_,)):
                    if expires_at_ms is None or not (kept or self._is_past(expires_at_ms)):
                        yield key, Document(content, cas)
            return
        while page := self._rows(NEWEST, (before, *within, PAGE)):
            for _, key, content, cas, expires_at_ms in page:
                if expires_at_ms is None or not self._is_past(expires_at_ms):
                    yield key, Document(content, cas)
            before = page[-1][0]

    async def next_key(self, collection: str, after: str) -> str | None:
        """Find a key as `saga.store.port.KeysInOrder` promises."""
        return next((str(key) for (key,) in self._rows(NEXT, (collection, after))), None)

    def _rows(self, query: str, values: Sequence[object]) -> list[Any]:
        try:
            return self._connection().execute(query, tuple(values)).fetchall()
        except sqlite3.Error as why:
            raise self._error(why) from why

    # ---------------------------------------------------------------- writing

    async def insert(self, collection: str, key: str, content: bytes, *, expiry_s: float | None = None) -> int:
        writer = self._writer_of(content)
        return await writer.do(partial(self._documents.insert, collection, key, content, expiry_s))

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
        writer = self._writer_of(content)
        if keep_expiry:
            return await writer.do(partial(self._documents.replace_content, collection, key, content, cas))
        return await writer.do(partial(self._documents.replace, collection, key, content, cas, expiry_s))

    async def remove(self, collection: str, key: str, *, cas: int) -> None:
        await self._writer_of(b"").do(partial(self._documents.remove, collection, key, cas))

    # ---------------------------------------------------------------- changes

    async def watch(self, service: str, collections: Collection[str], *, from_beginning: bool) -> None:
        """Record changes as `saga.change.ChangeSource` promises."""
        connection = self._connection()
        with self._translate_errors():
            if documents.read_watched(connection, service).issuperset(collections):
                return
        await self._writer_of(b"").do(partial(documents.watch, connection, service, collections, from_beginning))

    def list_watched(self, service: str) -> Collection[str]:
        with self._translate_errors():
            return documents.read_watched(self._connection(), service)

    async def unwatch(self, service: str, collections: Collection[str]) -> None:
        connection = self._connection()
        await self._writer_of(b"").do(partial(documents.unwatch, connection, service, collections))

    def read_recorded(self, service: str, count_max: int, *, before_ms: int | None = None) -> Sequence[RecordedChange]:
        connection = self._connection()
        with self._translate_errors():
            if before_ms is not None:
                first = documents.read_changes(connection, service, 1)
                if not first or first[0].changed.time_ms >= before_ms:
                    return ()
            return documents.read_changes(connection, service, count_max)

    async def forget(self, service: str, number: int) -> None:
        await self._writer_of(b"").do(partial(documents.forget, self._connection(), service, number))

    async def pause(self, seconds: float) -> None:
        await self._clock.sleep(seconds)

    def leads(self, service: str) -> bool:
        if self._file is None:
            return False
        try:
            if service not in self._leading:
                self._leading[service] = WriteLock(self.path.with_name(f"{self.path.name}.{service}.changes.lock"))
            return self._leading[service].try_acquire()
        except OSError as why:
            raise StoreUnavailable(f"the lock of who takes on the changes of {service!r}: {why}") from why

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as why:
            raise self._error(why) from why

    def _writer_of(self, content: bytes) -> GroupCommitter:
        """Return the writer, after checking that the store is open for writing and can store this content."""
        if len(content) > self.document_bytes_max:
            raise TooLarge(
                f"the store {self.path} cannot take a document of {len(content)} bytes: it takes "
                f"{self.document_bytes_max}; nothing was written: keep less"
            )
        if self._file is None:
            how = "open for reading only" if self._readonly else "not open: use it inside `async with`"
            raise StoreUnavailable(f"the store {self.path} is {how}; nothing was written")
        return self._writer
