"""Meaning of SQLite's errors for the owner of a state file, which is the store or the broker: one table, with reasons.

A file that is damaged, or no longer an SQLite file, is broken: the service ends, because waiting does not repair it.

Before COMMIT is called nothing can have been written: the transaction is rolled back, and all processes ignore log
frames that no commit frame follows. So every other error before COMMIT means that nothing was written.

COMMIT appends the pages to the log, with the commit frame last, and syncs the log. An error after the commit frame was
written (for example because the sync failed) rolls the transaction back in memory only. The frames stay in the log
until the next writer overwrites them. If all processes die before that, recovery finds the frames and applies them. So
an error of COMMIT is ambiguous, except for errors that SQLite raises before the commit frame is complete.
"""

import enum
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from saga.errors import Broken, SagaError


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerErrors:
    """Functions with which the owner of a file creates its errors, each from a text. There is one for each way in which
    callers must react."""

    broken: type[Broken]
    """Error for a file that waiting does not repair, so the service ends."""
    unavailable: Callable[[str], SagaError]
    """Error for a write that certainly has not happened: wait and retry."""
    ambiguous: Callable[[str], SagaError]
    """Error for a COMMIT that failed and may have written."""
    defect: Callable[[str], SagaError]
    """Error for an invalid statement, or for tables that another program has changed."""
    too_large: Callable[[str], SagaError]
    unfit: Callable[[str], SagaError]
    """Error for a file of the owner that cannot be used. Either another version of saga wrote its format, or its file
    system does not support SQLite's WAL mode."""
    foreign: Callable[[str], SagaError]
    """Error for a file that another program created."""
    closed_to_us: Callable[[str], SagaError]
    """Error for a file or folder that cannot be created or opened."""


def check_nothing(_: sqlite3.Connection) -> None:
    """Check nothing: the default of `StateFileSpec.check`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFileSpec:
    """Description of a state file by its owner."""

    name: str
    """Name of the file in messages: `the store /data/payment.db ...`."""
    setting: str
    """Environment variable that contains the path of the file."""
    application: int
    """Number that marks a file of this purpose: `PRAGMA application_id`."""
    format: int
    """Number of the format, raised with every change of the tables; the lowest byte of `PRAGMA user_version`."""
    tables: Sequence[str]
    """Statements that create the tables in an empty file."""
    tables_are_all: bool
    """True if no table is ever created later. An additional table then shows that the file is a copy."""
    probe: Sequence[str] = ()
    """Statements that use some space and free it, so that a full disk is found when the file is opened."""
    check: Callable[[sqlite3.Connection], None] = check_nothing
    """Function that finds damage which SQLite's own check does not detect. It raises
    `saga.store.sqlite.errors.Damage`."""
    errors: OwnerErrors


class FileOperation(enum.Enum):
    """Operation during which an error occurred."""

    READ = "read"
    WRITE = "write"
    COMMIT = "commit"


class SqliteErrorMeaning(NamedTuple):
    """Meaning of an error: what is wrong with the file, and what to do."""

    what: str
    remedy: str
    undone: bool = False
    """True if nothing was written, even if COMMIT raised the error."""


_DEFECT = "if no other program has changed it, this is a defect of saga or of SQLite: report it with this message"
_FAILS = SqliteErrorMeaning("fails", _DEFECT)
_DAMAGED = SqliteErrorMeaning(
    "is damaged",
    "stop all its services, look at the disk, and restore the file from a copy (`sqlite3 FILE .recover` tells what can "
    "still be read)",
)
_HELD = SqliteErrorMeaning("is held by another program", "end what holds it (`lsof` tells)", True)
_READONLY = SqliteErrorMeaning("cannot be written", "give this user write access to the file and folder", True)
MEANINGS = {
    sqlite3.SQLITE_BUSY: _HELD,
    sqlite3.SQLITE_LOCKED: _HELD,
    sqlite3.SQLITE_PROTOCOL: _HELD,
    # The frame that did not fit is not complete, and the commit frame is always the last one.
    sqlite3.SQLITE_FULL: SqliteErrorMeaning("is full", "make room on its disk", True),
    sqlite3.SQLITE_READONLY: _READONLY,
    sqlite3.SQLITE_PERM: _READONLY,
    sqlite3.SQLITE_CANTOPEN: SqliteErrorMeaning(
        "cannot be opened", "see that file and folder are there, and access to them"
    ),
    sqlite3.SQLITE_IOERR: SqliteErrorMeaning("cannot be read or written", "look at the disk and the system's log"),
    sqlite3.SQLITE_NOLFS: SqliteErrorMeaning("is too large for its file system", "move it to another one"),
    sqlite3.SQLITE_NOMEM: SqliteErrorMeaning("needs more memory than there is", "give the process more memory"),
    sqlite3.SQLITE_INTERRUPT: SqliteErrorMeaning("was interrupted", "nothing need be done"),
    sqlite3.SQLITE_AUTH: SqliteErrorMeaning("refuses the operation", "see this user's access to the file and folder"),
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_FORMAT: _DAMAGED,
    sqlite3.SQLITE_NOTADB: SqliteErrorMeaning("is no SQLite file any more", _DAMAGED.remedy),
    sqlite3.SQLITE_SCHEMA: _FAILS,
    sqlite3.SQLITE_CONSTRAINT: _FAILS,
    sqlite3.SQLITE_TOOBIG: SqliteErrorMeaning("cannot take a value of this size", "keep less"),
    sqlite3.SQLITE_ABORT: _FAILS,
    sqlite3.SQLITE_MISMATCH: _FAILS,
    sqlite3.SQLITE_RANGE: _FAILS,
    sqlite3.SQLITE_EMPTY: _FAILS,
    sqlite3.SQLITE_ERROR: _FAILS,
    sqlite3.SQLITE_INTERNAL: _FAILS,
    sqlite3.SQLITE_MISUSE: _FAILS,
    sqlite3.SQLITE_NOTFOUND: _FAILS,
    sqlite3.SQLITE_NOTICE: _FAILS,
    sqlite3.SQLITE_WARNING: _FAILS,
}
"""Meanings by primary result code. A test compares them with the codes that `sqlite3` knows."""
BROKEN = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT})
"""Codes of errors that waiting does not resolve, so a person has to act."""


class Damage(sqlite3.DatabaseError):
    """Error for damage that SQLite does not detect: content is missing, or differs from what was written."""

    sqlite_errorcode, sqlite_errorname = sqlite3.SQLITE_CORRUPT, "SQLITE_CORRUPT"


def to_owner_error(error: sqlite3.Error, doing: FileOperation, path: Path, purpose: StateFileSpec) -> SagaError:
    """Create the error for the owner's callers. Its class says how to react; its text says what happened and what to
    do."""
    code, errors = primary_code(error), purpose.errors
    known = MEANINGS.get(code, _FAILS)
    text = f"the {purpose.name} {path} {known.what} ({getattr(error, 'sqlite_errorname', 'sqlite3')}: {error})"
    if code in BROKEN:
        return errors.broken(f"{text}; nothing more is read or written: {known.remedy}")
    if doing is FileOperation.COMMIT and not known.undone:
        return errors.ambiguous(f"{text}; whether this was written is not known: {known.remedy}")
    text = f"{text}; {'nothing was written: ' if doing is not FileOperation.READ else ''}{known.remedy}"
    if code == sqlite3.SQLITE_TOOBIG and doing is FileOperation.WRITE:
        return errors.too_large(text)
    return (errors.defect if known is _FAILS else errors.unavailable)(text)


def is_busy(error: BaseException) -> bool:
    """Return whether another program holds SQLite's lock, so that waiting a moment may help."""
    return isinstance(error, sqlite3.Error) and primary_code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_PROTOCOL)


def primary_code(error: sqlite3.Error) -> int:
    """Return the lowest byte of SQLite's error code; -1 for errors of the Python module itself, which have none."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    if code is None and str(error).startswith("Could not decode"):  # a string that is not UTF-8
        return sqlite3.SQLITE_CORRUPT
    return -1 if code is None else code & 0xFF
