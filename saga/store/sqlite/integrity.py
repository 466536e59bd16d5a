"""Check that an open state file is still the file at its path, and contains the latest write.

If not, save the content that the connection still sees as a rescue copy, and raise an error that says what to do.
"""

import os
import sqlite3
import struct
import zlib
from collections.abc import Callable
from contextlib import suppress
from ctypes import py_object, pythonapi
from glob import escape
from pathlib import Path
from typing import NamedTuple, TypeAlias

from saga.store.sqlite.connection import FORMAT_BITS, make_file, make_folder, next_generation
from saga.store.sqlite.errors import StateFileSpec
from saga.support.clock import Clock

UNFINISHED = ".unfinished"
"""End of the name of a rescue copy that is not complete."""
PARTS = UNFINISHED, f"{UNFINISHED}-journal"
"""Ends of the names of what is left of it if the process dies while it writes the copy."""


def save_rescue_copy(path: Path, execute: Callable[[str, tuple[str]], object]) -> str:
    """Save a copy of a file that was removed or replaced, with the content that an open connection still sees. The copy
    is next to the original path. Return a sentence about it.

    `execute`: method of the connection. No other process sees this content, and it is lost when this process ends.
    """
    copy = path.with_name(f"{path.name}.rescued-{os.getpid()}")
    while copy.exists() or _make_part_path(copy).exists():
        copy = copy.with_name(f"{copy.name}-2")
    part = _make_part_path(copy)
    try:
        make_folder(path.parent)
        make_file(part)
        execute("VACUUM INTO ?", (str(part),))
        file = os.open(part, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(file)
        finally:
            os.close(file)
        part.rename(copy)  # only now: nobody must take a part of it for the whole
    except Exception as why:  # noqa: BLE001 - no failure here may hide the error that is being reported
        return f"what was acknowledged before could not be saved ({why}): it is in the old file, if that still exists"
    return (
        f"all that was acknowledged before is saved in {copy}: put that in the place of {path}, with no "
        f"{path.name}-wal and -shm beside it, or move it elsewhere to go on with what lies there now; then start again"
    )


def _make_part_path(copy: Path) -> Path:
    """Return the path of a rescue copy while it is written. The file stays there if writing fails, for example because
    the disk is full."""
    return copy.with_name(f"{copy.name}{UNFINISHED}")


def find_unresolved_trouble(path: Path, lock: int) -> str | None:
    """Return a problem that an earlier process found with this file and that a person has to resolve; `None` if there
    is none.

    `lock`: the descriptor of `<path>.lock`. Raises `OSError`.
    """
    copies = sorted(path.parent.glob(f"{escape(path.name)}.rescued-*"))
    if whole := [str(copy) for copy in copies if not copy.name.endswith(PARTS)]:
        return (
            f"{', '.join(whole)} holds what was acknowledged when {path} was removed or "
            f"replaced under a running service: put it in the place of {path}, with no {path.name}-wal and -shm beside "
            "it, or move it elsewhere to go on with what lies there now"
        )
    if copies:
        return (
            f"what was acknowledged when {path} was removed or replaced under a running service could not be saved: "
            f"{', '.join(map(str, copies))} is only a part of it, unless a process still writes it. Restore {path} "
            f"from a copy of yours, with no {path.name}-wal and -shm beside it, or go on with what lies there now; "
            "then remove the part"
        )
    with suppress(FileNotFoundError):
        if (note := read_note(lock, CONDEMNED, file_identity(path.stat()))) is not None:
            return f"{note.decode(errors='replace')}: {restore_advice(path)}"
    return None


def restore_advice(path: Path) -> str:
    """Return the advice for a file that has the wrong content."""
    return (
        f"stop all its services, restore the file from a copy, with no {path.name}-wal and -shm beside it, and remove "
        f"{path}.lock"
    )


def keep_open(connection: object) -> None:
    """Keep a connection to a removed or replaced file open until the process ends.

    Closing it would remove the write-ahead log at that path, which now belongs to another file.
    """
    pythonapi.Py_IncRef(py_object(connection))


CHECK_EVERY_S = 0.02
"""Shortest time between two full checks by transactions, in seconds. A check takes about 30 us, as long as a small
write without its sync. Writes that are acknowledged between two checks are part of the rescue copy."""
Lacks: TypeAlias = Callable[[sqlite3.Connection, bytes], str | None]
"""Function that describes the acknowledged write that is missing from the file, given the mark of the last acknowledged
write; `None` if none is missing."""


class FileGuard:
    """Guard of one open file. After it has found the file broken, nothing is read or written any more."""

    def __init__(
        self, path: Path, purpose: StateFileSpec, lock: int, connection: sqlite3.Connection, clock: Clock, lacks: Lacks
    ) -> None:
        """Check a file that has just been opened. Its lock must be held.

        Raises the owner's error for a broken file, `sqlite3.Error`, `OSError`.
        """
        self._path, self._purpose, self._connection = path, purpose, connection
        self._clock, self._lacks = clock, lacks
        (tables,) = connection.execute("PRAGMA schema_version").fetchone()
        self._state = TamperDetector(path, lock, tables_max=tables if purpose.tables_are_all else None)
        self.broken: str | None = None
        """Reason why the file is no longer used; `None` while it is used."""
        self._is_new = False
        """True from the end of a connection until the first check of the next one."""
        self._last: bytes | None = None
        self._seen = -1
        self._check_at_s = 0.0
        if (mark := self._state.last_acknowledged()) is not None and (lacking := lacks(connection, mark)) is not None:
            raise purpose.errors.broken(
                f"the {purpose.name} {path} lacks what was acknowledged last ({lacking}): its log {path.name}-wal was "
                f"removed or damaged, or an older copy was put in its place. Put back what it was; to go on without "
                f"what is missing, remove {path}.lock"
            )

    def on_disconnect(self) -> None:
        """React to the loss of the connection. If it was the last one to the file, SQLite has removed the write-ahead
        log and its index, and will create new ones."""
        self._is_new, self._seen, self._check_at_s = True, -1, 0.0

    def on_reconnect(self, connection: sqlite3.Connection) -> None:
        """Use a new connection from now on."""
        self._connection = connection

    def check_names(self) -> None:
        """Check that the path still leads to the open file, and that no other process has found the file broken.

        The check is cheap and needs no lock, so it also protects a process that writes nothing. Raises the owner's
        error for a broken file, and `OSError`.
        """
        self.raise_if_broken()
        if self._is_new:
            return
        if (problem := self._state.find_moved()) is not None:
            self._give_up(f"{problem}: further writes would be lost, so nothing is written")
        if (why := self._state.find_condemned()) is not None:
            keep_open(self._connection)
            self.broken = (
                f"{why}; another process found that, and nothing more is written: {restore_advice(self._path)}"
            )
            self.raise_if_broken()

    def check(self) -> None:
        """Run the full check inside a transaction, before anything is written. Raises the same errors as `check_names`,
        and `sqlite3.Error`."""
        now_s = self._clock.monotonic_s()
        if now_s < self._check_at_s:
            return
        self._check_at_s = now_s + CHECK_EVERY_S
        if self._is_new:
            self._state.on_reopen()
            self._is_new = False
        problem = self._state.find_problem()
        (seen,) = self._connection.execute("PRAGMA data_version").fetchone()
        if (
            problem is None
            and seen != self._seen
            and self._last is not None
            and self._lacks(self._connection, self._last) is not None
        ):
            problem = f"{self._path} lacks what was acknowledged last: an older content was put in its place"
        self._seen = seen
        if problem is not None:
            self._give_up(problem)
        if self._state.has_new_log:
            (version,) = self._connection.execute("PRAGMA user_version").fetchone()
            self._connection.execute(f"PRAGMA user_version = {next_generation(version)}")

    def on_commit(self, mark: bytes | None) -> None:
        """Record that a transaction is durable. The lock must be held.

        `mark` identifies the last write of the transaction, if it had one.
        """
        self._state.has_new_log = False
        if mark is not None:
            self._last = mark
            self._state.write_note(ACKNOWLEDGED, mark)

    def on_close(self) -> None:
        """Record that the connection was closed for good."""
        with suppress(OSError):
            self._state.on_close()

    def raise_if_broken(self) -> None:
        """Raise the error for a broken file again if an earlier check failed."""
        if self.broken is not None:
            raise self._purpose.errors.broken(self.broken)

    def _give_up(self, problem: str) -> None:
        """Stop using the file, save what can be saved, and raise the error.

        The connection is never closed: see `keep_open`.
        """
        problem = f"the {self._purpose.name} {problem}"
        keep_open(self._connection)
        if self._connection.in_transaction:
            with suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
        moved = None
        with suppress(OSError):
            moved = self._state.find_moved()
        if moved is not None:
            self.broken = f"{problem}; {save_rescue_copy(self._path, self._connection.execute)}"
        else:
            self._state.write_note(CONDEMNED, problem.encode())  # no process may use the file, even after a restart
            self.broken = f"{problem}; nothing more is written: {restore_advice(self._path)}"
        self.raise_if_broken()


# ---------------------------------------------------------------- signs of tampering
#
# SQLite does not check this. If its file is removed or replaced, SQLite continues to write to a lost file; if an older
# copy is written over the file, the two are mixed. So each writer checks inside its transaction, and stops for good
# when something is wrong (`find_problem`).
#
# Older content of the same file is recognised by `user_version`, a number in the file's first bytes that SQLite leaves
# to its users. Its lowest byte is the format of the toolkit, the rest is a generation. The first transaction after each
# restart of the write-ahead log raises the generation (`has_new_log`, `next_generation`), so it grows with each
# checkpoint. A lower generation means that another file was copied over this one. So does a higher count of table
# changes, because SQLite adds one to this count in a copy made by `VACUUM INTO`. The index next to the log shows
# how the log ends.
#
# Everything is read through SQLite's own descriptors, because closing another descriptor of the file in this process
# would drop SQLite's locks. If SQLite's descriptors cannot be found, only names are compared.
#
# The lock file also records the last acknowledged write (`write_note`, `last_acknowledged`): a process that opens the
# file after a crash sees whether its log was lost or damaged. It is written after the commit and not synced, so it is
# never ahead.


DESCRIPTORS = "/dev/fd"
"""Folder that lists this process's descriptors, on Linux and macOS."""
HEADER_BYTES = 100
MAGIC = b"SQLite format 3\0"
INDEX = struct.Struct("=16xI4xII8s8x")
"""Head of the log's index: the number of the last frame, its checksums, and the log's salts."""
LOG_HEAD_BYTES, FRAME_HEAD_BYTES = 32, 24
MARK = struct.Struct(">8sQQII")
"""Head of a note in the lock file: the kind of the note, the device and inode of the file to which the note belongs,
the length of the note, and its checksum."""
ACKNOWLEDGED, CONDEMNED = b"SAGA ack", b"SAGA bad"
MARK_BYTES_MAX = 4096


class FileHeader(NamedTuple):
    """Values in the header of a SQLite file."""

    generation: int
    tables: int
    """Number of times that tables were created or changed in the file."""
    page_bytes: int


class TamperDetector:
    """Detector of changes that other programs made to a file, its write-ahead log, the log's index or the lock file. It
    compares them with what this process knows about them."""

    def __init__(self, path: Path, lock: int, *, tables_max: int | None = None) -> None:
        """Record the identity of the files. The file must be open, its lock must be held, and its log must have been
        read.

        `lock`: the descriptor of `<path>.lock`. `tables_max`: the file's `PRAGMA schema_version`, if no table may be
        created or changed any more; otherwise `None`.
        """
        self._path, self._lock, self._tables_max = path, lock, tables_max
        name, real = os.path.abspath(path), os.path.realpath(path)  # SQLite puts its files next to the target of a link
        self._names = (name, f"{real}-wal", f"{real}-shm", f"{name}.lock")
        self._known = tuple(file_identity(os.stat(name)) for name in self._names)
        self._file = self._log = self._index = -1
        self._header: FileHeader | None = None
        self._salts = b""
        self.has_new_log = True
        """True if the log was restarted since the last commit. Then the next transaction must raise the generation."""
        self._find_descriptors()
        self._header = self._read_header() if self._file >= 0 else None

    def on_reopen(self) -> None:
        """Record the files of a new connection, which must already have read from the file. If the old connection was
        the last one, the log and its index are new files."""
        file, _, _, lock = self._known
        log, index = (file_identity(os.stat(name)) for name in self._names[1:3])
        self._known = (file, log, index, lock)
        self.has_new_log = True
        self._find_descriptors()

    def find_moved(self) -> str | None:
        """Return which file was removed or replaced; `None` if every path still leads to the open file. Raises
        `OSError`."""
        for name, known in zip(self._names, self._known, strict=True):
            try:
                there = os.stat(name)
            except (FileNotFoundError, NotADirectoryError):
                return f"{name} was removed while it was in use"
            if (there.st_dev, there.st_ino) != known:
                return f"{name} was replaced by another file while it was in use"
        return None

    def find_problem(self) -> str | None:
        """Return what is wrong with the files; `None` if nothing is. Raises `OSError`.

        Must be called inside a transaction, before anything is written.
        """
        if (moved := self.find_moved()) is not None:
            return moved
        overwritten = self._find_overwritten()
        if overwritten is not None:  # the descriptors may belong to a connection that has been closed
            self._find_descriptors()
            overwritten = self._find_overwritten()
        return overwritten

    def _find_overwritten(self) -> str | None:
        if self._file < 0:
            return None
        try:
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
                self._salts, self.has_new_log = salts, True
            if frame and not self._ends_so(frame, struct.pack(">II", *checksums), salts, header.page_bytes):
                return f"{self._path}-wal was overwritten or cut short while it was in use"
        except OSError as why:
            return f"{self._path} cannot be read any more ({why.strerror})"
        return None

    def _ends_so(self, frame: int, checksums: bytes, salts: bytes, page_bytes: int) -> bool:
        """Return whether the log ends with the frame that the index names as its last one."""
        at = LOG_HEAD_BYTES + (frame - 1) * (FRAME_HEAD_BYTES + page_bytes)
        return (
            os.pread(self._log, 8, 16) == salts
            and os.pread(self._log, 16, at + 8) == salts + checksums
            and os.fstat(self._log).st_size >= at + FRAME_HEAD_BYTES + page_bytes
        )

    def _read_header(self) -> FileHeader | None:
        header = os.pread(self._file, HEADER_BYTES, 0)
        if len(header) < HEADER_BYTES or not header.startswith(MAGIC):
            return None
        size = int.from_bytes(header[16:18])
        generation = int.from_bytes(header[60:64]) >> FORMAT_BITS
        return FileHeader(generation, int.from_bytes(header[40:44]), 65_536 if size == 1 else size)

    def _find_descriptors(self) -> None:
        found: dict[tuple[int, int], int] = {}
        with suppress(OSError):
            for name in os.listdir(DESCRIPTORS):
                with suppress(OSError, ValueError):
                    found.setdefault(file_identity(os.fstat(int(name))), int(name))
        descriptors = [found.get(known, -1) for known in self._known[:3]]
        self._file, self._log, self._index = descriptors if min(descriptors) >= 0 else (-1, -1, -1)

    # ---------------------------------------------------------------- notes in the lock file

    def last_acknowledged(self) -> bytes | None:
        """Return the mark of the last acknowledged write to this file by any process; `None` if unknown. Raises
        `OSError`."""
        return self._read_note(ACKNOWLEDGED)

    def on_close(self) -> None:
        """Handle the closing of the connection.

        If it was the last connection, the whole log was copied into the file, and the mark of the last write is no
        longer needed.
        """
        if self._read_note(ACKNOWLEDGED) is not None and not os.path.exists(self._names[1]):
            os.ftruncate(self._lock, 0)

    def find_condemned(self) -> str | None:
        """Return the reason that a process has noted because it found this file broken; `None` if there is none. Raises
        `OSError`."""
        note = self._read_note(CONDEMNED)
        return None if note is None else note.decode(errors="replace")

    def write_note(self, kind: bytes, mark: bytes) -> None:
        """Write a note into the lock file, replacing the last one. The lock must be held. Never raises."""
        if len(mark) <= MARK_BYTES_MAX:
            head = MARK.pack(kind, *self._known[0], len(mark), zlib.crc32(mark))
            with suppress(OSError):  # the recorded event has happened anyway
                os.pwrite(self._lock, head + mark, 0)

    def _read_note(self, kind: bytes) -> bytes | None:
        return read_note(self._lock, kind, self._known[0])


def read_note(lock: int, kind: bytes, known: tuple[int, int]) -> bytes | None:
    """Return the note of this kind in a lock file. Return `None` if there is none, if it belongs to another file than
    the one with the identity `known`, or if it is damaged. Raises `OSError`."""
    content = os.pread(lock, MARK.size + MARK_BYTES_MAX, 0)
    if len(content) < MARK.size:
        return None
    found, device, inode, length, checksum = MARK.unpack(content[: MARK.size])
    mark = content[MARK.size : MARK.size + length]
    if found != kind or (device, inode) != known or zlib.crc32(mark) != checksum:
        return None
    return mark


def file_identity(there: os.stat_result) -> tuple[int, int]:
    """Return the identity of a file while it exists: device and inode."""
    return there.st_dev, there.st_ino
