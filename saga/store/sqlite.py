"""The store on one SQLite file: what a service uses unless told otherwise. Several processes may use it at once.

Statements run where they are called, on the event loop's thread: a `get` takes microseconds, and handing it to a worker
thread costs up to 5 ms under load. Writes that come up in one turn of the loop go into one transaction, with one fsync,
by a flush that runs once all of them are there; each has its own answer, given after the commit.

A writer holds `flock` on `<file>.lock` around its transaction. It is asked for without blocking, so that a process that
was frozen while it held the lock cannot freeze another one. SQLite's own busy handler would block the loop, and is less
fair. Which error means what is decided in `saga.store.sqlite_errors`. Linux and macOS, local disks: neither `flock` nor
SQLite's write-ahead log can be trusted over a network.
"""

import asyncio
import fcntl
import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Collection
from pathlib import Path
from typing import NamedTuple, Self

from saga.clock import Clock
from saga.errors import ConfigurationError, StoreError, StoreUnavailable
from saga.store import sqlite_file
from saga.store.port import Document
from saga.store.sqlite_documents import EXPIRY_S_MAX, Documents
from saga.store.sqlite_errors import Doing, is_busy, meaning, too_large
from saga.store.steady import SteadyTime

WRITES_MAX = 256
"""How many writes share a transaction: more would hold up the loop for more than about 5 ms."""
LOCK_WAIT_S = 10.0
"""How long a write waits for other processes before it is refused."""
CONTENDED_S = 0.5
"""For so long after it found the lock taken, a store leaves a moment between its transactions for the other process."""
PAUSE_S_FIRST, PAUSE_S_MAX = 0.001, 0.004
"""Between two looks at the lock; the first is the least that the loop can measure. A process that writes all the time
leaves the lock free only for moments, so the last one is short too: else the others starve."""
PURGE_EVERY_MS = 60_000
"""How often a flush looks for expired documents, when it found no more than it could remove the last time."""
PAGE_KEYS = 200
"""How many documents a scan reads at a time."""
DOCUMENT_BYTES_MAX = 1_000_000_000 - 65_536
"""SQLite takes rows of 1,000,000,000 bytes unless compiled otherwise; this leaves room for key and collection."""

GET = "SELECT content, cas, expires_at_ms FROM documents WHERE collection = ? AND key = ?"
SCAN = (
    "SELECT key, content, cas, expires_at_ms FROM documents"
    " WHERE collection = ? AND key >= ? AND key > ? ORDER BY key LIMIT ?"
)


class Write(NamedTuple):
    """A write that waits for the next flush."""

    apply: Callable[[Documents], int]
    """Carries it out inside the transaction; the new `cas`. Raises what the caller is to be told."""
    answer: asyncio.Future[int]


class SqliteStore:
    """See `saga.store.port.Store` for the promises.

    `readonly` is for tools: nothing is created or changed, and writes raise `StoreUnavailable`. `bytes_max` bounds the
    file: beyond it writes raise `StoreUnavailable`. `document_bytes_max` bounds each document. `connection` is the
    class of the connection, for tests.
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
        self._clock = clock
        self._readonly = readonly
        self._bytes_max = bytes_max
        self._factory = connection
        self._connection: sqlite3.Connection | None = None
        self._lock: int | None = None
        """Of a store that is open for writing."""
        self._queue: list[Write] = []
        self._flushing: asyncio.Handle | None = None
        self._drained: asyncio.Future[None] | None = None
        self._refused_since_s: float | None = None
        self._pause_s = PAUSE_S_FIRST
        self._contended_until_s = 0.0
        self._purge_at_ms = 0
        self._time = SteadyTime(clock)

    async def __aenter__(self) -> Self:
        """Open, and make the file where it is missing. Raises `ConfigurationError` for a file that cannot be the
        store's, `StoreUnavailable` for one that cannot be written now."""
        if self._readonly:
            self._connection = sqlite_file.open_to_read(self.path, self._factory)
            return self
        self._lock = sqlite_file.open_lock(self.path)
        try:
            since_s, pause_s = self._clock.monotonic_s(), PAUSE_S_FIRST
            while (connection := self._try_to_open(self._lock)) is None:
                if self._clock.monotonic_s() - since_s > LOCK_WAIT_S:
                    raise self._too_busy()
                await self._clock.sleep(pause_s)
                pause_s = min(pause_s * 1.2, PAUSE_S_MAX)
        except BaseException:
            os.close(self._lock)
            self._lock = None
            raise
        self._connection = connection
        return self

    async def __aexit__(self, *exc: object) -> None:
        try:
            if self._queue:
                self._drained = asyncio.get_running_loop().create_future()
                await self._drained
        finally:
            if self._flushing is not None:
                self._flushing.cancel()
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None

    async def check_expiry(self, collections: Collection[str], expiry_s: float) -> None:
        if not 0 <= expiry_s <= EXPIRY_S_MAX:
            problem = f"{expiry_s:.0f} s are more than {EXPIRY_S_MAX:.0f}, 1000 years: choose a shorter memory="
            raise ConfigurationError(f"The store {self.path} cannot keep documents so long", [problem])

    # ---------------------------------------------------------------- reading

    async def get(self, collection: str, key: str) -> Document | None:
        try:
            row = self._opened().execute(GET, (collection, key)).fetchone()
        except sqlite3.Error as why:
            raise meaning(why, Doing.READ, self.path) from why
        if row is None or (row[2] is not None and self._is_past(row[2])):
            return None
        return Document(row[0], row[1])

    def _is_past(self, at_ms: int) -> bool:
        """The second look costs more, and most of what is there has not expired."""
        return at_ms <= self._clock.now_ms() and at_ms <= self._time.look().earliest_ms

    async def scan(self, collection: str, prefix: str = "") -> AsyncIterator[tuple[str, Document]]:
        after = ""
        while True:
            try:
                rows = self._opened().execute(SCAN, (collection, prefix, after, PAGE_KEYS)).fetchall()
            except sqlite3.Error as why:
                raise meaning(why, Doing.READ, self.path) from why
            for key, content, cas, expires_at_ms in rows:
                if not key.startswith(prefix):
                    return
                if expires_at_ms is None or not self._is_past(expires_at_ms):
                    yield key, Document(content, cas)
            if len(rows) < PAGE_KEYS:
                return
            after = rows[-1][0]

    # ---------------------------------------------------------------- writing

    async def insert(self, collection: str, key: str, content: bytes, *, expiry_s: float | None = None) -> int:
        self._check_size(content)
        return await self._write(lambda documents: documents.insert(collection, key, content, expiry_s))

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
        self._check_size(content)
        if keep_expiry:
            return await self._write(lambda documents: documents.replace_content(collection, key, content, cas))
        return await self._write(lambda documents: documents.replace(collection, key, content, cas, expiry_s))

    async def remove(self, collection: str, key: str, *, cas: int) -> None:
        await self._write(lambda documents: documents.remove(collection, key, cas))

    def _check_size(self, content: bytes) -> None:
        if len(content) > self.document_bytes_max:
            raise too_large(self.path, len(content), self.document_bytes_max)

    def _write(self, apply: Callable[[Documents], int]) -> asyncio.Future[int]:
        """Queue it: it lands even if the caller goes away meanwhile."""
        if self._lock is None:
            how = "open for reading only" if self._readonly else "not open: use it inside `async with`"
            raise StoreUnavailable(f"the store {self.path} is {how}; nothing was written")
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._queue.append(Write(apply, answer))
        if self._flushing is None:
            self._schedule()
        return answer

    def _schedule(self) -> None:
        """Flush once the loop has run what is ready: as many writes as possible are there by then."""
        loop = asyncio.get_running_loop()
        if self._contended_until_s and self._clock.monotonic_s() < self._contended_until_s:
            self._flushing = loop.call_later(PAUSE_S_FIRST, self._flush)
        else:
            self._contended_until_s = 0.0
            self._flushing = loop.call_soon(self._flush)

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            if self._lock is None:
                raise StoreUnavailable(f"the store {self.path} is not open: use it inside `async with`")
            self._connection = sqlite_file.connect(self.path, self._factory, self._bytes_max)
        return self._connection

    # ---------------------------------------------------------------- the flush

    def _flush(self) -> None:
        """Carry out what is queued, if the file is free; else look again in a moment."""
        self._flushing = None
        assert self._lock is not None, "only an open store has a queue"
        if not sqlite_file.try_lock(self._lock):
            self._look_again()
            return
        try:
            batch = self._transact()
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)
        if batch is None:
            self._look_again()
            return
        self._refused_since_s, self._pause_s = None, PAUSE_S_FIRST
        del self._queue[: len(batch)]
        for write, outcome in batch:
            _give(write.answer, outcome)
        self._go_on()

    def _transact(self) -> list[tuple[Write, int | Exception]] | None:
        """One transaction with the head of the queue, and what came of each write; `None` if SQLite is busy."""
        writes = self._queue[:WRITES_MAX]
        moment = self._time.look()
        doing, outcomes = Doing.WRITE, list[tuple[Write, int | Exception]]()
        try:
            connection = self._opened()
            connection.execute("BEGIN IMMEDIATE")
            documents = Documents(connection, self.path, moment)
            for write in writes:
                outcomes.append((write, _attempt(write, documents, self.path)))
            self._purge(documents, moment.earliest_ms, len(writes))
            doing = Doing.COMMIT
            connection.execute("COMMIT")
        except sqlite3.Error as why:
            if is_busy(why) and not outcomes:
                return None
            self._roll_back()
            return [(write, meaning(why, doing, self.path)) for write in writes]
        return outcomes

    def _purge(self, documents: Documents, now_ms: int, writes: int) -> None:
        """Remove some of the expired, at most twice as many as were written: so they cannot pile up, nor cost much."""
        if now_ms >= self._purge_at_ms and documents.purge(2 * writes):
            self._purge_at_ms = now_ms + PURGE_EVERY_MS

    def _roll_back(self) -> None:
        """Leave nothing of a failed transaction; the next use opens a new connection if this one is beyond use."""
        if self._connection is not None and self._connection.in_transaction:
            try:
                self._connection.execute("ROLLBACK")
            except sqlite3.Error:
                self._connection.close()
                self._connection = None

    def _try_to_open(self, lock: int) -> sqlite3.Connection | None:
        """The connection, if no other process is writing."""
        if not sqlite_file.try_lock(lock):
            return None
        try:
            return sqlite_file.open_to_write(self.path, self._factory, self._bytes_max)
        except sqlite3.Error as why:
            if is_busy(why):
                return None
            raise meaning(why, Doing.WRITE, self.path) from why
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)

    def _look_again(self) -> None:
        """Wait a moment for the other process, or refuse all that is queued when it took too long.

        By the loop's timer, not the clock's: other processes live in real time.
        """
        now_s = self._clock.monotonic_s()
        if self._refused_since_s is None:
            self._refused_since_s = now_s
        if now_s - self._refused_since_s > LOCK_WAIT_S:
            self._refused_since_s, self._pause_s = None, PAUSE_S_FIRST
            refused, self._queue = self._queue, []
            for write in refused:
                _give(write.answer, self._too_busy())
            self._go_on()
            return
        self._contended_until_s = now_s + CONTENDED_S
        pause_s = self._pause_s * (0.5 + self._clock.chance())  # spread, so that two do not meet again and again
        self._pause_s = min(self._pause_s * 1.2, PAUSE_S_MAX)
        self._flushing = asyncio.get_running_loop().call_later(pause_s, self._flush)

    def _go_on(self) -> None:
        if self._queue:
            if self._flushing is None:
                self._schedule()
        elif self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def _too_busy(self) -> StoreUnavailable:
        return StoreUnavailable(
            f"another process has been writing to {self.path} for {LOCK_WAIT_S:.0f} s; nothing was written. See who "
            f"holds it (`lsof {self.path}.lock`): a stopped process must go on or end"
        )


def _attempt(write: Write, documents: Documents, path: Path) -> int | Exception:
    """What came of one write. Raises only what ends the whole transaction."""
    try:
        return write.apply(documents)
    except StoreError as why:
        return why
    except sqlite3.DataError as why:  # too big for SQLite: this statement did nothing, the others are as good as before
        return meaning(why, Doing.WRITE, path)
    except sqlite3.Error:
        raise
    except Exception as why:  # noqa: BLE001 - a value that SQLite cannot take is its caller's fault, and nobody else's
        return why


def _give(answer: asyncio.Future[int], outcome: int | Exception) -> None:
    if answer.done():  # cancelled: nobody listens
        return
    if isinstance(outcome, Exception):
        answer.set_exception(outcome)
    else:
        answer.set_result(outcome)
