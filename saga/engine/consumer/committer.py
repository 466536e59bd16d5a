"""Commit offsets in the background: each partition up to its first unfinished message."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from saga.engine.consumer.sources import WorkerSources
from saga.engine.consumer.worker_ports import WorkerAssignment
from saga.engine.persistence.transition_publisher import TransitionPublisher
from saga.errors import BrokerUnavailable, Fenced
from saga.messages import Partition

AGAIN_S = 0.02
"""Pause before another attempt to open partitions, after the broker was unavailable."""
COMMIT_S = 0.05
"""Pause before a commit, so that one commit covers the messages of many sagas."""


@dataclass(slots=True)
class Committer:
    """Commits the offsets of a worker's consumer groups."""

    assignment: WorkerAssignment
    sources: WorkerSources
    due: asyncio.Event
    """Set when there may be something to commit."""
    transition_publisher: TransitionPublisher | None = None
    _one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)
    _away: bool = False
    """True if the last write of offsets failed because the broker was unavailable."""

    async def run(self) -> None:
        """Commit whenever messages have been finished, until cancelled."""
        while True:
            await self.due.wait()
            await self.assignment.outage_watch.clock.sleep(COMMIT_S)
            self.due.clear()
            await self.commit()

    async def open_partitions(
        self, offsets: Mapping[Partition, int], is_current: Callable[[Partition], bool]
    ) -> Collection[Partition]:
        """Record durably that messages of these partitions may be in progress. Returns the partitions that the previous
        owner did not close; it may have crashed while it handled their messages.

        Retries until the broker has recorded it. A partition that is no longer current is left out: its topic may have
        been created again meanwhile, and these offsets would count in the new log.
        """
        watching, left = self.assignment.outage_watch, set[Partition]()
        todo = dict(offsets)
        while todo := {partition: at for partition, at in todo.items() if is_current(partition)}:
            for source, membership in self.sources.joined:
                ours = {p: at for p, at in todo.items() if p.topic in source.topics and is_current(p)}
                try:
                    left |= set(await membership.mark_in_progress(ours)) if ours else set()
                except Fenced:
                    pass  # another member owns it now; `on_lost` reports that
                except BrokerUnavailable as why:
                    self._report_outage(why)
                    continue
                todo = {partition: at for partition, at in todo.items() if partition not in ours}
            if todo:
                await watching.clock.sleep(AGAIN_S)
        return left

    async def close_partitions(self, partitions: Collection[Partition]) -> None:
        """Record that no message of these partitions is in progress. This is attempted once, and failures are
        ignored."""
        trackers = self.assignment.trackers
        async with self._one_at_a_time:
            for source, membership in self.sources.joined:
                ours = {p: trackers[p].position for p in partitions if p.topic in source.topics and p in trackers}
                with suppress(Fenced, BrokerUnavailable):
                    await membership.clear_in_progress(ours)

    async def commit(self) -> None:
        """Commit every offset that has moved. Transition events are published first, because no redelivery would
        publish them after the offset is committed."""
        if self.transition_publisher is not None and not await self.transition_publisher.publish():
            self.due.set()
            return
        async with self._one_at_a_time:
            for source, membership in self.sources.joined:
                moved = {
                    partition: (tracker, offset)
                    for partition, tracker in self.assignment.trackers.items()
                    if tracker.may_have_moved
                    and (offset := tracker.offset_to_commit()) is not None
                    and partition.topic in source.topics
                }
                if not moved:
                    continue
                try:
                    await membership.commit({partition: offset for partition, (_, offset) in moved.items()})
                except Fenced:
                    continue  # another member owns some of them now; `on_lost` reports which and repeats the commit
                except BrokerUnavailable as why:
                    self._report_outage(why)
                    self.due.set()
                    continue
                if self._away:  # otherwise a broker that accepts only offsets would look healthy
                    self._away = False
                    self.assignment.outage_watch.answered("broker")
                for tracker, offset in moved.values():
                    tracker.acknowledge(offset)

    def _report_outage(self, why: BrokerUnavailable) -> None:
        self._away = True
        self.assignment.outage_watch.unavailable("commit", why)
