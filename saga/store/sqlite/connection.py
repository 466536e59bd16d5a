"""Connections to a state file: create, recognise, configure, check and shrink it."""

import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from saga.store.sqlite.errors import Damage, StateFileSpec, primary_code
from saga.support.addresses import is_missing

PAGE_BYTES = 4096
CHECKED_BYTES_MAX = 32 << 20
"""Size of the largest file that is checked completely when it is opened, in bytes. This check takes about 0.1 s."""
CHECKPOINT_PAGES = 1000
"""Number of pages (4 MB) after which the write-ahead log is copied into the file. This is rare enough to cost little,
and frequent enough to block the event loop only for a few milliseconds."""
CACHE_KIB = 8 * 1024
"""Memory for cached pages per file, in KiB. It is in full use after some thousand sagas, and does not grow further."""
STATEMENTS_KEPT = 1024
"""Number of compiled statements that are cached. The broker has two per partition, and compiling a statement takes
longer than running it."""
BUSY_S = 0.02
"""Longest time for which SQLite itself may block the event loop, in seconds. Only recovery after a crash, and other
programs, hold SQLite's locks without holding the toolkit's lock."""
READ_BUSY_S = 1.0
"""Longest time for which SQLite may block a tool that only reads, in seconds. It is longer than `BUSY_S`, because a
service may hold SQLite's locks for as long as a slow disk takes: while it recovers the file, or while the last user of
the file removes the write-ahead log."""


def open_to_write(
    path: Path, purpose: StateFileSpec, factory: type[sqlite3.Connection], bytes_max: int | None
) -> sqlite3.Connection:
    """Open a connection, and verify that the file can be written. The file must exist, but may be empty. Its lock must
    be held.

    Raises the owner's error if the file belongs to another program, has another format or is in an unsuitable place.
    Raises `OSError`, and `sqlite3.Error` for any other failure.
    """
    with _refuse_other_files(path, purpose):
        connection = connect(path, purpose, factory, bytes_max)
    with _close_on_error(connection):
        is_new = not _is_ours(connection, path, purpose)
        if connection.execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
            raise purpose.errors.unfit(f"{path} lies where SQLite cannot keep a log beside it: put it on a local disk")
        connection.execute("BEGIN IMMEDIATE")  # a file that cannot be written fails here, not at the first message
        if is_new:
            marks = (f"PRAGMA application_id = {purpose.application}", f"PRAGMA user_version = {purpose.format}")
            for statement in (*purpose.tables, *marks):
                connection.execute(statement)
        for statement in purpose.probe:
            connection.execute(statement)
        connection.execute("COMMIT")
        if path.stat().st_size <= CHECKED_BYTES_MAX:
            check_integrity(connection, purpose)
    return connection


def open_to_read(path: Path, purpose: StateFileSpec, factory: type[sqlite3.Connection]) -> sqlite3.Connection:
    """Open a connection that cannot write.

    Raises the owner's error if the file is missing, belongs to another program or has another format. Raises
    `sqlite3.Error` for any other failure. While a service creates or recovers the file, this is `SQLITE_BUSY`.
    """
    if is_missing(path) or os.path.isdir(path):  # `isdir`, unlike `Path.is_dir`, raises nothing
        raise purpose.errors.closed_to_us(
            f"{path}: there is no such file; has the service ever run, and with this {purpose.name}?"
        )
    there = f"file:{quote(str(path.absolute()))}?mode=ro"
    connection = sqlite3.connect(there, uri=True, isolation_level=None, timeout=BUSY_S, factory=factory)
    with _close_on_error(connection), _refuse_other_files(path, purpose):
        if not _is_ours(connection, path, purpose):
            raise purpose.errors.foreign(f"{path} is empty; start the service once, which makes its tables")
        connection.execute(f"PRAGMA busy_timeout = {READ_BUSY_S * 1000:.0f}")
    return connection


def connect(
    path: Path, purpose: StateFileSpec, factory: type[sqlite3.Connection], bytes_max: int | None
) -> sqlite3.Connection:
    """Open a connection with the settings of state files. Raises `sqlite3.Error`."""
    connection = sqlite3.connect(
        path, isolation_level=None, timeout=BUSY_S, factory=factory, cached_statements=STATEMENTS_KEPT
    )
    with _close_on_error(connection):
        for pragma in (
            f"page_size = {PAGE_BYTES}",
            "auto_vacuum = INCREMENTAL",  # lets a file shrink; has no effect on a file that has tables
            "synchronous = FULL",
            "fullfsync = ON",  # macOS: a plain fsync does not reach the medium
            "cell_size_check = ON",  # finds a damaged page when it is read
            f"wal_autocheckpoint = {CHECKPOINT_PAGES}",
            f"cache_size = -{CACHE_KIB}",
            *(() if bytes_max is None else (f"max_page_count = {max(1, bytes_max // PAGE_BYTES)}",)),
        ):
            connection.execute(f"PRAGMA {pragma}")
    return connection


def check_integrity(connection: sqlite3.Connection, purpose: StateFileSpec) -> None:
    """Check that tables and indexes are consistent, and that the owner's own check finds no damage. Raises `Damage`."""
    (result,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if result != "ok":
        raise Damage(result)
    purpose.check(connection)


def _is_ours(connection: sqlite3.Connection, path: Path, purpose: StateFileSpec) -> bool:
    """Return True for a file of this purpose and format, and False for an empty file. Raises the owner's error for any
    other file."""
    application, version = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
    )
    if application == purpose.application:
        found, known = format_of(version), purpose.format
        if found != known:
            raise purpose.errors.unfit(
                f"{path} is of format {found}, {'newer' if found > known else 'older'} than {known}, known here: run "
                f"the version of saga that wrote it, or point {purpose.setting} to a file of its own"
            )
        return True
    if application or version or connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
        raise _foreign(path, purpose, "is an SQLite file that something else made")
    return False


@contextmanager
def _refuse_other_files(path: Path, purpose: StateFileSpec) -> Iterator[None]:
    try:
        yield
    except sqlite3.DatabaseError as why:
        if primary_code(why) != sqlite3.SQLITE_NOTADB:
            raise
        raise _foreign(path, purpose, "is not an SQLite file") from why


def _foreign(path: Path, purpose: StateFileSpec, what: str) -> Exception:
    return purpose.errors.foreign(f"{path} {what}; point {purpose.setting} to a file of its own")


@contextmanager
def _close_on_error(connection: sqlite3.Connection) -> Iterator[None]:
    try:
        yield
    except Exception:
        connection.close()
        raise


# ---------------------------------------------------------------- format and generation
#
# `PRAGMA user_version` holds both: see `saga.store.sqlite.integrity`.

FORMAT_BITS = 8
GENERATION_MAX = (1 << 31 - FORMAT_BITS) - 1
"""Highest generation; the number does not grow beyond it. A generation lasts for about four megabytes of log, so the
highest one is reached after thirty terabytes of writes."""


def format_of(user_version: int) -> int:
    """Return the format in this `user_version`.

    >>> format_of(next_generation(next_generation(2)))
    2
    """
    return user_version & (1 << FORMAT_BITS) - 1


def next_generation(user_version: int) -> int:
    """Return the `user_version` of the same format, one generation later.

    >>> next_generation(2), next_generation(GENERATION_MAX << FORMAT_BITS | 2) >> FORMAT_BITS == GENERATION_MAX
    (258, True)
    """
    generation = min((user_version >> FORMAT_BITS) + 1, GENERATION_MAX)
    return generation << FORMAT_BITS | format_of(user_version)


# -------------------------------------------------------------------- creating files


def make_folder(folder: Path) -> None:
    """Create a folder and its parents, for this user alone. Existing folders stay as they are. Raises `OSError`."""
    for each in (*reversed(folder.parents), folder):
        if not each.exists():
            with suppress(FileExistsError):
                each.mkdir(0o700)


def make_file(path: Path) -> None:
    """Create an empty file for this user alone, unless it exists. Raises `OSError`.

    SQLite creates its additional files next to it, with the same permissions.
    """
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


# ---------------------------------------------------------------- shrinking


FREE_PAGES_MIN = 1024
"""Number of free pages (4 MB) that a file always keeps. They are reused, and keeping them costs less than growing the
file again."""
FREE_SHARE = 4
"""The file is shrunk if more than one in this many pages is free."""
PAGES_MAX = 64
"""Largest number of pages that one transaction frees. It is bounded because each page may have to be moved first."""


def shrink(connection: sqlite3.Connection) -> bool:
    """Free unused pages if too large a part of the file is unused. Must be called inside a transaction. Return whether
    there may be more pages to free."""
    free = _free(connection)
    if free <= max(FREE_PAGES_MIN, connection.execute("PRAGMA page_count").fetchone()[0] // FREE_SHARE):
        return False
    for _ in range(PAGES_MAX):  # the driver steps such a statement once, and each step frees one page
        connection.execute("PRAGMA incremental_vacuum(1)")
    return _free(connection) < free


def _free(connection: sqlite3.Connection) -> int:
    count: int = connection.execute("PRAGMA freelist_count").fetchone()[0]
    return count


# ---------------------------------------------------------------- binding bytes


as_blob = bytearray
"""Function that copies bytes into a type that the driver binds directly. For `bytes` the driver would search for an
adapter each time, which takes longer than writing a short value."""


def as_blobs(values: Sequence[Any]) -> Iterable[bytearray | None]:
    """Return the values of a column as `as_blob` copies; a value that is `None` stays `None`."""
    return [None if value is None else as_blob(value) for value in values] if None in values else map(as_blob, values)
