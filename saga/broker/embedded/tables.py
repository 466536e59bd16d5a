"""Tables of the broker's file, and checksums of their rows."""

import sqlite3
import zlib
from collections.abc import Iterable, Iterator

import msgspec

from saga.errors import BrokerBroken, BrokerError, BrokerUnavailable
from saga.store.sqlite.errors import Damage, OwnerErrors, StateFileSpec

TABLES = (
    # A topic's partitions are the logs first_log, first_log + 1, ...; each log's records are in a table of its own,
    # `log_<id>`: all its writes go to its end, which costs a third less than one table for all, and packs pages full.
    "CREATE TABLE topics (name TEXT PRIMARY KEY, first_log INTEGER NOT NULL, partitions INTEGER NOT NULL,"
    " retention_ms INTEGER, sum INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE logs (id INTEGER PRIMARY KEY, oldest INTEGER NOT NULL, oldest_sum INTEGER NOT NULL,"
    " next INTEGER NOT NULL, next_sum INTEGER NOT NULL)",
    # `version` is raised whenever a member has to look: at a new generation, and when a partition becomes free.
    "CREATE TABLE groups (name TEXT PRIMARY KEY, generation INTEGER NOT NULL, version INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE members (id INTEGER PRIMARY KEY AUTOINCREMENT, grp TEXT NOT NULL, seat TEXT NOT NULL,"
    " topics TEXT NOT NULL)",
    # `target` is who shall have the log in this generation, `owner` who has it, `granted` the generation it got it in.
    "CREATE TABLE positions (grp TEXT NOT NULL, log INTEGER NOT NULL, offset INTEGER NOT NULL, sum INTEGER NOT NULL,"
    " owner INTEGER, granted INTEGER, target INTEGER, PRIMARY KEY (grp, log)) WITHOUT ROWID",
    # Of each group without a living member: how long it has been seen so, and when somebody looked last.
    "CREATE TABLE absences (grp TEXT PRIMARY KEY, away_ms INTEGER NOT NULL, looked_ms INTEGER NOT NULL,"
    " sum INTEGER NOT NULL) WITHOUT ROWID",
)


def log_table(log: int) -> str:
    """Statement that makes the table of one partition's records."""
    return (
        f"CREATE TABLE log_{log} (offset INTEGER PRIMARY KEY, key BLOB, value BLOB, headers BLOB, time_ms INTEGER,"
        " sum INTEGER)"
    )


def check_records(connection: sqlite3.Connection) -> None:
    """Check that no records are missing between others, that no positions are beyond them, and that topics, logs and
    positions are what was written. Raises `Damage`."""
    for _ in (*verified_topics(connection.execute(TOPICS)), *verified_positions(connection.execute(POSITIONS))):
        pass
    for log, oldest, end in list(verified_logs(connection.execute(LOGS))):
        found = connection.execute(f"SELECT count(*), min(offset), max(offset) FROM log_{log}").fetchone()
        if found != ((end - oldest, oldest, end - 1) if end > oldest else (0, None, None)):
            raise Damage(f"log {log} is to hold the records from {oldest} to {end - 1}, and holds others")
    beyond = connection.execute(
        "SELECT p.grp, p.log FROM positions p LEFT JOIN logs l ON l.id = p.log WHERE l.id IS NULL OR p.offset > l.next"
        " OR p.offset < 0"
    ).fetchone()
    if beyond is not None:
        raise Damage(f"the position of group {beyond[0]!r} in log {beyond[1]} is none")


PURPOSE = StateFileSpec(
    name="broker file",
    setting="SAGA_BROKER",
    application=0x53414742,  # SAGB
    format=4,
    tables=TABLES,
    tables_are_all=False,  # a topic brings its own
    check=check_records,
    errors=OwnerErrors(
        broken=BrokerBroken,
        unavailable=BrokerUnavailable,
        ambiguous=BrokerUnavailable,
        defect=BrokerError,
        too_large=BrokerError,
        unfit=BrokerError,
        foreign=BrokerError,
        closed_to_us=BrokerUnavailable,
    ),
)


# ---------------------------------------------------------------- checksums of rows
#
# SQLite has none. Each column that changes by itself has a checksum of its own, which also covers what identifies the
# row, so that no write needs to know the other columns. The owner of a partition has none: it changes with each
# generation, and every commit is compared with it.


_pack = msgspec.msgpack.Encoder().encode
LOGS = "SELECT id, oldest, oldest_sum, next, next_sum FROM logs"
POSITIONS = "SELECT grp, log, offset, sum FROM positions"
ABSENCES = "SELECT grp, away_ms, looked_ms, sum FROM absences"
TOPICS = "SELECT name, first_log, partitions, retention_ms, sum FROM topics"


def row_checksum(*fields: str | int | None) -> int:
    """Checksum of these columns of a row.

    >>> row_checksum("orders", 1, 12, None) == row_checksum("orders", 1, 13, None)
    False
    """
    return zlib.crc32(_pack(fields))


def verified_topics(
    rows: Iterable[tuple[str, int, int, int | None, int]],
) -> Iterator[tuple[str, int, int, int | None]]:
    """Topics from `TOPICS`, each compared with its checksum. Raises `Damage`."""
    for name, first_log, partitions, retention_ms, sum_ in rows:
        _compare(f"topic {name!r}", sum_, name, first_log, partitions, retention_ms)
        yield name, first_log, partitions, retention_ms


def verified_logs(rows: Iterable[tuple[int, int, int, int, int]]) -> Iterator[tuple[int, int, int]]:
    """Logs from `LOGS`: id, oldest offset and end. Raises `Damage`."""
    for log, oldest, oldest_sum, end, end_sum in rows:
        _compare(f"the beginning of log {log}", oldest_sum, log, oldest)
        check_end(log, end, end_sum)
        yield log, oldest, end


def check_end(log: int, end: int, sum_: int) -> None:
    """Compare the end of a log with its checksum. Raises `Damage`."""
    _compare(f"the end of log {log}", sum_, log, end)


def check_identity(id_: str, sum_: int) -> None:
    """Compare the id of the file's logs with its checksum. Raises `Damage`."""
    _compare("the id of its logs", sum_, "log_identity", id_)


def verified_positions(rows: Iterable[tuple[str, int, int, int]]) -> Iterator[tuple[str, int, int]]:
    """Positions from `POSITIONS`: group, log and offset. Raises `Damage`."""
    for group, log, offset, sum_ in rows:
        _compare(f"the position of group {group!r} in log {log}", sum_, group, log, offset)
        yield group, log, offset


def verified_absences(rows: Iterable[tuple[str, int, int, int]]) -> Iterator[tuple[str, int, int]]:
    """Absences from `ABSENCES`: group, for how long, and when that was looked at. Raises `Damage`."""
    for group, away_ms, looked_ms, sum_ in rows:
        _compare(f"the absence of group {group!r}", sum_, group, away_ms, looked_ms)
        yield group, away_ms, looked_ms


def read_log_bounds(connection: sqlite3.Connection, log: int) -> tuple[int, int]:
    """Oldest offset and end of a log. Raises `Damage`."""
    for _, oldest, end in verified_logs(connection.execute(f"{LOGS} WHERE id = ?", (log,))):
        return oldest, end
    raise Damage(f"log {log} is missing")


def _compare(what: str, sum_: int, *fields: str | int | None) -> None:
    if row_checksum(*fields) != sum_:
        raise Damage(f"{what} is not what was written")
