"""Health of a process: whether it is alive and ready, what its workers report about themselves, and how long a worker
takes after its start to handle everything that the log contained then.
"""

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias

from saga.messages import Partition, StalledPartition
from saga.support.clock import Clock


class PartitionReach(NamedTuple):
    """How far a worker has handled one partition, and where the partition ends."""

    done: int
    """Offset below which all messages are finished."""
    end: int
    """Offset after the last known record."""


class WorkerView(Protocol):
    """Properties of a running worker that health checks and metrics read. All members may be used at any time."""

    @property
    def name(self) -> str:
        """Name of the service."""

    @property
    def types(self) -> Collection[str]:
        """Types of messages that the service consumes."""

    @property
    def handlers(self) -> Collection[str]:
        """Names of the service's handlers and compensations."""

    @property
    def inflight(self) -> int:
        """Number of messages whose processing has begun and is not finished."""

    @property
    def inflight_max(self) -> int:
        """Maximum of `inflight`."""

    @property
    def yields(self) -> int:
        """Number of messages held back because their handlers may have to wait, so that other messages are not
        blocked.
        """

    @property
    def partitions(self) -> int:
        """Number of partitions assigned to this worker."""

    def lag(self) -> Mapping[Partition, int] | None:
        """Return the number of unread records of each partition, as `Membership.lag` of `saga.broker.port` does."""

    def reach(self) -> Mapping[Partition, PartitionReach] | None:
        """Return how far each partition has been handled; `None` if this is not known for all partitions. Partitions of
        timers are left out, because timers wait until they are due."""

    def away(self) -> Mapping[str, float]:
        """Return for how many seconds the `store` and the `broker` have been unreachable. Each is included only if it
        is unreachable now."""

    def stalled_partitions(self) -> Sequence[StalledPartition]:
        """Return the partitions that cannot be read now, as `Membership.stalled_partitions` of `saga.broker.port`
        does.
        """

    async def look(self) -> None:
        """Check whether store and broker can be reached, because an idle worker would not notice an outage."""


Watch: TypeAlias = Callable[[WorkerView], AbstractContextManager[None]]
"""Function that returns a context manager in which a worker runs."""


# -------------------------------------------------------------------- recovery


@dataclass(slots=True)
class Recovery:
    """Measurement of how long a worker takes to catch up with the log after its start. Only records that existed at the
    start count, because under load there may never be a time without lag.
    """

    began_s: float
    _ends: dict[Partition, int] = field(default_factory=dict)
    """End offset of each partition when it was first seen after its assignment to this worker."""

    def took_s(self, worker: WorkerView, clock: Clock) -> float | None:
        """Return how long the recovery took in seconds; `None` if it is not finished. Call it often until it returns a
        number."""
        reach = worker.reach()
        if not reach:
            return None
        self._ends = {at: self._ends.get(at, end) for at, (_, end) in reach.items()}
        # The last offsets may be transaction markers, not records. Then the current end is lower.
        if any(done < min(self._ends[at], end) for at, (done, end) in reach.items()):
            return None
        return clock.monotonic_s() - self.began_s


# -------------------------------------------------------------------- health


AWAY_S_MAX = 10.0
"""Maximum time in seconds for which store or broker may be unreachable before the process counts as not ready."""


class Reason(NamedTuple):
    """Reason why a process is not alive, or not ready."""

    service: str
    reason: str


class Health:
    """Liveness and readiness of the services of this process. Each worker must run inside `watch`."""

    def __init__(self, services: Collection[str], stop: asyncio.Event) -> None:
        self.working: dict[str, WorkerView] = {}
        """Running workers, by service."""
        self._services, self._stop = services, stop
        self._ended: set[str] = set()
        self._joined: set[str] = set()

    @contextmanager
    def watch(self, worker: WorkerView) -> Iterator[None]:
        """Include a worker in the health of the process while the block runs; see `Watch`."""
        self.working[worker.name] = worker
        try:
            yield
        finally:
            del self.working[worker.name]
            self._ended.add(worker.name)

    def not_alive(self) -> list[Reason]:
        """Return the services whose worker ended without having been stopped. Any answer at all proves that the event
        loop runs.
        """
        if self._stop.is_set():
            return []
        return [Reason(service, "its worker has ended") for service in sorted(self._ended)]

    def not_ready(self) -> list[Reason]:
        """Return the reasons why services cannot work at the moment."""
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
            else:  # once is enough: a process stays ready while partitions are reassigned
                self._joined.add(service)
        for standstill in worker.stalled_partitions():
            yield standstill.reason
        for what, away_s in worker.away().items():
            if away_s > AWAY_S_MAX:
                yield f"the {what} has not answered for {away_s:.0f} s: messages wait, and nothing is lost"
