"""View of a running worker, for those who watch it: what it has in hand, how far it is behind, what it cannot reach.

Moments say what happened. What *is* costs the worker nothing until somebody looks.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol, TypeAlias

from saga.messages import Partition, StalledPartition


class Reach(NamedTuple):
    """Reach of a worker in one partition."""

    done: int
    """Offset below which nothing is left to do."""
    end: int
    """Offset after the last record that is known to be there."""


class WorkerView(Protocol):
    """Worker from when it takes messages to its end. All can be asked at any time."""

    @property
    def name(self) -> str:
        """Name of its service."""

    @property
    def types(self) -> Collection[str]:
        """Types of messages that its service consumes."""

    @property
    def handlers(self) -> Collection[str]:
        """Names of its handlers and compensations."""

    @property
    def inflight(self) -> int:
        """Messages begun and not finished."""

    @property
    def inflight_max(self) -> int:
        """Bound of `inflight`."""

    @property
    def yields(self) -> int:
        """Messages that are held back for others."""

    @property
    def partitions(self) -> int:
        """Number of partitions that are its own."""

    def lag(self) -> Mapping[Partition, int] | None:
        """Records of each partition that were not read yet, as `Membership.lag` of `saga.broker.port` counts them."""

    def reach(self) -> Mapping[Partition, Reach] | None:
        """Reach in each of its partitions, but in those of wakes, which lie there until their time; `None`: not known
        of all."""

    def away(self) -> Mapping[str, float]:
        """Map `store` or `broker` to the seconds for which it cannot be reached. Empty when both can."""

    def stalled_partitions(self) -> Sequence[StalledPartition]:
        """Partitions that cannot be read now, as `Membership.stalled_partitions` of `saga.broker.port` gives them."""

    async def look(self) -> None:
        """Find out whether store and broker can be reached: a worker that has nothing to do would not notice."""


Watch: TypeAlias = Callable[[WorkerView], AbstractContextManager[None]]
"""Function that makes a block around a worker's life: entered when it begins, left at its end, whatever ends it."""
