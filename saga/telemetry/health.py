"""Health of a process, for those who restart it if it is not alive, and those who wait for it to be ready."""

import asyncio
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from saga.telemetry.worker_view import WorkerView

AWAY_S_MAX = 10.0
"""Longest time that store or broker may be out of reach before a process is not ready: lanes wait, and nothing is
lost."""


class Reason(NamedTuple):
    """Reason for which a process is not alive, or not ready."""

    service: str
    reason: str


class Health:
    """Health of the services of this process. `watch` is to be told of each worker."""

    def __init__(self, services: Collection[str], stop: asyncio.Event) -> None:
        self.working: dict[str, WorkerView] = {}
        """Workers that run now, by service."""
        self._services, self._stop = services, stop
        self._ended: set[str] = set()
        self._joined: set[str] = set()

    @contextmanager
    def watch(self, worker: WorkerView) -> Iterator[None]:
        """Watch a worker inside the block: see `saga.telemetry.worker_view.Watch`."""
        self.working[worker.name] = worker
        try:
            yield
        finally:
            del self.working[worker.name]
            self._ended.add(worker.name)

    def not_alive(self) -> list[Reason]:
        """Services that have ended without being told to. That the event loop runs is said by answering at all."""
        if self._stop.is_set():
            return []
        return [Reason(service, "its worker has ended") for service in sorted(self._ended)]

    def not_ready(self) -> list[Reason]:
        """Reasons for which services cannot do their work now."""
        return [Reason(service, reason) for service in self._services for reason in self._reasons(service)]

    def _reasons(self, service: str) -> Iterator[str]:
        worker = self.working.get(service)
        if self._stop.is_set():
            yield "draining" if worker else "stopped"
            return
        if worker is None:
            yield "its worker has ended" if service in self._ended else "starting: it opens what it needs"
            return
        if service not in self._joined:
            if worker.lag() is None:
                yield "starting: it has not joined its group yet"
            else:  # once is enough: partitions come and go, and it is not less ready while they do
                self._joined.add(service)
        for standstill in worker.stalled_partitions():
            yield standstill.reason
        for what, away_s in worker.away().items():
            if away_s > AWAY_S_MAX:
                yield f"the {what} has not answered for {away_s:.0f} s: lanes wait, and nothing is lost"
