"""Transaction on the broker's file: what others wrote is learnt first, and what is published comes last."""

from collections.abc import Callable, Mapping

from saga.broker.embedded.log import Entry, Log
from saga.support.clock import Clock


class Transaction:
    """Writes of records, one group commit at a time: see `saga.store.sqlite_files.writer.Contents`."""

    def __init__(
        self,
        log: Log,
        clock: Clock,
        *,
        caught_up: Callable[[], None],
        appended: Callable[[Mapping[int, int]], None],
    ) -> None:
        """Begin with nothing to append. `caught_up` is called when others had written, `appended` with the new ends of
        logs that we wrote to."""
        self._log, self._clock = log, clock
        self._caught_up, self._appended = caught_up, appended
        self._others = False
        self._entries: list[Entry] = []
        self._moved: Mapping[int, int] = {}

    def append(self, entries: list[Entry]) -> None:
        """Have entries written with all others of this transaction: one statement for each log."""
        self._entries += entries

    def begin(self) -> None:
        self._entries = []
        self._others = self._log.catch_up()

    def finish(self, changes: int) -> None:
        if self._entries:
            self._log.append(self._entries, self._clock.now_ms())

    def committed(self) -> bytes | None:
        self._moved = moved = self._log.committed()
        return b"%d %d" % next(iter(moved.items())) if moved else None

    def rolled_back(self) -> None:
        self._log.rolled_back()

    def announce(self) -> None:
        if self._others:
            self._caught_up()
        if self._moved:
            self._appended(self._moved)
