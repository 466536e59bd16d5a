"""Lanes: one for each saga in flight. Its messages go one after another, and all lanes side by side.

Each lane is a task, and most have one message. A task group takes part in the end of each of its tasks, which costs as
much as to begin one: so the lanes have one task there for all of them, their keeper.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

from msgspec import Struct

from saga.engine.consumer.offset_tracker import Prefix
from saga.messages import Message, Partition, Position
from saga.messaging.timers import Wake


class Item(Struct, eq=False):
    """A message on its way through the worker."""

    message: Message
    position: Position
    prefix: Prefix
    """Told that it is finished; belongs to the assignment under which it came."""
    received_s: float
    deaths: int = 0
    """Number of deaths for which it is given up, where something of the service's would run; 0: it is not."""
    survived: Callable[[], None] | None = None
    """Told that nobody has died of it so far, though it is not finished: its lane waits."""
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
    """Sagas in flight. To be used in an `async with`, which ends when no message is in any lane."""

    tasks: asyncio.TaskGroup
    """Tasks of the service: they end, and the lanes with them, when one of all these fails."""
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
    _failed: asyncio.Event = field(default_factory=asyncio.Event)
    _failures: list[BaseException] = field(default_factory=list)
    """Exceptions that lanes have raised: they end the service."""
    _keeper: asyncio.Task[None] | None = None
    _cancelled: set[asyncio.Task[None]] = field(default_factory=set)
    """Lanes that have been cancelled: once is enough, and more would break off how they end."""

    async def __aenter__(self) -> Self:
        self._keeper = self.tasks.create_task(self._kept(), name="lanes")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        assert self._keeper is not None
        try:
            while kind is None and (running := self._running()):
                await asyncio.wait(running)
        finally:
            self._keeper.cancel()
            await self._ended()

    async def _kept(self) -> None:
        """Wait until a lane fails, and raise what it has raised. No lane goes on then, nor when this is cancelled."""
        try:
            await self._failed.wait()
        finally:
            await self._ended()
            if self._failures:
                raise self._failures[0] if len(self._failures) == 1 else BaseExceptionGroup("lanes", self._failures)

    async def _ended(self) -> None:
        """Cancel all lanes, and return when none is left: those, too, that begin meanwhile."""
        while running := self._running():
            for task in running:
                if task not in self._cancelled:
                    task.cancel()
            self._cancelled.update(running)
            with suppress(asyncio.CancelledError):  # as task groups do: whoever cancels again waits for them, too
                await asyncio.wait(running)

    def _running(self) -> list[asyncio.Task[None]]:
        # One that is cancelled before it begins never runs, and so never leaves.
        return [lane.task for lane in self._lanes.values() if lane.task is not None and not lane.task.done()]

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
        lane.task = asyncio.get_running_loop().create_task(self._run(saga, lane), name=f"lane {saga}")

    def has(self, saga: str) -> bool:
        """Return whether a message of the saga is in flight."""
        return saga in self._lanes

    def has_waiting(self, saga: str, until_s: float) -> bool:
        """Return whether a message of the saga, taken in by this time of the monotonic clock, waits behind the one in
        hand. A wake says nothing new, and does not count."""
        lane = self._lanes.get(saga)
        return lane is not None and any(
            item.received_s <= until_s and type(item.message) is not Wake for item in lane.waiting
        )

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
        except asyncio.CancelledError:
            raise
        except BaseException as why:  # noqa: BLE001 - raised by the keeper
            self._failures.append(why)
            self._failed.set()
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

    async def waited(self, limit_s: float) -> set[asyncio.Future[None]]:
        """Return when no message is in hand, or at the limit: what is in hand then, done when it has left."""
        loop, left = asyncio.get_running_loop(), list[asyncio.Future[None]]()
        for lane in self._lanes.values():
            if (item := lane.current) is not None:
                item.left = item.left or loop.create_future()
                left.append(item.left)
        return (await asyncio.wait(left, timeout=limit_s))[1] if left else set()

    async def drained(self, limit_s: float) -> None:
        """Return when no message is in hand; what is at the limit is left."""
        late = await self.waited(limit_s)
        for lane in self._lanes.values():
            if (item := lane.current) is not None and item.left in late:
                self._late.add(item)
                if lane.task is not None:
                    lane.task.cancel()
        if late:
            await asyncio.wait(late)
