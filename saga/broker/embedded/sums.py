"""Checksums of rows that say where records lie and how far groups have come: SQLite has none. A row that is not what
was written is damage, told like any other, and nobody acts upon it.

Each column that changes by itself has a sum of its own, with what names the row: so no write needs to know the others.
Who has a partition has none. It changes with each generation, and whoever commits is compared with it.
"""

import sqlite3
import zlib
from collections.abc import Iterable, Iterator

import msgspec

from saga.store.sqlite_files.errors import Damage

_pack = msgspec.msgpack.Encoder().encode
LOGS = "SELECT id, oldest, oldest_sum, next, next_sum FROM logs"
POSITIONS = "SELECT grp, log, offset, sum FROM positions"
ABSENCES = "SELECT grp, away_ms, looked_ms, sum FROM absences"
TOPICS = "SELECT name, first_log, partitions, retention_ms, sum FROM topics"


def row_sum(*fields: str | int | None) -> int:
    """Checksum of these columns of a row.

    >>> row_sum("orders", 1, 12, None) == row_sum("orders", 1, 13, None)
    False
    """
    return zlib.crc32(_pack(fields))


def topics_of(rows: Iterable[tuple[str, int, int, int | None, int]]) -> Iterator[tuple[str, int, int, int | None]]:
    """Topics from `TOPICS`, each compared with its checksum. Raises `Damage`."""
    for name, first_log, partitions, retention_ms, sum_ in rows:
        _compare(f"topic {name!r}", sum_, name, first_log, partitions, retention_ms)
        yield name, first_log, partitions, retention_ms


def logs_of(rows: Iterable[tuple[int, int, int, int, int]]) -> Iterator[tuple[int, int, int]]:
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


def positions_of(rows: Iterable[tuple[str, int, int, int]]) -> Iterator[tuple[str, int, int]]:
    """Positions from `POSITIONS`: group, log and offset. Raises `Damage`."""
    for group, log, offset, sum_ in rows:
        _compare(f"the position of group {group!r} in log {log}", sum_, group, log, offset)
        yield group, log, offset


def absences_of(rows: Iterable[tuple[str, int, int, int]]) -> Iterator[tuple[str, int, int]]:
    """Absences from `ABSENCES`: group, for how long, and when that was looked at. Raises `Damage`."""
    for group, away_ms, looked_ms, sum_ in rows:
        _compare(f"the absence of group {group!r}", sum_, group, away_ms, looked_ms)
        yield group, away_ms, looked_ms


def one_log(connection: sqlite3.Connection, log: int) -> tuple[int, int]:
    """Oldest offset and end of a log. Raises `Damage`."""
    for _, oldest, end in logs_of(connection.execute(f"{LOGS} WHERE id = ?", (log,))):
        return oldest, end
    raise Damage(f"log {log} is missing")


def _compare(what: str, sum_: int, *fields: str | int | None) -> None:
    if row_sum(*fields) != sum_:
        raise Damage(f"{what} is not what was written")
