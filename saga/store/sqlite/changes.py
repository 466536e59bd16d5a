"""Change data capture of the SQLite store: triggers record changes in the transaction of the program that writes.

`read_watched` lists which collections are recorded for which service. `changes` keeps a recorded change until that
service has published it. Documents of the toolkit itself are never recorded.

`business_documents` is the way in for programs without a library of ours: a view that can be written to. It takes JSON
objects alone, raises versions as the store does, and keeps the toolkit's marks in a document. A checksum it cannot
compute: such rows have none (`UNSUMMED`).

SQLite lets the conflict clause of a statement on a view override those inside the view's trigger: under INSERT OR
REPLACE every INSERT in there removes the row that is in its way, without running the trigger that notes a removal. So a
document is never inserted over another one: the trigger first inserts into `existing_documents`, whose one row is
always in the way. A plain INSERT fails there, OR IGNORE leaves the row as it is, and OR REPLACE marks it, which the
trigger takes for an update.
"""

import sqlite3
from collections.abc import Collection
from typing import Any

from saga.changes.port import RecordedChange
from saga.changes.records import KEY_BYTES_MAX, DocumentChange

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


_OBJECT = """
    SELECT RAISE(ABORT, 'content is the text of a JSON object')
     WHERE CASE WHEN coalesce(json_valid(NEW.content), 0) THEN json_type(NEW.content) <> 'object' ELSE 1 END;"""
_IS_UTF8 = """NOT EXISTS (
        WITH RECURSIVE places (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM places WHERE i < length({text}))
        SELECT 1 FROM places WHERE char(unicode(substr({text}, i, 1))) <> substr({text}, i, 1)
           AND hex(substr({text}, i, 1)) NOT IN ('EFBFBE', 'EFBFBF'))"""
"""Condition that a text, up to its first NUL, is UTF-8: a driver may hand over any bytes as a text. The two characters
named are what SQLite's `unicode` does not give back."""
_NAMED = f"""
    SELECT RAISE(ABORT, 'collection and key are texts that are not empty, and collection is none of the toolkit''s')
     WHERE coalesce(NEW.collection, '') = '' OR coalesce(NEW.key, '') = ''
        OR typeof(NEW.collection) = 'blob' OR typeof(NEW.key) = 'blob'
        OR NEW.collection = 'saga' OR NEW.collection LIKE 'saga-%';
    SELECT RAISE(ABORT, 'collection and key have {KEY_BYTES_MAX} bytes at most')
     WHERE length(CAST(NEW.collection AS BLOB)) > {KEY_BYTES_MAX} OR length(CAST(NEW.key AS BLOB)) > {KEY_BYTES_MAX};
    SELECT RAISE(ABORT, 'collection and key are texts in UTF-8')
     WHERE NOT ({_IS_UTF8.format(text="NEW.collection")} AND {_IS_UTF8.format(text="NEW.key")});"""
_WRITTEN = f"""cas = cas + 1, sum = {UNSUMMED}, content = CAST(CASE
          WHEN json_type(CAST(content AS TEXT), '$._saga') IS NULL THEN NEW.content
          ELSE json_set(NEW.content, '$._saga', json_extract(CAST(content AS TEXT), '$._saga')) END AS BLOB)"""

CHANGE_TABLES = (
    "CREATE TABLE watched (service TEXT NOT NULL, collection TEXT NOT NULL, PRIMARY KEY (collection, service))",
    """CREATE TABLE changes (
        n INTEGER PRIMARY KEY AUTOINCREMENT,
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
    "CREATE TABLE existing_documents (key TEXT NOT NULL UNIQUE, replaced INTEGER NOT NULL)",
    "INSERT INTO existing_documents VALUES ('key', 0)",
    f"""CREATE TRIGGER document_inserted INSTEAD OF INSERT ON business_documents BEGIN {_NAMED} {_OBJECT}
        UPDATE removed SET cas_max = max(cas_max, coalesce((SELECT cas FROM documents
          WHERE collection = NEW.collection AND key = NEW.key AND expires_at_ms <= {NOW_MS}), 0));
        DELETE FROM documents WHERE collection = NEW.collection AND key = NEW.key AND expires_at_ms <= {NOW_MS};
        INSERT INTO existing_documents
          SELECT 'key', 1 FROM documents WHERE collection = NEW.collection AND key = NEW.key;
        UPDATE documents SET {_WRITTEN}
         WHERE collection = NEW.collection AND key = NEW.key AND (SELECT replaced FROM existing_documents);
        UPDATE existing_documents SET replaced = 0 WHERE replaced;
        INSERT INTO documents (collection, key, cas, sum, content)
          SELECT NEW.collection, NEW.key, cas_max + 1, {UNSUMMED}, CAST(NEW.content AS BLOB) FROM removed
           WHERE NOT EXISTS (SELECT 1 FROM documents WHERE collection = NEW.collection AND key = NEW.key);
        END""",
    f"""CREATE TRIGGER document_updated INSTEAD OF UPDATE ON business_documents BEGIN {_OBJECT}
        SELECT RAISE(ABORT, 'collection and key of a document stay as they are: delete it, and insert another')
         WHERE NEW.collection IS NOT OLD.collection OR NEW.key IS NOT OLD.key;
        UPDATE documents SET {_WRITTEN}
         WHERE collection = OLD.collection AND key = OLD.key;
        END""",
    """CREATE TRIGGER document_deleted INSTEAD OF DELETE ON business_documents BEGIN
        UPDATE removed SET cas_max = max(cas_max, coalesce((SELECT cas FROM documents
          WHERE collection = OLD.collection AND key = OLD.key), 0));
        DELETE FROM documents WHERE collection = OLD.collection AND key = OLD.key;
        END""",
)
"""Tables of changes, the triggers that note them, and the view for other programs."""

NOTED = (
    # A row of before may hold anything, and a text that is not UTF-8 would end the look at all others.
    "SELECT n, CAST(collection AS BLOB), CAST(key AS BLOB), kind, cas, time_ms, CAST(before AS BLOB),"
    " CAST(after AS BLOB) FROM changes WHERE service = ? ORDER BY n LIMIT ?"
)
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
    """Have changes of these collections noted for a service, beside those that are noted already; inside a
    transaction."""
    for collection in sorted(set(collections) - read_watched(connection, service)):
        connection.execute(WATCH, (service, collection))
        if from_beginning:
            connection.execute(EXISTING, (service, collection))


def unwatch(connection: sqlite3.Connection, service: str, collections: Collection[str]) -> None:
    """Have changes of these collections noted for a service no more, and drop what is noted; inside a transaction."""
    for collection in collections:
        for statement in NO_LONGER:
            connection.execute(statement, (service, collection))


def read_watched(connection: sqlite3.Connection, service: str) -> set[str]:
    """Collections of which changes are noted for a service."""
    return {row[0] for row in connection.execute(WATCHED, (service,))}


def forget(connection: sqlite3.Connection, service: str, number: int) -> None:
    """Remove the changes for a service up to this one; inside a transaction."""
    connection.execute(FORGET, (service, number))


def read_changes(connection: sqlite3.Connection, service: str, count_max: int) -> list[RecordedChange]:
    """Read the oldest changes for a service."""
    return [_noted(row) for row in connection.execute(NOTED, (service, count_max))]


def _noted(row: tuple[Any, ...]) -> RecordedChange:
    n, collection, key, kind, cas, time_ms, before, after = row
    problem = None
    try:
        name = key.decode()
    except UnicodeDecodeError as why:
        name, problem = key.decode(errors="backslashreplace"), f"its key is no text in UTF-8: {why}"
    changed = DocumentChange(
        kind=kind, key=name, version=cas, time_ms=time_ms, before=before, after=after, refused=problem
    )
    return RecordedChange(n, collection.decode(errors="backslashreplace"), changed)
