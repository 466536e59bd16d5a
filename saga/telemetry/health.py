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
    """Reach of a worker in one partition."""

    done: int
    """Offset below which nothing is left to do."""
    end: int
    """Offset after the last record that is known to be there."""


class WorkerView(Protocol):
    """Worker from when it takes messages to its end. All can be asked at any time."""

    @property
    def name(self) -> str:
        """Name of its service."""

    @property
    def types(self) -> Collection[str]:
        """Types of messages that its service consumes."""

    @property
    def handlers(self) -> Collection[str]:
        """Names of its handlers and compensations."""

    @property
    def inflight(self) -> int:
        """Messages begun and not finished."""

    @property
    def inflight_max(self) -> int:
        """Bound of `inflight`."""

    @property
    def yields(self) -> int:
        """Messages that are held back for others."""

    @property
    def partitions(self) -> int:
        """Number of partitions that are its own."""

    def lag(self) -> Mapping[Partition, int] | None:
        """Records of each partition that were not read yet, as `Membership.lag` of `saga.broker.port` counts them."""

    def reach(self) -> Mapping[Partition, Reachability] | None:
        """Reach in each of its partitions, but in those of wakes, which lie there until their time; `None`: not known
        of all."""

    def away(self) -> Mapping[str, float]:
        """Map `store` or `broker` to the seconds for which it cannot be reached. Empty when both can."""

    def stalled_partitions(self) -> Sequence[StalledPartition]:
        """Partitions that cannot be read now, as `Membership.stalled_partitions` of `saga.broker.port` gives them."""

    async def look(self) -> None:
        """Find out whether store and broker can be reached: a worker that has nothing to do would not notice."""


Watch: TypeAlias = Callable[[WorkerView], AbstractContextManager[None]]
"""Function that makes a block around a worker's life: entered when it begins, left at its end, whatever ends it."""


# -------------------------------------------------------------------- recovery


@dataclass(slots=True)
class Recovery:
    """Recovery of one worker. What comes while it catches up is nothing that it has to catch up with: under load there
    may be no moment at which nothing is behind."""

    began_s: float
    _ends: dict[Partition, int] = field(default_factory=dict)
    """End of each partition, as it was first seen since that came to this worker."""

    def took_s(self, worker: WorkerView, clock: Clock) -> float | None:
        """Seconds that it took, if it is over now; to be asked often, until it is."""
        reach = worker.reach()
        if not reach:
            return None
        self._ends = {at: self._ends.get(at, end) for at, (_, end) in reach.items()}
        # Offsets at the end may be none of a record: then the end that is known now is lower.
        if any(done < min(self._ends[at], end) for at, (done, end) in reach.items()):
            return None
        return clock.monotonic_s() - self.began_s


# -------------------------------------------------------------------- health


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
        """Watch a worker inside the block: see `saga.telemetry.health.Watch`."""
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
