"""Check that the file below an open store is still the one of its name, and as new as what was written to it."""

import sqlite3
from contextlib import suppress
from pathlib import Path

from saga.clock import Clock
from saga.errors import StoreBroken
from saga.statefile import RESTORE, StateFile, keep_open, next_generation, rescued
from saga.store.sqlite_documents import Documents, Last
from saga.store.steady import Moment

CHECK_EVERY_S = 0.005
"""At most so often a transaction looks at the whole: it costs some 30 us, as much as a small write without its sync.
What is acknowledged in between is saved with the rest when something is found."""
NOW = Moment(0, 0)


class Ground:
    """Of one store that is open for writing. What it raises is `StoreBroken`, each time anew: from the first time on
    nothing is read or written any more."""

    def __init__(self, path: Path, lock: int, connection: sqlite3.Connection, clock: Clock) -> None:
        """With the lock held. Raises `StoreBroken`, `sqlite3.Error`, `OSError`."""
        self._path, self._connection, self._clock = path, connection, clock
        self._check_at_s = 0.0
        (tables,) = connection.execute("PRAGMA schema_version").fetchone()
        self._state = StateFile(path, lock, tables_max=tables)
        self.broken: str | None = None
        """Reason for which the file is used no more; `None` while it is."""
        self._last: Last | None = None
        self._seen = -1
        if (mark := self._state.last_acknowledged()) is not None:
            last = Last.decode(mark)
            if not Documents(connection, path, NOW).has(last):
                raise StoreBroken(
                    f"the store {path} lacks what was acknowledged last (document {last.key!r} in {last.collection!r}, "
                    f"version {last.cas}): its log {path.name}-wal was removed or damaged, or an older copy was put in "
                    f"its place. Put back what it was; to go on without what is missing, remove {path}.lock"
                )

    def check_names(self, connection: sqlite3.Connection | None) -> None:
        """Cheap, and without the lock. Raises `StoreBroken`, `OSError`."""
        self.refuse()
        if connection is None or connection is not self._connection:
            return  # the log may have been made anew: `check` sees to it
        if (said := self._state.moved()) is not None:
            self.broken = f"the store {said}: what is written from here on nobody would see, so nothing is"
        self.refuse()

    def check(self, connection: sqlite3.Connection, documents: Documents) -> None:
        """Inside a transaction, before anything is written. Raises `StoreBroken`, `sqlite3.Error`, `OSError`."""
        self.refuse()
        now_s = self._clock.monotonic_s()
        if now_s < self._check_at_s and connection is self._connection:
            return
        self._check_at_s = now_s + CHECK_EVERY_S
        if connection is not self._connection:
            self._connection, self._seen = connection, -1
            self._state.reopened()
        said = self._state.problem()
        (seen,) = connection.execute("PRAGMA data_version").fetchone()
        if said is None and seen != self._seen and self._last is not None and not documents.has(self._last):
            said = f"{self._path} lacks what was acknowledged last: an older content was put in its place"
        self._seen = seen
        if said is not None:
            self.broken = f"the store {said}"
            self.refuse()
        if self._state.is_new_log():
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            connection.execute(f"PRAGMA user_version = {next_generation(version)}")

    def committed(self, documents: Documents) -> None:
        """Note that a transaction's writes are durable. The lock must be held."""
        self._state.logged()
        if documents.last is not None:
            self._last = documents.last
            self._state.acknowledge(documents.last.encode())

    def closed(self) -> None:
        """The connection was closed; the lock still is there, and held if nobody else has it."""
        if self.broken is None:
            with suppress(OSError):
                self._state.closed()

    def give_up(self, connection: sqlite3.Connection) -> str:
        """Save what can be saved; what to tell, for good. The connection must be used no more, and not be closed."""
        assert self.broken is not None, "there is nothing to give up"
        keep_open(connection)
        if self._moved():
            self.broken += f"; {rescued(self._path, connection.execute)}"
        else:
            self._state.condemn(self.broken)
            self.broken += f"; nothing more is written: {RESTORE.format(path=self._path, name=self._path.name)}"
        return self.broken

    def _moved(self) -> bool:
        try:
            return self._state.moved() is not None
        except OSError:
            return False

    def refuse(self) -> None:
        """Raises `StoreBroken` once something was wrong."""
        if self.broken is not None:
            raise StoreBroken(self.broken)
