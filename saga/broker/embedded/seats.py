"""Seats of members, a lock of the operating system for each, which is gone the moment its process is; and who of the
members is alive: who sits, and gives signs of life in time."""

import errno
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path

from saga.broker.embedded.groups import Fellow
from saga.clock import Clock
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


class Liveness:
    """Knowledge of one member about the others: who left its seat is dead, who has not stirred for too long a zombie.

    Silence is measured by our own monotonic clock, and only while we stirred in time ourselves: somebody who was
    frozen, or could not write because somebody frozen held the lock, knows nothing of the others' silence.
    """

    def __init__(self, folder: Path, clock: Clock, silence_s: float) -> None:
        """`folder`: that of the broker's file, and of the seats."""
        self._folder, self._clock, self._silence_s = folder, clock, silence_s
        self._stirred_s = self._clock.monotonic_s()
        self._seen: dict[int, tuple[int, float]] = {}
        """Member -> its beats, and since when we have seen no more."""

    def is_time_to_stir(self) -> bool:
        """True if the next sign of life of our own is due."""
        return self._clock.monotonic_s() - self._stirred_s >= self._silence_s / 5

    def stirred(self) -> None:
        """Note our own sign of life; if it is late, nothing is known of the others any more."""
        now_s = self._clock.monotonic_s()
        if now_s - self._stirred_s > self._silence_s / 2:
            self._seen.clear()
        self._stirred_s = now_s

    def gone(self, fellows: Sequence[Fellow], *, but: int) -> list[Fellow]:
        """Take note of the members' beats; those to be taken for dead, never `but`, which is ourselves."""
        now_s, seen = self._clock.monotonic_s(), self._seen
        gone: list[Fellow] = []
        self._seen = {}
        for fellow in fellows:
            beats, since_s = seen.get(fellow.id, (-1, now_s))
            if beats != fellow.beats:
                since_s = now_s
            self._seen[fellow.id] = fellow.beats, since_s
            if fellow.id != but and (now_s - since_s >= self._silence_s or is_vacant(self._folder / fellow.seat)):
                gone.append(fellow)
        return gone
