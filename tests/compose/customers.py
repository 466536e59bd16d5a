"""Customers: they order whatever happens, and order again what was not confirmed to them. The same order is one."""

import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from tests.compose.engine import CommandFailed, now_s, pause
from tests.compose.system import System

BATCH = 5
PUBLISH_S_MAX = 60.0
AGAIN_S = 1.0


class Customers:
    """Publishes the orders in a thread of its own, up to as many as are wanted, until all of them are published."""

    def __init__(self, system: System, orders: Sequence[bytes]) -> None:
        """`orders`: lines of JSON."""
        self.repeated = 0
        """Batches that were published again, because no acknowledgement came."""
        self._system, self._orders = system, orders
        self._placed = self._wanted = 0
        self._changed = threading.Condition()
        self._over = False
        self._thread = threading.Thread(target=self._order, name="customers")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, why: BaseException | None, at: TracebackType | None) -> None:
        with self._changed:
            self._over = True
            self._changed.notify_all()
        self._thread.join()

    def want(self, more: int) -> int:
        """Let so many more be placed, from now on; how many that makes."""
        with self._changed:
            self._wanted = min(len(self._orders), self._wanted + more)
            self._changed.notify_all()
            return self._wanted

    def wait_until(self, placed: int, within_s: float) -> None:
        """Return when so many are placed. Raises `CommandFailed` if that takes too long."""
        until_s = now_s() + within_s
        with self._changed:
            if not self._changed.wait_for(lambda: self._placed >= placed, until_s - now_s()):
                raise CommandFailed(f"{self._placed} of {placed} orders could be placed within {within_s:.0f} s")

    def _order(self) -> None:
        while batch := self._next():
            lines = b"\n".join(batch) + b"\n"
            try:
                self._system.client("publish", "OrderPlaced", stdin=lines, within_s=PUBLISH_S_MAX)
            except CommandFailed:
                self.repeated += 1
                pause(AGAIN_S)
                continue
            with self._changed:
                self._placed += len(batch)
                self._changed.notify_all()

    def _next(self) -> Sequence[bytes]:
        """Orders that are to be placed now; none when it is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._over or self._placed < self._wanted)
            if self._over:
                return ()
            return self._orders[self._placed : min(self._wanted, self._placed + BATCH)]
