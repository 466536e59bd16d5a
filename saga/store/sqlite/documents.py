"""Documents in the file of the SQLite store: its tables, the writes inside a transaction, and purging of expired
documents.

Each row has a checksum of its key and content, because SQLite has none. So the store notices if a disk returns other
bytes than were written, and no saga continues with them. Documents that other programs write have no checksum
(`UNSUMMED`).

Versions: a replacement raises a document's `cas` by one. An insertion begins above every `cas` that was ever removed
from this file (table `removed`, one row). So a `cas` is never reused for a key, and only removals need an additional
write.

The table is a plain table with an index. It is 40 % faster than a table WITHOUT ROWID, whose rows overflow when they
fill a quarter of a page. The content is the last column, so that other columns are found without reading it.
"""

import sqlite3
import zlib
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from saga import errors
from saga.change import KEY_BYTES_MAX, DocumentChange, RecordedChange
from saga.messaging.names import is_reserved_collection
from saga.store.sqlite.connection import PAGE_BYTES, as_blob, shrink
from saga.store.sqlite.errors import Damage, OwnerErrors, StateFileSpec
from saga.store.sqlite.steady_time import SteadyTime, TimeNote, decode_note

# ---------------------------------------------------------------- changes
#
# Change data capture: triggers record changes in the transaction of the program that writes. `read_watched` returns the
# collections that are recorded for a service. `read_changes` returns their changes until the service has published
# them. Documents of the toolkit itself are never recorded.
#
# `business_documents` is a view to which programs without a library of the toolkit can write. It accepts only
# JSON objects, raises versions as the store does, and keeps the toolkit's markers in a document. It cannot compute a
# checksum, so such rows have none (`UNSUMMED`).
#
# In SQLite the conflict clause of a statement on a view overrides the conflict clauses in the view's trigger. Under
# INSERT OR REPLACE every INSERT in the trigger removes the row with the same key, without running the trigger that
# records a removal. So a document is never inserted over another one. Instead the trigger first inserts into
# `existing_documents`, which has one row that always conflicts. A plain INSERT fails there, OR IGNORE leaves the row
# unchanged, and OR REPLACE marks it, which the trigger treats as an update.


UNSUMMED = -1
"""Value instead of a checksum, for a document that another program wrote. Real checksums are never negative."""
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
"""Condition that a string, up to its first NUL, is valid UTF-8. A driver may pass any bytes as text.

SQLite's `unicode` function returns all valid characters unchanged, except the two that are listed.
"""
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
"""Tables of recorded changes, the triggers that record them, and the view for other programs."""

NOTED = (
    # An older row may contain anything, and a string that is not UTF-8 would make the whole query fail.
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
    """Start to record changes of these collections for a service. Must be called inside a transaction. Collections that
    are already watched stay watched."""
    for collection in sorted(set(collections) - read_watched(connection, service)):
        connection.execute(WATCH, (service, collection))
        if from_beginning:
            connection.execute(EXISTING, (service, collection))


def unwatch(connection: sqlite3.Connection, service: str, collections: Collection[str]) -> None:
    """Stop recording changes of these collections for a service, and remove the recorded changes. Must be called inside
    a transaction."""
    for collection in collections:
        for statement in NO_LONGER:
            connection.execute(statement, (service, collection))


def read_watched(connection: sqlite3.Connection, service: str) -> set[str]:
    """Return the collections whose changes are recorded for a service."""
    return {row[0] for row in connection.execute(WATCHED, (service,))}


def forget(connection: sqlite3.Connection, service: str, number: int) -> None:
    """Remove the recorded changes for a service up to and including `number`. Must be called inside a transaction."""
    connection.execute(FORGET, (service, number))


def read_changes(connection: sqlite3.Connection, service: str, count_max: int) -> list[RecordedChange]:
    """Return the oldest `count_max` recorded changes for a service."""
    return [_to_change(row) for row in connection.execute(NOTED, (service, count_max))]


def _to_change(row: tuple[Any, ...]) -> RecordedChange:
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


# ---------------------------------------------------------------- documents


HOUR_MS = 3_600_000
"""Precision of the index of expiry times, in milliseconds: purging finds expired documents by the hour. Whether a
document has expired is decided to the millisecond."""
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
    *CHANGE_TABLES,
)
PROBE = (
    "INSERT INTO documents (collection, key, cas, sum, content)"  # real documents have non-empty names
    f" VALUES ('', '', 0, 0, zeroblob({4 * PAGE_BYTES}))",
    "DELETE FROM documents WHERE collection = '' AND key = ''",
)
PURPOSE = StateFileSpec(
    name="store",
    setting="SAGA_STORE",
    application=0x53414753,  # SAGS
    format=4,
    tables=TABLES,
    tables_are_all=True,
    probe=PROBE,
    errors=OwnerErrors(
        broken=errors.StoreBroken,
        unavailable=errors.StoreUnavailable,
        ambiguous=errors.Ambiguous,
        defect=errors.StoreUnavailable,
        too_large=errors.TooLarge,
        unfit=lambda problem: errors.ConfigurationError("The store cannot be used", [problem]),
        foreign=lambda problem: errors.NotAStore("The store cannot be used", [problem]),
        closed_to_us=lambda problem: errors.ConfigurationError("The store cannot be opened", [problem]),
    ),
)


def read_cas_removed(connection: sqlite3.Connection) -> int:
    """Return the highest `cas` of all removed documents."""
    cas_max: int = connection.execute("SELECT cas_max FROM removed").fetchone()[0]
    return cas_max


def read_time_note(connection: sqlite3.Connection) -> TimeNote | None:
    """Return the time that the last process has stored in the file; `None` in a new file."""
    found = connection.execute(READ_TIME, TIME_AT).fetchone()
    return None if found is None else decode_note(found[0])


def record_removed(connection: sqlite3.Connection, cas: int) -> None:
    """Record the version of a removed document, so that later insertions start above `cas`."""
    connection.execute("UPDATE removed SET cas_max = ? WHERE cas_max < ?", (cas, cas))


def remove_rows(connection: sqlite3.Connection, rows: Iterable[tuple[int, int]]) -> None:
    """Remove documents, given as (id, cas)."""
    rows = list(rows)
    connection.executemany("DELETE FROM documents WHERE id = ?", [(id_,) for id_, _ in rows])
    record_removed(connection, max(cas for _, cas in rows))


EXPIRY_S_MAX = 1000 * 365 * 86_400.0
"""Longest expiry, in seconds: 1000 years."""
PURGE_EVERY_MS = 60_000
"""Pause between searches for expired documents once a search has found no more of them, in milliseconds."""
INSERT = (
    "INSERT INTO documents (collection, key, cas, expires_at_ms, expiry_hour, sum, content)"
    " VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (collection, key) DO NOTHING"
)
LIVE = "collection = ? AND key = ? AND cas = ? AND (expires_at_ms IS NULL OR expires_at_ms > ?)"
REPLACE = f"UPDATE documents SET content = ?, sum = ?, cas = ?, expires_at_ms = ?, expiry_hour = ? WHERE {LIVE}"
REPLACE_IN_HOUR = (
    f"UPDATE documents SET content = ?, sum = ?, cas = ?, expires_at_ms = ? WHERE {LIVE} AND expiry_hour IS ?"
)
REPLACE_CONTENT = f"UPDATE documents SET content = ?, sum = ?, cas = ? WHERE {LIVE}"
REMOVE = f"DELETE FROM documents WHERE {LIVE}"
EXPIRED = "SELECT id, cas FROM documents WHERE expiry_hour < ? LIMIT ?"
EXPIRED_HERE = "SELECT id, cas FROM documents WHERE collection = ? AND key = ? AND expires_at_ms <= ?"
CAS = "SELECT cas FROM documents WHERE collection = ? AND key = ?"
TIME_AT = "", "time"
"""Collection and key of the row that stores the last process's `TimeNote`. No document has an empty collection, so the
row needs no table of its own, which files of earlier releases would lack."""
READ_TIME = "SELECT CAST(content AS BLOB) FROM documents WHERE collection = ? AND key = ?"
WRITE_TIME = (
    "INSERT INTO documents (collection, key, cas, sum, content) VALUES (?, ?, 1, ?, ?)"
    " ON CONFLICT (collection, key) DO UPDATE SET cas = cas + 1, sum = excluded.sum, content = excluded.content"
)


class DocumentWriter:
    """Writer of documents, for one group commit at a time: see `saga.store.sqlite.writer.TransactionHooks`.

    The writes raise the errors that the store's callers receive.
    """

    __slots__ = (
        "_cas_removed",
        "_connection",
        "_execute",
        "_last",
        "_moment",
        "_path",
        "_purge_at_ms",
        "_time",
    )

    def __init__(self, path: Path, time: SteadyTime) -> None:
        self._path, self._time = path, time
        self._purge_at_ms = 0

    # ---------------------------------------------------------------- around a transaction

    def begin(self, connection: sqlite3.Connection) -> None:
        self._connection, self._moment = connection, self._time.look()
        self._execute = connection.cursor().execute
        """Function that runs statements of this transaction. Creating a cursor for each statement would take as long as
        the statement."""
        self._cas_removed: int | None = None
        """Highest `cas` of a removed document in the file, once it has been read."""
        self._last: tuple[str, str, int, bool] | None = None
        """Collection and key of the last write, the version that it wrote or removed, and whether it was a removal."""

    def finish(self, changes: int) -> None:
        """Remove some expired documents: at most twice as many as there were writes in this transaction.

        So expired documents do not accumulate, and removing them costs little. When none are left, the file is shrunk.
        """
        if changes and (note := self._time.make_note()) is not None:
            self._execute(WRITE_TIME, (*TIME_AT, checksum(*TIME_AT, note), as_blob(note)))
        now_ms, at_ms = self._moment.earliest_ms, self._purge_at_ms
        if at_ms - PURGE_EVERY_MS <= now_ms < at_ms:  # otherwise the pause is over, or the clock was set back
            return
        if self._purge(2 * changes) and not shrink(self._connection):
            self._purge_at_ms = now_ms + PURGE_EVERY_MS

    def on_commit(self) -> bytes | None:
        if self._last is None:
            return None
        collection, key, cas, removed = self._last
        return f"{cas} {removed:d} {collection}\0{key}".encode()

    def on_rollback(self) -> None:
        """Do nothing, because no state is kept between transactions."""

    def announce(self) -> None:
        """Do nothing, because no task waits for new documents."""

    # ---------------------------------------------------------------- writes

    def insert(self, collection: str, key: str, content: bytes, expiry_s: float | None) -> int:
        expires_at_ms, hour = (None, None) if expiry_s is None else self._expiry(expiry_s)
        if self._cas_removed is None:
            self._cas_removed = read_cas_removed(self._connection)
        cas = self._cas_removed + 1
        row = (collection, key, cas, expires_at_ms, hour, checksum(collection, key, content), as_blob(content))
        if self._execute(INSERT, row).rowcount == 1:
            self._last = (collection, key, cas, False)
            return cas
        here = (collection, key, self._moment.earliest_ms)
        expired = self._execute(EXPIRED_HERE, here).fetchall()
        if not expired:
            raise errors.Exists(f"there is a document {key!r} in {collection!r} of {self._path} already")
        self._cas_removed = None
        remove_rows(self._connection, expired)
        return self.insert(collection, key, content, expiry_s)

    def replace(self, collection: str, key: str, content: bytes, cas: int, expiry_s: float | None) -> int:
        expires_at_ms, hour = (None, None) if expiry_s is None else self._expiry(expiry_s)
        blob, sum_, now_ms = as_blob(content), checksum(collection, key, content), self._moment.earliest_ms
        # Changing the hour changes its index, which writes another page; in most writes the hour stays the same.
        in_hour = (blob, sum_, cas + 1, expires_at_ms, collection, key, cas, now_ms, hour)
        if not self._execute(REPLACE_IN_HOUR, in_hour).rowcount:
            row = (blob, sum_, cas + 1, expires_at_ms, hour, collection, key, cas, now_ms)
            if not self._execute(REPLACE, row).rowcount:
                raise self._conflict("replaced", collection, key, cas)
        self._last = (collection, key, cas + 1, False)
        return cas + 1

    def replace_content(self, collection: str, key: str, content: bytes, cas: int) -> int:
        which = (collection, key, cas, self._moment.earliest_ms)
        new = (as_blob(content), checksum(collection, key, content), cas + 1)
        if self._execute(REPLACE_CONTENT, (*new, *which)).rowcount != 1:
            raise self._conflict("replaced", collection, key, cas)
        self._last = (collection, key, cas + 1, False)
        return cas + 1

    def remove(self, collection: str, key: str, cas: int) -> int:
        which = (collection, key, cas, self._moment.earliest_ms)
        if self._execute(REMOVE, which).rowcount == 1:
            self._cas_removed = None
            record_removed(self._connection, cas)
            self._last = (collection, key, cas, True)
            return cas
        raise self._conflict("removed", collection, key, cas)

    def _purge(self, count_max: int) -> bool:
        """Remove at most `count_max` expired documents. Return whether none are left."""
        hour = self._moment.earliest_ms // HOUR_MS
        expired = self._execute(EXPIRED, (hour, count_max)).fetchall()
        if expired:
            remove_rows(self._connection, expired)
        return len(expired) < count_max

    def _expiry(self, expiry_s: float) -> tuple[int, int]:
        """Return the expiry in milliseconds since 1970, and the hour after which the document may be purged."""
        if not 0 <= expiry_s <= EXPIRY_S_MAX:
            raise errors.StoreError(f"an expiry of {expiry_s} s cannot be kept; from 0 to {EXPIRY_S_MAX:.0f} s can")
        expires_at_ms = self._moment.latest_ms + round(expiry_s * 1000)
        return expires_at_ms, expires_at_ms // HOUR_MS

    def _conflict(self, verb: str, collection: str, key: str, cas: int) -> errors.Conflict:
        return errors.Conflict(
            f"document {key!r} in {collection!r} of {self._path} was not {verb}: version {cas} is no longer there; "
            "read it again"
        )


def find_missing_write(connection: sqlite3.Connection, mark: bytes) -> str | None:
    """Describe the acknowledged write that is missing from the file; return `None` if none is missing.

    It is enough to check the last write, because versions only grow and versions of removed documents are recorded.
    """
    version, removed, where = mark.decode().split(" ", 2)
    collection, _, key = where.partition("\0")
    cas, row = int(version), connection.execute(CAS, (collection, key)).fetchone()
    is_there = read_cas_removed(connection) >= cas if row is None else row[0] >= cas + (removed == "1")
    return None if is_there else f"document {key!r} in {collection!r}, version {version}"


def checksum(collection: str, key: str, content: bytes) -> int:
    """Return the checksum of a document's key and content."""
    return zlib.crc32(f"{collection}\0{key}".encode() + content)


def verify_content(collection: str, key: str, content: bytes, sum_: int) -> bytes:
    """Return the content of a row after checking it. Raises `Damage` if it differs from what was written."""
    is_summed = sum_ != UNSUMMED or is_reserved_collection(
        collection
    )  # other programs must not write collections of the toolkit
    if type(content) is not bytes or (is_summed and checksum(collection, key, content) != sum_):
        raise Damage(f"the document {key!r} in {collection!r} is not what was written")
    return content
