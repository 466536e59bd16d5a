"""Check that the file below an open connection is still the one of its name, and as new as what was written to it; and
rescue of what it held when it is not: a copy, and what people are to do."""

import os
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from ctypes import py_object, pythonapi
from pathlib import Path
from typing import TypeAlias

from saga.store.sqlite_files.opening import make_file, make_folder
from saga.store.sqlite_files.purpose import Purpose
from saga.store.sqlite_files.tampering import CONDEMNED, StateFile, identity, next_generation, noted
from saga.support.clock import Clock


def rescued(path: Path, execute: Callable[[str, tuple[str]], object]) -> str:
    """Save what an open connection sees of a file that has lost its name, beside it; return what to tell about it.

    `execute` is the connection's. Nobody else has what it sees, and it is gone when this process ends.
    """
    copy = path.with_name(f"{path.name}.rescued-{os.getpid()}")
    while copy.exists():
        copy = copy.with_name(f"{copy.name}-2")
    try:
        make_folder(path.parent)
        make_file(copy)
        execute("VACUUM INTO ?", (str(copy),))
        file = os.open(copy, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(file)
        finally:
            os.close(file)
    except Exception as why:  # noqa: BLE001 - whatever it is: the error to be told must not be lost over it
        return f"what was acknowledged before could not be saved ({why}): it is in the old file, if that still exists"
    return (
        f"all that was acknowledged before is saved in {copy}: put that in the place of {path}, with no "
        f"{path.name}-wal and -shm beside it, or move it elsewhere to go on with what lies there now; then start again"
    )


def left(path: Path, lock: int) -> str | None:
    """Trouble that a process found which had this file open, and that a person has to decide about before it is used
    again; `None` if there is nothing. `lock`: the descriptor of `<path>.lock`. Raises `OSError`."""
    copies = sorted(path.parent.glob(f"{path.name}.rescued-*"))
    if copies:
        return (
            f"{', '.join(str(copy) for copy in copies)} holds what was acknowledged when {path} was removed or "
            f"replaced under a running service: put it in the place of {path}, with no {path.name}-wal and -shm beside "
            "it, or move it elsewhere to go on with what lies there now"
        )
    with suppress(FileNotFoundError):
        if (said := noted(lock, CONDEMNED, identity(path.stat()))) is not None:
            return f"{said.decode(errors='replace')}: {restore(path)}"
    return None


def restore(path: Path) -> str:
    """Advice about a file that holds what it should not."""
    return (
        f"stop all its services, restore the file from a copy, with no {path.name}-wal and -shm beside it, and remove "
        f"{path}.lock"
    )


def keep_open(connection: object) -> None:
    """Keep a connection to a file that has lost its name for ever: to close it would remove the log of that name, which
    is another's by now. Its end is that of the process."""
    pythonapi.Py_IncRef(py_object(connection))


CHECK_EVERY_S = 0.02
"""Shortest time between two checks of the whole by transactions: one costs some 30 us, as much as a small write without
its sync. What is acknowledged in between is saved with the rest when something is found."""

Lacks: TypeAlias = Callable[[sqlite3.Connection, bytes], str | None]
"""Function that tells what the file lacks of the write that a mark tells of, in words; `None` if it is there."""


class FileGuard:
    """Guard of one open file. From the first error on that says it is broken nothing is read or written any more."""

    def __init__(
        self, path: Path, purpose: Purpose, lock: int, connection: sqlite3.Connection, clock: Clock, lacks: Lacks
    ) -> None:
        """Check the file as it was found, with the lock held. Raises what `purpose` has for a broken file,
        `sqlite3.Error`, `OSError`."""
        self._path, self._purpose, self._connection = path, purpose, connection
        self._clock, self._lacks = clock, lacks
        (tables,) = connection.execute("PRAGMA schema_version").fetchone()
        self._state = StateFile(path, lock, tables_max=tables if purpose.tables_are_all else None)
        self.broken: str | None = None
        """Reason for which the file is used no more; `None` while it is."""
        self._is_new = False
        """True from the end of one connection to the first check of the next."""
        self._last: bytes | None = None
        self._seen = -1
        self._check_at_s = 0.0
        if (mark := self._state.last_acknowledged()) is not None and (lacking := lacks(connection, mark)) is not None:
            raise purpose.errors.broken(
                f"the {purpose.name} {path} lacks what was acknowledged last ({lacking}): its log {path.name}-wal was "
                f"removed or damaged, or an older copy was put in its place. Put back what it was; to go on without "
                f"what is missing, remove {path}.lock"
            )

    def disconnected(self) -> None:
        """Note that the connection is closed. If it was the last, log and index were removed, and are made anew."""
        self._is_new, self._seen, self._check_at_s = True, -1, 0.0

    def reconnected(self, connection: sqlite3.Connection) -> None:
        """Note that there is another connection."""
        self._connection = connection

    def check_names(self) -> None:
        """Check that the file is still the one of its name: cheap, and without the lock. Raises what `purpose` has for
        a broken file, `OSError`."""
        self.refuse()
        if not self._is_new and (said := self._state.moved()) is not None:
            self._give_up(f"{said}: what is written from here on nobody would see, so nothing is")

    def check(self) -> None:
        """Check the whole inside a transaction, before anything is written. Raises as `check_names`, and
        `sqlite3.Error`."""
        self.refuse()
        now_s = self._clock.monotonic_s()
        if now_s < self._check_at_s:
            return
        self._check_at_s = now_s + CHECK_EVERY_S
        if self._is_new:
            self._state.reopened()
            self._is_new = False
        said = self._state.problem()
        (seen,) = self._connection.execute("PRAGMA data_version").fetchone()
        if (
            said is None
            and seen != self._seen
            and self._last is not None
            and self._lacks(self._connection, self._last) is not None
        ):
            said = f"{self._path} lacks what was acknowledged last: an older content was put in its place"
        self._seen = seen
        if said is not None:
            self._give_up(said)
        if self._state.is_new_log():
            (version,) = self._connection.execute("PRAGMA user_version").fetchone()
            self._connection.execute(f"PRAGMA user_version = {next_generation(version)}")

    def committed(self, mark: bytes | None) -> None:
        """Note that a transaction is durable; `mark` tells of its last write, if it had one. The lock must be held."""
        self._state.logged()
        if mark is not None:
            self._last = mark
            self._state.acknowledge(mark)

    def closed(self) -> None:
        """Note that the connection was closed for good."""
        with suppress(OSError):
            self._state.closed()

    def refuse(self) -> None:
        """Raise what `purpose` has for a broken file, each time anew, once something was wrong."""
        if self.broken is not None:
            raise self._purpose.errors.broken(self.broken)

    def _give_up(self, said: str) -> None:
        """Use the file no more, save what can be saved, and raise the error. The connection is never closed: see
        `keep_open`."""
        said = f"the {self._purpose.name} {said}"
        keep_open(self._connection)
        if self._connection.in_transaction:
            with suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
        moved = None
        with suppress(OSError):
            moved = self._state.moved()
        if moved is not None:
            self.broken = f"{said}; {rescued(self._path, self._connection.execute)}"
        else:
            self._state.condemn(said)
            self.broken = f"{said}; nothing more is written: {restore(self._path)}"
        self.refuse()
