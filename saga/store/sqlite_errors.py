"""What SQLite's errors mean for a store's callers: one table, and the reasons.

A file that is damaged, or no SQLite file any more, is `StoreBroken`: the service ends, for waiting mends nothing.

Before COMMIT is called nothing can have happened: the transaction is rolled back, and a log without a commit frame is
ignored by everybody. So every other error there is `StoreUnavailable`.

COMMIT appends the pages to the log, the commit frame last, and syncs it. An error after the commit frame was written
(the sync failed, say) takes the transaction back in memory only: the frames stay in the log until the next writer puts
others in their place, and if all processes die before, recovery finds them and they count. So an error of COMMIT is
`Ambiguous`, save those that SQLite gives before the commit frame is complete.
"""

import enum
import sqlite3
from pathlib import Path
from typing import NamedTuple

from saga.errors import Ambiguous, StoreBroken, StoreError, StoreUnavailable, TooLarge
from saga.filelock import holder


class Doing(enum.Enum):
    """What was under way when the error came."""

    READ = "read"
    WRITE = "write"
    COMMIT = "commit"


class Meaning(NamedTuple):
    """What to make of an error."""

    what: str
    remedy: str
    undone: bool
    """Whether nothing was written even if COMMIT gave it."""


_REPORT = "this is a mistake in saga or an unusual SQLite: please report it"
_BROKEN = "look at the disk, and restore the file from a copy (`sqlite3 FILE .recover` tells what can still be read)"

MEANINGS = {
    sqlite3.SQLITE_BUSY: Meaning("is held by another process", "end what holds it (`lsof` tells)", True),
    sqlite3.SQLITE_LOCKED: Meaning("is held by another connection", _REPORT, True),
    sqlite3.SQLITE_PROTOCOL: Meaning("is held by another process", "end what holds it (`lsof` tells)", True),
    # The frame that did not fit is not complete, and the commit frame is the last one.
    sqlite3.SQLITE_FULL: Meaning("is full", "make room on its disk", True),
    sqlite3.SQLITE_READONLY: Meaning("cannot be written", "give this user write access to the file and folder", True),
    sqlite3.SQLITE_PERM: Meaning("cannot be written", "give this user write access to the file and folder", True),
    sqlite3.SQLITE_CANTOPEN: Meaning(
        "cannot be opened", "see that file and folder are there, and access to them", False
    ),
    sqlite3.SQLITE_IOERR: Meaning("cannot be read or written", "look at the disk and the system's log", False),
    sqlite3.SQLITE_NOLFS: Meaning("is too large for its file system", "move it to another one", False),
    sqlite3.SQLITE_NOMEM: Meaning("needs more memory than there is", "give the process more memory", False),
    sqlite3.SQLITE_CORRUPT: Meaning("is damaged", _BROKEN, False),
    sqlite3.SQLITE_NOTADB: Meaning("is not an SQLite file", "point SAGA_STORE to a file of its own", False),
    sqlite3.SQLITE_FORMAT: Meaning("is damaged", _BROKEN, False),
    sqlite3.SQLITE_SCHEMA: Meaning("was changed by another program", "keep other programs from changing it", False),
    sqlite3.SQLITE_INTERRUPT: Meaning("was interrupted", _REPORT, False),
    sqlite3.SQLITE_ABORT: Meaning("was interrupted", _REPORT, False),
    sqlite3.SQLITE_AUTH: Meaning("refuses the operation", _REPORT, False),
    sqlite3.SQLITE_CONSTRAINT: Meaning("was changed by another program", "keep other programs from changing it", False),
    sqlite3.SQLITE_TOOBIG: Meaning("cannot take a document of this size", "make it smaller", False),
    sqlite3.SQLITE_MISMATCH: Meaning("refuses a value", _REPORT, False),
    sqlite3.SQLITE_RANGE: Meaning("refuses a value", _REPORT, False),
    sqlite3.SQLITE_EMPTY: Meaning("fails", _REPORT, False),
    sqlite3.SQLITE_ERROR: Meaning("fails", _REPORT, False),
    sqlite3.SQLITE_INTERNAL: Meaning("fails", _REPORT, False),
    sqlite3.SQLITE_MISUSE: Meaning("fails", _REPORT, False),
    sqlite3.SQLITE_NOTFOUND: Meaning("fails", _REPORT, False),
    sqlite3.SQLITE_NOTICE: Meaning("fails", _REPORT, False),
    sqlite3.SQLITE_WARNING: Meaning("fails", _REPORT, False),
}
"""By primary result code. A test compares it with the codes that `sqlite3` knows."""

_UNKNOWN = Meaning("fails", _REPORT, False)
BROKEN = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT})
"""Waiting does not help: a person has to act."""


class Damage(sqlite3.DatabaseError):
    """Damage that SQLite does not see: a document whose bytes are not those that were written."""

    sqlite_errorcode = sqlite3.SQLITE_CORRUPT


def meaning(error: sqlite3.Error, doing: Doing, path: Path) -> StoreError:
    """The error for the caller: which class, what happened, and what to do."""
    known = MEANINGS.get(primary_code(error), _UNKNOWN)
    said = f"the store {path} {known.what} ({error})"
    if primary_code(error) in BROKEN:
        return StoreBroken(f"{said}; nothing more is read or written: {known.remedy}")
    if doing is Doing.WRITE and primary_code(error) == sqlite3.SQLITE_TOOBIG:
        return too_large(path)
    if doing is Doing.COMMIT and not known.undone:
        return Ambiguous(f"{said}; whether this was written is not known: {known.remedy}")
    return StoreUnavailable(f"{said}; {'nothing was written: ' if doing is not Doing.READ else ''}{known.remedy}")


def too_large(path: Path, content_bytes: int | None = None, bytes_max: int | None = None) -> TooLarge:
    """For a document that can never be written. `bytes_max`: what the store takes, as far as it was asked."""
    said = "" if content_bytes is None else f"of {content_bytes} bytes: it takes {bytes_max}"
    return TooLarge(f"the store {path} cannot take a document {said or 'of this size'}; nothing was written: keep less")


def is_busy(error: sqlite3.Error) -> bool:
    """Whether another process is at work, so that it is worth while to wait a moment."""
    return primary_code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_PROTOCOL)


def primary_code(error: sqlite3.Error) -> int:
    """The lowest byte of SQLite's code; -1 for errors of the Python module itself, which have none."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    if code is None and str(error).startswith("Could not decode"):  # text that is none
        return sqlite3.SQLITE_CORRUPT
    return -1 if code is None else code & 0xFF


def no_lock(path: Path, why: OSError) -> StoreUnavailable:
    """The lock itself fails."""
    return StoreUnavailable(
        f"the lock {path}.lock cannot be taken ({why}); nothing was written: it has to lie on a local disk, and "
        "`ulimit -a` and the system's log may tell more"
    )


def no_look(path: Path, why: OSError) -> StoreUnavailable:
    """Error for a file that cannot be looked at: nobody knows whether it is still the same."""
    return StoreUnavailable(
        f"the store {path} cannot be looked at ({why}); nothing was written: look at the disk, and see that file and "
        "folder can be read"
    )


def too_busy(path: Path, waited_s: float) -> StoreUnavailable:
    """Somebody else has the lock."""
    lock = path.with_name(f"{path.name}.lock")
    return StoreUnavailable(
        f"another process has been writing to {path} for {waited_s:.0f} s; nothing was written. Its lock {lock} is "
        f"held by {holder(lock)}: a stopped process must go on or end"
    )
