"""Group commit: whatever is queued in one turn of the event loop is written by one transaction, with one fsync.

Statements run on the loop's own thread: an append costs microseconds and an fsync of a local disk a fraction of a
millisecond, while handing work to a thread and back costs up to five milliseconds when the loop is busy.
Waiting for another process is different: it may be frozen while it holds the lock. So nothing here blocks on a lock.
"""

import asyncio
import sqlite3
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from saga.broker.embedded.failures import translated
from saga.broker.embedded.ground import Ground
from saga.broker.embedded.locks import WriteLock
from saga.broker.embedded.log import Entry, Log
from saga.clock import Clock
from saga.errors import BrokerBroken, BrokerError, BrokerUnavailable, SagaError

T = TypeVar("T")

RECORDS_MAX = 2000
"""Records that one transaction takes, so that it holds the loop for a bounded time; the rest goes into the next."""
PAUSE_S = 0.02
"""Between two attempts while another program, a shell perhaps, is inside a transaction."""


class Queued(Protocol):
    """What waits for its transaction."""

    def succeed(self) -> None:
        """Tell whoever asked for it that it is durable."""

    def fail(self, why: BaseException) -> None:
        """Tell whoever asked for it that it is not, or may not be."""


class Change(Queued, Protocol):
    """What is no append."""

    def execute(self) -> None:
        """Inside the transaction."""


class Operation(Generic[T]):
    """A change of the file, with the future of its result.

    `run` is called inside the transaction. It may refuse by raising a `SagaError` before it has written anything; then
    it alone fails, and the others of its group are committed.
    """

    __slots__ = ("_result", "_run", "done")

    def __init__(self, run: Callable[[], T], done: asyncio.Future[T]) -> None:
        self._run, self.done = run, done

    def execute(self) -> None:
        self._result = self._run()

    def succeed(self) -> None:
        if not self.done.done():  # a caller that was cancelled is gone; what it asked for has happened
            self.done.set_result(self._result)

    def fail(self, why: BaseException) -> None:
        if not self.done.done():
            self.done.set_exception(why)


class Append:
    """Records to append, with the future of their being durable."""

    __slots__ = ("done", "entries")

    def __init__(self, entries: list[Entry], done: asyncio.Future[None]) -> None:
        self.entries, self.done = entries, done

    def succeed(self) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def fail(self, why: BaseException) -> None:
        if not self.done.done():
            self.done.set_exception(why)


class Writer:
    """The only one of this process who writes to the file."""

    def __init__(  # made in one place, of what that place has
        self,
        path: Path,
        connection: sqlite3.Connection,
        lock: WriteLock,
        log: Log,
        ground: Ground,
        *,
        clock: Clock,
        lock_s: float,
        caught_up: Callable[[], None],
        appended: Callable[[Mapping[int, int]], None],
        broken: Callable[[BrokerBroken], None],
    ) -> None:
        """`caught_up` is called when others had written, `appended` with the new ends of logs that we wrote to,
        `broken` when nothing can be written any more."""
        self._path, self._connection, self._lock, self._log = path, connection, lock, log
        self._clock, self._lock_s = clock, lock_s
        self._caught_up, self._appended, self._broken = caught_up, appended, broken
        self._ground = ground
        self._loop = asyncio.get_running_loop()
        self._queue: deque[Append | Change] = deque()
        self._scheduled = False
        self._waiting: asyncio.Task[None] | None = None
        self._closed = False

    def append(self, entries: list[Entry]) -> asyncio.Future[None]:
        """Done when all are durable. Fails with `BrokerUnavailable`."""
        done: asyncio.Future[None] = self._loop.create_future()
        self._enqueue(Append(entries, done))
        return done

    def do(self, run: Callable[[], T]) -> asyncio.Future[T]:
        """Done, with what `run` returned, when its transaction is durable. Fails as `run` did, or with
        `BrokerUnavailable`."""
        done: asyncio.Future[T] = self._loop.create_future()
        self._enqueue(Operation(run, done))
        return done

    async def close(self) -> None:
        """Return when all that was queued has come to its end; nothing is taken from here on."""
        try:
            await self.do(lambda: None)  # the queue is first in, first out
        except BrokerError:
            pass  # those who queued it were told the same
        finally:
            self._closed = True
            if self._waiting is not None:
                self._waiting.cancel()
                await asyncio.wait([self._waiting])

    def _enqueue(self, item: Append | Change) -> None:
        if self._closed:
            raise BrokerError(f"broker file {self._path} is closed here: publish and commit inside its `async with`")
        self._ground.refuse()
        self._queue.append(item)
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled and self._waiting is None:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        if not self._queue:
            return
        try:
            written = self._lock.taken() and self._written()
        except OSError as why:
            self._fail_all(self._lock_failed(why))
            return
        if not written:
            self._waiting = self._loop.create_task(self._wait(), name="broker file lock")

    async def _wait(self) -> None:
        """Until the other process is done with its transaction; what is queued fails when that takes too long."""
        deadline_s = self._clock.monotonic_s() + self._lock_s
        try:
            while True:
                await self._in_turn()
                if self._written():
                    break
                if self._clock.monotonic_s() >= deadline_s:
                    self._fail_all(self._held())
                    break
                await self._clock.sleep(PAUSE_S)
        except OSError as why:
            self._fail_all(self._lock_failed(why))
        finally:
            self._waiting = None
        if self._queue:
            self._schedule()

    async def _in_turn(self) -> None:
        turn = self._lock.turn()
        while True:
            try:
                return await self._clock.within(self._lock_s, asyncio.shield(turn))
            except TimeoutError:
                self._fail_all(self._held())

    def _held(self) -> BrokerUnavailable:
        return BrokerUnavailable(
            f"broker file {self._path}: another process has held its lock for {self._lock_s:g} s: "
            f"{self._lock.holder()} has it: resume it or end it (a stopped process keeps its locks)"
        )

    def _lock_failed(self, why: OSError) -> BrokerUnavailable:
        return BrokerUnavailable(f"broker file {self._path}: its lock failed ({why}): it has to lie on a local disk")

    def _written(self) -> bool:
        """With the lock held, which is given up: one group commit, with its result told to everybody in it; false when
        another program is inside a transaction without having asked for the lock."""
        try:
            if self._connection.in_transaction:  # a rollback failed, with the disk perhaps
                self._connection.execute("ROLLBACK")
            self._connection.execute("BEGIN IMMEDIATE")
            self._ground.check()
        except sqlite3.Error as why:
            self._roll_back()
            self._lock.release()
            if getattr(why, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY:
                return False
            self._fail_all(self._meaning(why))
            return True
        except BrokerBroken as why:
            self._lock.release()
            self._fail_all(why)
            return True
        except OSError as why:
            self._roll_back()
            self._lock.release()
            self._fail_all(
                BrokerUnavailable(f"broker file {self._path} cannot be looked at ({why}): see the system's log")
            )
            return True
        group = self._group()
        try:
            others, refused = self._log.catch_up(), self._run(group)
            self._connection.execute("COMMIT")
            moved = self._log.committed()
            self._ground.committed(moved)
        except BaseException as why:
            self._roll_back()
            for item in group:
                item.fail(self._meaning(why) if isinstance(why, sqlite3.Error) else why)
            if not isinstance(why, Exception):
                raise
            return True
        finally:
            self._lock.release()
        for item in group:
            if id(item) not in refused:
                item.succeed()
        if others:
            self._caught_up()
        if moved:
            self._appended(moved)
        if self._queue:
            self._schedule()
        return True

    def _group(self) -> list[Append | Change]:
        group: list[Append | Change] = []
        records = 0
        while self._queue and records < RECORDS_MAX:
            item = self._queue.popleft()
            group.append(item)
            if isinstance(item, Append):
                records += len(item.entries)
        return group

    def _run(self, group: list[Append | Change]) -> set[int]:
        """Inside the transaction; which of the group refused. An operation that did has written nothing."""
        refused: set[int] = set()
        entries: list[Entry] = []
        for item in group:
            if isinstance(item, Append):
                entries += item.entries
                continue
            try:
                item.execute()
            except SagaError as why:
                item.fail(why)
                refused.add(id(item))
        if entries:
            self._log.append(entries, self._clock.now_ms())
        return refused

    def _roll_back(self) -> None:
        self._log.rolled_back()
        try:
            if self._connection.in_transaction:  # some failures have SQLite roll back by itself
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            return  # tried again before the next transaction begins

    def _meaning(self, why: sqlite3.Error) -> BrokerError:
        """Our error for one of SQLite's; that the file has lost its name explains most of them."""
        try:
            self._ground.check_names()
        except BrokerBroken as also:
            self._broken(also)
            return also
        except OSError:
            pass  # it is told as SQLite has it
        said = translated(why, self._path)
        if isinstance(said, BrokerBroken):
            self._broken(said)
        return said

    def _fail_all(self, why: BrokerError) -> None:
        if isinstance(why, BrokerBroken):
            self._broken(why)
        while self._queue:
            self._queue.popleft().fail(type(why)(str(why)))  # one each: an exception collects tracebacks
