"""Partitions of a worker: what begins when one is assigned, and what ends when one goes."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from saga.messages import Partition
from saga.observe.moments import Assigned, Expired, Lost, Revoked
from saga.runtime.cache import Cache
from saga.runtime.commits import Commits
from saga.runtime.held import Held
from saga.runtime.lanes import Lanes
from saga.runtime.offsets import Prefix
from saga.runtime.watching import Watching
from saga.runtime.worker_ports import WorkerAssignment


@dataclass(slots=True)
class Partitions:
    """Listener of all memberships of a worker: see `saga.broker.port.Listener` for the promises."""

    assignment: WorkerAssignment
    watching: Watching
    lanes: Lanes
    held: Held
    cache: Cache
    commits: Commits
    drain_s: float
    """Seconds that what runs may go on when a partition is revoked."""

    async def assigned(self, partitions: Mapping[Partition, int]) -> None:
        for partition, offset in partitions.items():
            self.assignment.prefixes[partition] = Prefix(offset)
            self.assignment.leaving.discard(partition)
        self.look_again()
        self.watching.report(Assigned(service=self.watching.service, partitions=tuple(partitions)))

    async def revoked(self, partitions: Collection[Partition]) -> None:
        """No new message and no new step begins; what runs may end until the limit, then is left as by a crash."""
        self._leave(partitions)
        await self.lanes.drained(partitions, self.drain_s)
        await self.commits.commit()
        self._drop(partitions)
        self.watching.report(Revoked(service=self.watching.service, partitions=tuple(partitions)))

    def lost(self, partitions: Collection[Partition]) -> None:
        self._leave(partitions)
        self._drop(partitions)
        self.watching.report(Lost(service=self.watching.service, partitions=tuple(partitions)))

    def expired(self, partition: Partition, first: int, after: int) -> None:
        prefix = self.assignment.prefixes.get(partition)
        if prefix is not None:
            prefix.skipped(after)
        self.commits.due.set()  # the position moves behind them, so that this is told once
        self.watching.report(
            Expired(
                service=self.watching.service,
                topic=partition.topic,
                partition=partition.number,
                first=first,
                last=after - 1,
                count=after - first,
            )
        )

    def look_again(self) -> None:
        """Have each poll loop see what has changed: that the worker stops, or that partitions have come or gone."""
        self.lanes.freed.set()
        self.commits.sources.wake()

    def _leave(self, partitions: Collection[Partition]) -> None:
        self.assignment.leave(partitions)
        self.lanes.forget(partitions)
        self.held.forget(partitions)

    def _drop(self, partitions: Collection[Partition]) -> None:
        for partition in partitions:
            self.assignment.prefixes.pop(partition, None)
        self.cache.clear()
        self.look_again()
