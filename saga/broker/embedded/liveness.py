"""Liveness of members: each holds a file lock that ends with its process, and writes heartbeats in time.

A heartbeat is a number in the member's own lock file and not a row of the broker's file. Every change of the broker's
file makes all processes look at it, however small it is.
"""

import errno
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from saga.broker.embedded.groups import GroupMember
from saga.store.sqlite import lock
from saga.support.clock import Clock

_BEATS = Struct(">Q")
TRIES_MAX = 100
"""Most tries for a seat, before something must be wrong."""


class MemberLock:
    """Lock that a member holds as long as its process lives, on a file of its own beside the broker's file.

    The file's name is never used again. With the process id alone, a new process could take over the name of a dead
    member, which would then seem to be alive, or lose its own file when the dead one's is removed. A child made by
    `fork` without `exec` holds the lock as well; then the death is noticed by missing heartbeats."""

    def __init__(self, broker: Path) -> None:
        self._broker, self._beats = broker, 0
        self._sit()

    def stir(self) -> None:
        """Give a sign of life. Raises `OSError`."""
        self._beats += 1
        os.pwrite(self._file, _BEATS.pack(self._beats), 0)

    def _sit(self) -> None:
        for _ in range(TRIES_MAX):
            self.path = self._broker.with_name(f"{self._broker.name}.member-{os.getpid()}-{os.urandom(6).hex()}")
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            if lock.try_lock(file) and _is_at(file, self.path):  # else somebody looked, or swept, in between
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


def read_heartbeat(seat: Path) -> int | None:
    """Count the signs of life of the member behind a seat; `None` if nobody lives behind it any more. Raises
    `OSError`."""
    try:
        file = os.open(seat, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        if lock.try_lock(file, fcntl.LOCK_SH):  # shared: two who look must not take each other for the member
            return None
        said = os.pread(file, _BEATS.size, 0)
        return _BEATS.unpack(said)[0] if len(said) == _BEATS.size else 0
    finally:
        os.close(file)


def is_dead(seat: Path) -> bool:
    """Return whether nobody lives behind a seat any more."""
    return read_heartbeat(seat) is None


def remove_dead_locks(broker: Path) -> None:
    """Remove the seats that dead processes left, each with its lock in our hands: nobody can sit down meanwhile."""
    for seat in broker.parent.glob(f"{broker.name}.member-*"):
        try:
            file = os.open(seat, os.O_RDWR | os.O_CLOEXEC)
        except OSError:  # gone, or another user's
            continue
        try:
            if lock.try_lock(file) and _is_at(file, seat):
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


class SilentMember(NamedTuple):
    """A member that seems to be dead, with the heartbeats it had sent by then."""

    fellow: GroupMember
    beats: int | None


class Liveness:
    """What one member knows about the others: one without a lock is dead, one without heartbeats for too long is a
    zombie.

    Silence is measured by our own monotonic clock, and only while we ourselves look in time: a process that was frozen,
    or waited for a frozen one, knows nothing about the silence of others."""

    def __init__(self, folder: Path, clock: Clock, silence_s: float) -> None:
        """`folder`: that of the broker's file, and of the seats."""
        self._folder, self._clock, self._silence_s = folder, clock, silence_s
        self._looked_s = self._clock.monotonic_s()
        self._seen: dict[int, tuple[int, float]] = {}
        """Member -> its beats, and since when we have seen no more."""

    def gone(self, fellows: Sequence[GroupMember], *, but: int) -> list[SilentMember]:
        """Take note of the members' beats; those to be taken for dead, never `but`, which is ourselves."""
        now_s = self._clock.monotonic_s()
        seen = self._seen if now_s - self._looked_s <= self._silence_s / 2 else {}
        self._looked_s, self._seen = now_s, {}
        gone: list[SilentMember] = []
        for fellow in fellows:
            if fellow.id == but:
                continue
            now = read_heartbeat(self._folder / fellow.seat)
            beats, since_s = seen.get(fellow.id, (-1, now_s))
            if now is not None and beats != now:
                since_s = now_s
            self._seen[fellow.id] = now or 0, since_s
            if now is None or now_s - since_s >= self._silence_s:
                gone.append(SilentMember(fellow, now))
        return gone

    def still(self, gone: Sequence[SilentMember]) -> list[GroupMember]:
        """Those that have not stirred since."""
        return [each.fellow for each in gone if read_heartbeat(self._folder / each.fellow.seat) in (None, each.beats)]
