"""Check that the file below an open broker is still the one of its name, and as new as what was appended to it."""

import sqlite3
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from saga.broker.embedded.log import Log
from saga.clock import Clock
from saga.errors import BrokerBroken
from saga.statefile import RESTORE, StateFile, keep_open, next_generation, rescued

CHECK_EVERY_S = 0.005
"""At most so often a transaction looks at the whole: it costs some 30 us. What is acknowledged in between is saved with
the rest when something is found."""


class Ground:
    """Check of one open broker's file. From the first `BrokerBroken` on nothing is read or written any more."""

    def __init__(self, path: Path, lock: int, connection: sqlite3.Connection, log: Log, clock: Clock) -> None:
        """With the lock held. Raises `BrokerBroken`, `sqlite3.Error`, `OSError`."""
        self._path, self._connection, self._log, self._clock = path, connection, log, clock
        self._state = StateFile(path, lock)
        self.broken: str | None = None
        """Reason for which the file is used no more; `None` while it is."""
        self._last: tuple[int, int] | None = None
        """The log that we appended to last, and its end."""
        self._seen = -1
        self._check_at_s = 0.0
        if (mark := self._state.last_acknowledged()) is not None:
            number, end = (int(part) for part in mark.split())
            if not log.has(number, end):
                raise BrokerBroken(
                    f"broker file {path} lacks what was acknowledged last (record {end - 1} of log {number}): its log "
                    f"{path.name}-wal was removed or damaged, or an older copy was put in its place. Put back what it "
                    f"was; to go on without what is missing, remove {path}.lock"
                )

    def check_names(self) -> None:
        """Cheap, and without the lock. Raises `BrokerBroken`, `OSError`."""
        self.refuse()
        if (said := self._state.moved()) is not None:
            self._give_up(f"broker file {said}: what is written from here on nobody would see, so nothing is")

    def check(self) -> None:
        """Inside a transaction, before anything is written. Raises `BrokerBroken`, `sqlite3.Error`, `OSError`."""
        self.refuse()
        now_s = self._clock.monotonic_s()
        if now_s < self._check_at_s:
            return
        self._check_at_s = now_s + CHECK_EVERY_S
        said = self._state.problem()
        (seen,) = self._connection.execute("PRAGMA data_version").fetchone()
        if said is None and seen != self._seen and self._last is not None and not self._log.has(*self._last):
            said = f"{self._path} lacks what was acknowledged last: an older content was put in its place"
        self._seen = seen
        if said is not None:
            self._give_up(f"broker file {said}")
        if self._state.is_new_log():
            (version,) = self._connection.execute("PRAGMA user_version").fetchone()
            self._connection.execute(f"PRAGMA user_version = {next_generation(version)}")

    def committed(self, moved: Mapping[int, int]) -> None:
        """Note the new ends of logs, which a transaction has made durable. The lock must be held."""
        self._state.logged()
        if moved:
            self._last = next(iter(moved.items()))
            self._state.acknowledge(b"%d %d" % self._last)

    def closed(self) -> None:
        """The connection was closed."""
        if self.broken is None:
            with suppress(OSError):
                self._state.closed()

    def _give_up(self, said: str) -> None:
        """Save what can be saved. Raises `BrokerBroken`."""
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
            self.broken = f"{said}; nothing more is written: {RESTORE.format(path=self._path, name=self._path.name)}"
        self.refuse()

    def refuse(self) -> None:
        """Raises `BrokerBroken` once something was wrong."""
        if self.broken is not None:
            raise BrokerBroken(self.broken)
