"""File locks of the operating system: they end with their process, and the event loop never waits for them."""

import asyncio
import fcntl
import os
import threading
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue

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

    def holder(self) -> str:
        """Holder of the lock, for people."""
        return describe_holder(self._path)

    def taken(self) -> bool:
        """Take the lock if nobody has it; true if it is ours now. Raises `OSError`."""
        return try_lock(self._file)

    def turn(self) -> asyncio.Future[None]:
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
                turn.get_loop().call_soon_threadsafe(_tell, turn, failure)
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


def _tell(turn: asyncio.Future[None], failure: OSError | None) -> None:
    if turn.done():
        return
    if failure is None:
        turn.set_result(None)
    else:
        turn.set_exception(failure)
