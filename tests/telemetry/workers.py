"""A worker to look at that is as a test says, and a clock that stands still until a test moves it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from saga.messages import Partition, StalledPartition
from saga.support.clock import SystemClock
from saga.telemetry.health import PartitionReach

P0, P1 = Partition("orders", 0), Partition("orders", 1)


class SetClock(SystemClock):
    """Seconds pass when a test says so."""

    def __init__(self) -> None:
        self.at_s = 1000.0

    def monotonic_s(self) -> float:
        return self.at_s


@dataclass
class WatchedWorker:
    """A `saga.telemetry.health.WorkerView`, of values."""

    name: str = "payment"
    types: Collection[str] = ("OrderPlaced", "OrderCancelled")
    handlers: Collection[str] = ("reserve", "release")
    inflight: int = 0
    inflight_max: int = 1000
    yields: int = 0
    behind: Mapping[Partition, int] | None = None
    gone: dict[str, float] = field(default_factory=dict)
    given: int | None = None
    """Number of its partitions, if the end of some is not known."""
    stands: Sequence[StalledPartition] = ()
    looked: int = 0
    handled: int = 100
    """Offset up to which it has handled all, in each partition."""

    @property
    def partitions(self) -> int:
        return len(self.behind or ()) if self.given is None else self.given

    def lag(self) -> Mapping[Partition, int] | None:
        return self.behind

    def reach(self) -> Mapping[Partition, PartitionReach] | None:
        if self.behind is None or len(self.behind) != self.partitions:
            return None
        return {at: PartitionReach(self.handled, self.handled + count) for at, count in self.behind.items()}

    def away(self) -> Mapping[str, float]:
        return self.gone

    def stalled_partitions(self) -> Sequence[StalledPartition]:
        return self.stands

    async def look(self) -> None:
        self.looked += 1
