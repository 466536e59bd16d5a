"""Partitions of a worker: what begins when one is assigned, and what ends when one goes."""

import asyncio
from collections.abc import Collection, Coroutine, Mapping
from dataclasses import dataclass, field

from saga.engine.consumer.committer import Commits
from saga.engine.consumer.keyed_executor import Lanes
from saga.engine.consumer.lost_timers import LostTimers
from saga.engine.consumer.low_priority import Yielding
from saga.engine.consumer.offset_tracker import Prefix
from saga.engine.consumer.timer_buffer import HELD_MAX, Held
from saga.engine.consumer.worker_ports import WorkerAssignment
from saga.engine.outage_watch import OutageWatch
from saga.engine.progress_cache import ProgressCache
from saga.messages import Partition
from saga.messaging.names import is_wakes, wakes_of
from saga.messaging.timers import TIERS
from saga.telemetry.events import Assigned, Expired, LogReplaced, Lost, PartitionsRaised, Revoked


@dataclass(slots=True)
class Partitions:
    """Listener of all memberships of a worker: see `saga.broker.port.Listener` for the promises."""

    assignment: WorkerAssignment
    watching: OutageWatch
    lanes: Lanes
    held: Held
    cache: ProgressCache
    commits: Commits
    guarded_max: int
    """Messages of a partition that was not left in good order that may have been in hand then."""
    timers: LostTimers
    yielding: Yielding | None = None
    _anew: set[Partition] = field(default_factory=set)
    """Partitions of timers whose log was replaced, and whose timers are not sent again yet."""
    _looking: set[asyncio.Task[None]] = field(default_factory=set)
    _beginning: dict[Partition, asyncio.Task[None]] = field(default_factory=dict)
    """Partitions that are ours, and not read yet."""

    async def assigned(self, partitions: Mapping[Partition, int]) -> None:
        """Begin to read partitions, once it is durable that their messages may be in hand: else the next owner would
        not guard itself against one of which this process dies."""
        # Where timers are sent again first, nobody else waits for it.
        anew = {partition: at for partition, at in partitions.items() if partition in self._anew}
        for some in (anew, {partition: at for partition, at in partitions.items() if partition not in anew}):
            if some:
                beginning = self.lanes.tasks.create_task(self._begun(some), name="begin partitions")
                self._beginning.update(dict.fromkeys(some, beginning))
        first = Partition(wakes_of(self.watching.service, TIERS[0].name), 0)
        if self.timers.log_ids is not None and first in partitions:  # one of the workers looks
            self._beside(self.timers.look(), "look at logs")
        self.watching.report(Assigned(service=self.watching.service, partitions=tuple(partitions)))

    async def _begun(self, partitions: Mapping[Partition, int]) -> None:
        if lost := {partition.topic for partition in partitions if partition in self._anew}:
            await self.timers.send_again(lost)
            self._anew.difference_update(partitions)
        task = asyncio.current_task()

        def is_current(partition: Partition) -> bool:  # else it has gone meanwhile, or begun anew
            return self._beginning.get(partition) is task

        left = await self.commits.begin(partitions, is_current)
        for partition, offset in partitions.items():
            if not is_current(partition):
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
        if is_wakes(partition.topic):
            if prefix is not None:
                prefix.begun(first)
            self._beside(self._past_lost_timers(partition, prefix, first), "lost timers")
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

    def _beside(self, work: Coroutine[object, object, None], name: str) -> None:
        task = self.lanes.tasks.create_task(work, name=name)
        self._looking.add(task)
        task.add_done_callback(self._looking.discard)

    def stop_looking(self) -> None:
        """End what looks after timers: the next worker does it."""
        for task in self._looking:
            task.cancel()

    async def _past_lost_timers(self, partition: Partition, prefix: Prefix | None, first: int) -> None:
        """Send timers again that were removed; only then the position moves behind them."""
        await self.timers.send_again([partition.topic])
        if prefix is not None:
            self.lanes.finish(prefix, first)

    def replaced(self, partition: Partition, position: int) -> None:
        if is_wakes(partition.topic):
            self._anew.add(partition)
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
        self._anew.difference_update(partitions)
        self.assignment.let_go(partitions)
        self.lanes.forget(partitions)
        self.held.forget(partitions)
        if self.assignment.fence is not None:
            self.assignment.fence.forget(partitions)
        if self.yielding is not None:
            self.yielding.forget(partitions)
