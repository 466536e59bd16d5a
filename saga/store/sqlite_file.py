"""The file below the SQLite store: its format, how it is opened, its lock, and the versions of removed documents.

Versions: a replacement raises a document's `cas` by one, and an insertion begins above every `cas` that was ever
removed from this file (table `removed`, one row). So a `cas` never comes again for a key, and only removals pay for it.

A plain table with an index: 40 % faster than one WITHOUT ROWID, whose rows may fill only a quarter of a page before
they spill. The content comes last in the row, so that nothing else has to be looked for behind it.
"""

import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from saga.errors import ConfigurationError, NotAStore
from saga.statefile import format_of, make_file, make_folder
from saga.store.sqlite_errors import Damage, Doing, meaning, primary_code

FORMAT = 2
"""Format of the files that this version reads and writes; the lowest byte of `PRAGMA user_version`."""
APPLICATION = 0x53414753
"""`PRAGMA application_id`: ours, and a store."""
HOUR_MS = 3_600_000
"""The grain in which expired documents are looked for; what is expired is judged by the millisecond."""
PAGE_BYTES = 4096
CHECKED_BYTES_MAX = 32 << 20
"""A file of up to so many bytes is checked as a whole when it is opened, which takes about 0.1 s."""
CHECKPOINT_PAGES = 1000
"""After so many pages (4 MB) the log is copied into the file: seldom enough to cost little, often enough to stall the
loop only for a few milliseconds."""
CACHE_KIB = 8 * 1024
"""Pages kept in memory, for each store: so much is taken after some thousand sagas, and no more."""
BUSY_S = 0.02
"""How long SQLite itself may block the loop; `flock` makes it rare that it has to."""

TABLES = f"""
CREATE TABLE documents (
    id INTEGER PRIMARY KEY,
    collection TEXT NOT NULL,
    key TEXT NOT NULL,
    cas INTEGER NOT NULL,
    expires_at_ms INTEGER,
    expiry_hour INTEGER,
    sum INTEGER NOT NULL,
    content BLOB NOT NULL,
    UNIQUE (collection, key)
);
CREATE INDEX expiring ON documents (expiry_hour) WHERE expiry_hour IS NOT NULL;
CREATE TABLE removed (id INTEGER PRIMARY KEY CHECK (id = 1), cas_max INTEGER NOT NULL);
INSERT INTO removed VALUES (1, 0);
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {FORMAT};
"""


FILE_OF_ITS_OWN = "point SAGA_STORE to a file of its own"


def open_to_write(path: Path, factory: type[sqlite3.Connection], bytes_max: int | None) -> sqlite3.Connection:
    """A connection to a file that was shown to take writes; made if it is not there. The lock must be held.

    Raises `NotAStore`, `ConfigurationError` for a newer format, `sqlite3.Error` for the rest.
    """
    with _refusing_what_is_no_database(path):
        connection = connect(path, factory, bytes_max)
    try:
        is_new = not _is_ours(connection, path)
        if connection.execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
            raise _refused(
                ConfigurationError, path, "lies where SQLite cannot keep a log beside it", "put it on a local disk"
            )
        if is_new:
            connection.execute("BEGIN IMMEDIATE")
            for statement in TABLES.split(";"):
                connection.execute(statement)
            connection.execute("COMMIT")
        _try_writing(connection)
        if path.stat().st_size <= CHECKED_BYTES_MAX:
            check_integrity(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def open_to_read(path: Path, factory: type[sqlite3.Connection]) -> sqlite3.Connection:
    """A connection that cannot write. Raises `NotAStore`, `ConfigurationError`, `StoreUnavailable`."""
    if not path.is_file():
        raise ConfigurationError(
            "The store cannot be read",
            [f"{path}: there is no such file; has the service ever run, and with this store?"],
        )
    try:
        connection = sqlite3.connect(
            f"file:{quote(str(path.absolute()))}?mode=ro",
            uri=True,
            isolation_level=None,
            timeout=BUSY_S,
            factory=factory,
        )
        try:
            with _refusing_what_is_no_database(path):
                if not _is_ours(connection, path):
                    raise _refused(NotAStore, path, "is empty", "start the service once, which makes its tables")
        except BaseException:
            connection.close()
            raise
    except sqlite3.Error as why:
        raise meaning(why, Doing.READ, path) from why
    return connection


def connect(path: Path, factory: type[sqlite3.Connection], bytes_max: int | None) -> sqlite3.Connection:
    """A connection with our settings. Raises `sqlite3.Error`."""
    pragmas = [
        f"page_size = {PAGE_BYTES}",
        "synchronous = FULL",
        "fullfsync = ON",  # macOS: a plain fsync does not reach the medium
        "cell_size_check = ON",  # a damaged page is found when it is read
        f"wal_autocheckpoint = {CHECKPOINT_PAGES}",
        f"cache_size = -{CACHE_KIB}",
    ]
    if bytes_max is not None:
        pragmas.append(f"max_page_count = {max(1, bytes_max // PAGE_BYTES)}")
    connection = sqlite3.connect(path, isolation_level=None, timeout=BUSY_S, factory=factory)
    try:
        for pragma in pragmas:
            connection.execute(f"PRAGMA {pragma}")
    except BaseException:
        connection.close()
        raise
    return connection


def open_lock(path: Path) -> int:
    """The descriptor of `<file>.lock`; folders and file are made, for this user alone. Raises `ConfigurationError`."""
    try:
        make_folder(path.parent)
        make_file(path)
        return os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as why:
        raise ConfigurationError(
            "The store cannot be opened",
            [f"{path}: {why.strerror}: {why.filename}; make the folder writable, or point SAGA_STORE elsewhere"],
        ) from why


def check_integrity(connection: sqlite3.Connection) -> None:
    """Raises `Damage` if tables and indexes do not fit together."""
    (said,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if said != "ok":
        raise Damage(said)


def cas_removed(connection: sqlite3.Connection) -> int:
    """No document that was removed had a higher `cas`."""
    cas_max: int = connection.execute("SELECT cas_max FROM removed").fetchone()[0]
    return cas_max


def note_removed(connection: sqlite3.Connection, cas: int) -> None:
    """Later insertions begin above `cas`."""
    connection.execute("UPDATE removed SET cas_max = ? WHERE cas_max < ?", (cas, cas))


def remove_rows(connection: sqlite3.Connection, rows: Iterable[tuple[int, int]]) -> None:
    """Remove documents, given as (id, cas)."""
    rows = list(rows)
    connection.executemany("DELETE FROM documents WHERE id = ?", [(id_,) for id_, _ in rows])
    note_removed(connection, max(cas for _, cas in rows))


def _is_ours(connection: sqlite3.Connection, path: Path) -> bool:
    """Whether it is a store of our format; `False` for an empty file. Raises `ConfigurationError` for any other."""
    application, version = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
    )
    if application == APPLICATION:
        version = format_of(version)
        if version == FORMAT:
            return True
        raise _refused(
            ConfigurationError,
            path,
            f"has format {version}, and this version of saga knows format {FORMAT}",
            f"use the {'newer' if version > FORMAT else 'older'} version that wrote it, or another file",
        )
    if application or version or connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
        raise _refused(NotAStore, path, "is an SQLite file that something else made", FILE_OF_ITS_OWN)
    return False


@contextmanager
def _refusing_what_is_no_database(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.DatabaseError as why:
        if primary_code(why) != sqlite3.SQLITE_NOTADB:
            raise
        raise _refused(NotAStore, path, "is not an SQLite file", FILE_OF_ITS_OWN) from why


def _refused(kind: type[ConfigurationError], path: Path, what: str, remedy: str) -> ConfigurationError:
    return kind("The store cannot be used", [f"{path} {what}; {remedy}"])


def _try_writing(connection: sqlite3.Connection) -> None:
    """Take up some room, give it back, commit: a full disk or a file without write access is found at the start."""
    connection.execute("BEGIN IMMEDIATE")
    room = connection.execute(
        "INSERT INTO documents (collection, key, cas, sum, content) VALUES ('', '', 0, 0, zeroblob(?))",
        (4 * PAGE_BYTES,),
    )
    connection.execute("DELETE FROM documents WHERE id = ?", (room.lastrowid,))
    connection.execute("COMMIT")
