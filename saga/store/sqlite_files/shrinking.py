"""Shrinking of state files: pages that are free at the end of a file go back to the file system, a few at a time."""

import sqlite3

FREE_PAGES_MIN = 1024
"""Free pages (4 MB) that a file always keeps: they are used again, and to grow costs more than to keep them."""
FREE_SHARE = 4
"""Part of a file that may be free, as one in so many, before it shrinks."""
PAGES_MAX = 64
"""Most pages that one transaction gives back: each may have to be moved first."""


def shrink(connection: sqlite3.Connection) -> bool:
    """Give back some free pages, inside a transaction, if too much of the file is free; true if there may be more to
    give back."""
    free = _free(connection)
    if free <= max(FREE_PAGES_MIN, connection.execute("PRAGMA page_count").fetchone()[0] // FREE_SHARE):
        return False
    for _ in range(PAGES_MAX):  # the driver steps such a statement once, and each step gives back one page
        connection.execute("PRAGMA incremental_vacuum(1)")
    return _free(connection) < free


def _free(connection: sqlite3.Connection) -> int:
    count: int = connection.execute("PRAGMA freelist_count").fetchone()[0]
    return count
