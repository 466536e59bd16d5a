"""File of the broker: its tables, what makes it ours, and which errors tell of it."""

import sqlite3

from saga.broker.embedded import sums
from saga.errors import BrokerBroken, BrokerError, BrokerUnavailable
from saga.store.sqlite_files.errors import Damage
from saga.store.sqlite_files.purpose import OwnerErrors, Purpose

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
    for _ in (*sums.topics_of(connection.execute(sums.TOPICS)), *sums.positions_of(connection.execute(sums.POSITIONS))):
        pass
    for log, oldest, end in list(sums.logs_of(connection.execute(sums.LOGS))):
        found = connection.execute(f"SELECT count(*), min(offset), max(offset) FROM log_{log}").fetchone()
        if found != ((end - oldest, oldest, end - 1) if end > oldest else (0, None, None)):
            raise Damage(f"log {log} is to hold the records from {oldest} to {end - 1}, and holds others")
    beyond = connection.execute(
        "SELECT p.grp, p.log FROM positions p LEFT JOIN logs l ON l.id = p.log WHERE l.id IS NULL OR p.offset > l.next"
        " OR p.offset < 0"
    ).fetchone()
    if beyond is not None:
        raise Damage(f"the position of group {beyond[0]!r} in log {beyond[1]} is none")


PURPOSE = Purpose(
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
