"""Measure the limit: a plain loop over the same SQLite files, with the same bytes, tables and fsyncs, but without the
toolkit."""

import sqlite3
import time
from pathlib import Path

from saga.store.sqlite.connection import as_blob
from saga.store.sqlite.store import WRITES_MAX

INSERT = (
    "INSERT INTO documents (collection, key, cas, expires_at_ms, expiry_hour, sum, content)"
    " VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (collection, key) DO NOTHING"
)


def loop(folder: Path, messages: int) -> tuple[float, float]:
    """Read the messages in the log, and write the same documents and answers as the toolkit, in batches of the same
    size. Return the wall time and the CPU time in seconds.

    `folder`: folder with the files of a run of the toolkit.
    """
    with sqlite3.connect(folder / "broker.db") as broker:
        logs = {
            topic: [first + number for number in range(partitions)]
            for topic, first, partitions in broker.execute("SELECT name, first_log, partitions FROM topics")
        }
        answers = [
            (log, broker.execute(f"SELECT offset, key, value, headers, time_ms, sum FROM log_{log}").fetchall())
            for log in logs["pongs"]
        ]
        schema = broker.execute("SELECT sql FROM sqlite_master WHERE sql LIKE 'CREATE TABLE log_%'").fetchall()
    with sqlite3.connect(folder / "echo.db") as store:
        documents = store.execute(
            "SELECT collection, key, cas, expires_at_ms, expiry_hour, sum, content FROM documents"
            " WHERE collection = 'saga' ORDER BY id"  # leaves out the documents about the service itself
        ).fetchall()
        tables = store.execute(
            "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%'"
        ).fetchall()
    rows = [(log, _bound(row)) for log, of_log in answers for row in of_log]
    documents = [_bound(document) for document in documents]
    assert len(rows) == len(documents) == messages
    asked = sqlite3.connect(folder / "broker.db", isolation_level=None)
    log_file = _made(folder / "raw-broker.db", [*schema, ("CREATE TABLE positions (log INTEGER PRIMARY KEY, next)",)])
    doc_file = _made(folder / "raw-store.db", tables)
    wall, cpu, done = time.perf_counter(), time.process_time(), 0
    for log in logs["pings"]:
        position = 0
        while True:
            query = (
                f"SELECT offset, key, value, headers, time_ms, sum FROM log_{log}"
                " WHERE offset >= ? ORDER BY offset LIMIT ?"
            )
            found = asked.execute(query, (position, WRITES_MAX)).fetchall()
            if not found:
                break
            position = found[-1][0] + 1
            doc_file.execute("BEGIN IMMEDIATE")
            doc_file.executemany(INSERT, documents[done : done + len(found)])
            doc_file.execute("COMMIT")
            log_file.execute("BEGIN IMMEDIATE")
            cursor = log_file.cursor()
            for to, row in rows[done : done + len(found)]:
                cursor.execute(f"INSERT INTO log_{to} VALUES (?, ?, ?, ?, ?, ?)", row)
            log_file.execute("INSERT OR REPLACE INTO positions VALUES (?, ?)", (log, position))
            log_file.execute("COMMIT")
            done += len(found)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    assert done == messages
    for connection in (asked, log_file, doc_file):
        connection.close()
    return wall, cpu


def _bound(row: tuple[object, ...]) -> tuple[object, ...]:
    """Return the row with blobs of the type that SQLite binds fastest, as the toolkit does."""
    return tuple(as_blob(value) if isinstance(value, bytes) else value for value in row)


def _made(path: Path, tables: list[tuple[str]]) -> sqlite3.Connection:
    """Create a file with these tables, which is as durable as the files of the toolkit."""
    connection = sqlite3.connect(path, isolation_level=None, cached_statements=1024)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    for (statement,) in tables:
        connection.execute(statement)
    return connection
