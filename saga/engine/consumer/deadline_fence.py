"""Keep a deadline from firing if the event that closes it is already in the log.

After an outage a deadline may be due although the event that closes it is in the log and has not been read. So the
worker looks up the end offsets of the log at or after the due time, and fires the deadline once every record below them
was processed: handled, pending, queued or dead. One lookup serves all deadlines that were due before it. Normally the
end offsets are reached already, and the lookup is the only cost.

In a partition of this worker a record counts as processed once it was received and no message of the saga waits behind
the current one, because the messages of a saga are handled in order. In a partition of another worker the committed
offset of the group decides.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from saga.broker.port import partition_of
from saga.engine.consumer.keyed_executor import KeyedExecutor
from saga.engine.consumer.offset_tracker import OffsetTracker
from saga.engine.consumer.sources import WorkerSources
from saga.engine.consumer.worker_ports import WorkerAssignment
from saga.engine.outage_watch import OutageWatch
from saga.errors import BrokerError, BrokerUnavailable
from saga.messages import Partition, Position
from saga.messaging.timers import TimerTier
from saga.support.clock import Clock
from saga.telemetry.events import DeadlineBehindLog, DeadlinePassedLog

AGAIN_S = 1.0
"""Pause after a failed lookup of the end offsets."""
PENDING_MAX = 16
"""Maximum number of end offsets for each partition that are not reached yet. Beyond it, a new one replaces the
latest."""
TELL_EVERY_S = 60.0
"""Interval between two reports that deadlines wait for a partition."""


class EndsLookup(NamedTuple):
    """Time at which end offsets were looked up, by the wall clock and by the monotonic clock."""

    at_ms: int
    at_s: float


@dataclass(slots=True)
class DeadlineFence:
    """Knows up to which time the log has been processed for the sagas of one worker."""

    clock: Clock
    topics: Collection[str]
    """Topics of events that the service consumes."""
    sources: WorkerSources
    assignment: WorkerAssignment
    executor: KeyedExecutor
    wakes: Mapping[str, TimerTier]
    """Topics of the service's timers."""
    is_low_priority: Callable[[str], bool] | None = None
    """Function that returns whether a message of a saga is in the low-priority buffer; `None` if there is no such
    buffer."""
    _counts: dict[str, int] = field(default_factory=dict)
    """Number of partitions of each topic, as of the last lookup."""
    _unknown: set[Partition] = field(default_factory=set)
    """Partitions whose end offset is not known."""
    _pending: dict[Partition, list[tuple[int, EndsLookup]]] = field(default_factory=dict)
    """End offsets that are not reached yet, oldest first."""
    _reached: dict[Partition, tuple[EndsLookup, float]] = field(default_factory=dict)
    """For each partition: the last lookup whose end offset is reached, and the monotonic time at which that was
    noticed."""
    _positions: dict[Partition, int] = field(default_factory=dict)
    """Committed offsets of other workers' partitions, as of the last query."""
    _looked: EndsLookup | None = None
    """The last successful lookup."""
    _forgotten: int = 0
    """How many times partitions were taken away from this worker."""
    _refused_until_s: float = 0.0
    _told_s: dict[Partition, float] = field(default_factory=dict)
    """Monotonic time of the last report that deadlines wait for a partition."""
    _one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def watching(self) -> OutageWatch:
        return self.assignment.outage_watch

    # ---------------------------------------------------------------- used while a message is processed

    async def handled_ms(self, saga: str, due_ms: int) -> int:
        """See `saga.engine.ports.Assignment`. Looks up the end offsets, unless they were looked up since `due_ms`."""
        if not self._is_since(self._looked, due_ms):
            await self._look_up_ends(due_ms)
        self._move_reached_ends()
        handled_ms, seen_s = self._handled_until(saga)
        if handled_ms < due_ms or self._is_behind(saga, seen_s):
            return 0
        for partition in self._stalled_partitions(saga):
            self._report_passed(saga, due_ms, partition)
        return handled_ms

    def is_at_home(self, saga: str, position: Position) -> bool:
        """See `saga.engine.ports.Assignment`. A timer without a delay is always at home: it lies in the partition of
        the saga's key, and the worker that owns this partition also owns the saga's events, unless the topics have
        different numbers of partitions."""
        tier = self.wakes.get(position.topic)
        return tier is None or not tier.seconds or all(map(self._is_ours, self._partitions(saga)))

    # ---------------------------------------------------------------- used by waiting timers

    def owns(self, position: Position, tracker: OffsetTracker) -> bool:
        """Return whether the partition is still in the same assignment as when the message was received."""
        return self.assignment.trackers.get(Partition(*position[:2])) is tracker

    async def refresh_positions(self) -> None:
        """Query the committed offsets of other workers' partitions for which deadlines still wait."""
        others = [partition for partition, pending in self._pending.items() if pending and not self._is_ours(partition)]
        if others and self.clock.monotonic_s() >= self._refused_until_s:
            try:
                await self._ask_positions(others)
            except BrokerUnavailable as why:
                self._pause_lookups(why)
        self._move_reached_ends()

    def is_handled(self, saga: str, due_ms: int) -> bool:
        """Return whether everything that was in the log at `due_ms` was received here or processed by another worker.

        A message that is then processed behind the saga's other messages sees the effect of all of them.
        """
        return self._handled_until(saga)[0] >= due_ms

    def has_ends_since(self, due_ms: int) -> bool:
        """Return whether the end offsets were looked up at this time or later."""
        return self._is_since(self._looked, due_ms)

    def report_behind(self, sagas: Iterable[str]) -> None:
        """Report, once a minute, each partition for which deadlines of these sagas wait."""
        now_s = self.clock.monotonic_s()
        waiting = {p: None for saga in sagas for p in self._partitions(saga) if self._pending.get(p)}
        for partition in waiting:
            if now_s >= self._told_s.get(partition, now_s - TELL_EVERY_S) + TELL_EVERY_S:
                self._told_s[partition] = now_s
                end, look = self._pending[partition][0]
                self.watching.report(
                    DeadlineBehindLog(
                        service=self.watching.service,
                        topic=partition.topic,
                        partition=partition.number,
                        count=end - min(end, self._read_to(partition, self.sources.polled_offsets())),
                        waited_s=now_s - look.at_s,
                    )
                )

    # ---------------------------------------------------------------- rebalances

    def forget(self, partitions: Collection[Partition]) -> None:
        """Drop what is known of these partitions, because messages received from them may not be processed here."""
        for partition in partitions:
            self._pending.pop(partition, None)
            self._reached.pop(partition, None)
            self._positions.pop(partition, None)
        self._looked = None
        self._forgotten += 1

    # ---------------------------------------------------------------- lookups

    async def _look_up_ends(self, due_ms: int) -> None:
        """Look up the end offsets, unless they were looked up since `due_ms`. After a failure, no lookup starts for
        `AGAIN_S`. Until one succeeds, no deadline fires."""
        async with self._one_at_a_time:
            if self._is_since(self._looked, due_ms) or self.clock.monotonic_s() < self._refused_until_s:
                return
            look = EndsLookup(self.clock.now_ms(), self.clock.monotonic_s())
            before = self._forgotten
            try:
                ends = await self.sources.fetch_ends()
                self._counts, self._unknown = {}, set()
                self._add_ends(ends, look)
                others = [
                    partition for partition, end in ends.items() if end is not None and not self._is_ours(partition)
                ]
                if others := [partition for partition in others if partition.topic in self.topics]:
                    await self._ask_positions(others)
            except BrokerUnavailable as why:
                self._pause_lookups(why)
                return
            except BrokerError as why:  # the poll loop reports the reason
                self._refused_until_s = self.clock.monotonic_s() + AGAIN_S
                self.watching.unavailable("ends", BrokerUnavailable(str(why)))
                return
            if self._refused_until_s:  # otherwise a broker that answers this, but rejects writes, would look healthy
                self._refused_until_s = 0.0
                self.watching.answered("broker")
            if self._forgotten == before:  # else a rebalance dropped what was just recorded
                self._looked = look

    def _add_ends(self, ends: Mapping[Partition, int | None], look: EndsLookup) -> None:
        for partition, end in ends.items():
            if partition.topic not in self.topics:
                continue
            self._counts[partition.topic] = max(self._counts.get(partition.topic, 0), partition.number + 1)
            if end is None:
                self._unknown.add(partition)
                continue
            pending = self._pending.setdefault(partition, [])
            if len(pending) >= PENDING_MAX:
                pending.pop()
            pending.append((end, look))

    async def _ask_positions(self, partitions: Collection[Partition]) -> None:
        self._positions.update(await self.sources.fetch_positions(partitions))

    def _pause_lookups(self, why: BrokerUnavailable) -> None:
        self._refused_until_s = self.clock.monotonic_s() + AGAIN_S
        self.watching.unavailable("ends", why)

    def _is_since(self, look: EndsLookup | None, due_ms: int) -> bool:
        return look is not None and self._time_of(look) >= due_ms

    def _time_of(self, look: EndsLookup) -> int:
        """Return the wall-clock time of a lookup.

        This is the earlier of two times: the time recorded at the lookup, and the current time minus the monotonic time
        that has passed since. So the result is not too late, even if a clock was ahead, or the monotonic clock stopped
        during sleep.
        """
        passed_ms = round((self.clock.monotonic_s() - look.at_s) * 1000)
        return min(look.at_ms, self.clock.now_ms() - passed_ms)

    # ---------------------------------------------------------------- progress

    def _move_reached_ends(self) -> None:
        """Move end offsets that have been reached from `_pending` to `_reached`."""
        read_to, now_s = self.sources.polled_offsets(), self.clock.monotonic_s()
        for partition, pending in self._pending.items():
            if not pending:
                continue
            to = self._read_to(partition, read_to)
            while pending and pending[0][0] <= to:
                self._reached[partition] = pending.pop(0)[1], now_s
            if not pending:
                self._told_s.pop(partition, None)

    def _read_to(self, partition: Partition, read_to: Mapping[Partition, int]) -> int:
        """Return the offset below which everything was received here or processed by another worker."""
        if self._is_ours(partition):
            return max(self.assignment.trackers[partition].end, read_to.get(partition, 0))
        return self._positions.get(partition, -1)

    def _is_ours(self, partition: Partition) -> bool:
        return partition in self.assignment.trackers and partition not in self.assignment.leaving

    def _handled_until(self, saga: str) -> tuple[int, float]:
        """Return the time up to which the log is processed for this saga, and when the last of its partitions reached
        it."""
        if self._looked is None:
            return 0, 0.0
        handled_ms, seen_s = self._time_of(self._looked), 0.0
        standing = set(self._stalled_partitions(saga))
        for partition in self._partitions(saga):
            if partition in standing:
                continue
            reached = self._reached.get(partition)
            if reached is None:
                return 0, 0.0
            handled_ms, seen_s = min(handled_ms, self._time_of(reached[0])), max(seen_s, reached[1])
        return handled_ms, seen_s

    def _partitions(self, saga: str) -> list[Partition]:
        """Return the partitions that may hold messages of the saga."""
        key = saga.encode()
        return [
            Partition(topic, number)
            for topic, count in self._counts.items()
            for number in (range(count) if topic in self.assignment.scattered else (partition_of(key, count),))
        ]

    def _stalled_partitions(self, saga: str) -> list[Partition]:
        """Return the partitions of the saga that cannot be read now. Deadlines do not wait for them."""
        still = {(each.topic, each.partition) for each in self.sources.stalled_partitions()}
        if not still and not self._unknown:
            return []
        return [
            partition
            for partition in self._partitions(saga)
            if partition in self._unknown or partition in still or (partition.topic, None) in still
        ]

    def _is_behind(self, saga: str, seen_s: float) -> bool:
        """Return whether a message of the saga that was received by `seen_s` still waits to be processed."""
        if self.executor.has_waiting(saga, seen_s):
            return True
        return self.is_low_priority is not None and self.is_low_priority(saga)

    def _report_passed(self, saga: str, due_ms: int, partition: Partition) -> None:
        topic, number = partition
        if self.watching.is_news(f"{saga} {due_ms} {topic}/{number}"):
            why = "it cannot be read now, and no deadline waits for it"
            self.watching.report(
                DeadlinePassedLog(service=self.watching.service, saga=saga, topic=topic, partition=number, error=why)
            )
