"""Commits in the background: the position of each partition moves to the end of what is finished without a gap."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from saga.engine.consumer.sources import Sources
from saga.engine.consumer.worker_ports import WorkerAssignment
from saga.engine.persistence.transition_publisher import Telling
from saga.errors import BrokerUnavailable, Fenced
from saga.messages import Partition

AGAIN_S = 0.02
"""Pause before the beginning of partitions is noted again, which could not be noted."""
COMMIT_S = 0.05
"""Pause before a commit, so that it commits what many lanes have finished."""


@dataclass(slots=True)
class Commits:
    """Positions of a worker's groups."""

    assignment: WorkerAssignment
    sources: Sources
    due: asyncio.Event
    """Set when there may be something to commit."""
    telling: Telling | None = None
    _one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def run(self) -> None:
        """Commit whenever something is finished, until cancelled."""
        while True:
            await self.due.wait()
            await self.assignment.watching.clock.sleep(COMMIT_S)
            self.due.clear()
            await self.commit()

    async def begin(
        self, offsets: Mapping[Partition, int], is_current: Callable[[Partition], bool]
    ) -> Collection[Partition]:
        """Note that messages of these partitions may be in hand from here on; return those that were not left in good
        order. Goes on until that is durable, without those that are not current any more: while it waits a topic may be
        created again, where these offsets would count as ones of the new log."""
        watching, left = self.assignment.watching, set[Partition]()
        todo = dict(offsets)
        while todo := {partition: at for partition, at in todo.items() if is_current(partition)}:
            for source, membership in self.sources.joined:
                ours = {p: at for p, at in todo.items() if p.topic in source.topics and is_current(p)}
                try:
                    left |= set(await membership.begin(ours)) if ours else set()
                except Fenced:
                    pass  # somebody else's by now; `lost` says so
                except BrokerUnavailable as why:
                    watching.unavailable("commit", why)
                    continue
                todo = {partition: at for partition, at in todo.items() if partition not in ours}
            if todo:
                await watching.clock.sleep(AGAIN_S)
        return left

    async def end(self, partitions: Collection[Partition]) -> None:
        """Note that nothing of these partitions is in hand any more, if it can be noted now."""
        prefixes = self.assignment.prefixes
        async with self._one_at_a_time:
            for source, membership in self.sources.joined:
                ours = {p: prefixes[p].position for p in partitions if p.topic in source.topics and p in prefixes}
                with suppress(Fenced, BrokerUnavailable):
                    await membership.end(ours)

    async def commit(self) -> None:
        """Commit what has moved, as far as it can be committed now. What was written for it is told before: whoever
        gets a message again tells it."""
        watching = self.assignment.watching
        if self.telling is not None and not await self.telling.tell():
            self.due.set()
            return
        async with self._one_at_a_time:
            for source, membership in self.sources.joined:
                moved = {
                    partition: (prefix, offset)
                    for partition, prefix in self.assignment.prefixes.items()
                    if (offset := prefix.to_commit()) is not None and partition.topic in source.topics
                }
                if not moved:
                    continue
                try:
                    await membership.commit({partition: offset for partition, (_, offset) in moved.items()})
                except Fenced:
                    continue  # the partitions are somebody else's by now; `lost` says which
                except BrokerUnavailable as why:
                    watching.unavailable("commit", why)
                    self.due.set()
                    continue
                watching.answered("broker")
                for prefix, offset in moved.values():
                    prefix.committed(offset)
