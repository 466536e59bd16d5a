"""Locks on files, as the operating system has them: taken without waiting, gone with their process, and who has them.

Linux and macOS, local disks: a network file system may grant one lock to two.
"""

import fcntl
import os
from contextlib import suppress
from pathlib import Path

LOCKS = Path("/proc/locks")
"""File in which Linux tells who holds which lock."""


def take(file: int, kind: int = fcntl.LOCK_EX) -> bool:
    """True if it is ours now; `False` if somebody else has it. Raises `OSError` if the lock itself fails."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def give(file: int, path: str) -> None:
    """Give it up. Never raises: whoever has just written must hear so. If the system refuses, the descriptor is made
    anew in place, which lets go of the lock with the old one."""
    try:
        fcntl.flock(file, fcntl.LOCK_UN)
    except OSError:
        with suppress(OSError):
            anew = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            os.dup2(anew, file, inheritable=False)
            os.close(anew)


def holder(path: Path) -> str:
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
