"""Flow control: how many more messages a worker may receive, from which partitions, and which low-priority messages
wait.

Messages that only low-priority handlers consume are held back while a worker is busy with others. Held messages stay in
memory and in the log: their offsets are committed only after they were handled. The order within a saga is kept: if a
message of the saga is in flight, further ones are not held back; and a message that is not of low priority first
releases the held messages of its saga.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from operator import attrgetter

from saga.engine.consumer.keyed_executor import KeyedExecutor, WorkItem
from saga.engine.consumer.offset_tracker import OffsetTracker
from saga.engine.consumer.timers import TimerBuffer
from saga.engine.consumer.worker_ports import WorkerAssignment
from saga.messages import Partition
from saga.policies.concurrency import INFLIGHT_MIN, YIELDS_S_MAX, InFlight, is_saturated
from saga.support.clock import Clock


@dataclass(slots=True)
class LowPriorityBuffer:
    """Low-priority messages that a worker holds back."""

    clock: Clock
    executor: KeyedExecutor
    types: Collection[str]
    """Message types that only low-priority handlers consume."""
    topics: Collection[str]
    """Topics from which the service reads only such types. They are not polled while the buffer is full."""
    is_saturated: Callable[[], bool]
    held_max: int
    on_room: Callable[[], None]
    """Called when these topics may be polled again."""
    count: int = 0
    """Number of messages held back now."""
    _sagas: dict[str, deque[tuple[float, WorkItem]]] = field(default_factory=dict)
    """Held messages by saga, each with the time since which it is held; the saga that has waited longest is first."""
    _some: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_full(self) -> bool:
        """True if the low-priority topics should not be polled."""
        return self.count >= self.held_max

    def add(self, item: WorkItem) -> None:
        """Pass a message to the executor, or hold it back."""
        message = item.message
        waiting = self._sagas.get(message.saga)
        if message.type not in self.types or (waiting is None and self._may_go(message.saga)):
            if waiting is not None:
                self._release(message.saga)
            self.executor.add(item)
            return
        if waiting is None:
            waiting = self._sagas[message.saga] = deque()
            self._some.set()
        waiting.append((self.clock.monotonic_s(), item))
        self.count += 1
        if self.count > self.held_max:
            self._release(next(iter(self._sagas)))

    def has_saga(self, saga: str) -> bool:
        """Return whether a message of the saga is held back."""
        return saga in self._sagas

    async def run(self) -> None:
        """Release messages when the worker has capacity, or after `YIELDS_S_MAX`, until cancelled."""
        while True:
            if not self._sagas:
                self._some.clear()
                await self._some.wait()
                continue
            saga, waiting = next(iter(self._sagas.items()))
            left_s = waiting[0][0] + YIELDS_S_MAX - self.clock.monotonic_s()
            if left_s <= 0 or not self.is_saturated():
                self._release(saga)
                continue
            self.executor.freed.clear()
            try:
                await self.clock.within(left_s, self.executor.freed.wait())
            except TimeoutError:
                continue

    def forget(self, partitions: Collection[Partition]) -> None:
        """Drop the messages of these partitions, because another member owns the partitions now."""
        gone = {partition[:2] for partition in partitions}
        for saga, waiting in list(self._sagas.items()):
            remaining = deque(each for each in waiting if each[1].position[:2] not in gone)
            self.count -= len(waiting) - len(remaining)
            if remaining:
                self._sagas[saga] = remaining
            else:
                del self._sagas[saga]

    def _may_go(self, saga: str) -> bool:
        return self.executor.has_saga(saga) or not self.is_saturated()

    def _release(self, saga: str) -> None:
        was_full, waiting = self.is_full, self._sagas.pop(saga)
        self.count -= len(waiting)
        for _, item in waiting:
            self.executor.add(item)
        if was_full and not self.is_full:
            self.on_room()


# -------------------------------------------------------------------- how much to take in


POLL_MAX = 500
"""Maximum number of records in one poll."""
SHARES = 4
"""Each partition may have at most 1/`SHARES` of the messages in flight, so that the other partitions get the rest."""
WINDOW = 10
"""A partition is not read while more than `WINDOW` times `inflight_max` finished messages wait behind an unfinished one
and cannot be committed."""
GATHERED = 8
"""A poll starts only when at least 1/`GATHERED` of the concurrency limit is free, because polling for single messages
costs more than handling them."""


_taken, _unfinished = attrgetter("taken"), attrgetter("unfinished")


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowLimits:
    """Limits of one worker."""

    inflight_max: int = 1000
    """Maximum number of messages received and not finished."""
    inflight_min: int = INFLIGHT_MIN
    """Number of messages that may be in flight even if the store is slow; at most `inflight_max`."""
    inflight_bytes_max: int = 64 << 20
    """Maximum total size of the values of messages in flight; one poll may exceed it."""
    cache_max: int = 2000
    """Number of progress documents cached in memory."""
    deaths_max: int = 3
    """Number of crashes while a message was handled, after which the message becomes a dead letter."""
    drain_s: float = 20
    """Seconds that running handlers have to finish when the worker stops."""


@dataclass(slots=True)
class FlowControl:
    """Bounds the messages in flight.

    The adaptive bound follows the latency of store and broker. It counts only messages that may be waiting for store or
    broker. A message that waits for an external call, for its next attempt, or behind another message of its saga puts
    no load on them, and may wait for long. If it counted, one slow external system would block all other sagas.
    """

    limits: FlowLimits
    assignment: WorkerAssignment
    executor: KeyedExecutor
    timers: TimerBuffer
    concurrency: InFlight = field(init=False)
    """Adaptive bound that follows the latency of store and broker."""
    low_priority: LowPriorityBuffer | None = None
    """Buffer for low-priority messages; `None` if all handlers have the same priority."""
    is_behind: bool = False
    """True if the last poll was full, so that more records wait. Only set if there are low-priority handlers."""
    has_full_partition: bool = False
    """True if a partition was left out because it was full, and may soon have room again."""

    def __post_init__(self) -> None:
        self.concurrency = InFlight(self.limits.inflight_min, self.limits.inflight_max)
        self.assignment.outage_watch.load = self

    @property
    def busy(self) -> int:
        """Number of messages that may be waiting for store or broker."""
        return self.executor.active - self.assignment.outage_watch.idle

    def choose_partitions(self) -> tuple[list[Partition], int]:
        """Return the partitions to read now, and the maximum number of records.

        No partition may fill the worker alone. A saga that is retried, with a thousand messages behind it, then blocks
        only its own partition.
        """
        limit, most = self.concurrency.limit, self.limits.inflight_max
        room = limit - self.busy
        if room < max(1, limit // GATHERED):
            self.concurrency.reached = True
            return [], 0
        share = max(1, most // SHARES)
        open_ = self.assignment.trackers
        self.has_full_partition = False
        unfinished: Iterable[int] = map(_unfinished, open_.values())
        # A shortcut for the usual case, in which no partition has to be left out.
        too_much = max(map(len, map(_taken, open_.values())), default=0) >= share
        if too_much or self.assignment.leaving or self.timers.full or self._low_priority_topics_to_skip():
            open_, unfinished = self._find_partitions_with_room(share)
        room = min(room, most - self.executor.inflight, POLL_MAX)
        if room <= 0 or not open_ or self.executor.inflight_bytes >= self.limits.inflight_bytes_max:
            return [], 0
        # A partition may exceed its share by a little, so that the others need not be read one record at a time.
        left = share - max(unfinished)
        return list(open_), min(room, max(share // GATHERED, left))

    def _find_partitions_with_room(self, share: int) -> tuple[dict[Partition, OffsetTracker], Iterable[int]]:
        """Return the partitions that have room, and the number of messages in flight of each. Buffered timers do not
        count, because they have limits of their own."""
        open_: dict[Partition, OffsetTracker] = {}
        unfinished: list[int] = []
        window, wait = WINDOW * self.limits.inflight_max, self._low_priority_topics_to_skip()
        for partition, tracker in self.assignment.trackers.items():
            if partition in self.assignment.leaving or partition in self.timers.full or partition.topic in wait:
                continue
            timers = self.timers.count(partition)
            if len(tracker) - timers >= window:
                tracker.offset_to_commit()  # drops what can be committed, and the next commit may come later
            if tracker.unfinished - timers < share and len(tracker) - timers < window:
                open_[partition] = tracker
                unfinished.append(tracker.unfinished - timers)
            else:
                self.has_full_partition = True
        return open_, unfinished

    def _low_priority_topics_to_skip(self) -> Collection[str]:
        """Return the topics not to read, because the low-priority buffer is full."""
        return self.low_priority.topics if self.low_priority is not None and self.low_priority.is_full else ()

    def is_saturated(self) -> bool:
        """Return whether low-priority messages have to wait."""
        inflight, most = self.executor.inflight, self.limits.inflight_max
        return is_saturated(self.busy, self.concurrency.limit, inflight, most, is_behind=self.is_behind)

    # ---------------------------------------------------------------- see `saga.engine.outage_watch.LoadListener`

    def took(self, seconds: float, now_s: float) -> None:
        self.concurrency.observe(seconds, self.busy, now_s)

    def on_failure(self) -> None:
        self.concurrency.count_failure(self.assignment.outage_watch.clock.monotonic_s())

    def eased(self) -> None:
        self.executor.freed.set()
