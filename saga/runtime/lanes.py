"""Lanes: one for each saga in flight. Its messages go one after another, and all lanes side by side."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field

from msgspec import Struct

from saga.messages import Message, Partition, Position
from saga.runtime.offsets import Prefix


class Item(Struct, eq=False):
    """A message on its way through the worker."""

    message: Message
    position: Position
    prefix: Prefix
    """Told that it is finished; belongs to the assignment under which it came."""
    received_s: float
    deaths: int = 0
    """Number of deaths for which it is given up, where something of the service's would run; 0: it is not."""
    left: asyncio.Future[None] | None = None
    """Done when the message is finished or left; made when somebody waits for that."""


class Lane(Struct, eq=False):
    """Messages of one saga that are here."""

    waiting: deque[Item]
    current: Item | None = None
    """Message in hand."""
    task: asyncio.Task[None] | None = None


@dataclass(slots=True)
class Lanes:
    """Sagas in flight."""

    tasks: asyncio.TaskGroup
    handle: Callable[[Item], Awaitable[bool]]
    """Brings one message to its end: true if it is finished. Else the lane forgets it: it is somebody else's."""
    guarded: Callable[[Item], Awaitable[bool]]
    """Does so with one that may end the process."""
    inflight: int = 0
    """Messages taken in and neither finished nor left."""
    inflight_bytes: int = 0
    """Bytes of the values of those messages."""
    freed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set whenever there may be room for more: a message has left."""
    finished: asyncio.Event = field(default_factory=asyncio.Event)
    """Set whenever there may be something to commit: a message is finished."""
    _lanes: dict[str, "Lane"] = field(default_factory=dict)
    _late: set[Item] = field(default_factory=set)
    """Messages in hand that are to be left as by a crash."""

    def add(self, item: Item) -> None:
        """Put a message behind the others of its saga."""
        self.inflight += 1
        self.inflight_bytes += len(item.message.value)
        saga = item.message.saga
        lane = self._lanes.get(saga)
        if lane is not None:
            lane.waiting.append(item)
            return
        lane = self._lanes[saga] = Lane(deque((item,)))
        lane.task = self.tasks.create_task(self._run(saga, lane), name=f"lane {saga}")

    def has(self, saga: str) -> bool:
        """Return whether a message of the saga is in flight."""
        return saga in self._lanes

    async def _run(self, saga: str, lane: "Lane") -> None:
        waiting = lane.waiting
        try:
            while waiting:
                item = lane.current = waiting.popleft()
                try:
                    finished = await (self.guarded if item.prefix.guarded else self.handle)(item)
                    if item in self._late and lane.task is not None:  # its handler came to its end in spite of it
                        lane.task.uncancel()
                except asyncio.CancelledError:
                    if item not in self._late or lane.task is None or lane.task.uncancel():
                        raise
                    finished = False  # it took too long to drain: it is left, and the lane goes on
                finally:
                    self._late.discard(item)
                    self._leaves(item)
                    if item.left is not None and not item.left.done():
                        item.left.set_result(None)
                if finished:
                    self.finish(item.prefix, item.position.offset)
        finally:
            for item in waiting:
                self._leaves(item)
            del self._lanes[saga]

    def _leaves(self, item: Item) -> None:
        self.inflight -= 1
        self.inflight_bytes -= len(item.message.value)
        self.freed.set()

    def finish(self, prefix: Prefix, offset: int) -> None:
        """Note that nothing of a message is left to do."""
        prefix.finished(offset)
        self.finished.set()

    def forget(self, partitions: Collection[Partition]) -> None:
        """Drop what has not begun of these partitions: it is not ours any more."""
        for lane in self._lanes.values():
            # A position's first two are as good as a `Partition`.
            gone = [item for item in lane.waiting if item.position[:2] in partitions]
            if gone:
                kept = [item for item in lane.waiting if item.position[:2] not in partitions]
                for item in gone:
                    self._leaves(item)
                lane.waiting.clear()
                lane.waiting.extend(kept)

    async def drained(self, partitions: Collection[Partition] | None, limit_s: float) -> None:
        """Return when no message of these partitions (`None`: of any) is in hand; what is at the limit is left."""
        in_hand = [
            (lane.task, item)
            for lane in self._lanes.values()
            if (item := lane.current) is not None and (partitions is None or item.position[:2] in partitions)
        ]
        if not in_hand:
            return
        loop = asyncio.get_running_loop()
        for _, item in in_hand:
            item.left = item.left or loop.create_future()
        _, late = await asyncio.wait([item.left for _, item in in_hand if item.left], timeout=limit_s)
        for task, item in in_hand:
            if item.left in late:
                self._late.add(item)
                if task is not None:
                    task.cancel()
        if late:
            await asyncio.wait(late)
