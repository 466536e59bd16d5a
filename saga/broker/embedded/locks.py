"""Locks of the operating system: who may write, and who is alive. Both are gone the moment their process is."""

import asyncio
import errno
import fcntl
import os
import threading
from pathlib import Path
from queue import SimpleQueue

SEATS_MAX = 10_000
"""Members of one process id at one file, before something must be wrong."""


class WriteLock:
    """Held around each transaction that writes.

    SQLite's own lock makes writers sleep and guess; this one is given in a system call. Its file is never removed.
    When another process has it, a thread waits for it in the kernel's queue, and does nothing else: four busy processes
    that asked again and again instead made a third of the commits, and starved one another for up to a second.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._turns: SimpleQueue[asyncio.Future[None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._waiting: asyncio.Future[None] | None = None

    def taken(self) -> bool:
        """Take it if nobody has it; whether it is ours now. Raises `OSError`."""
        return _flock(self._file, fcntl.LOCK_EX)

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
        fcntl.flock(self._file, fcntl.LOCK_UN)

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

    A child made by `fork` without `exec` holds it too; then death is noticed by silence instead.
    """

    def __init__(self, broker: Path) -> None:
        for number in range(SEATS_MAX):
            # The process id only makes a free name likely: two containers may well have equal ones.
            self.path = broker.with_name(f"{broker.name}.member-{os.getpid()}-{number}")
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            if _flock(file, fcntl.LOCK_EX) and _is_at(file, self.path):
                self._file = file
                return
            os.close(file)
        raise OSError(errno.EMFILE, f"all names for members beside {broker} are taken: remove {broker.name}.member-*")

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
        return _flock(file, fcntl.LOCK_SH)  # shared: two who look at once must not take each other for the member
    finally:
        os.close(file)


def sweep(broker: Path) -> None:
    """Remove the seats that dead processes left."""
    for seat in broker.parent.glob(f"{broker.name}.member-*"):
        if is_vacant(seat):
            seat.unlink(missing_ok=True)


def _tell(turn: asyncio.Future[None], failure: OSError | None) -> None:
    if turn.done():
        return
    if failure is None:
        turn.set_result(None)
    else:
        turn.set_exception(failure)


def _flock(file: int, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(file: int, path: Path) -> bool:
    """Whether the file that was locked is still the one of that name: it may have been swept in between."""
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    here = os.fstat(file)
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)
