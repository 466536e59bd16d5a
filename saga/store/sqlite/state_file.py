"""An open state file: its connection, its lock, and the conversion of errors to the classes of its owner."""

import asyncio
import errno
import fcntl
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue

from saga.errors import Broken, SagaError
from saga.store.sqlite.connection import connect, make_file, make_folder, open_to_write
from saga.store.sqlite.errors import FileOperation, StateFileSpec, is_busy, to_owner_error
from saga.store.sqlite.integrity import FileGuard, Lacks, find_unresolved_trouble
from saga.support.clock import Clock

LOOK_EVERY_S = 0.002
"""Pause between attempts to open a file that another process has locked, in seconds."""


# ---------------------------------------------------------------- locks
#
# File locks of the operating system end with their process, and the event loop never waits for them.


LOCKS = Path("/proc/locks")
"""File in which Linux lists all file locks and their holders."""


class WriteLock:
    """Lock that is held around each transaction that writes.

    SQLite's own lock makes writers sleep and retry; this lock is taken with one system call. Its file is never removed.

    While another process has the lock, a thread waits in the kernel's queue and does nothing else. With retries
    instead, four busy processes made a third fewer commits, and starved one another for up to a second.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._turns: SimpleQueue[asyncio.Future[None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._waiting: asyncio.Future[None] | None = None

    @property
    def descriptor(self) -> int:
        """Return the descriptor of the lock's file."""
        return self._file

    def describe_holder(self) -> str:
        """Return a description of the lock's holder, as readable text."""
        return describe_holder(self._path)

    def try_acquire(self) -> bool:
        """Take the lock if it is free. Return whether this process has it now. Raises `OSError`."""
        return try_lock(self._file)

    def acquire(self) -> asyncio.Future[None]:
        """Wait for the lock. The returned future is done when this process has the lock, and may fail with `OSError`.

        Until then no other method of this lock may be called. Raises `OSError` if no thread can be started to wait.
        """
        if self._thread is None:
            # A daemon thread: the holder of the lock may be frozen, and must not keep this process from ending.
            thread = threading.Thread(target=self._wait, name="state file lock", daemon=True)
            try:
                thread.start()
            except RuntimeError as why:  # the next call tries again
                raise OSError(errno.EAGAIN, str(why)) from why
            self._thread = thread
        self._waiting = asyncio.get_running_loop().create_future()
        self._turns.put(self._waiting)
        return self._waiting

    def release(self) -> None:
        """Release the lock. Never raises, because the caller has just written and must return success.

        If the system refuses to release it, the descriptor is replaced with a new one. Closing the old one releases the
        lock.
        """
        try:
            fcntl.flock(self._file, fcntl.LOCK_UN)
        except OSError:
            with suppress(OSError):
                new = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
                os.dup2(new, self._file, inheritable=False)
                os.close(new)

    def close(self) -> None:
        """Close the lock; a pending `acquire` never finishes."""
        if self._thread is None:
            os.close(self._file)
            return
        self._turns.put(None)  # the thread closes the file: it must stay open while the thread waits for its lock
        if self._waiting is None or self._waiting.done():
            self._thread.join()

    def _wait(self) -> None:
        while (turn := self._turns.get()) is not None:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX)
                failure = None
            except OSError as why:
                failure = why
            try:
                turn.get_loop().call_soon_threadsafe(_resolve, turn, failure)
            except RuntimeError:  # the event loop has ended without closing the lock
                break
        os.close(self._file)


def try_lock(file: int, kind: int = fcntl.LOCK_EX) -> bool:
    """Take a lock without waiting. Return False if another process has the lock. Raises `OSError` if the lock cannot be
    taken for another reason."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def describe_holder(path: Path) -> str:
    """Return who holds a file's lock, as readable text: `process 4711 (saga run)`, or a command that shows it."""
    with suppress(OSError, ValueError):
        there = path.stat()
        # Files of other disks may have the same inode.
        place = f"{os.major(there.st_dev):02x}:{os.minor(there.st_dev):02x}:{there.st_ino}"
        for line in LOCKS.read_text().splitlines():
            fields = line.split()
            is_known = fields[4] != "0"  # otherwise its process has ended, and another one has inherited the lock
            if is_known and "FLOCK" in fields and "->" not in fields and fields[5] == place:
                return f"process {fields[4]}{_name(fields[4])}"
    return f"another process (`lsof {path}` tells which)"


def _name(pid: str) -> str:
    with suppress(OSError):
        return f" ({' '.join(Path(f'/proc/{pid}/cmdline').read_text().split(chr(0))).strip()[:80]})"
    return ""


def _resolve(turn: asyncio.Future[None], failure: OSError | None) -> None:
    if turn.done():
        return
    if failure is None:
        turn.set_result(None)
    else:
        turn.set_exception(failure)


# ---------------------------------------------------------------- the file


class StateFile:
    """A SQLite file that holds the state of its owner: a store or the embedded broker.

    Its methods raise the error classes in `purpose.errors`, which the owner chose, unless their docstring says
    otherwise.
    """

    guard: FileGuard
    lock: WriteLock

    def __init__(
        self,
        path: Path,
        purpose: StateFileSpec,
        *,
        clock: Clock,
        lock_s: float,
        bytes_max: int | None = None,
        factory: type[sqlite3.Connection] = sqlite3.Connection,
    ) -> None:
        """Store the parameters; nothing is opened yet.

        `lock_s`: longest wait for the lock of another process, in seconds. `bytes_max`: maximum size of the file;
        reaching it has the effect of a full disk. `factory`: class of the connection, for tests.
        """
        self.path, self.purpose, self.lock_s, self.clock = path, purpose, lock_s, clock
        self._bytes_max, self._factory = bytes_max, factory
        self._connection: sqlite3.Connection | None = None

    async def open(self, lacks: Lacks) -> None:
        """Open the file, and create it if it is missing. The lock is held meanwhile, so no other process writes,
        creates or closes the file."""
        try:
            make_folder(self.path.parent)
            make_file(self.path)
            self.lock = WriteLock(self.path.with_name(f"{self.path.name}.lock"))
        except OSError as why:
            raise self.purpose.errors.closed_to_us(
                f"the {self.purpose.name} {self.path} cannot be opened ({why.strerror}: {why.filename}): make the "
                f"folder writable, or point {self.purpose.setting} elsewhere"
            ) from why
        try:
            deadline_s = self.clock.monotonic_s() + self.lock_s
            while not self._try_open(lacks):
                if self.clock.monotonic_s() >= deadline_s:
                    raise self.make_locked_error()
                await self.clock.sleep(LOOK_EVERY_S)
        except BaseException:  # even a cancelled start must release the lock
            self.lock.close()
            raise

    def close(self) -> None:
        """Close the file. Raises the owner's error for a broken file if the file was removed or replaced since the last
        check."""
        try:
            if self.guard.broken is None:
                with suppress(OSError):
                    self.guard.check_names()
        finally:
            if (
                self.guard.broken is None
            ):  # closing a broken file would remove the log of the file that is now at its path
                if self._connection is not None:
                    self._connection.close()
                self.guard.on_close()
            self.lock.close()

    def connection(self) -> sqlite3.Connection:
        """Return the connection for all statements.

        A broken file is never used again, because another file may be at its path. Raises `sqlite3.Error` if the last
        connection became unusable and no other can be opened.
        """
        if self.guard.broken is not None:
            self.guard.raise_if_broken()
        if self._connection is None:
            self._connection = connect(self.path, self.purpose, self._factory, self._bytes_max)
            self.guard.on_reconnect(self._connection)
        return self._connection

    def roll_back(self) -> None:
        """Roll back a failed transaction. If the connection is unusable, the next use opens a new one."""
        if self._connection is not None and self._connection.in_transaction and self.guard.broken is None:
            try:
                self._connection.execute("ROLLBACK")
            except sqlite3.Error:
                self._connection.close()
                self._connection = None
                self.guard.on_disconnect()

    def check_names(self) -> None:
        """Check that the path still leads to the open file."""
        try:
            self.guard.check_names()
        except OSError as why:
            raise self.make_unreadable_error(why) from why

    # ---------------------------------------------------------------- errors

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        """Raise the owner's error for an error of SQLite in a read."""
        try:
            yield
        except sqlite3.Error as why:
            raise self.make_error(why, FileOperation.READ) from why

    def make_error(self, why: sqlite3.Error, doing: FileOperation) -> SagaError:
        """Create the owner's error for an error of SQLite. Most errors are caused by a file that was removed or
        replaced, so this is checked first."""
        try:
            with suppress(OSError):  # in this case SQLite's error is reported
                self.guard.check_names()
        except Broken as also:
            return also
        return to_owner_error(why, doing, self.path, self.purpose)

    def make_locked_error(self) -> SagaError:
        """Create the error for a lock that another process holds."""
        return self.purpose.errors.unavailable(
            f"the {self.purpose.name} {self.path}: another process has held its lock for {self.lock_s:g} s; nothing "
            f"was written: {self.lock.describe_holder()} has it: resume or end it (a stopped process keeps its locks)"
        )

    def make_lock_error(self, why: OSError) -> SagaError:
        """Create the error for a failure of the lock itself."""
        return self.purpose.errors.unavailable(
            f"the {self.purpose.name} {self.path}: its lock {self.path}.lock cannot be taken ({why}); nothing was "
            "written: it has to be on a local disk; look at `ulimit -a` and the log of the machine"
        )

    def make_unreadable_error(self, why: OSError) -> SagaError:
        """Create the error for a file whose identity cannot be checked."""
        return self.purpose.errors.unavailable(
            f"the {self.purpose.name} {self.path} cannot be looked at ({why}); nothing was written: look at the disk, "
            "and see that file and folder can be read"
        )

    def _try_open(self, lacks: Lacks) -> bool:
        """Try once to open the file, with the lock held. Return False if another process or program uses the file."""
        path, purpose, lock = self.path, self.purpose, self.lock
        try:
            if not lock.try_acquire():
                return False
        except OSError as why:
            raise self.make_lock_error(why) from why
        try:
            if (trouble := find_unresolved_trouble(path, lock.descriptor)) is not None:
                raise purpose.errors.broken(f"the {purpose.name} {path} cannot be used yet: {trouble}")
            connection = open_to_write(path, purpose, self._factory, self._bytes_max)
            try:
                self.guard = FileGuard(path, purpose, lock.descriptor, connection, self.clock, lacks)
            except Exception:
                connection.close()
                raise
        except sqlite3.Error as why:
            if is_busy(why):
                return False
            raise to_owner_error(why, FileOperation.WRITE, path, purpose) from why
        except OSError as why:
            raise self.make_unreadable_error(why) from why
        finally:
            lock.release()
        self._connection = connection
        return True
