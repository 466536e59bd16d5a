"""Messages that yield: for handlers that may wait, and held back while a worker has enough to do with others.

They are in memory and in the log: their offsets are not committed before they have been handled. The order inside a
saga stays: a message of a saga that is in flight does not yield, and whatever else comes of a saga takes those that
yield with it, in front of it.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from saga.engine.consumer.keyed_executor import Item, Lanes
from saga.messages import Partition
from saga.policies.yielding import YIELDS_S_MAX
from saga.support.clock import Clock


@dataclass(slots=True)
class Yielding:
    """Messages of a worker that yield."""

    clock: Clock
    lanes: Lanes
    types: Collection[str]
    """Types of messages that only handlers which may wait are for."""
    topics: Collection[str]
    """Topics of which the service reads such types only: they are not read while too many yield."""
    is_saturated: Callable[[], bool]
    held_max: int
    roomier: Callable[[], None]
    """Called when topics may be read again."""
    count: int = 0
    """Number of messages that yield now."""
    _sagas: dict[str, deque[tuple[float, Item]]] = field(default_factory=dict)
    """By saga, those that have yielded longest first; each with the time from which on it does."""
    _some: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_full(self) -> bool:
        """True if no more should be read."""
        return self.count >= self.held_max

    def add(self, item: Item) -> None:
        """Put a message into its lane, or hold it back."""
        message = item.message
        held = self._sagas.get(message.saga)
        if message.type not in self.types or (held is None and self._may_go(message.saga)):
            if held is not None:
                self._release(message.saga)
            self.lanes.add(item)
            return
        if held is None:
            held = self._sagas[message.saga] = deque()
            self._some.set()
        held.append((self.clock.monotonic_s(), item))
        self.count += 1
        if self.count > self.held_max:
            self._release(next(iter(self._sagas)))

    def has(self, saga: str) -> bool:
        """Return whether a message of the saga yields now."""
        return saga in self._sagas

    async def run(self) -> None:
        """Let each go when there is less to do, or it has yielded for long enough; until cancelled."""
        while True:
            if not self._sagas:
                self._some.clear()
                await self._some.wait()
                continue
            saga, held = next(iter(self._sagas.items()))
            left_s = held[0][0] + YIELDS_S_MAX - self.clock.monotonic_s()
            if left_s <= 0 or not self.is_saturated():
                self._release(saga)
                continue
            self.lanes.freed.clear()
            try:
                await self.clock.within(left_s, self.lanes.freed.wait())
            except TimeoutError:
                continue

    def forget(self, partitions: Collection[Partition]) -> None:
        """Drop those of these partitions: they are not ours any more."""
        gone = {partition[:2] for partition in partitions}
        for saga, held in list(self._sagas.items()):
            kept = deque(each for each in held if each[1].position[:2] not in gone)
            self.count -= len(held) - len(kept)
            if kept:
                self._sagas[saga] = kept
            else:
                del self._sagas[saga]

    def _may_go(self, saga: str) -> bool:
        return self.lanes.has(saga) or not self.is_saturated()

    def _release(self, saga: str) -> None:
        was_full, held = self.is_full, self._sagas.pop(saga)
        self.count -= len(held)
        for _, item in held:
            self.lanes.add(item)
        if was_full and not self.is_full:
            self.roomier()
