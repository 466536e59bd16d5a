"""Group commit: whatever is queued while the event loop has other things to do is written by one transaction, with one
fsync.

Statements run on the loop's own thread: an append costs microseconds and an fsync of a local disk a fraction of a
millisecond, while handing work to a thread and back costs up to five milliseconds when the loop is busy.
Waiting for another process is different: it may be frozen while it holds the lock. So nothing here blocks on a lock.
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
"""Shortest turn of the loop in which others had something to do: they may bring more changes, and a commit costs as
much as a dozen of them. An idle loop turns in a tenth of it, and nothing waits there."""
WAIT_S_MAX = 0.04
"""Longest that a transaction waits for others who are busy: a fraction of what they make each other wait by then."""
PAUSE_S = 0.02
"""Pause between two attempts while another program, a shell perhaps, is inside a transaction."""
LOOK_EVERY_S = 0.05
"""Pause before whoever waits for the lock looks again how late it is: by the loop's timer, for other processes live in
real time, whatever our clock says."""

Change: TypeAlias = tuple[Callable[[], Any], asyncio.Future[Any], int]
"""Function to run inside the transaction, the future of its result, and how much of a transaction's room it takes."""
_takes = itemgetter(2)


class TransactionHooks(Protocol):
    """Contents of the file, as its owner knows them. Called inside each transaction, unless a method says otherwise."""

    def begin(self) -> None:
        """Begin a transaction, before the first change."""

    def finish(self, changes: int) -> None:
        """Finish a transaction, after the last of so many changes."""

    def on_commit(self) -> bytes | None:
        """Note that the transaction is durable, with the lock still held; the mark of its last write, if it had one.
        See `saga.store.sqlite.integrity`."""

    def on_rollback(self) -> None:
        """Note that nothing of the transaction is there."""

    def announce(self) -> None:
        """Tell whoever waits for what was written: after a commit, with the lock given up."""


class GroupCommitter:
    """Commits queued changes to the file in groups; each process has one."""

    def __init__(
        self,
        file: StateFile,
        contents: TransactionHooks,
        *,
        room: int,
        refusals: tuple[type[Exception], ...] = (SagaError,),
        broken: Callable[[Broken], None] | None = None,
    ) -> None:
        """Begin with nothing queued. `room`: how much one transaction takes, so that it holds the loop for a bounded
        time; the rest goes into the next. `refusals`: what a change may raise, before it has written anything, to fail
        alone; all else fails the transaction. `broken` is called when nothing can be written any more."""
        self._file, self._contents, self._clock = file, contents, file.clock
        self._room, self._refusals, self._broken = room, refusals, broken
        self._loop = asyncio.get_running_loop()
        self._queue: deque[Change] = deque()
        self._scheduled = False
        self._waiting: asyncio.Task[None] | None = None
        self._closed = False

    def do(self, run: Callable[[], T], takes: int = 1) -> asyncio.Future[T]:
        """Queue a change. The future is done, with what `run` returned, when its transaction is durable: even if the
        caller goes away meanwhile. It fails as `run` did, or with the owner's error."""
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
        """Return when all that was queued has come to its end; nothing is taken from here on. Raises what the file's
        purpose has for a broken one, if that turns out only now."""
        is_told = self._file.guard.broken is not None
        try:
            with suppress(SagaError):  # those who queued it were told the same
                await self.do(lambda: None)  # the queue is first in, first out
        finally:
            self._closed = True
            if self._waiting is not None:
                self._waiting.cancel()
                await asyncio.wait([self._waiting])
        if not is_told:
            self._file.guard.raise_if_broken()

    def _schedule(self) -> None:
        """Write once the loop has nothing else to do: as much as possible is there by then."""
        self._scheduled = True
        now_s = self._loop.time()
        self._loop.call_soon(self._gather, now_s, now_s, len(self._queue))

    def _gather(self, since_s: float, turn_s: float, had: int) -> None:
        """Write, unless this turn of the loop was busy or brought more changes: the next one may, too. `since_s`,
        `turn_s`: times of the loop at which something was queued, and at which the turn began. `had`: the changes
        that were queued by then."""
        now_s, queued = self._loop.time(), len(self._queue)
        is_over = now_s - turn_s <= BUSY_S and queued <= had
        if is_over or now_s - since_s >= WAIT_S_MAX or queued >= self._room:
            self._flush()
        else:
            self._loop.call_soon(self._gather, since_s, now_s, queued)

    def _flush(self) -> None:
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
        """Wait until the other process is done with its transaction, then write; what is queued fails when that takes
        too long."""
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
        """Return with the lock held. It stays asked for: whoever queues up meanwhile waits for as long again."""
        turn = self._file.lock.acquire()
        while not turn.done():
            await asyncio.wait([turn], timeout=LOOK_EVERY_S)
            if not turn.done() and self._clock.monotonic_s() >= deadline_s:
                self._fail_all(self._file.make_locked_error())
                deadline_s = self._clock.monotonic_s() + self._file.lock_s
        turn.result()

    # ---------------------------------------------------------------- the transaction

    def _try_write(self) -> bool:
        """Write one transaction, and tell its result to everybody in it. With the lock held, which is given up. `False`
        if another program is inside a transaction without having asked for the lock."""
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
            contents.begin()
            for run, done, _ in group:
                try:
                    results.append((done, run()))
                except self._refusals as why:
                    refused.append((done, file.make_error(why, doing) if isinstance(why, sqlite3.Error) else why))
            contents.finish(len(group))
            doing = FileOperation.COMMIT
            connection.execute("COMMIT")
            file.guard.on_commit(contents.on_commit())
        except BaseException as why:  # an interrupt, too, must leave no transaction open and nobody waiting
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
            if not done.done():  # a caller that was cancelled is gone; what it asked for has happened
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
        if len(queue) <= room and sum(map(_takes, queue)) <= room:  # nearly always, and cheap to see
            group = [*queue]
            queue.clear()
            return group
        group = []
        while queue and room > 0:
            group.append(queue.popleft())
            room -= group[-1][2]
        return group

    def _fail(self, group: Sequence[Change], why: BaseException, doing: FileOperation) -> None:
        """Tell those whose transaction failed; all that is queued, if it failed before it took any."""
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
            if not done.done():  # one each: an exception collects tracebacks
                done.set_exception(type(why)(str(why)) if isinstance(why, SagaError) else why)
