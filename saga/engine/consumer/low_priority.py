"""Hold back messages for low-priority handlers while a worker is busy with others.

Held messages stay in memory and in the log: their offsets are committed only after they were handled. The order within
a saga is kept: a message of a saga in flight is not held back, and any other message of a saga releases the held ones
before it.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from saga.engine.consumer.keyed_executor import KeyedExecutor, WorkItem
from saga.messages import Partition
from saga.policies.concurrency import YIELDS_S_MAX
from saga.support.clock import Clock


@dataclass(slots=True)
class LowPriorityBuffer:
    """Low-priority messages of a worker that wait."""

    clock: Clock
    executor: KeyedExecutor
    types: Collection[str]
    """Message types that only low-priority handlers take."""
    topics: Collection[str]
    """Topics of which the service reads only such types: not polled while the buffer is full."""
    is_saturated: Callable[[], bool]
    held_max: int
    on_room: Callable[[], None]
    """Called when these topics may be polled again."""
    count: int = 0
    """Number of messages held back now."""
    _sagas: dict[str, deque[tuple[float, WorkItem]]] = field(default_factory=dict)
    """Held messages by saga, each with the time since when; the saga that waits longest first."""
    _some: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_full(self) -> bool:
        """True if the topics should not be polled."""
        return self.count >= self.held_max

    def add(self, item: WorkItem) -> None:
        """Pass a message to the executor, or hold it back."""
        message = item.message
        held = self._sagas.get(message.saga)
        if message.type not in self.types or (held is None and self._may_go(message.saga)):
            if held is not None:
                self._release(message.saga)
            self.executor.add(item)
            return
        if held is None:
            held = self._sagas[message.saga] = deque()
            self._some.set()
        held.append((self.clock.monotonic_s(), item))
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
            saga, held = next(iter(self._sagas.items()))
            left_s = held[0][0] + YIELDS_S_MAX - self.clock.monotonic_s()
            if left_s <= 0 or not self.is_saturated():
                self._release(saga)
                continue
            self.executor.freed.clear()
            try:
                await self.clock.within(left_s, self.executor.freed.wait())
            except TimeoutError:
                continue

    def forget(self, partitions: Collection[Partition]) -> None:
        """Drop the messages of these partitions: another member has them now."""
        gone = {partition[:2] for partition in partitions}
        for saga, held in list(self._sagas.items()):
            kept = deque(each for each in held if each[1].position[:2] not in gone)
            self.count -= len(held) - len(kept)
            if kept:
                self._sagas[saga] = kept
            else:
                del self._sagas[saga]

    def _may_go(self, saga: str) -> bool:
        return self.executor.has_saga(saga) or not self.is_saturated()

    def _release(self, saga: str) -> None:
        was_full, held = self.is_full, self._sagas.pop(saga)
        self.count -= len(held)
        for _, item in held:
            self.executor.add(item)
        if was_full and not self.is_full:
            self.on_room()
