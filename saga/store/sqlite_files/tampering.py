"""Signs of tampering with a state file that a process has open: it lost its name, or holds less than was written to it.

SQLite does not look. Whoever removes its file, or puts another in its place, lets it write on to a file that nobody
will see again; whoever copies an older one over it mixes the two. So whoever writes asks here first, inside its
transaction, and stops for good when something is wrong (`problem`).

How an older content of the same file is seen. The number that SQLite keeps for its users in a file's first bytes
(`user_version`) is ours: its lowest byte is the format, the rest a generation. The first transaction after each
restart of the log raises it (`is_new_log`, `next_generation`), so each time the log is copied into the file the
generation there grows; with a lower one the file was copied over, and with more changes of its tables than there were,
too, for SQLite counts one more in what `VACUUM INTO` makes. Of the log itself, the index beside it says how it ends.
All is read through SQLite's own descriptors: to open and close one more in this process would take away SQLite's locks.
Where they cannot be found, names alone are compared.

The lock file also tells what was acknowledged last (`acknowledge`, `last_acknowledged`): whoever opens the file after a
crash can see that its log was lost or damaged. It is written after the commit and not synced, so it is never ahead.
"""

import os
import struct
import zlib
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

DESCRIPTORS = "/dev/fd"
"""Folder that lists this process's descriptors, on Linux and macOS."""
HEADER_BYTES = 100
FORMAT_BITS = 8
GENERATION_MAX = (1 << 31 - FORMAT_BITS) - 1
"""Highest generation: at four megabytes of log each, thirty terabytes. From there on it stays."""
MAGIC = b"SQLite format 3\0"
INDEX = struct.Struct("=16xI4xII8s8x")
"""Head of the log's index: number of its last frame, that one's checksums, and the log's salts."""
LOG_HEAD_BYTES, FRAME_HEAD_BYTES = 32, 24
MARK = struct.Struct(">8sQQII")
"""Head of a note in the lock file: our magic, which file it was (device, inode), the length of what follows, and its
checksum."""
ACKNOWLEDGED, CONDEMNED = b"SAGA ack", b"SAGA bad"
MARK_BYTES_MAX = 4096


class Header(NamedTuple):
    """Header of a SQLite file, as its first bytes say it."""

    generation: int
    tables: int
    """Number of times that tables were made or changed."""
    page_bytes: int


def format_of(user_version: int) -> int:
    """Format of a file with this `user_version`.

    >>> format_of(next_generation(next_generation(2)))
    2
    """
    return user_version & (1 << FORMAT_BITS) - 1


def next_generation(user_version: int) -> int:
    """Make the `user_version` of the same format, one generation later.

    >>> next_generation(2), next_generation(GENERATION_MAX << FORMAT_BITS | 2) >> FORMAT_BITS == GENERATION_MAX
    (258, True)
    """
    generation = min((user_version >> FORMAT_BITS) + 1, GENERATION_MAX)
    return generation << FORMAT_BITS | format_of(user_version)


class StateFile:
    """Knowledge of one process about one file, the log and the index beside it, and its lock."""

    def __init__(self, path: Path, lock: int, *, tables_max: int | None = None) -> None:
        """Note what the file is. It must be open, its lock held, and its log have been read. `lock`: the descriptor of
        `<path>.lock`. `tables_max`: how often its tables were made or changed (`PRAGMA schema_version`), if they will
        not be any more."""
        self._path, self._lock, self._tables_max = path, lock, tables_max
        name, real = os.path.abspath(path), os.path.realpath(path)  # SQLite puts its files beside what a link leads to
        self._names = (name, f"{real}-wal", f"{real}-shm", f"{name}.lock")
        self._known = tuple(identity(os.stat(name)) for name in self._names)
        self._file = self._log = self._index = -1
        self._header: Header | None = None
        self._salts = b""
        self._new_log = True
        self._find_descriptors()
        self._header = self._read_header() if self._file >= 0 else None

    def reopened(self) -> None:
        """Note another connection: if the old one was the last, log and index were made anew. It must have read."""
        file, _, _, lock = self._known
        log, index = (identity(os.stat(name)) for name in self._names[1:3])
        self._known = (file, log, index, lock)
        self._new_log = True
        self._find_descriptors()

    # ---------------------------------------------------------------- looking

    def moved(self) -> str | None:
        """Fate of the names, in words; `None` if each is still that of the file open here. Raises `OSError`."""
        for name, known in zip(self._names, self._known, strict=True):
            try:
                there = os.stat(name)
            except (FileNotFoundError, NotADirectoryError):
                return f"{name} was removed while it was in use"
            if (there.st_dev, there.st_ino) != known:
                return f"{name} was replaced by another file while it was in use"
        return None

    def problem(self) -> str | None:
        """Problem of the file; `None` if it is what it was. Inside a transaction, before anything is written. Raises
        `OSError`."""
        return self.moved() or self._overwritten()

    def is_new_log(self) -> bool:
        """True if the log has begun anew since `logged`: then the transaction must raise the generation."""
        return self._new_log

    def logged(self) -> None:
        """Note that a transaction was committed, which raised the generation if it had to."""
        self._new_log = False

    def _overwritten(self) -> str | None:
        if self._file < 0:
            return None
        said = self._different()
        if said is not None:  # the descriptors may have been another connection's, and be closed
            self._find_descriptors()
            said = self._different() if self._file >= 0 else None
        return said

    def _different(self) -> str | None:
        try:
            return self._looked_different()
        except OSError as why:
            return f"{self._path} cannot be read any more ({why.strerror})"

    def _looked_different(self) -> str | None:
        header, known = self._read_header(), self._header
        index = os.pread(self._index, INDEX.size, 0)
        if header is None:
            return f"{self._path} was overwritten while it was in use: it does not begin as it should"
        if known is not None:
            if header.generation < known.generation or header.tables < known.tables:
                return f"{self._path} was overwritten while it was in use, with older content"
            if self._tables_max is not None and header.tables > self._tables_max:
                return f"{self._path} was overwritten while it was in use, with a copy"
        self._header = header
        if len(index) < INDEX.size:
            return f"{self._path}-shm was cut short while it was in use"
        frame, *checksums, salts = INDEX.unpack(index)
        if salts != self._salts:
            self._salts, self._new_log = salts, True
        if frame and not self._ends_so(frame, struct.pack(">II", *checksums), salts, header.page_bytes):
            return f"{self._path}-wal was overwritten or cut short while it was in use"
        return None

    def _ends_so(self, frame: int, checksums: bytes, salts: bytes, page_bytes: int) -> bool:
        """True if the log has this frame, with which it is to end."""
        at = LOG_HEAD_BYTES + (frame - 1) * (FRAME_HEAD_BYTES + page_bytes)
        return (
            os.pread(self._log, 8, 16) == salts
            and os.pread(self._log, 16, at + 8) == salts + checksums
            and os.fstat(self._log).st_size >= at + FRAME_HEAD_BYTES + page_bytes
        )

    def _read_header(self) -> Header | None:
        said = os.pread(self._file, HEADER_BYTES, 0)
        if len(said) < HEADER_BYTES or not said.startswith(MAGIC):
            return None
        size = int.from_bytes(said[16:18])
        generation = int.from_bytes(said[60:64]) >> FORMAT_BITS
        return Header(generation, int.from_bytes(said[40:44]), 65_536 if size == 1 else size)

    def _find_descriptors(self) -> None:
        found: dict[tuple[int, int], int] = {}
        with suppress(OSError):
            for name in os.listdir(DESCRIPTORS):
                with suppress(OSError, ValueError):
                    found.setdefault(identity(os.fstat(int(name))), int(name))
        descriptors = [found.get(known, -1) for known in self._known[:3]]
        self._file, self._log, self._index = descriptors if min(descriptors) >= 0 else (-1, -1, -1)

    # ---------------------------------------------------------------- what was acknowledged

    def acknowledge(self, mark: bytes) -> None:
        """Note the last write of a transaction that was committed. With the lock held."""
        self._note(ACKNOWLEDGED, mark)

    def last_acknowledged(self) -> bytes | None:
        """Note of whoever wrote last to this very file; `None` if nothing is known. Raises `OSError`."""
        return self._noted(ACKNOWLEDGED)

    def closed(self) -> None:
        """Note that the connection was closed. If it was the last, all of the log is in the file, and nothing need be
        told of it."""
        if self._noted(ACKNOWLEDGED) is not None and not os.path.exists(self._names[1]):
            os.ftruncate(self._lock, 0)

    def condemn(self, why: str) -> None:
        """Note that nobody may go on with this very file, even after a restart."""
        self._note(CONDEMNED, why.encode())

    def _note(self, kind: bytes, mark: bytes) -> None:
        if len(mark) <= MARK_BYTES_MAX:
            head = MARK.pack(kind, *self._known[0], len(mark), zlib.crc32(mark))
            with suppress(OSError):  # what it is about has happened all the same
                os.pwrite(self._lock, head + mark, 0)

    def _noted(self, kind: bytes) -> bytes | None:
        return noted(self._lock, kind, self._known[0])


def noted(lock: int, kind: bytes, known: tuple[int, int]) -> bytes | None:
    """Read the note of this kind in a lock file, about this very file. Raises `OSError`."""
    said = os.pread(lock, MARK.size + MARK_BYTES_MAX, 0)
    if len(said) < MARK.size:
        return None
    found, device, inode, length, checksum = MARK.unpack(said[: MARK.size])
    mark = said[MARK.size : MARK.size + length]
    if found != kind or (device, inode) != known or zlib.crc32(mark) != checksum:
        return None
    return mark


def identity(there: os.stat_result) -> tuple[int, int]:
    """Identity of a file while it lives: its device and its number there."""
    return there.st_dev, there.st_ino
