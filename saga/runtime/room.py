"""How much a worker may have in flight: what it may still take in, and from which partitions."""

from dataclasses import dataclass, field

from saga.messages import Partition
from saga.policies.concurrency import INFLIGHT_MIN, InFlight
from saga.runtime.lanes import Lanes
from saga.runtime.ports import RunningPorts

POLL_MAX = 500
"""Records taken at a time."""
SHARES = 4
"""A partition holds at most this part of the messages in flight: the rest is for others."""
WINDOW = 10
"""A partition is not read while it holds more than this many times the in-flight bound of finished messages behind one
that is not."""
GATHERED = 8
"""Less room than this part of the bound is left to gather: to take in one message whenever one has left costs more than
to handle it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The bounds of one worker."""

    inflight_max: int = 1000
    """Messages begun and not finished, at most."""
    inflight_min: int = INFLIGHT_MIN
    """How many of them a slow store leaves; more than the most counts as the most."""
    inflight_bytes_max: int = 64 << 20
    """Of their values together; one poll may go beyond it."""
    cache_max: int = 2000
    """Progresses kept in memory."""
    drain_s: float = 20
    """How long what runs may go on when the worker stops or loses a partition."""


@dataclass(slots=True)
class Room:
    """What is in flight now, against its bounds."""

    limits: Limits
    ports: RunningPorts
    lanes: Lanes
    now: InFlight = field(init=False)
    """The bound that follows store and log."""

    def __post_init__(self) -> None:
        self.now = InFlight(self.limits.inflight_min, self.limits.inflight_max)
        self.ports.load = self

    def open(self) -> tuple[list[Partition], int]:
        """The partitions that may be read now, and how many records. None of them fills the worker alone: a saga that
        is tried again and again, with a thousand messages behind it, holds up its partition and no other."""
        limit, behind_max = self.now.limit, WINDOW * self.limits.inflight_max
        room, share = limit - self.lanes.inflight, max(1, limit // SHARES)
        held = share - max(1, share // GATHERED)
        open_ = [
            (partition, share - prefix.unfinished)
            for partition, prefix in self.ports.prefixes.items()
            if prefix.unfinished <= held and len(prefix) < behind_max and partition not in self.ports.leaving
        ]
        if room <= 0 or len(open_) < len(self.ports.prefixes):
            self.now.reached = True
        if room < max(1, limit // GATHERED) or not open_ or self.lanes.inflight_bytes >= self.limits.inflight_bytes_max:
            return [], 0
        return [partition for partition, _ in open_], min(room, POLL_MAX, *(left for _, left in open_))

    # ---------------------------------------------------------------- see `saga.runtime.ports.Load`

    def took(self, seconds: float) -> None:
        self.now.observe(seconds, self.lanes.inflight, self.ports.clock.monotonic_s())

    def failed(self) -> None:
        self.now.failed(self.ports.clock.monotonic_s())
