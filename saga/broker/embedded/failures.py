"""What each failure of SQLite means here, and what to do about it: the one table."""

import sqlite3
from pathlib import Path

from saga.errors import BrokerBroken, BrokerError, BrokerUnavailable

WAIT: dict[str, str] = {
    "SQLITE_FULL": "the disk or the file's limit is full: make room; nothing accepted is lost",
    "SQLITE_READONLY": "it cannot be written: check its owner, its mode, and how the disk is mounted",
    "SQLITE_IOERR": "the disk failed: see the system's log",
    "SQLITE_BUSY": "another program holds it: end whatever has it open that is not saga",
    "SQLITE_LOCKED": "another program holds it: end whatever has it open that is not saga",
    "SQLITE_PROTOCOL": "its locks could not be had: it has to lie on a local disk",
    "SQLITE_CANTOPEN": "it cannot be opened: check that its folder is there and may be written",
    "SQLITE_PERM": "it may not be opened: check its owner and its mode",
    "SQLITE_AUTH": "it may not be opened: check its owner and its mode",
    "SQLITE_NOMEM": "there is no memory left: free some",
    "SQLITE_NOLFS": "the disk cannot hold files of its size: move it to another one",
    "SQLITE_INTERRUPT": "the operation was interrupted",
}
"""These pass, or a person makes them pass: wait and try again."""
DAMAGED: dict[str, str] = {
    "SQLITE_CORRUPT": "it is damaged: stop every service, then restore it or move it away",
    "SQLITE_NOTADB": "it is no broker file: give another path, or move it away",
    "SQLITE_FORMAT": "it is damaged: stop every service, then restore it or move it away",
}
"""Waiting does not help: a person has to act."""
DEFECT = frozenset(
    {
        "SQLITE_ERROR",
        "SQLITE_INTERNAL",
        "SQLITE_ABORT",
        "SQLITE_NOTFOUND",
        "SQLITE_EMPTY",
        "SQLITE_SCHEMA",
        "SQLITE_TOOBIG",
        "SQLITE_CONSTRAINT",
        "SQLITE_MISMATCH",
        "SQLITE_MISUSE",
        "SQLITE_RANGE",
        "SQLITE_NOTICE",
        "SQLITE_WARNING",
        "SQLITE_ROW",
        "SQLITE_DONE",
        "SQLITE_OK",
    }
)
"""These say that the statement was wrong, or are no failures at all."""


class Damage(sqlite3.DatabaseError):
    """Damage that SQLite does not see: records that are not those that were written, or are missing."""

    sqlite_errorname = "SQLITE_CORRUPT"
    sqlite_errorcode = sqlite3.SQLITE_CORRUPT


def translated(why: sqlite3.Error, path: Path) -> BrokerError:
    """The error to raise instead; `BrokerUnavailable` when trying again may succeed, `BrokerBroken` when the file is
    damaged."""
    name = getattr(why, "sqlite_errorname", None) or "SQLITE_ERROR"
    if str(why).startswith("Could not decode"):  # text that is none; Python tells it without a code
        name = "SQLITE_CORRUPT"
    primary = "_".join(name.split("_")[:2])  # SQLITE_IOERR_FSYNC is an SQLITE_IOERR
    if primary in WAIT:
        return BrokerUnavailable(f"broker file {path}: {WAIT[primary]} ({name}: {why})")
    if primary in DAMAGED:
        return BrokerBroken(f"broker file {path}: {DAMAGED[primary]} ({name}: {why})")
    return BrokerError(
        f"broker file {path}: {name}: {why}; if it was not changed by another program, this is a defect of saga: "
        "report it with this message"
    )
