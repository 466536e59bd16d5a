"""Health of a process: whether it is alive and ready, with what its workers report about themselves, and how long a
worker needs from its start until it has handled what the log contained then."""

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias

from saga.messages import Partition, StalledPartition
from saga.support.clock import Clock


class Reachability(NamedTuple):
    """How far a worker has come in one partition."""

    done: int
    """Offset below which all messages are finished."""
    end: int
    """Offset after the last known record."""


class WorkerView(Protocol):
    """What health and metrics read of a running worker. All members may be used at any time."""

    @property
    def name(self) -> str:
        """Name of the service."""

    @property
    def types(self) -> Collection[str]:
        """Types of messages that the service consumes."""

    @property
    def handlers(self) -> Collection[str]:
        """Names of its handlers and compensations."""

    @property
    def inflight(self) -> int:
        """Number of messages that were started and are not finished."""

    @property
    def inflight_max(self) -> int:
        """Bound of `inflight`."""

    @property
    def yields(self) -> int:
        """Number of messages held back because their handlers may wait, so that others get through."""

    @property
    def partitions(self) -> int:
        """Number of partitions assigned to this worker."""

    def lag(self) -> Mapping[Partition, int] | None:
        """Number of records of each partition that were not read yet, as in `Membership.lag` of `saga.broker.port`."""

    def reach(self) -> Mapping[Partition, Reachability] | None:
        """How far each partition is handled, without those of timers, whose records wait until they are due; `None` if
        it is not known for all."""

    def away(self) -> Mapping[str, float]:
        """Map `store` or `broker` to the seconds for which it has been out of reach. Empty if both can be reached."""

    def stalled_partitions(self) -> Sequence[StalledPartition]:
        """Partitions that cannot be read now, as in `Membership.stalled_partitions` of `saga.broker.port`."""

    async def look(self) -> None:
        """Check whether store and broker can be reached: an idle worker would not notice."""


Watch: TypeAlias = Callable[[WorkerView], AbstractContextManager[None]]
"""Function that makes a context manager around the life of a worker."""


# -------------------------------------------------------------------- recovery


@dataclass(slots=True)
class Recovery:
    """Measures how long one worker needs to catch up with the log after its start. Records that arrive meanwhile do not
    count: under load there may never be a time without lag."""

    began_s: float
    _ends: dict[Partition, int] = field(default_factory=dict)
    """End of each partition when it was first seen after its assignment to this worker."""

    def took_s(self, worker: WorkerView, clock: Clock) -> float | None:
        """Return how long the recovery took; `None` while it is not over. Call it often until then."""
        reach = worker.reach()
        if not reach:
            return None
        self._ends = {at: self._ends.get(at, end) for at, (_, end) in reach.items()}
        # Offsets at the end may have no record (transaction markers): then the present end is lower.
        if any(done < min(self._ends[at], end) for at, (done, end) in reach.items()):
            return None
        return clock.monotonic_s() - self.began_s


# -------------------------------------------------------------------- health


AWAY_S_MAX = 10.0
"""Longest time that store or broker may be out of reach before a process is not ready."""


class Reason(NamedTuple):
    """Reason why a process is not alive, or not ready."""

    service: str
    reason: str


class Health:
    """Liveness and readiness of the services of this process. Each worker has to run inside `watch`."""

    def __init__(self, services: Collection[str], stop: asyncio.Event) -> None:
        self.working: dict[str, WorkerView] = {}
        """Workers that run now, by service."""
        self._services, self._stop = services, stop
        self._ended: set[str] = set()
        self._joined: set[str] = set()

    @contextmanager
    def watch(self, worker: WorkerView) -> Iterator[None]:
        """Watch a worker inside the block: see `saga.telemetry.health.Watch`."""
        self.working[worker.name] = worker
        try:
            yield
        finally:
            del self.working[worker.name]
            self._ended.add(worker.name)

    def not_alive(self) -> list[Reason]:
        """List the services whose worker ended unasked. Any answer at all proves that the event loop runs."""
        if self._stop.is_set():
            return []
        return [Reason(service, "its worker has ended") for service in sorted(self._ended)]

    def not_ready(self) -> list[Reason]:
        """List the reasons why services cannot work now."""
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
                yield f"the {what} has not answered for {away_s:.0f} s: messages wait, and nothing is lost"
