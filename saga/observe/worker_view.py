"""A running worker as those see it who watch it: what it has in hand, how far it is behind, what it cannot reach.

Moments say what happened. What *is* costs the worker nothing until somebody looks.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeAlias

from saga.messages import Partition, Standstill


class WorkerView(Protocol):
    """A worker, from when it takes messages to its end. All can be asked at any time."""

    @property
    def name(self) -> str:
        """Of its service."""

    @property
    def types(self) -> Collection[str]:
        """What its service consumes."""

    @property
    def handlers(self) -> Collection[str]:
        """The names of its handlers and compensations."""

    @property
    def inflight(self) -> int:
        """Messages begun and not finished."""

    @property
    def inflight_max(self) -> int:
        """The bound of it."""

    @property
    def partitions(self) -> int:
        """How many are its own."""

    def lag(self) -> Mapping[Partition, int] | None:
        """Standstills, as `Membership.standstills` of `saga.broker.port` gives them."""

    def away(self) -> Mapping[str, float]:
        """`store` or `broker` -> for how many seconds it cannot be reached. Empty when both can."""

    def standstills(self) -> Sequence[Standstill]:
        """Standstills, as `Membership.standstills` of `saga.broker.port` gives them."""

    async def look(self) -> None:
        """Find out whether store and broker can be reached: a worker that has nothing to do would not notice."""


Watch: TypeAlias = Callable[[WorkerView], AbstractContextManager[None]]
"""Enters when a worker begins, and exits at its end, whatever ends it."""
