"""React to rebalances: start partitions that are assigned, stop those that are revoked or lost."""

import asyncio
from collections.abc import Collection, Coroutine, Mapping
from dataclasses import dataclass, field

from saga.engine.consumer.committer import Committer
from saga.engine.consumer.flow_control import POLL_MAX, WINDOW, LowPriorityBuffer
from saga.engine.consumer.keyed_executor import KeyedExecutor
from saga.engine.consumer.offset_tracker import OffsetTracker
from saga.engine.consumer.timers import HELD_MAX, LostTimers, TimerBuffer
from saga.engine.consumer.worker_ports import WorkerAssignment
from saga.engine.outage_watch import OutageWatch
from saga.engine.progress_cache import ProgressCache
from saga.messages import Partition
from saga.messaging.names import is_timer_topic, timer_topic
from saga.messaging.timers import TIERS
from saga.telemetry.events import Assigned, Expired, LogReplaced, Lost, PartitionsRaised, Revoked


@dataclass(slots=True)
class PartitionListener:
    """Handles the rebalances of all memberships of a worker. Implements `saga.broker.port.Listener`."""

    assignment: WorkerAssignment
    outage_watch: OutageWatch
    executor: KeyedExecutor
    timers: TimerBuffer
    cache: ProgressCache
    committer: Committer
    guarded_max: int
    """Maximum number of messages that a previous owner may have been handling when it crashed."""
    lost_timers: LostTimers
    low_priority: LowPriorityBuffer | None = None
    _recreated: set[Partition] = field(default_factory=set)
    """Timer partitions whose log was replaced and whose timers are not republished yet."""
    _looking: set[asyncio.Task[None]] = field(default_factory=set)
    _beginning: dict[Partition, asyncio.Task[None]] = field(default_factory=dict)
    """Partitions that are assigned and not polled yet, each with the task that opens it."""
    _missed: dict[Partition, tuple[int, int]] = field(default_factory=dict)
    """Gaps that were reported for such partitions, as the arguments `first` and `after` of `on_expired`. They are
    skipped when the partition gets its tracker."""

    async def on_assigned(self, partitions: Mapping[Partition, int]) -> None:
        """Start polling partitions once it is durably recorded that their messages may be in progress.

        Without this record, the next owner would not guard itself against a message that crashes this process.
        """
        # Partitions whose timers are republished first must not delay the others.
        recreated = {partition: at for partition, at in partitions.items() if partition in self._recreated}
        for some in (recreated, {partition: at for partition, at in partitions.items() if partition not in recreated}):
            if some:
                beginning = self.executor.tasks.create_task(self._start_partitions(some), name="begin partitions")
                self._beginning.update(dict.fromkeys(some, beginning))
        first = Partition(timer_topic(self.outage_watch.service, TIERS[0].name), 0)
        if self.lost_timers.log_ids is not None and first in partitions:  # one of the workers compares
            self._start_task(self.lost_timers.compare_logs(), "look at logs")
        self.outage_watch.report(Assigned(service=self.outage_watch.service, partitions=tuple(partitions)))

    async def _start_partitions(self, partitions: Mapping[Partition, int]) -> None:
        if lost := {partition.topic for partition in partitions if partition in self._recreated}:
            await self.lost_timers.republish(lost)
            self._recreated.difference_update(partitions)
        task = asyncio.current_task()

        def is_current(partition: Partition) -> bool:  # else it was revoked meanwhile, or assigned again
            return self._beginning.get(partition) is task

        left = await self.committer.open_partitions(partitions, is_current)
        for partition, offset in partitions.items():
            if not is_current(partition):
                continue
            del self._beginning[partition]
            log_id = self.committer.sources.log_id(partition)
            tracker = self.assignment.trackers[partition] = OffsetTracker(offset, log_id)
            if partition in left:
                tracker.guarded = self._guarded_messages_max(partition)
                tracker.repeats_max = WINDOW * self.guarded_max + POLL_MAX
            if (gap := self._missed.pop(partition, None)) is not None:
                self._skip_gap(partition, tracker, *gap)
            self.assignment.leaving.discard(partition)
        self.wake_polls()

    async def on_revoked(self, partitions: Collection[Partition]) -> None:
        """Stop at once: no further message starts, and finished ones are committed. Running handlers are not awaited.

        A run continues until `on_lost` reports another owner. If the partition comes back instead, the message is
        delivered again, waits behind the run in its saga's queue, and is recognized as a duplicate.
        """
        self._release(partitions)
        trackers = self.assignment.trackers
        try:
            await self.committer.commit()
            # A guarded partition from which nothing new was delivered stays open, so that the next owner guards it,
            # too. Messages in progress make no difference: they crashed no process.
            await self.committer.close_partitions(
                [p for p in partitions if p in trackers and trackers[p].guarded < self._guarded_messages_max(p)]
            )
        finally:  # even if the commit takes longer than the group waits
            for partition in partitions:
                trackers.pop(partition, None)
            self.cache.clear()
            self.wake_polls()
        self.outage_watch.report(Revoked(service=self.outage_watch.service, partitions=tuple(partitions)))

    def on_lost(self, partitions: Collection[Partition]) -> None:
        unwarned = tuple(partition for partition in partitions if partition not in self.assignment.leaving)
        self._release(partitions)
        self.assignment.lose(partitions)
        self.committer.due.set()  # a commit of these partitions was refused together with the offsets of others
        self.cache.clear()
        self.wake_polls()
        if unwarned:
            self.outage_watch.report(Lost(service=self.outage_watch.service, partitions=unwarned))

    def on_expired(self, partition: Partition, first: int, after: int) -> None:
        tracker = self.assignment.trackers.get(partition)
        if tracker is not None:
            self._skip_gap(partition, tracker, first, after)
        elif partition in self._beginning:  # a member may read before the partition is open
            self._missed[partition] = self._missed.get(partition, (first,))[0], after
        self.outage_watch.report(
            Expired(
                service=self.outage_watch.service,
                topic=partition.topic,
                partition=partition.number,
                first=first,
                last=after - 1,
                count=after - first,
            )
        )

    def _skip_gap(self, partition: Partition, tracker: OffsetTracker, first: int, after: int) -> None:
        """Commit behind the gap, so that it is reported once; in a timer topic only when its timers are republished."""
        if is_timer_topic(partition.topic):
            tracker.begin(first)
            self._start_task(self._republish_expired_timers(partition, tracker, first), "lost timers")
        tracker.skip_to(after)
        self.committer.due.set()

    def _start_task(self, work: Coroutine[object, object, None], name: str) -> None:
        task = self.executor.tasks.create_task(work, name=name)
        self._looking.add(task)
        task.add_done_callback(self._looking.discard)

    def cancel_timer_tasks(self) -> None:
        """Cancel the tasks that republish timers. The next worker does their work."""
        for task in self._looking:
            task.cancel()

    async def _republish_expired_timers(self, partition: Partition, tracker: OffsetTracker, first: int) -> None:
        """Republish timers whose records expired. Only afterwards may the committed offset move past these records."""
        await self.lost_timers.republish([partition.topic])
        self.executor.finish(tracker, first)

    def on_replaced(self, partition: Partition, position: int) -> None:
        if is_timer_topic(partition.topic):
            self._recreated.add(partition)
        self.outage_watch.report(
            LogReplaced(
                service=self.outage_watch.service, topic=partition.topic, partition=partition.number, first=position
            )
        )

    def on_partitions_added(self, topic: str, before: int, now: int) -> None:
        self.assignment.scattered.add(topic)
        self.outage_watch.report(
            PartitionsRaised(service=self.outage_watch.service, topic=topic, before=before, now=now)
        )

    def _guarded_messages_max(self, partition: Partition) -> int:
        """Return how many messages of a partition its previous owner may have been handling when it crashed."""
        return self.guarded_max + (HELD_MAX if is_timer_topic(partition.topic) else 0)

    def wake_polls(self) -> None:
        """Wake the poll loops, because the worker stops or its partitions have changed."""
        self.executor.freed.set()
        self.committer.sources.wake()

    def _release(self, partitions: Collection[Partition]) -> None:
        for task in dict.fromkeys([self._beginning.pop(p, None) for p in partitions]):
            if task is not None and task not in self._beginning.values():
                task.cancel()
        for partition in partitions:
            self._missed.pop(partition, None)
        self._recreated.difference_update(partitions)
        self.assignment.let_go(partitions)
        self.executor.forget(partitions)
        self.timers.forget(partitions)
        if self.assignment.fence is not None:
            self.assignment.fence.forget(partitions)
        if self.low_priority is not None:
            self.low_priority.forget(partitions)
