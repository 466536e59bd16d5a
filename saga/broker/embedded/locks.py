"""Locks of the operating system: who may write, and who is alive. Both are gone the moment their process is."""

import asyncio
import errno
import fcntl
import os
import threading
from pathlib import Path
from queue import SimpleQueue

from saga import filelock

TRIES_MAX = 100
"""How often a seat is tried for, before something must be wrong."""


class WriteLock:
    """Held around each transaction that writes.

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

    def holder(self) -> str:
        """Holder of the lock, for people."""
        return filelock.holder(self._path)

    def taken(self) -> bool:
        """Take it if nobody has it; whether it is ours now. Raises `OSError`."""
        return filelock.take(self._file)

    def turn(self) -> asyncio.Future[None]:
        """Done when the lock is ours; fails with `OSError`. Until then nothing else may be asked of this lock."""
        if self._thread is None:
            # A daemon: whoever holds the lock may be frozen, and must not keep this process from ending.
            self._thread = threading.Thread(target=self._wait, name="broker file lock", daemon=True)
            self._thread.start()
        self._waiting = asyncio.get_running_loop().create_future()
        self._turns.put(self._waiting)
        return self._waiting

    def release(self) -> None:
        """Give it up; never raises."""
        filelock.give(self._file, str(self._path))

    def close(self) -> None:
        """Give it up; a turn that is still waited for comes to nothing."""
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
                turn.get_loop().call_soon_threadsafe(_tell, turn, failure)
            except RuntimeError:  # the loop has ended without closing us
                break
        os.close(self._file)


class Seat:
    """A lock that a member holds while its process lives, in a file of its own beside the broker's.

    Its name never comes again: with the process id alone a new process could take the name of a dead member, who would
    then seem to live, or have its file swept for being the dead one's.
    A child made by `fork` without `exec` holds it too; then death is noticed by silence instead.
    """

    def __init__(self, broker: Path) -> None:
        self._broker = broker
        self._sit()

    def _sit(self) -> None:
        for _ in range(TRIES_MAX):
            self.path = self._broker.with_name(f"{self._broker.name}.member-{os.getpid()}-{os.urandom(6).hex()}")
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            if filelock.take(file) and _is_at(file, self.path):  # else somebody looked, or swept, in between
                self._file = file
                return
            os.close(file)
        raise OSError(errno.EAGAIN, f"no seat beside {self._broker} could be kept: does something remove its files?")

    def renew(self) -> None:
        """Take another seat if the file of this one was removed: by a person, say. Raises `OSError`."""
        if not _is_at(self._file, self.path):
            os.close(self._file)
            self._sit()

    def leave(self) -> None:
        """Remove the file and give up the lock: others see this member as dead from now on."""
        self.path.unlink(missing_ok=True)
        os.close(self._file)


def is_vacant(seat: Path) -> bool:
    """Whether nobody lives behind it any more."""
    try:
        file = os.open(seat, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        return filelock.take(file, fcntl.LOCK_SH)  # shared: two who look must not take each other for the member
    finally:
        os.close(file)


def sweep(broker: Path) -> None:
    """Remove the seats that dead processes left. Each with its lock in our hands: nobody can sit down meanwhile."""
    for seat in broker.parent.glob(f"{broker.name}.member-*"):
        try:
            file = os.open(seat, os.O_RDWR | os.O_CLOEXEC)
        except OSError:  # gone, or another user's
            continue
        try:
            if filelock.take(file) and _is_at(file, seat):
                seat.unlink(missing_ok=True)
        except OSError:
            continue  # left for the next one who sweeps
        finally:
            os.close(file)


def _tell(turn: asyncio.Future[None], failure: OSError | None) -> None:
    if turn.done():
        return
    if failure is None:
        turn.set_result(None)
    else:
        turn.set_exception(failure)


def _is_at(file: int, path: Path) -> bool:
    """Whether the file that was locked is still the one of that name: it may have been swept in between."""
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    here = os.fstat(file)
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)
