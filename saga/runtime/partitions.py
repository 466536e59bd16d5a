"""Partitions of a worker: what begins when one is assigned, and what ends when one goes."""

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from saga.messages import Partition
from saga.names import is_wakes
from saga.observe.moments import Assigned, Expired, LogReplaced, Lost, PartitionsRaised, Revoked
from saga.runtime.cache import Cache
from saga.runtime.commits import Commits
from saga.runtime.held import HELD_MAX, Held
from saga.runtime.lanes import Lanes
from saga.runtime.offsets import Prefix
from saga.runtime.watching import Watching
from saga.runtime.worker_ports import WorkerAssignment
from saga.runtime.yielding import Yielding


@dataclass(slots=True)
class Partitions:
    """Listener of all memberships of a worker: see `saga.broker.port.Listener` for the promises."""

    assignment: WorkerAssignment
    watching: Watching
    lanes: Lanes
    held: Held
    cache: Cache
    commits: Commits
    guarded_max: int
    """Messages of a partition that was not left in good order that may have been in hand then."""
    yielding: Yielding | None = None
    _beginning: dict[Partition, asyncio.Task[None]] = field(default_factory=dict)
    """Partitions that are ours, and not read yet."""

    async def assigned(self, partitions: Mapping[Partition, int]) -> None:
        """Begin to read partitions, once it is durable that their messages may be in hand: else the next owner would
        not guard itself against one of which this process dies."""
        beginning = self.lanes.tasks.create_task(self._begun(partitions), name="begin partitions")
        for partition in partitions:
            self._beginning[partition] = beginning
        self.watching.report(Assigned(service=self.watching.service, partitions=tuple(partitions)))

    async def _begun(self, partitions: Mapping[Partition, int]) -> None:
        left = await self.commits.begin(partitions)
        task = asyncio.current_task()
        for partition, offset in partitions.items():
            if self._beginning.get(partition) is not task:  # it has gone meanwhile
                continue
            del self._beginning[partition]
            log_id = self.commits.sources.log_id(partition)
            prefix = self.assignment.prefixes[partition] = Prefix(offset, log_id)
            if partition in left:
                prefix.guarded = self._guarded(partition)
            self.assignment.leaving.discard(partition)
        self.look_again()

    async def revoked(self, partitions: Collection[Partition]) -> None:
        """Let go at once: no message begins, and what is finished is committed. Nothing in hand is waited for.

        A run goes on until `lost` says that its partition is another member's. If it comes back instead, the message
        comes again, waits in its lane behind the run, and finds it in the inbox.
        """
        self._let_go(partitions)
        prefixes = self.assignment.prefixes
        try:
            await self.commits.commit()
            # Of one that was to be guarded, and had nothing to be taken, the next owner has to know, too. What is in
            # hand makes no difference: nobody has died of it.
            await self.commits.end([p for p in partitions if p in prefixes and prefixes[p].guarded < self._guarded(p)])
        finally:  # also if that takes so long that the group does not wait for it
            for partition in partitions:
                prefixes.pop(partition, None)
            self.cache.clear()
            self.look_again()
        self.watching.report(Revoked(service=self.watching.service, partitions=tuple(partitions)))

    def lost(self, partitions: Collection[Partition]) -> None:
        unwarned = tuple(partition for partition in partitions if partition not in self.assignment.leaving)
        self._let_go(partitions)
        self.assignment.lose(partitions)
        self.cache.clear()
        self.look_again()
        if unwarned:
            self.watching.report(Lost(service=self.watching.service, partitions=unwarned))

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

    def replaced(self, partition: Partition, position: int) -> None:
        self.watching.report(
            LogReplaced(
                service=self.watching.service, topic=partition.topic, partition=partition.number, first=position
            )
        )

    def raised(self, topic: str, before: int, now: int) -> None:
        self.assignment.scattered.add(topic)
        self.watching.report(PartitionsRaised(service=self.watching.service, topic=topic, before=before, now=now))

    def _guarded(self, partition: Partition) -> int:
        """Messages of a partition that may have been in hand, at most."""
        return self.guarded_max + (HELD_MAX if is_wakes(partition.topic) else 0)

    def look_again(self) -> None:
        """Have each poll loop see what has changed: that the worker stops, or that partitions have come or gone."""
        self.lanes.freed.set()
        self.commits.sources.wake()

    def _let_go(self, partitions: Collection[Partition]) -> None:
        for task in dict.fromkeys([self._beginning.pop(p, None) for p in partitions]):
            if task is not None and task not in self._beginning.values():
                task.cancel()
        self.assignment.let_go(partitions)
        self.lanes.forget(partitions)
        self.held.forget(partitions)
        if self.assignment.fence is not None:
            self.assignment.fence.forget(partitions)
        if self.yielding is not None:
            self.yielding.forget(partitions)
