"""Group commit: changes that are queued while the event loop is busy share one transaction with one fsync.

Statements run on the loop's own thread: an append takes microseconds and an fsync of a local disk a fraction of a
millisecond, while handing work to a thread and back takes up to five milliseconds when the loop is busy. Waiting for
another process is different: it may be frozen while it holds the lock. So nothing here blocks on a lock.
"""

import asyncio
import sqlite3
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from operator import itemgetter
from typing import Any, Protocol, TypeAlias, TypeVar

from saga.errors import Broken, SagaError
from saga.store.sqlite.errors import FileOperation, is_busy
from saga.store.sqlite.state_file import StateFile

T = TypeVar("T")

BUSY_S = 0.00025
"""Shortest iteration of the event loop, in seconds, that counts as busy. During a busy iteration more changes may be
queued, and a commit takes as long as a dozen changes. An iteration of an idle loop takes a tenth of this time; then the
transaction is written at once."""
WAIT_S_MAX = 0.04
"""Longest time for which a transaction waits while the event loop is busy, in seconds. It is only a fraction of the
delay that the busy loop causes anyway."""
PAUSE_S = 0.02
"""Pause between two attempts while another program, for example a SQLite shell, is inside a transaction, in seconds."""
LOOK_EVERY_S = 0.05
"""Pause between checks of the deadline while waiting for the lock, in seconds. It is measured by the event loop's
timer, not by the toolkit's `Clock`, because other processes run in real time."""

Change: TypeAlias = tuple[Callable[[], Any], asyncio.Future[Any], int]
"""A queued change: the function to run inside the transaction, the future of its result, and how much of the
transaction's `room` it takes."""
_takes = itemgetter(2)


class TransactionHooks(Protocol):
    """Callbacks with which the owner of the file takes part in each transaction. They are called inside the
    transaction, unless their docstring says otherwise."""

    def begin(self, connection: sqlite3.Connection) -> None:
        """Called at the beginning of a transaction on this connection, before the first change."""

    def finish(self, changes: int) -> None:
        """Called at the end of a transaction, after its last change. `changes`: the number of changes in it."""

    def on_commit(self) -> bytes | None:
        """Called when the transaction is durable, with the lock still held.

        Return the mark of the transaction's last write, if it had one: see `saga.store.sqlite.integrity`.
        """

    def on_rollback(self) -> None:
        """Called when nothing of the transaction was written."""

    def announce(self) -> None:
        """Called after a commit, with the lock released, to notify tasks that wait for the written content."""


class GroupCommitter:
    """Writer that commits queued changes to the file in groups. Each process has one for a file."""

    def __init__(
        self,
        file: StateFile,
        contents: TransactionHooks,
        *,
        room: int,
        refusals: tuple[type[Exception], ...] = (SagaError,),
        broken: Callable[[Broken], None] | None = None,
    ) -> None:
        """Start with an empty queue.

        `room`: how much one transaction may contain, so that it blocks the event loop for a bounded time; further
        changes go into the next one. `refusals`: errors that a change may raise before it has written anything, so that
        it fails alone; any other error fails the whole transaction. `broken`: function that is called when nothing can
        be written any more.
        """
        self._file, self._contents, self._clock = file, contents, file.clock
        self._room, self._refusals, self._broken = room, refusals, broken
        self._loop = asyncio.get_running_loop()
        self._queue: deque[Change] = deque()
        self._scheduled = False
        self._waiting: asyncio.Task[None] | None = None
        self._closed = False

    def do(self, run: Callable[[], T], takes: int = 1) -> asyncio.Future[T]:
        """Queue a change.

        The future is done, with the result of `run`, when its transaction is durable, even if the caller was cancelled.
        It fails with the exception of `run`, or with the owner's error.
        """
        if self._closed:
            file = self._file
            raise file.purpose.errors.defect(
                f"the {file.purpose.name} {file.path} is closed here; nothing was written: use it inside its "
                "`async with`"
            )
        if self._file.guard.broken is not None:
            self._file.guard.raise_if_broken()
        done: asyncio.Future[T] = self._loop.create_future()
        self._queue.append((run, done, takes))
        if not self._scheduled and self._waiting is None:
            self._schedule()
        return done

    async def close(self) -> None:
        """Wait until all queued changes have ended, and accept no more.

        Raises the owner's error for a broken file, if this has not been noticed before.
        """
        is_told = self._file.guard.broken is not None
        try:
            with suppress(SagaError):  # the callers of `do` have received the same error
                await self.do(lambda: None)  # the queue is processed in order
        finally:
            self._closed = True
            if self._waiting is not None:
                self._waiting.cancel()
                await asyncio.wait([self._waiting])
        if not is_told:
            self._file.guard.raise_if_broken()

    def _schedule(self) -> None:
        """Write as soon as the event loop has nothing else to do, so that as many changes as possible share one
        transaction."""
        if self._scheduled:  # a second turn would wait for the lock, too, and then write without it
            return
        self._scheduled = True
        now_s = self._loop.time()
        self._loop.call_soon(self._gather, now_s, now_s, len(self._queue))

    def _gather(self, since_s: float, turn_s: float, had: int) -> None:
        """Write now, or wait for the next iteration of the event loop if this one was busy or has added changes.

        `since_s`, `turn_s`: times of the event loop at which the first change was queued, and at which this iteration
        began. `had`: number of changes that were queued when this iteration began.
        """
        now_s, queued = self._loop.time(), len(self._queue)
        is_over = now_s - turn_s <= BUSY_S and queued <= had
        if not is_over and now_s - since_s < WAIT_S_MAX and queued < self._room:
            self._loop.call_soon(self._gather, since_s, now_s, queued)
            return
        self._scheduled = False
        if not self._queue:
            return
        try:
            written = self._file.lock.try_acquire() and self._try_write()
        except OSError as why:
            self._fail_all(self._file.make_lock_error(why))
            return
        if not written:
            self._waiting = self._loop.create_task(self._wait(), name="state file lock")

    # ---------------------------------------------------------------- another process writes

    async def _wait(self) -> None:
        """Wait until the other process has finished its transaction, then write. After `lock_s` seconds the queued
        changes fail."""
        deadline_s = self._clock.monotonic_s() + self._file.lock_s
        try:
            while True:
                await self._acquire_lock(deadline_s)
                if self._try_write():
                    break
                if self._clock.monotonic_s() >= deadline_s:
                    self._fail_all(self._file.make_locked_error())
                    break
                await self._clock.sleep(PAUSE_S)
        except OSError as why:
            self._fail_all(self._file.make_lock_error(why))
        finally:
            self._waiting = None
        if self._queue:
            self._schedule()

    async def _acquire_lock(self, deadline_s: float) -> None:
        """Wait for the lock, and return when this process has it.

        After a timeout the queued changes fail, but the request for the lock stays. Changes that are queued later wait
        for the same time again.
        """
        turn = self._file.lock.acquire()
        while not turn.done():
            await asyncio.wait([turn], timeout=LOOK_EVERY_S)
            if not turn.done() and self._clock.monotonic_s() >= deadline_s:
                self._fail_all(self._file.make_locked_error())
                deadline_s = self._clock.monotonic_s() + self._file.lock_s
        turn.result()

    # ---------------------------------------------------------------- the transaction

    def _try_write(self) -> bool:
        """Write one transaction and resolve the futures of its changes. The lock must be held and is released.

        Return false if another program is inside a transaction without having taken the lock.
        """
        file, contents = self._file, self._contents
        group: list[Change] = []
        results: list[tuple[asyncio.Future[Any], Any]] = []
        refused: list[tuple[asyncio.Future[Any], Exception]] = []
        doing = FileOperation.WRITE
        try:
            connection = file.connection()
            connection.execute("BEGIN IMMEDIATE")
            file.guard.check()
            group = self._take_group()
            contents.begin(connection)
            for run, done, _ in group:
                try:
                    results.append((done, run()))
                except self._refusals as why:
                    refused.append((done, file.make_error(why, doing) if isinstance(why, sqlite3.Error) else why))
            contents.finish(len(group))
            doing = FileOperation.COMMIT
            connection.execute("COMMIT")
            file.guard.on_commit(contents.on_commit())
        except BaseException as why:  # even an interrupt must leave no open transaction and no waiting caller
            file.roll_back()
            contents.on_rollback()
            if is_busy(why) and not group:
                return False
            self._fail(group, why, doing)
            if not isinstance(why, Exception):
                raise
            return True
        finally:
            file.lock.release()
        for done, result in results:
            if not done.done():  # the caller may have been cancelled; its change was written nevertheless
                done.set_result(result)
        for done, refusal in refused:
            if not done.done():
                done.set_exception(refusal)
        contents.announce()
        if self._queue:
            self._schedule()
        return True

    def _take_group(self) -> list[Change]:
        queue, room = self._queue, self._room
        if len(queue) <= room and sum(map(_takes, queue)) <= room:  # the usual case: no copying one by one
            group = [*queue]
            queue.clear()
            return group
        group = []
        while queue and room > 0:
            group.append(queue.popleft())
            room -= group[-1][2]
        return group

    def _fail(self, group: Sequence[Change], why: BaseException, doing: FileOperation) -> None:
        """Fail the changes of a failed transaction. If it failed before it took any changes, all queued changes
        fail."""
        if isinstance(why, sqlite3.Error):
            why = self._file.make_error(why, doing)
        elif isinstance(why, OSError):
            why = self._file.make_unreadable_error(why)
        self._fail_all(why, group)
        if self._queue:
            self._schedule()

    def _fail_all(self, why: BaseException, group: Sequence[Change] = ()) -> None:
        if isinstance(why, Broken) and self._broken is not None:
            self._broken(why)
        if not group:
            group = tuple(self._queue)
            self._queue.clear()
        for _, done, _ in group:
            if not done.done():  # one error for each caller, because an exception collects tracebacks
                done.set_exception(type(why)(str(why)) if isinstance(why, SagaError) else why)
