"""Health of a process: whether it is alive and ready, what its workers report about themselves, and how long a worker
needs after its start to handle everything that the log contained at that time."""

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
    """What health checks and metrics may read of a running worker. All members may be used at any time."""

    @property
    def name(self) -> str:
        """Name of the service."""

    @property
    def types(self) -> Collection[str]:
        """Message types that the service consumes."""

    @property
    def handlers(self) -> Collection[str]:
        """Names of the service's handlers and compensations."""

    @property
    def inflight(self) -> int:
        """Number of messages whose processing has begun and is not finished."""

    @property
    def inflight_max(self) -> int:
        """Upper bound of `inflight`."""

    @property
    def yields(self) -> int:
        """Number of messages that are held back because their handlers may have to wait. Meanwhile other messages are
        processed."""

    @property
    def partitions(self) -> int:
        """Number of partitions assigned to this worker."""

    def lag(self) -> Mapping[Partition, int] | None:
        """Return the number of unread records in each partition, as `Membership.lag` of `saga.broker.port` does."""

    def reach(self) -> Mapping[Partition, PartitionReach] | None:
        """Return how far each partition has been handled; `None` if that is not known for all partitions. Timer topics
        are left out, because timers wait until they are due."""

    def away(self) -> Mapping[str, float]:
        """Return for how many seconds the `store`, the `broker`, the `registry` and the `key folder` have been
        unreachable. Each is included only if it is unreachable now."""

    def stalled_partitions(self) -> Sequence[StalledPartition]:
        """Return the partitions that cannot be read now, as `Membership.stalled_partitions` of `saga.broker.port`
        does.
        """

    async def look(self) -> None:
        """Check whether the store answers, because an idle worker would not notice an outage."""


Watch: TypeAlias = Callable[[WorkerView], AbstractContextManager[None]]
"""Function that returns a context manager. A worker runs inside of it."""


# -------------------------------------------------------------------- recovery


@dataclass(slots=True)
class Recovery:
    """Measures how long a worker needs after its start to catch up with the log. Only records that existed at the start
    count, because under load the lag may never be zero."""

    began_s: float
    _ends: dict[Partition, int] = field(default_factory=dict)
    """End offset of each partition at the time when it was first seen after its assignment to this worker."""

    def took_s(self, worker: WorkerView, clock: Clock) -> float | None:
        """Return how many seconds the recovery took; `None` if it is not finished. Call this often until it returns a
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
"""Maximum time in seconds for which the store, broker, registry or key folder may be unreachable before the process
counts as not ready."""


class Reason(NamedTuple):
    """Reason why a process is not alive, or not ready."""

    service: str
    reason: str


class Health:
    """Liveness and readiness of all services in this process. Each worker must run inside `watch`."""

    def __init__(self, services: Collection[str], stop: asyncio.Event) -> None:
        self.working: dict[str, WorkerView] = {}
        """Running workers, by service."""
        self._services, self._stop = services, stop
        self._ended: set[str] = set()
        self._joined: set[str] = set()

    @contextmanager
    def watch(self, worker: WorkerView) -> Iterator[None]:
        """Include a worker in the health of the process while the block runs. See `Watch`."""
        self.working[worker.name] = worker
        try:
            yield
        finally:
            del self.working[worker.name]
            self._ended.add(worker.name)

    def not_alive(self) -> list[Reason]:
        """Return the services whose worker ended although the process was not told to stop.

        If the event loop hangs, a liveness probe gets no answer at all, so this needs no check here.
        """
        if self._stop.is_set():
            return []
        return [Reason(service, "its worker has ended") for service in sorted(self._ended)]

    def not_ready(self) -> list[Reason]:
        """Return the reasons why services cannot work now; empty if the process is ready."""
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
