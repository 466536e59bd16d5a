"""File below the SQLite store: its tables, which errors tell of it, and the versions of removed documents.

Versions: a replacement raises a document's `cas` by one, and an insertion begins above every `cas` that was ever
removed from this file (table `removed`, one row). So a `cas` never comes again for a key, and only removals pay for it.

A plain table with an index: 40 % faster than one WITHOUT ROWID, whose rows may fill only a quarter of a page before
they spill. The content comes last in the row, so that nothing else has to be looked for behind it.
"""

import sqlite3
from collections.abc import Iterable

from saga.errors import Ambiguous, ConfigurationError, NotAStore, StoreBroken, StoreUnavailable, TooLarge
from saga.sqlite.opening import PAGE_BYTES
from saga.sqlite.purpose import OwnerErrors, Purpose

HOUR_MS = 3_600_000
"""Grain in which expired documents are looked for; what is expired is judged by the millisecond."""

TABLES = (
    """CREATE TABLE documents (
        id INTEGER PRIMARY KEY,
        collection TEXT NOT NULL,
        key TEXT NOT NULL,
        cas INTEGER NOT NULL,
        expires_at_ms INTEGER,
        expiry_hour INTEGER,
        sum INTEGER NOT NULL,
        content BLOB NOT NULL,
        UNIQUE (collection, key)
    )""",
    "CREATE INDEX expiring ON documents (expiry_hour) WHERE expiry_hour IS NOT NULL",
    "CREATE TABLE removed (id INTEGER PRIMARY KEY CHECK (id = 1), cas_max INTEGER NOT NULL)",
    "INSERT INTO removed VALUES (1, 0)",
)
PROBE = (
    "INSERT INTO documents (collection, key, cas, sum, content)"  # no document's collection or key is empty
    f" VALUES ('', '', 0, 0, zeroblob({4 * PAGE_BYTES}))",
    "DELETE FROM documents WHERE collection = '' AND key = ''",
)


PURPOSE = Purpose(
    name="store",
    setting="SAGA_STORE",
    application=0x53414753,  # SAGS
    format=2,
    tables=TABLES,
    tables_are_all=True,
    probe=PROBE,
    errors=OwnerErrors(
        broken=StoreBroken,
        unavailable=StoreUnavailable,
        ambiguous=Ambiguous,
        defect=StoreUnavailable,
        too_large=TooLarge,
        unfit=lambda problem: ConfigurationError("The store cannot be used", [problem]),
        foreign=lambda problem: NotAStore("The store cannot be used", [problem]),
        closed_to_us=lambda problem: ConfigurationError("The store cannot be opened", [problem]),
    ),
)


def cas_removed(connection: sqlite3.Connection) -> int:
    """Highest `cas` of the documents that were removed."""
    cas_max: int = connection.execute("SELECT cas_max FROM removed").fetchone()[0]
    return cas_max


def note_removed(connection: sqlite3.Connection, cas: int) -> None:
    """Note a removed version: later insertions begin above `cas`."""
    connection.execute("UPDATE removed SET cas_max = ? WHERE cas_max < ?", (cas, cas))


def remove_rows(connection: sqlite3.Connection, rows: Iterable[tuple[int, int]]) -> None:
    """Remove documents, given as (id, cas)."""
    rows = list(rows)
    connection.executemany("DELETE FROM documents WHERE id = ?", [(id_,) for id_, _ in rows])
    note_removed(connection, max(cas for _, cas in rows))
