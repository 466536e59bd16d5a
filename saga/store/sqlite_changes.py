"""Changes of documents in the SQLite store's file: noted by triggers, in the transaction of whoever writes.

`watched` says for which service the changes of which collection are noted; `changes` holds them until that service has
taken them on. Documents of the toolkit itself are never looked at.

`business_documents` is the way in for programs without a library of ours: a view that can be written to. It takes JSON
objects alone, raises versions as the store does, and keeps the toolkit's marks in a document. A checksum it cannot
compute: such rows have none (`UNSUMMED`).
"""

import sqlite3
from collections.abc import Collection

from saga.changes.port import Noted
from saga.changes.records import Changed

UNSUMMED = -1
"""Checksum of a document that another program wrote; ours are never negative."""
NOW_MS = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"
_OTHERS = "{row}.collection NOT IN ('saga', 'saga-archive')"
_NOTE = (
    "INSERT INTO changes (service, collection, key, kind, cas, time_ms, before, after)"
    " SELECT service, {row}.collection, {row}.key, {kind}, {cas}, {now}, {before}, {after}"
    " FROM watched WHERE collection = {row}.collection;"
)


def _trigger(event: str, kind: str, *, row: str, cas: str, before: str, after: str) -> str:
    note = _NOTE.format(row=row, kind=kind, cas=cas, now=NOW_MS, before=before, after=after)
    name = f"note_{event.split()[0].lower()}"
    return f"CREATE TRIGGER {name} AFTER {event} ON documents WHEN {_OTHERS.format(row=row)} BEGIN {note} END"


_CHECKED = """
    SELECT RAISE(ABORT, 'collection and key are texts that are not empty, and collection is none of the toolkit''s')
     WHERE coalesce(NEW.collection, '') = '' OR coalesce(NEW.key, '') = ''
        OR NEW.collection = 'saga' OR NEW.collection LIKE 'saga-%';
    SELECT RAISE(ABORT, 'content is the text of a JSON object')
     WHERE CASE WHEN coalesce(json_valid(NEW.content), 0) THEN json_type(NEW.content) <> 'object' ELSE 1 END;"""

CHANGE_TABLES = (
    "CREATE TABLE watched (service TEXT NOT NULL, collection TEXT NOT NULL, PRIMARY KEY (collection, service))",
    """CREATE TABLE changes (
        n INTEGER PRIMARY KEY,
        service TEXT NOT NULL,
        collection TEXT NOT NULL,
        key TEXT NOT NULL,
        kind TEXT NOT NULL,
        cas INTEGER NOT NULL,
        time_ms INTEGER NOT NULL,
        before BLOB,
        after BLOB
    )""",
    "CREATE INDEX changes_of ON changes (service, n)",
    _trigger("INSERT", "'insert'", row="NEW", cas="NEW.cas", before="NULL", after="NEW.content"),
    _trigger("UPDATE OF content", "'update'", row="NEW", cas="NEW.cas", before="OLD.content", after="NEW.content"),
    _trigger(
        "DELETE",
        f"CASE WHEN OLD.expires_at_ms <= {NOW_MS} THEN 'expiry' ELSE 'delete' END",
        row="OLD",
        cas="OLD.cas",
        before="OLD.content",
        after="NULL",
    ),
    f"""CREATE VIEW business_documents AS
        SELECT collection, key, json_remove(CAST(content AS TEXT), '$._saga') AS content FROM documents
         WHERE {_OTHERS.format(row="documents")} AND collection <> '' AND json_valid(CAST(content AS TEXT))
           AND (expires_at_ms IS NULL OR expires_at_ms > {NOW_MS})""",
    f"""CREATE TRIGGER document_inserted INSTEAD OF INSERT ON business_documents BEGIN {_CHECKED}
        UPDATE removed SET cas_max = max(cas_max, coalesce((SELECT cas FROM documents
          WHERE collection = NEW.collection AND key = NEW.key AND expires_at_ms <= {NOW_MS}), 0));
        DELETE FROM documents WHERE collection = NEW.collection AND key = NEW.key AND expires_at_ms <= {NOW_MS};
        INSERT INTO documents (collection, key, cas, sum, content)
          SELECT NEW.collection, NEW.key, cas_max + 1, {UNSUMMED}, CAST(NEW.content AS BLOB) FROM removed;
        END""",
    f"""CREATE TRIGGER document_updated INSTEAD OF UPDATE ON business_documents BEGIN {_CHECKED}
        SELECT RAISE(ABORT, 'collection and key of a document stay as they are: delete it, and insert another')
         WHERE NEW.collection <> OLD.collection OR NEW.key <> OLD.key;
        UPDATE documents SET cas = cas + 1, sum = {UNSUMMED}, content = CAST(CASE
          WHEN json_type(CAST(content AS TEXT), '$._saga') IS NULL THEN NEW.content
          ELSE json_set(NEW.content, '$._saga', json_extract(CAST(content AS TEXT), '$._saga')) END AS BLOB)
         WHERE collection = OLD.collection AND key = OLD.key;
        END""",
    """CREATE TRIGGER document_deleted INSTEAD OF DELETE ON business_documents BEGIN
        UPDATE removed SET cas_max = max(cas_max, coalesce((SELECT cas FROM documents
          WHERE collection = OLD.collection AND key = OLD.key), 0));
        DELETE FROM documents WHERE collection = OLD.collection AND key = OLD.key;
        END""",
)
"""Tables of changes, the triggers that note them, and the view for other programs."""

NOTED = "SELECT n, collection, key, kind, cas, time_ms, before, after FROM changes WHERE service = ? ORDER BY n LIMIT ?"
FORGET = "DELETE FROM changes WHERE service = ? AND n <= ?"
WATCHED = "SELECT collection FROM watched WHERE service = ?"
WATCH = "INSERT INTO watched (service, collection) VALUES (?, ?)"
NO_LONGER = ("DELETE FROM watched WHERE service = ? AND collection = ?",
             "DELETE FROM changes WHERE service = ? AND collection = ?")  # fmt: skip
EXISTING = (
    "INSERT INTO changes (service, collection, key, kind, cas, time_ms, before, after)"
    f" SELECT ?, collection, key, 'insert', cas, {NOW_MS}, NULL, content FROM documents"
    f" WHERE collection = ? AND (expires_at_ms IS NULL OR expires_at_ms > {NOW_MS}) ORDER BY id"
)


def watch(connection: sqlite3.Connection, service: str, collections: Collection[str], from_beginning: bool) -> None:
    """Have changes of these collections noted for a service, and of no others; inside a transaction."""
    before = {row[0] for row in connection.execute(WATCHED, (service,))}
    for collection in sorted(before - set(collections)):
        for statement in NO_LONGER:
            connection.execute(statement, (service, collection))
    for collection in sorted(set(collections) - before):
        connection.execute(WATCH, (service, collection))
        if from_beginning:
            connection.execute(EXISTING, (service, collection))


def is_watched(connection: sqlite3.Connection, service: str, collections: Collection[str]) -> bool:
    """Return whether exactly these collections are watched for a service."""
    return {row[0] for row in connection.execute(WATCHED, (service,))} == set(collections)


def forget(connection: sqlite3.Connection, service: str, number: int) -> None:
    """Remove the changes for a service up to this one; inside a transaction."""
    connection.execute(FORGET, (service, number))


def noted(connection: sqlite3.Connection, service: str, count_max: int) -> list[Noted]:
    """Read the oldest changes for a service."""
    return [
        Noted(n, collection, Changed(kind=kind, key=key, version=cas, time_ms=time_ms, before=before, after=after))
        for n, collection, key, kind, cas, time_ms, before, after in connection.execute(NOTED, (service, count_max))
    ]
