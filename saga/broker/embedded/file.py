"""The broker's file: its tables, its format's number, and how it is opened."""

import sqlite3
from pathlib import Path

from saga.broker.embedded.failures import Damage, translated
from saga.errors import BrokerError, BrokerUnavailable
from saga.statefile import format_of, make_file

APPLICATION = 0x53414742
"""`SAGB` in the file's header: this is a broker's file and nobody else's."""
FORMAT = 2
"""Raised with every change of the tables. A file of another format is refused."""
CHECKED_BYTES_MAX = 32 << 20
"""A file of up to so many bytes is checked as a whole when it is opened, which takes about 0.1 s."""
STATEMENTS_KEPT = 1024
"""Two for each partition: compiling one costs more than running it."""
BUSY_S_OPENING, BUSY_MS = 0.25, 20
"""How long a statement may wait for SQLite's own locks, and the event loop with it. Only recovery after a crash, and
other programs, hold them without holding ours."""

TABLES = (
    # A topic's partitions are the logs first_log, first_log + 1, ...; each log's records are in a table of its own,
    # `log_<id>`: all its writes go to its end, which costs a third less than one table for all, and packs pages full.
    "CREATE TABLE topics (name TEXT PRIMARY KEY, first_log INTEGER NOT NULL, partitions INTEGER NOT NULL,"
    " retention_ms INTEGER) WITHOUT ROWID",
    "CREATE TABLE logs (id INTEGER PRIMARY KEY, oldest INTEGER NOT NULL, next INTEGER NOT NULL)",
    # `version` is raised whenever a member has to look: at a new generation, and when a partition becomes free.
    "CREATE TABLE groups (name TEXT PRIMARY KEY, generation INTEGER NOT NULL, version INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE members (id INTEGER PRIMARY KEY AUTOINCREMENT, grp TEXT NOT NULL, seat TEXT NOT NULL,"
    " topics TEXT NOT NULL, beats INTEGER NOT NULL)",
    # `target` is who shall have the log in this generation, `owner` who has it, `granted` the generation it got it in.
    "CREATE TABLE positions (grp TEXT NOT NULL, log INTEGER NOT NULL, offset INTEGER NOT NULL, owner INTEGER,"
    " granted INTEGER, target INTEGER, PRIMARY KEY (grp, log)) WITHOUT ROWID",
    f"PRAGMA application_id = {APPLICATION}",
    f"PRAGMA user_version = {FORMAT}",
)


def log_table(log: int) -> str:
    """The statement that makes the table of one partition's records."""
    return (
        f"CREATE TABLE log_{log} (offset INTEGER PRIMARY KEY, key BLOB, value BLOB, headers BLOB, time_ms INTEGER,"
        " sum INTEGER)"
    )


def open_file(path: Path, *, bytes_max: int | None) -> sqlite3.Connection:
    """A connection to a file of our format, made if it is missing. Call it with the write lock held.

    Raises `BrokerError` for a file of a newer format or of somebody else, `BrokerUnavailable` for one that cannot be
    read or written.
    """
    try:
        make_file(path)
    except OSError as why:
        raise BrokerUnavailable(
            f"broker file {path}: {why.strerror}: check that its folder is there and may be written"
        ) from why
    try:
        connection = sqlite3.connect(
            path, timeout=BUSY_S_OPENING, isolation_level=None, cached_statements=STATEMENTS_KEPT
        )
    except sqlite3.Error as why:
        raise translated(why, path) from why
    try:
        _check(connection, path)
        _set_up(connection, path)
        if path.stat().st_size <= CHECKED_BYTES_MAX:
            check_integrity(connection)
        if bytes_max is not None:
            page = _number(connection, "PRAGMA page_size")
            connection.execute(f"PRAGMA max_page_count = {max(1, bytes_max // page)}")
    except sqlite3.Error as why:
        connection.close()
        raise translated(why, path) from why
    except BrokerError:
        connection.close()
        raise
    return connection


def _check(connection: sqlite3.Connection, path: Path) -> None:
    application, version = (_number(connection, f"PRAGMA {name}") for name in ("application_id", "user_version"))
    format_ = format_of(version)
    if application == APPLICATION:
        if format_ != FORMAT:
            age, remedy = (
                ("newer", "run the version of saga that wrote it, or give a path of its own to this one")
                if format_ > FORMAT
                else ("older", "let the services end with the version of saga that wrote it, then give a new path")
            )
            raise BrokerError(f"broker file {path} is of format {format_}, {age} than {FORMAT}, known here: {remedy}")
    elif application or version or _number(connection, "SELECT count(*) FROM sqlite_master"):
        raise BrokerError(f"{path} is another program's SQLite file, no broker file: give another path")


def _set_up(connection: sqlite3.Connection, path: Path) -> None:
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise BrokerError(f"broker file {path} cannot have a write-ahead log ({mode}): it has to be on a local disk")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA cell_size_check = ON")  # a damaged page is found when it is read
    connection.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
    # Without these, macOS leaves what was synced in the drive's cache.
    connection.execute("PRAGMA fullfsync = ON")
    connection.execute("PRAGMA checkpoint_fullfsync = ON")
    connection.execute("BEGIN IMMEDIATE")  # a file that cannot be written fails here, not at the first message
    if not _number(connection, "PRAGMA user_version"):
        for statement in TABLES:
            connection.execute(statement)
    connection.execute("COMMIT")


def check_integrity(connection: sqlite3.Connection) -> None:
    """Raises `Damage` if tables and indexes do not fit together, or records are missing between others."""
    (said,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if said != "ok":
        raise Damage(said)
    for log, oldest, end in connection.execute("SELECT id, oldest, next FROM logs").fetchall():
        found = connection.execute(f"SELECT count(*), min(offset), max(offset) FROM log_{log}").fetchone()
        if found != ((end - oldest, oldest, end - 1) if end > oldest else (0, None, None)):
            raise Damage(f"log {log} is to hold the records from {oldest} to {end - 1}, and holds others")
    beyond = connection.execute(
        "SELECT p.grp, p.log FROM positions p LEFT JOIN logs l ON l.id = p.log WHERE l.id IS NULL OR p.offset > l.next"
        " OR p.offset < 0"
    ).fetchone()
    if beyond is not None:
        raise Damage(f"the position of group {beyond[0]!r} in log {beyond[1]} is none")


def _number(connection: sqlite3.Connection, statement: str) -> int:
    return int(connection.execute(statement).fetchone()[0])
