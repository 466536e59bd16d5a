"""The documents in the SQLite store's file, inside one transaction: each write, and purging what has expired."""

import sqlite3
from pathlib import Path

from saga.errors import Conflict, Exists, StoreError
from saga.store import sqlite_file
from saga.store.steady import Moment

EXPIRY_S_MAX = 1000 * 365 * 86_400.0
"""A document may stay for so long at most, 1000 years, if it is to go at all."""

INSERT = (
    "INSERT INTO documents (collection, key, cas, expires_at_ms, expiry_hour, content) VALUES (?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (collection, key) DO NOTHING"
)
LIVE = "collection = ? AND key = ? AND cas = ? AND (expires_at_ms IS NULL OR expires_at_ms > ?)"
REPLACE = f"UPDATE documents SET content = ?, cas = ?, expires_at_ms = ?, expiry_hour = ? WHERE {LIVE}"
REPLACE_IN_HOUR = f"UPDATE documents SET content = ?, cas = ?, expires_at_ms = ? WHERE {LIVE} AND expiry_hour IS ?"
REPLACE_CONTENT = f"UPDATE documents SET content = ?, cas = ? WHERE {LIVE}"
REMOVE = f"DELETE FROM documents WHERE {LIVE}"
EXPIRED = "SELECT id, cas FROM documents WHERE expiry_hour < ? LIMIT ?"
EXPIRED_HERE = "SELECT id, cas FROM documents WHERE collection = ? AND key = ? AND expires_at_ms <= ?"


class Documents:
    """One for each transaction. Its methods raise what the caller of the write is to be told."""

    __slots__ = ("_cas_removed", "_connection", "_moment", "_path")

    def __init__(self, connection: sqlite3.Connection, path: Path, moment: Moment) -> None:
        self._connection, self._path, self._moment = connection, path, moment
        self._cas_removed: int | None = None
        """What the file says of removed versions, once it has been read."""

    def insert(self, collection: str, key: str, content: bytes, expiry_s: float | None) -> int:
        expires_at_ms, hour = self._expiry(expiry_s)
        if self._cas_removed is None:
            self._cas_removed = sqlite_file.cas_removed(self._connection)
        cas = self._cas_removed + 1
        row = (collection, key, cas, expires_at_ms, hour, content)
        if self._connection.execute(INSERT, row).rowcount == 1:
            return cas
        here = (collection, key, self._moment.earliest_ms)
        expired = self._connection.execute(EXPIRED_HERE, here).fetchall()
        if not expired:
            raise Exists(f"there is a document {key!r} in {collection!r} of {self._path} already")
        self._cas_removed = None
        sqlite_file.remove_rows(self._connection, expired)
        return self.insert(collection, key, content, expiry_s)

    def replace(self, collection: str, key: str, content: bytes, cas: int, expiry_s: float | None) -> int:
        expires_at_ms, hour = self._expiry(expiry_s)
        which = (collection, key, cas, self._moment.earliest_ms)
        execute = self._connection.execute
        # Setting the hour rewrites its index, which costs another page; most writes find the hour as it should be.
        if execute(REPLACE_IN_HOUR, (content, cas + 1, expires_at_ms, *which, hour)).rowcount == 1:
            return cas + 1
        if execute(REPLACE, (content, cas + 1, expires_at_ms, hour, *which)).rowcount == 1:
            return cas + 1
        raise self._conflict("replaced", collection, key, cas)

    def replace_content(self, collection: str, key: str, content: bytes, cas: int) -> int:
        which = (collection, key, cas, self._moment.earliest_ms)
        if self._connection.execute(REPLACE_CONTENT, (content, cas + 1, *which)).rowcount == 1:
            return cas + 1
        raise self._conflict("replaced", collection, key, cas)

    def remove(self, collection: str, key: str, cas: int) -> int:
        which = (collection, key, cas, self._moment.earliest_ms)
        if self._connection.execute(REMOVE, which).rowcount == 1:
            self._cas_removed = None
            sqlite_file.note_removed(self._connection, cas)
            return cas
        raise self._conflict("removed", collection, key, cas)

    def purge(self, count_max: int) -> bool:
        """Remove some of what has expired; whether that was all."""
        hour = self._moment.earliest_ms // sqlite_file.HOUR_MS
        expired = self._connection.execute(EXPIRED, (hour, count_max)).fetchall()
        if expired:
            sqlite_file.remove_rows(self._connection, expired)
        return len(expired) < count_max

    def _expiry(self, expiry_s: float | None) -> tuple[int | None, int | None]:
        """When it expires, and the hour after which it is looked for to be purged."""
        if expiry_s is None:
            return None, None
        if not 0 <= expiry_s <= EXPIRY_S_MAX:
            raise StoreError(f"an expiry of {expiry_s} s cannot be kept; from 0 to {EXPIRY_S_MAX:.0f} s can")
        expires_at_ms = self._moment.latest_ms + round(expiry_s * 1000)
        return expires_at_ms, expires_at_ms // sqlite_file.HOUR_MS

    def _conflict(self, verb: str, collection: str, key: str, cas: int) -> Conflict:
        return Conflict(
            f"document {key!r} in {collection!r} of {self._path} was not {verb}: version {cas} is no longer there; "
            "read it again"
        )
