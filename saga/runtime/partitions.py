"""Partitions of a worker: what begins when one is assigned, and what ends when one goes."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from saga.messages import Partition
from saga.observe.moments import Assigned, Expired, Lost, Revoked
from saga.runtime.cache import Cache
from saga.runtime.commits import Commits
from saga.runtime.lanes import Lanes
from saga.runtime.offsets import Prefix
from saga.runtime.ports import RunningPorts


@dataclass(slots=True)
class Partitions:
    """Listener of all memberships of a worker: see `saga.broker.port.Listener` for the promises."""

    ports: RunningPorts
    lanes: Lanes
    cache: Cache
    commits: Commits
    drain_s: float
    """Seconds that what runs may go on when a partition is revoked."""

    async def assigned(self, partitions: Mapping[Partition, int]) -> None:
        for partition, offset in partitions.items():
            self.ports.prefixes[partition] = Prefix(offset)
            self.ports.leaving.discard(partition)
        self.look_again()
        self.ports.report(Assigned(service=self.ports.service, partitions=tuple(partitions)))

    async def revoked(self, partitions: Collection[Partition]) -> None:
        """No new message and no new step begins; what runs may end until the limit, then is left as by a crash."""
        self._leave(partitions)
        await self.lanes.drained(partitions, self.drain_s)
        await self.commits.commit()
        self._drop(partitions)
        self.ports.report(Revoked(service=self.ports.service, partitions=tuple(partitions)))

    def lost(self, partitions: Collection[Partition]) -> None:
        self._leave(partitions)
        self._drop(partitions)
        self.ports.report(Lost(service=self.ports.service, partitions=tuple(partitions)))

    def expired(self, partition: Partition, first: int, after: int) -> None:
        prefix = self.ports.prefixes.get(partition)
        if prefix is not None:
            prefix.skipped(after)
        self.commits.due.set()  # the position moves behind them, so that this is told once
        self.ports.report(
            Expired(
                service=self.ports.service,
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
        self.ports.leave(partitions)
        self.lanes.forget(partitions)

    def _drop(self, partitions: Collection[Partition]) -> None:
        for partition in partitions:
            self.ports.prefixes.pop(partition, None)
        self.cache.clear()
        self.look_again()
