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
import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Self

from saga import filelock
from saga.clock import Clock
from saga.errors import ConfigurationError, StoreBroken, StoreError, StoreUnavailable
from saga.statefile import left
from saga.store import sqlite_file
from saga.store.port import Document
from saga.store.sqlite_documents import EXPIRY_S_MAX, Documents, Write, checked
from saga.store.sqlite_errors import Doing, is_busy, meaning, no_lock, no_look, too_busy, too_large
from saga.store.sqlite_ground import Ground
from saga.store.sqlite_looks import by_key, newest
from saga.store.steady import SteadyTime

WRITES_MAX = 256
"""How many writes share a transaction: more would hold up the loop for more than about 5 ms."""
LOOK_EVERY_S = 1.0
"""How often a read looks whether the file is still the one of its name; a write always does."""
LOCK_WAIT_S = 10.0
"""How long a write waits for other processes before it is refused."""
CONTENDED_S = 0.5
"""For so long after it found the lock taken, a store leaves a moment between its transactions for the other process."""
PAUSE_S_FIRST, PAUSE_S_MAX = 0.001, 0.004
"""Between two looks at the lock; the first is the least that the loop can measure. A process that writes all the time
leaves the lock free only for moments, so the last one is short too: else the others starve."""
PURGE_EVERY_MS = 60_000
"""How often a flush looks for expired documents, when it found no more than it could remove the last time."""
DOCUMENT_BYTES_MAX = 1_000_000_000 - 65_536
"""SQLite takes rows of 1,000,000,000 bytes unless compiled otherwise; this leaves room for key and collection."""

GET = "SELECT content, sum, cas, expires_at_ms FROM documents WHERE collection = ? AND key = ?"


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
        self._ground: Ground | None = None
        self._look_at_s = 0.0

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
                    raise too_busy(self.path, LOCK_WAIT_S)
                await self._clock.sleep(pause_s)
                pause_s = min(pause_s * 1.2, PAUSE_S_MAX)
        except BaseException:
            os.close(self._lock)
            self._lock = None
            raise
        self._connection = connection
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close. Raises `StoreBroken` if the file was removed or replaced since the last write: nobody was told yet."""
        try:
            if self._queue:
                self._drained = asyncio.get_running_loop().create_future()
                await self._drained
            if self._connection is not None and self._ground is not None:
                with suppress(OSError):
                    self._check_names(at_once=True)
        finally:
            if self._flushing is not None:
                self._flushing.cancel()
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()
            if self._ground is not None:
                self._ground.closed()
                self._ground = None
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None

    async def check_expiry(self, collections: Collection[str], expiry_s: float) -> None:
        if not 0 <= expiry_s <= EXPIRY_S_MAX:
            problem = f"{expiry_s:.0f} s are more than {EXPIRY_S_MAX:.0f}, 1000 years: choose a shorter memory="
            raise ConfigurationError(f"The store {self.path} cannot keep documents so long", [problem])

    # ---------------------------------------------------------------- reading

    async def get(self, collection: str, key: str) -> Document | None:
        self._check_names()
        try:
            row = self._opened().execute(GET, (collection, key)).fetchone()
            if row is None or (row[3] is not None and self._is_past(row[3])):
                return None
            return Document(checked(collection, key, row[0], row[1]), row[2])
        except sqlite3.Error as why:
            raise self._meaning(why, Doing.READ) from why

    def _check_names(self, *, at_once: bool = False) -> None:
        """Raises `StoreBroken`, `StoreUnavailable`."""
        if self._ground is None:
            return
        self._ground.refuse()
        now_s = self._clock.monotonic_s()
        if not at_once and now_s < self._look_at_s:
            return
        self._look_at_s = now_s + LOOK_EVERY_S
        try:
            self._ground.check_names(self._connection)
        except StoreBroken:
            raise self._given_up() from None
        except OSError as why:
            raise no_look(self.path, why) from why

    def _meaning(self, why: sqlite3.Error, doing: Doing) -> StoreError:
        """Our error for one of SQLite's; that the file has lost its name explains most of them."""
        try:
            self._check_names(at_once=True)
        except StoreError as also:
            return also
        return meaning(why, doing, self.path)

    def _given_up(self) -> StoreBroken:
        """The file is not what it was: the connection is left as it is, and never another one opened."""
        connection, self._connection = self._connection, None
        assert self._ground is not None, "it has said so"
        if connection is None:
            return StoreBroken(self._ground.broken)
        if connection.in_transaction:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
        return StoreBroken(self._ground.give_up(connection))

    def _is_past(self, at_ms: int) -> bool:
        """The second look costs more, and most of what is there has not expired."""
        return at_ms <= self._clock.now_ms() and at_ms <= self._time.look().earliest_ms

    async def scan(self, collection: str, prefix: str = "") -> AsyncIterator[tuple[str, Document]]:
        try:
            for found in by_key(self._rows, self._is_past, collection, prefix):
                yield found
        except sqlite3.Error as why:
            raise self._meaning(why, Doing.READ) from why

    async def newest(
        self, collection: str, prefix: str = "", *, kept: bool = False
    ) -> AsyncIterator[tuple[str, Document]]:
        """See `saga.store.port.NewestFirst`."""
        for found in newest(self._rows, self._is_past, collection, prefix, kept):
            yield found

    def _rows(self, query: str, values: Sequence[object]) -> list[Any]:
        try:
            return self._opened().execute(query, tuple(values)).fetchall()
        except sqlite3.Error as why:
            raise self._meaning(why, Doing.READ) from why

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
        if self._ground is not None:
            self._ground.refuse()
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
        """Raises `StoreBroken` once the file is not what it was: what lies there now is another one."""
        if self._connection is None:
            if self._ground is not None:
                self._ground.refuse()
            if self._lock is None:
                raise StoreUnavailable(f"the store {self.path} is not open: use it inside `async with`")
            self._connection = sqlite_file.connect(self.path, self._factory, self._bytes_max)
        return self._connection

    # ---------------------------------------------------------------- the flush

    def _flush(self) -> None:
        """Carry out what is queued, if the file is free; else look again in a moment."""
        self._flushing = None
        assert self._lock is not None, "only an open store has a queue"
        try:
            taken = filelock.take(self._lock)
        except OSError as why:  # whatever the system's reason, somebody waits for an answer
            self._refuse_all(partial(no_lock, self.path, why))
            return
        if not taken:
            self._look_again()
            return
        try:
            batch = self._transact()
        finally:
            filelock.give(self._lock, f"{self.path}.lock")
        if batch is None:
            self._look_again()
            return
        self._refused_since_s, self._pause_s = None, PAUSE_S_FIRST
        del self._queue[: len(batch)]
        for write, outcome in batch:
            write.give(outcome)
        self._go_on()

    def _transact(self) -> list[tuple[Write, int | Exception]] | None:
        """One transaction with the head of the queue, and what came of each write; `None` if SQLite is busy."""
        writes = self._queue[:WRITES_MAX]
        moment = self._time.look()
        doing = Doing.WRITE
        outcomes: list[tuple[Write, int | Exception]] = []
        try:
            connection = self._opened()
            connection.execute("BEGIN IMMEDIATE")
            documents = Documents(connection, self.path, moment)
            if self._ground is not None:
                self._ground.check(connection, documents)
            for write in writes:
                outcomes.append((write, documents.outcome_of(write.apply)))  # noqa: PERF401 - one after the other
            self._purge(documents, moment.earliest_ms, len(writes))
            doing = Doing.COMMIT
            connection.execute("COMMIT")
            if self._ground is not None:
                self._ground.committed(documents)
        except StoreBroken:
            broken = self._given_up()
            return [(write, StoreBroken(str(broken))) for write in writes]
        except OSError as why:
            self._roll_back()
            return [(write, no_look(self.path, why)) for write in writes]
        except sqlite3.Error as why:
            if is_busy(why) and not outcomes:
                return None
            self._roll_back()
            said = self._meaning(why, doing)
            return [(write, type(said)(str(said))) for write in writes]
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
        try:
            if not filelock.take(lock):
                return None
        except OSError as why:
            raise no_lock(self.path, why) from why
        try:
            if (said := left(self.path, lock)) is not None:
                raise StoreBroken(f"the store {self.path} cannot be used yet: {said}")
            connection = sqlite_file.open_to_write(self.path, self._factory, self._bytes_max)
            try:
                self._ground = Ground(self.path, lock, connection, self._clock)
            except BaseException:
                connection.close()
                raise
            return connection
        except sqlite3.Error as why:
            if is_busy(why):
                return None
            raise meaning(why, Doing.WRITE, self.path) from why
        except OSError as why:
            raise no_look(self.path, why) from why
        finally:
            filelock.give(lock, f"{self.path}.lock")

    def _look_again(self) -> None:
        """Wait a moment for the other process, or refuse all that is queued when it took too long.

        By the loop's timer, not the clock's: other processes live in real time.
        """
        now_s = self._clock.monotonic_s()
        if self._refused_since_s is None:
            self._refused_since_s = now_s
        if now_s - self._refused_since_s > LOCK_WAIT_S:
            self._refuse_all(partial(too_busy, self.path, LOCK_WAIT_S))
            return
        self._contended_until_s = now_s + CONTENDED_S
        pause_s = self._pause_s * (0.5 + self._clock.chance())  # spread, so that two do not meet again and again
        self._pause_s = min(self._pause_s * 1.2, PAUSE_S_MAX)
        self._flushing = asyncio.get_running_loop().call_later(pause_s, self._flush)

    def _refuse_all(self, why: Callable[[], StoreUnavailable]) -> None:
        """Each with an error of its own: an exception collects tracebacks."""
        self._refused_since_s, self._pause_s = None, PAUSE_S_FIRST
        refused, self._queue = self._queue, []
        for write in refused:
            write.give(why())
        self._go_on()

    def _go_on(self) -> None:
        if self._queue:
            if self._flushing is None:
                self._schedule()
        elif self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
