"""A state file that is open for writing: its connection, its lock, and its errors as its owner names them."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from saga.errors import Broken, SagaError
from saga.store.sqlite.connection import connect, make_file, make_folder, open_to_write
from saga.store.sqlite.errors import FileOperation, StateFileSpec, is_busy, to_owner_error
from saga.store.sqlite.integrity import FileGuard, Lacks, find_unresolved_trouble
from saga.store.sqlite.lock import WriteLock
from saga.support.clock import Clock

LOOK_EVERY_S = 0.002
"""Pause before whoever opens a file looks again whether another process is done with it."""


class StateFile:
    """State file of one owner. The errors that it raises are its owner's, unless a method says otherwise."""

    guard: FileGuard
    lock: WriteLock

    def __init__(
        self,
        path: Path,
        purpose: StateFileSpec,
        *,
        clock: Clock,
        lock_s: float,
        bytes_max: int | None = None,
        factory: type[sqlite3.Connection] = sqlite3.Connection,
    ) -> None:
        """Note the file; nothing is opened yet. `lock_s`: seconds to wait for another process. `bytes_max`: bounds the
        file; reaching it is like a full disk. `factory`: the class of the connection, for tests."""
        self.path, self.purpose, self.lock_s, self.clock = path, purpose, lock_s, clock
        self._bytes_max, self._factory = bytes_max, factory
        self._connection: sqlite3.Connection | None = None

    async def open(self, lacks: Lacks) -> None:
        """Open, and make the file where it is missing, while nobody writes to it, makes it or closes it."""
        try:
            make_folder(self.path.parent)
            make_file(self.path)
            self.lock = WriteLock(self.path.with_name(f"{self.path.name}.lock"))
        except OSError as why:
            raise self.purpose.errors.closed_to_us(
                f"the {self.purpose.name} {self.path} cannot be opened ({why.strerror}: {why.filename}): make the "
                f"folder writable, or point {self.purpose.setting} elsewhere"
            ) from why
        try:
            deadline_s = self.clock.monotonic_s() + self.lock_s
            while not self._opened(lacks):
                if self.clock.monotonic_s() >= deadline_s:
                    raise self.held()
                await self.clock.sleep(LOOK_EVERY_S)
        except BaseException:  # a cancelled start, too, must not keep the lock
            self.lock.close()
            raise

    def close(self) -> None:
        """Close. Raises what its purpose has for a broken file if it has lost its name since anybody looked."""
        try:
            if self.guard.broken is None:
                with suppress(OSError):
                    self.guard.check_names()
        finally:
            if self.guard.broken is None:  # else to close it would remove the log of whatever lies there now
                if self._connection is not None:
                    self._connection.close()
                self.guard.closed()
            self.lock.close()

    def connection(self) -> sqlite3.Connection:
        """Connection that all goes through. Once the file is not what it was, it is used no more: what lies there is
        another one.

        Raises `sqlite3.Error` if the last one was beyond use, and no other can be had."""
        if self.guard.broken is not None:
            self.guard.refuse()
        if self._connection is None:
            self._connection = connect(self.path, self.purpose, self._factory, self._bytes_max)
            self.guard.reconnected(self._connection)
        return self._connection

    def roll_back(self) -> None:
        """Leave nothing of a failed transaction; the next use opens a new connection if this one is beyond use."""
        if self._connection is not None and self._connection.in_transaction and self.guard.broken is None:
            try:
                self._connection.execute("ROLLBACK")
            except sqlite3.Error:
                self._connection.close()
                self._connection = None
                self.guard.disconnected()

    def check_names(self) -> None:
        """Look whether the file is still the one of its name."""
        try:
            self.guard.check_names()
        except OSError as why:
            raise self.unseen(why) from why

    # ---------------------------------------------------------------- errors

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Tell an error of SQLite that comes up in a read as the owner's own."""
        try:
            yield
        except sqlite3.Error as why:
            raise self.error(why, FileOperation.READ) from why

    def error(self, why: sqlite3.Error, doing: FileOperation) -> SagaError:
        """Make the owner's error for one of SQLite's; that the file has lost its name explains most of them."""
        try:
            with suppress(OSError):  # it is told as SQLite has it
                self.guard.check_names()
        except Broken as also:
            return also
        return to_owner_error(why, doing, self.path, self.purpose)

    def held(self) -> SagaError:
        """Make the error of a lock that another process has."""
        return self.purpose.errors.unavailable(
            f"the {self.purpose.name} {self.path}: another process has held its lock for {self.lock_s:g} s; nothing "
            f"was written: {self.lock.holder()} has it: resume it or end it (a stopped process keeps its locks)"
        )

    def unlockable(self, why: OSError) -> SagaError:
        """Make the error of a lock that fails itself."""
        return self.purpose.errors.unavailable(
            f"the {self.purpose.name} {self.path}: its lock {self.path}.lock cannot be taken ({why}); nothing was "
            "written: it has to lie on a local disk, and `ulimit -a` and the system's log may tell more"
        )

    def unseen(self, why: OSError) -> SagaError:
        """Make the error of a file that cannot be looked at: nobody knows whether it is still the same."""
        return self.purpose.errors.unavailable(
            f"the {self.purpose.name} {self.path} cannot be looked at ({why}); nothing was written: look at the disk, "
            "and see that file and folder can be read"
        )

    def _opened(self, lacks: Lacks) -> bool:
        """Try to open the file once, with the lock held; false while another process or program is at it."""
        path, purpose, lock = self.path, self.purpose, self.lock
        try:
            if not lock.taken():
                return False
        except OSError as why:
            raise self.unlockable(why) from why
        try:
            if (said := find_unresolved_trouble(path, lock.descriptor)) is not None:
                raise purpose.errors.broken(f"the {purpose.name} {path} cannot be used yet: {said}")
            connection = open_to_write(path, purpose, self._factory, self._bytes_max)
            try:
                self.guard = FileGuard(path, purpose, lock.descriptor, connection, self.clock, lacks)
            except Exception:
                connection.close()
                raise
        except sqlite3.Error as why:
            if is_busy(why):
                return False
            raise to_owner_error(why, FileOperation.WRITE, path, purpose) from why
        except OSError as why:
            raise self.unseen(why) from why
        finally:
            lock.release()
        self._connection = connection
        return True
