"""Flow control: how many more messages a worker may take in, and from which partitions."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from operator import attrgetter

from saga.engine.consumer.keyed_executor import KeyedExecutor
from saga.engine.consumer.low_priority import LowPriorityBuffer
from saga.engine.consumer.offset_tracker import OffsetTracker
from saga.engine.consumer.timer_buffer import TimerBuffer
from saga.engine.consumer.worker_ports import WorkerAssignment
from saga.messages import Partition
from saga.policies.concurrency import INFLIGHT_MIN, InFlight, is_saturated

POLL_MAX = 500
"""Maximum number of records in one poll."""
SHARES = 4
"""One partition may have at most one in so many of the messages in flight; the rest is for the others."""
WINDOW = 10
"""A partition is not read while more than so many times `inflight_max` finished messages wait behind an unfinished one
and cannot be committed."""
GATHERED = 8
"""No poll starts for less than one in so many of the in-flight bound: polling for each single message would cost more
than handling it."""


_taken, _unfinished = attrgetter("taken"), attrgetter("unfinished")


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowLimits:
    """Limits of one worker."""

    inflight_max: int = 1000
    """Maximum number of messages received and not finished."""
    inflight_min: int = INFLIGHT_MIN
    """Messages that may be in flight however slow the store is; at most `inflight_max`."""
    inflight_bytes_max: int = 64 << 20
    """Maximum size of the values of these messages; one poll may exceed it."""
    cache_max: int = 2000
    """Number of progress documents cached in memory."""
    deaths_max: int = 3
    """Crashes of processes while they handled a message, after which it becomes a dead letter."""
    drain_s: float = 20
    """Seconds that running handlers get to finish when the worker stops."""


@dataclass(slots=True)
class FlowControl:
    """Bounds the messages in flight.

    The adaptive bound follows the latency of store and broker. It counts only messages that may be waiting for these.
    A message that waits for an external call or for its next attempt is not counted: it puts no load on them, and may
    take long. If it counted, one slow external system would block all other sagas.
    """

    limits: FlowLimits
    assignment: WorkerAssignment
    executor: KeyedExecutor
    timers: TimerBuffer
    concurrency: InFlight = field(init=False)
    """Adaptive bound that follows the latency of store and broker."""
    low_priority: LowPriorityBuffer | None = None
    """Low-priority messages; `None`: all handlers have the same priority."""
    is_behind: bool = False
    """True if the last poll was full, so there are more records. Only set if there are low-priority handlers."""
    has_full_partition: bool = False
    """True if a partition was left out that may have room again soon."""

    def __post_init__(self) -> None:
        self.concurrency = InFlight(self.limits.inflight_min, self.limits.inflight_max)
        self.assignment.outage_watch.load = self

    @property
    def busy(self) -> int:
        """Number of messages that may be waiting for store or broker."""
        return self.executor.inflight - self.assignment.outage_watch.idle

    def choose_partitions(self) -> tuple[list[Partition], int]:
        """Return the partitions to read now, and the maximum number of records.

        No partition may fill the worker alone: a saga that is retried, with a thousand messages behind it, then blocks
        its own partition and no other.
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
        count: they have limits of their own."""
        open_: dict[Partition, OffsetTracker] = {}
        unfinished: list[int] = []
        window, wait = WINDOW * self.limits.inflight_max, self._low_priority_topics_to_skip()
        for partition, prefix in self.assignment.trackers.items():
            if partition in self.assignment.leaving or partition in self.timers.full or partition.topic in wait:
                continue
            held = self.timers.count(partition)
            if prefix.unfinished - held < share and len(prefix) - held < window:
                open_[partition] = prefix
                unfinished.append(prefix.unfinished - held)
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
        self.concurrency.observe(seconds, self.executor.inflight - self.assignment.outage_watch.idle, now_s)

    def on_failure(self) -> None:
        self.concurrency.count_failure(self.assignment.outage_watch.clock.monotonic_s())

    def eased(self) -> None:
        self.executor.freed.set()
