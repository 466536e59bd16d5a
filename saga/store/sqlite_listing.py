"""Listing of a SQLite store's documents for tools: by key, or those first that were inserted last."""

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from saga.store.port import Document
from saga.store.sqlite_documents import checked

PAGE_KEYS = 200
"""Documents that a scan reads at a time."""
PAGE = 64
"""Documents that `newest` reads at a time: a look at the newest seldom goes far."""
ID_MAX = 2**63 - 1
SCAN = (
    "SELECT key, content, sum, cas, expires_at_ms FROM documents"
    " WHERE collection = ? AND key >= ? AND key > ? ORDER BY key LIMIT ?"
)
WHATEVER_IT_IS = (
    "key, CAST(content AS BLOB), CAST(cas AS INTEGER), CASE typeof(expires_at_ms) WHEN 'integer' THEN expires_at_ms END"
)
"""Columns of a document for those who list: what was damaged, or edited by hand, may be a text, and one that is not
UTF-8 would end the look at all others."""
NEWEST = (
    # Along the row ids, which grow: `+` keeps SQLite from going along the keys and sorting all there are.
    f"SELECT id, {WHATEVER_IT_IS} FROM documents"
    " WHERE id < ? AND +collection = ? AND key >= ? AND key < ? ORDER BY id DESC LIMIT ?"
)
KEPT = (
    # Both from indexes alone, which are a small part of the file.
    "SELECT id FROM documents WHERE collection = ? AND key >= ? AND key < ?"
    " EXCEPT SELECT id FROM documents INDEXED BY expiring WHERE expiry_hour IS NOT NULL"
)
FEW = "SELECT id FROM documents WHERE collection = ? AND key >= ? AND key < ? LIMIT ?"
FEW_MAX = 1000
"""Most documents of a prefix that are found by their keys, and not along all the rows."""
ONE = f"SELECT {WHATEVER_IT_IS} FROM documents WHERE id = ?"

Rows = Callable[[str, Sequence[object]], list[Any]]
"""Function that gives the rows of a query with these values."""


def by_key(rows: Rows, is_past: Callable[[int], bool], collection: str, prefix: str) -> Iterator[tuple[str, Document]]:
    """Read documents by key: see `scan` of `saga.store.port`. `is_past`: whether a document that expires then has
    expired. Raises `Damage` for one that is not what was written."""
    after = ""
    while page := rows(SCAN, (collection, prefix, after, PAGE_KEYS)):
        for key, content, sum_, cas, expires_at_ms in page:
            if not key.startswith(prefix):
                return
            if expires_at_ms is None or not is_past(expires_at_ms):
                yield key, Document(checked(collection, key, content, sum_), cas)
        if len(page) < PAGE_KEYS:
            return
        after = page[-1][0]


def newest(
    rows: Rows, is_past: Callable[[int], bool], collection: str, prefix: str, kept: bool
) -> Iterator[tuple[str, Document]]:
    """Read documents newest first: see `saga.store.port.NewestFirst`. `is_past`: whether a document that expires then
    has expired."""
    before, within = ID_MAX, (collection, prefix, f"{prefix}{chr(sys.maxunicode)}")
    ids = [row[0] for row in (rows(KEPT, within) if kept else rows(FEW, (*within, FEW_MAX)))]
    if kept or len(ids) < FEW_MAX:
        for id_ in sorted(ids, reverse=True):
            for key, content, cas, expires_at_ms in rows(ONE, (id_,)):
                if expires_at_ms is None or not (kept or is_past(expires_at_ms)):
                    yield key, Document(content, cas)
        return
    while page := rows(NEWEST, (before, *within, PAGE)):
        for _, key, content, cas, expires_at_ms in page:
            if expires_at_ms is None or not is_past(expires_at_ms):
                yield key, Document(content, cas)
        before = page[-1][0]
