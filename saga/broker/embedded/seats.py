"""Seats of members: a lock of the operating system for each, which is gone the moment its process is."""

import errno
import fcntl
import os
from pathlib import Path

from saga.sqlite import lock

TRIES_MAX = 100
"""Most tries for a seat, before something must be wrong."""


class Seat:
    """Lock that a member holds while its process lives, in a file of its own beside the broker's.

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
            if lock.take(file) and _is_at(file, self.path):  # else somebody looked, or swept, in between
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
    """Return whether nobody lives behind a seat any more."""
    try:
        file = os.open(seat, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        return lock.take(file, fcntl.LOCK_SH)  # shared: two who look must not take each other for the member
    finally:
        os.close(file)


def sweep(broker: Path) -> None:
    """Remove the seats that dead processes left, each with its lock in our hands: nobody can sit down meanwhile."""
    for seat in broker.parent.glob(f"{broker.name}.member-*"):
        try:
            file = os.open(seat, os.O_RDWR | os.O_CLOEXEC)
        except OSError:  # gone, or another user's
            continue
        try:
            if lock.take(file) and _is_at(file, seat):
                seat.unlink(missing_ok=True)
        except OSError:
            continue  # left for the next one who sweeps
        finally:
            os.close(file)


def _is_at(file: int, path: Path) -> bool:
    """Return whether the file that was locked is still the one of that name: it may have been swept in between."""
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    here = os.fstat(file)
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)
