"""Purpose of a state file: what its owner calls it, what makes a file its own, and which errors tell of it."""

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from saga.errors import Broken, SagaError


@dataclass(frozen=True, slots=True, kw_only=True)
class Reactions:
    """Errors of the owner, by what its callers are to do about them; each is made from its text."""

    broken: type[Broken]
    """No waiting mends the file: end."""
    unavailable: Callable[[str], SagaError]
    """Certainly not written: wait."""
    ambiguous: Callable[[str], SagaError]
    """COMMIT failed, and may have written."""
    defect: Callable[[str], SagaError]
    """The statement was wrong, or another program has changed the tables."""
    too_large: Callable[[str], SagaError]
    unfit: Callable[[str], SagaError]
    """The file is ours, and cannot be used by this version or in this place."""
    foreign: Callable[[str], SagaError]
    """The file is another program's."""
    closed_to_us: Callable[[str], SagaError]
    """File or folder cannot be made or opened."""


def nothing_more(_: sqlite3.Connection) -> None:
    """The default of `Purpose.check`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Purpose:
    """What an owner says of its file."""

    name: str
    """As messages call it: `the store /data/payment.db ...`."""
    setting: str
    """The variable that says where the file is."""
    application: int
    """`PRAGMA application_id`: makes the file ours, and of this purpose."""
    format: int
    """Raised with every change of the tables; the lowest byte of `PRAGMA user_version`."""
    tables: Sequence[str]
    """Statements that make an empty file one of this purpose."""
    tables_are_all: bool
    """True if no table is ever made later: one more tells that the file is a copy."""
    trial: Sequence[str] = ()
    """Statements that take up some room and give it back: a full disk is found when the file is opened."""
    check: Callable[[sqlite3.Connection], None] = nothing_more
    """Raises `saga.sqlite.errors.Damage` for what SQLite's own check does not see."""
    reactions: Reactions
