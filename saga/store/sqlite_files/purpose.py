"""Purpose of a state file: the name its owner calls it by, the marks that make it its own, and the errors that tell of
it."""

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from saga.errors import Broken, SagaError


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerErrors:
    """Errors of the owner, by what its callers are to do about them; each is made from its text."""

    broken: type[Broken]
    """Error of a file that no waiting mends: end."""
    unavailable: Callable[[str], SagaError]
    """Error of what was certainly not written: wait."""
    ambiguous: Callable[[str], SagaError]
    """Error of a COMMIT that failed, and may have written."""
    defect: Callable[[str], SagaError]
    """Error of a statement that was wrong, or of tables that another program has changed."""
    too_large: Callable[[str], SagaError]
    unfit: Callable[[str], SagaError]
    """Error of a file that is ours, and cannot be used by this version or in this place."""
    foreign: Callable[[str], SagaError]
    """Error of a file that is another program's."""
    closed_to_us: Callable[[str], SagaError]
    """Error of a file or folder that cannot be made or opened."""


def nothing_more(_: sqlite3.Connection) -> None:
    """Check nothing: the default of `Purpose.check`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Purpose:
    """Description of a state file by its owner."""

    name: str
    """Name in messages: `the store /data/payment.db ...`."""
    setting: str
    """Variable that says where the file is."""
    application: int
    """Number that makes the file ours, and of this purpose: `PRAGMA application_id`."""
    format: int
    """Number of the format, raised with every change of the tables; the lowest byte of `PRAGMA user_version`."""
    tables: Sequence[str]
    """Statements that make an empty file one of this purpose."""
    tables_are_all: bool
    """True if no table is ever made later: one more tells that the file is a copy."""
    probe: Sequence[str] = ()
    """Statements that take up some room and give it back: a full disk is found when the file is opened."""
    check: Callable[[sqlite3.Connection], None] = nothing_more
    """Check for what SQLite's own check does not see. Raises `saga.store.sqlite_files.errors.Damage`."""
    errors: OwnerErrors
