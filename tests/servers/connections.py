"""Connections that a mock still has: clients may be gone while it still reads requests of theirs."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from saga.testing.servers.couchbase import CouchbaseMock
from tests import waiting

LOOK_S = 0.002
LISTENS = "0A"
"""State of a socket in Linux's tables of TCP (`proc_net_tcp`)."""


def count_connections(mock: CouchbaseMock) -> int:
    """How many it has open, and so may still read requests from, though their clients are gone: it closes one once it
    has handled all that came by it."""
    proc = Path(f"/proc/{mock.pid}")
    others = [_inodes(proc / "net/unix", 6)]
    others += [_inodes(proc / "net" / table, 9, lambda row: row[3] == LISTENS) for table in ("tcp", "tcp6")]
    return len(_sockets(proc / "fd").difference(*others))


def wait_until_left(mock: CouchbaseMock, within_s: float) -> None:
    """Return when nothing that a client sent can change it any more, whether that client still waits or not."""
    waiting.until(
        lambda: not count_connections(mock),
        within_s,
        lambda: f"the mock still has {count_connections(mock)} connections: a store was left open",
        pause_s=LOOK_S,
    )


def _sockets(fds: Path) -> set[str]:
    """Inodes of the sockets among the files that a process has open."""
    found: set[str] = set()
    for fd in fds.iterdir():
        with suppress(FileNotFoundError):  # closed just now
            kind, _, inode = os.readlink(fd).partition(":")
            if kind == "socket":
                found.add(inode.strip("[]"))
    return found


def _inodes(table: Path, column: int, wanted: Callable[[list[str]], bool] = lambda _: True) -> set[str]:
    """Inodes of the sockets in one of the system's tables, which has them in that column."""
    rows = [line.split() for line in table.read_text().splitlines()[1:]]
    return {row[column] for row in rows if wanted(row)}
