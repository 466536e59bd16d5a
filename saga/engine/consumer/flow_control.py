"""Room for more messages: how many a worker may still take in, and from which partitions."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from operator import attrgetter

from saga.engine.consumer.keyed_executor import Lanes
from saga.engine.consumer.low_priority import Yielding
from saga.engine.consumer.offset_tracker import Prefix
from saga.engine.consumer.timer_buffer import Held
from saga.engine.consumer.worker_ports import WorkerAssignment
from saga.messages import Partition
from saga.policies.concurrency import INFLIGHT_MIN, InFlight
from saga.policies.yielding import is_saturated

POLL_MAX = 500
"""Records taken at a time."""
SHARES = 4
"""A partition holds at most this part of the messages in flight: the rest is for others."""
WINDOW = 10
"""A partition is not read while it holds more than this many times the in-flight bound of finished messages behind one
that is not."""
GATHERED = 8
"""Less room than this part of a bound is left to gather: to take in one message whenever one has left costs more than
to handle it."""


_taken, _unfinished = attrgetter("taken"), attrgetter("unfinished")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one worker."""

    inflight_max: int = 1000
    """Messages begun and not finished, at most."""
    inflight_min: int = INFLIGHT_MIN
    """Messages that may be in flight however slow the store is; more than the most counts as the most."""
    inflight_bytes_max: int = 64 << 20
    """Bytes of their values together; one poll may go beyond it."""
    cache_max: int = 2000
    """Progresses kept in memory."""
    deaths_max: int = 3
    """Deaths of processes with a message in hand after which it is a dead letter."""
    drain_s: float = 20
    """Seconds that what runs may go on when the worker stops."""


@dataclass(slots=True)
class Room:
    """Messages in flight, against their bounds.

    The bound that follows store and log counts those messages alone that may be waiting for them. One whose step waits
    for the outside, or that pauses until it is tried again, does them no harm, and may take long: were it counted, a
    slow bank, or a few dozen lanes that cannot decide, would leave nothing for others.
    """

    limits: Limits
    assignment: WorkerAssignment
    lanes: Lanes
    held: Held
    now: InFlight = field(init=False)
    """Bound that follows store and log."""
    yielding: Yielding | None = None
    """Messages that yield; `None`: none ever does."""
    is_behind: bool = False
    """True if the last poll brought as many records as were asked for: there are more. Kept only where some yield."""
    soon: bool = False
    """True if a partition was left out that may have room again in a moment."""

    def __post_init__(self) -> None:
        self.now = InFlight(self.limits.inflight_min, self.limits.inflight_max)
        self.assignment.watching.load = self

    @property
    def busy(self) -> int:
        """Messages that may be waiting for store or log."""
        return self.lanes.inflight - self.assignment.watching.idle

    def open(self) -> tuple[list[Partition], int]:
        """Partitions that may be read now, and how many records. None of them fills the worker alone: a saga that
        is tried again and again, with a thousand messages behind it, holds up its partition and no other."""
        limit, most = self.now.limit, self.limits.inflight_max
        room = limit - self.busy
        if room < max(1, limit // GATHERED):
            self.now.reached = True
            return [], 0
        share = max(1, most // SHARES)
        open_ = self.assignment.prefixes
        self.soon = False
        unfinished: Iterable[int] = map(_unfinished, open_.values())
        # Nearly always none has to be left out, and that is cheap to see: none holds more than a share, or many wakes.
        too_much = max(map(len, map(_taken, open_.values())), default=0) >= share
        if too_much or self.assignment.leaving or self.held.full or self._topics_that_wait():
            open_, unfinished = self._with_room(share)
        room = min(room, most - self.lanes.inflight, POLL_MAX)
        if room <= 0 or not open_ or self.lanes.inflight_bytes >= self.limits.inflight_bytes_max:
            return [], 0
        # One that has nearly its share may go beyond it by a little, so that the others are not read one by one.
        left = share - max(unfinished)
        return list(open_), min(room, max(share // GATHERED, left))

    def _with_room(self, share: int) -> tuple[dict[Partition, Prefix], Iterable[int]]:
        """Partitions that do not hold too much, with how many messages of each are in flight. What is held until its
        time is not, and has bounds of its own."""
        open_: dict[Partition, Prefix] = {}
        unfinished: list[int] = []
        window, wait = WINDOW * self.limits.inflight_max, self._topics_that_wait()
        for partition, prefix in self.assignment.prefixes.items():
            if partition in self.assignment.leaving or partition in self.held.full or partition.topic in wait:
                continue
            held = self.held.count(partition)
            if prefix.unfinished - held < share and len(prefix) - held < window:
                open_[partition] = prefix
                unfinished.append(prefix.unfinished - held)
            else:
                self.soon = True
        return open_, unfinished

    def _topics_that_wait(self) -> Collection[str]:
        """Topics that are not read, for too many messages yield already."""
        return self.yielding.topics if self.yielding is not None and self.yielding.is_full else ()

    def is_saturated(self) -> bool:
        """Return whether there is so much to do that what may wait does."""
        inflight, most = self.lanes.inflight, self.limits.inflight_max
        return is_saturated(self.busy, self.now.limit, inflight, most, is_behind=self.is_behind)

    # ---------------------------------------------------------------- see `saga.engine.outage_watch.LoadListener`

    def took(self, seconds: float, now_s: float) -> None:
        self.now.observe(seconds, self.lanes.inflight - self.assignment.watching.idle, now_s)

    def failed(self) -> None:
        self.now.failed(self.assignment.watching.clock.monotonic_s())

    def eased(self) -> None:
        self.lanes.freed.set()
