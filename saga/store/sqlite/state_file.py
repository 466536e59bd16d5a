"""A state file that is open for writing: its connection, its lock, and its errors as its owner names them."""

import asyncio
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
"""Pause before whoever opens a file looks again whether another process is done with it."""


# ---------------------------------------------------------------- locks
#
# File locks of the operating system end with their process, and the event loop never waits for them.


LOCKS = Path("/proc/locks")
"""File in which Linux tells who holds which lock."""


class WriteLock:
    """Lock that is held around each transaction that writes.

    SQLite's own lock makes writers sleep and guess; this one is given in a system call. Its file is never removed.
    When another process has it, a thread waits for it in the kernel's queue, and does nothing else: four busy processes
    that asked again and again instead made a third of the commits, and starved one another for up to a second.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._turns: SimpleQueue[asyncio.Future[None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._waiting: asyncio.Future[None] | None = None

    @property
    def descriptor(self) -> int:
        """Descriptor of the lock's file."""
        return self._file

    def describe_holder(self) -> str:
        """Holder of the lock, for people."""
        return describe_holder(self._path)

    def try_acquire(self) -> bool:
        """Take the lock if nobody has it; true if it is ours now. Raises `OSError`."""
        return try_lock(self._file)

    def acquire(self) -> asyncio.Future[None]:
        """Wait for the lock: the future is done when it is ours, and fails with `OSError`. Until then nothing else may
        be asked of this lock."""
        if self._thread is None:
            # A daemon: whoever holds the lock may be frozen, and must not keep this process from ending.
            self._thread = threading.Thread(target=self._wait, name="state file lock", daemon=True)
            self._thread.start()
        self._waiting = asyncio.get_running_loop().create_future()
        self._turns.put(self._waiting)
        return self._waiting

    def release(self) -> None:
        """Give the lock up; never raises."""
        unlock(self._file, str(self._path))

    def close(self) -> None:
        """Give the lock up for good; a turn that is still waited for comes to nothing."""
        if self._thread is None:
            os.close(self._file)
            return
        self._turns.put(None)  # the thread closes the file, which nobody else may do while it waits for its lock
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
            except RuntimeError:  # the loop has ended without closing us
                break
        os.close(self._file)


def try_lock(file: int, kind: int = fcntl.LOCK_EX) -> bool:
    """Take a lock without waiting; false if somebody else has it. Raises `OSError` if the lock itself fails."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unlock(file: int, path: str) -> None:
    """Give a lock up. Never raises: whoever has just written must hear so. If the system refuses, the descriptor is
    made anew in place, which lets go of the lock with the old one."""
    try:
        fcntl.flock(file, fcntl.LOCK_UN)
    except OSError:
        with suppress(OSError):
            anew = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            os.dup2(anew, file, inheritable=False)
            os.close(anew)


def describe_holder(path: Path) -> str:
    """Holder of the lock on this file, for people: `process 4711 (saga run)`, or how to see it."""
    with suppress(OSError, ValueError):
        inode = path.stat().st_ino
        for line in LOCKS.read_text().splitlines():
            fields = line.split()
            if "FLOCK" in fields and "->" not in fields and int(fields[5].rpartition(":")[2]) == inode:
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
    """State file of one owner. The errors that it raises are its owner's, unless a method says otherwise."""

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
        """Note the file; nothing is opened yet. `lock_s`: seconds to wait for another process. `bytes_max`: bounds the
        file; reaching it is like a full disk. `factory`: the class of the connection, for tests."""
        self.path, self.purpose, self.lock_s, self.clock = path, purpose, lock_s, clock
        self._bytes_max, self._factory = bytes_max, factory
        self._connection: sqlite3.Connection | None = None

    async def open(self, lacks: Lacks) -> None:
        """Open, and make the file where it is missing, while nobody writes to it, makes it or closes it."""
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
        except BaseException:  # a cancelled start, too, must not keep the lock
            self.lock.close()
            raise

    def close(self) -> None:
        """Close. Raises what its purpose has for a broken file if it has lost its name since anybody looked."""
        try:
            if self.guard.broken is None:
                with suppress(OSError):
                    self.guard.check_names()
        finally:
            if self.guard.broken is None:  # else to close it would remove the log of whatever lies there now
                if self._connection is not None:
                    self._connection.close()
                self.guard.on_close()
            self.lock.close()

    def connection(self) -> sqlite3.Connection:
        """Connection that all goes through. Once the file is not what it was, it is used no more: what lies there is
        another one.

        Raises `sqlite3.Error` if the last one was beyond use, and no other can be had."""
        if self.guard.broken is not None:
            self.guard.raise_if_broken()
        if self._connection is None:
            self._connection = connect(self.path, self.purpose, self._factory, self._bytes_max)
            self.guard.on_reconnect(self._connection)
        return self._connection

    def roll_back(self) -> None:
        """Leave nothing of a failed transaction; the next use opens a new connection if this one is beyond use."""
        if self._connection is not None and self._connection.in_transaction and self.guard.broken is None:
            try:
                self._connection.execute("ROLLBACK")
            except sqlite3.Error:
                self._connection.close()
                self._connection = None
                self.guard.on_disconnect()

    def check_names(self) -> None:
        """Look whether the file is still the one of its name."""
        try:
            self.guard.check_names()
        except OSError as why:
            raise self.make_unreadable_error(why) from why

    # ---------------------------------------------------------------- errors

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        """Tell an error of SQLite that comes up in a read as the owner's own."""
        try:
            yield
        except sqlite3.Error as why:
            raise self.make_error(why, FileOperation.READ) from why

    def make_error(self, why: sqlite3.Error, doing: FileOperation) -> SagaError:
        """Make the owner's error for one of SQLite's; that the file has lost its name explains most of them."""
        try:
            with suppress(OSError):  # it is told as SQLite has it
                self.guard.check_names()
        except Broken as also:
            return also
        return to_owner_error(why, doing, self.path, self.purpose)

    def make_locked_error(self) -> SagaError:
        """Make the error of a lock that another process has."""
        return self.purpose.errors.unavailable(
            f"the {self.purpose.name} {self.path}: another process has held its lock for {self.lock_s:g} s; nothing "
            f"was written: {self.lock.describe_holder()} has it: resume or end it (a stopped process keeps its locks)"
        )

    def make_lock_error(self, why: OSError) -> SagaError:
        """Make the error of a lock that fails itself."""
        return self.purpose.errors.unavailable(
            f"the {self.purpose.name} {self.path}: its lock {self.path}.lock cannot be taken ({why}); nothing was "
            "written: it has to lie on a local disk, and `ulimit -a` and the system's log may tell more"
        )

    def make_unreadable_error(self, why: OSError) -> SagaError:
        """Make the error of a file that cannot be looked at: nobody knows whether it is still the same."""
        return self.purpose.errors.unavailable(
            f"the {self.purpose.name} {self.path} cannot be looked at ({why}); nothing was written: look at the disk, "
            "and see that file and folder can be read"
        )

    def _try_open(self, lacks: Lacks) -> bool:
        """Try to open the file once, with the lock held; false while another process or program is at it."""
        path, purpose, lock = self.path, self.purpose, self.lock
        try:
            if not lock.try_acquire():
                return False
        except OSError as why:
            raise self.make_lock_error(why) from why
        try:
            if (said := find_unresolved_trouble(path, lock.descriptor)) is not None:
                raise purpose.errors.broken(f"the {purpose.name} {path} cannot be used yet: {said}")
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
