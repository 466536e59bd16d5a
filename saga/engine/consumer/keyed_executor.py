"""Handle the messages of one saga in order, and all sagas concurrently.

Each saga in flight has a queue and a task, mostly for a single message. Putting each task into a task group would cost
as much again as starting it, because the group does work at the end of each task. So the executor puts one keeper task
into the group, and watches the tasks of the sagas itself.

`Batcher` lets the task of one saga do the same work for several sagas, such as updates of one document.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from msgspec import Struct

from saga.engine.consumer.offset_tracker import OffsetTracker
from saga.messages import Message, Partition, Position
from saga.messaging.timers import SagaTimer


class WorkItem(Struct, eq=False):
    """A message that the worker has received."""

    message: Message
    position: Position
    tracker: OffsetTracker
    """Offset tracker of its partition, in the assignment under which the message was received."""
    received_s: float
    deaths: int = 0
    """Number of crashes because of which its next run is given up; 0 if the run may begin."""
    is_repeat: bool = False
    """True if its processing wrote nothing, for example because it was handled before."""
    on_survived: Callable[[], None] | None = None
    """Called once it is certain that the message did not crash the process, even if it is not finished yet because its
    saga waits."""
    done: asyncio.Future[None] | None = None
    """Done when the message is finished or abandoned; created on demand."""


class SagaQueue(Struct, eq=False):
    """Messages of one saga that the worker has received."""

    waiting: deque[WorkItem]
    current: WorkItem | None = None
    """Message that is being handled."""
    task: asyncio.Task[None] | None = None


@dataclass(slots=True)
class KeyedExecutor:
    """Runs one task for each saga in flight. Leaving the `async with` block waits for all of them."""

    tasks: asyncio.TaskGroup
    """Task group of the service. If one of its tasks or a saga's task fails, all end."""
    handle: Callable[[WorkItem], Awaitable[bool]]
    """Handles one message; False if the message is left to the next owner of the partition."""
    handle_guarded: Callable[[WorkItem], Awaitable[bool]]
    """Like `handle`, for a message that may crash the process."""
    stop: Callable[[], None] = lambda: None
    """Called before all tasks are cancelled: a handler may survive that, and must not be tried again."""
    inflight: int = 0
    """Number of messages received and neither finished nor abandoned."""
    inflight_bytes: int = 0
    """Total size of the values of these messages."""
    without_saga: int = 0
    """Number of these messages that belong to no saga."""
    freed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set whenever a message has ended, so that there may be room for more."""
    finished: asyncio.Event = field(default_factory=asyncio.Event)
    """Set whenever a message is finished, so that there may be something to commit."""
    _queues: dict[str, "SagaQueue"] = field(default_factory=dict)
    _late: set[WorkItem] = field(default_factory=set)
    """Messages whose handling is to be abandoned, as in a crash, because draining took too long."""
    _failed: asyncio.Event = field(default_factory=asyncio.Event)
    _failures: list[BaseException] = field(default_factory=list)
    """Exceptions raised by the tasks of sagas: they end the service."""
    _keeper: asyncio.Task[None] | None = None
    _cancelled: set[asyncio.Task[None]] = field(default_factory=set)
    """Tasks already cancelled: a second cancellation would interrupt their cleanup."""

    async def __aenter__(self) -> Self:
        self._keeper = self.tasks.create_task(self._keep_tasks(), name="queues of sagas")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        assert self._keeper is not None
        try:
            while kind is None and (running := self._running_tasks()):
                await asyncio.wait(running)
        finally:
            self._keeper.cancel()
            await self._cancel_all()

    async def _keep_tasks(self) -> None:
        """Wait until a task fails, cancel the others and raise its exception. Being cancelled also cancels the
        others."""
        try:
            await self._failed.wait()
        finally:
            await self._cancel_all()
            if self._failures:
                raise (
                    self._failures[0]
                    if len(self._failures) == 1
                    else BaseExceptionGroup("queues of sagas", self._failures)
                )

    async def _cancel_all(self) -> None:
        """Cancel all tasks and wait until none is left, including those that start meanwhile."""
        self.stop()
        while running := self._running_tasks():
            for task in running:
                if task not in self._cancelled:
                    task.cancel()
            self._cancelled.update(running)
            with suppress(asyncio.CancelledError):  # as task groups do: a second cancellation still waits for the tasks
                await asyncio.wait(running)

    def _running_tasks(self) -> list[asyncio.Task[None]]:
        # A task that is cancelled before its first step never runs, and never removes its queue.
        return [queue.task for queue in self._queues.values() if queue.task is not None and not queue.task.done()]

    def add(self, item: WorkItem) -> None:
        """Queue a message behind the others of its saga."""
        self.inflight += 1
        self.inflight_bytes += len(item.message.value)
        saga = item.message.saga
        queue = self._queues.get(saga)
        if queue is not None:
            queue.waiting.append(item)
            return
        queue = self._queues[saga] = SagaQueue(deque((item,)))
        queue.task = asyncio.get_running_loop().create_task(self._run(saga, queue), name=f"queue of {saga}")

    @property
    def active(self) -> int:
        """Number of messages that are being handled: one of each saga in flight, and those without a saga."""
        return len(self._queues) + self.without_saga

    def has_saga(self, saga: str) -> bool:
        """Return whether a message of the saga is in flight."""
        return saga in self._queues

    def has_waiting(self, saga: str, until_s: float) -> bool:
        """Return whether a message of the saga that was received by `until_s` waits behind the current one. Timers do
        not count, because they bring nothing new."""
        queue = self._queues.get(saga)
        return queue is not None and any(
            item.received_s <= until_s and type(item.message) is not SagaTimer for item in queue.waiting
        )

    async def _run(self, saga: str, queue: "SagaQueue") -> None:
        waiting = queue.waiting
        try:
            while waiting:
                item = queue.current = waiting.popleft()
                try:
                    finished = await (self.handle_guarded if item.tracker.guarded else self.handle)(item)
                except asyncio.CancelledError:
                    if item not in self._late or self._is_ended(queue.task):
                        raise
                    finished = False  # draining took too long: abandon the message, continue with the queue
                finally:
                    _uncancel(queue.task)  # the message has ended in spite of what was requested
                    self._late.discard(item)
                    self._release(item)
                    if item.done is not None and not item.done.done():
                        item.done.set_result(None)
                if finished:
                    self.finish(item.tracker, item.position.offset)
        except BaseException as why:  # the keeper raises it
            if isinstance(why, asyncio.CancelledError):
                if self._is_ended(queue.task):
                    raise
                stray = RuntimeError(f"something was cancelled that the processing of saga {saga!r} waited for")
                stray.__cause__, why = why, stray
            self._failures.append(why)
            self._failed.set()
        finally:
            for item in waiting:
                self._release(item)
            del self._queues[saga]

    def is_abandoned(self) -> bool:
        """Return whether the executor has cancelled the message that the current task handles."""
        task = asyncio.current_task()
        if self._is_ended(task):
            return True
        return bool(self._late) and any(q.task is task and q.current in self._late for q in self._queues.values())

    def _is_ended(self, task: asyncio.Task[Any] | None) -> bool:
        """Return whether this task was cancelled together with the whole executor.

        When an event loop ends, it cancels all tasks at once, and a saga's task may learn it before the keeper does.
        """
        return task in self._cancelled or (self._keeper is not None and self._keeper.cancelling() > 0)

    def forget_cancellations(self) -> None:
        """Forget the cancellations of the current task, unless the executor has cancelled its message."""
        task = asyncio.current_task()
        if task is not None and task.cancelling() and not self.is_abandoned():
            _uncancel(task)

    def _release(self, item: WorkItem) -> None:
        self.inflight -= 1
        self.inflight_bytes -= len(item.message.value)
        self.freed.set()

    def finish(self, tracker: OffsetTracker, offset: int) -> None:
        """Mark a message as finished."""
        tracker.finish(offset)
        self.finished.set()

    def forget(self, partitions: Collection[Partition]) -> None:
        """Drop the queued messages of these partitions, because another member owns the partitions now."""
        for queue in self._queues.values():
            # The first two fields of a position compare equal to a `Partition`.
            gone = [item for item in queue.waiting if item.position[:2] in partitions]
            if gone:
                remaining = [item for item in queue.waiting if item.position[:2] not in partitions]
                for item in gone:
                    self._release(item)
                queue.waiting.clear()
                queue.waiting.extend(remaining)

    async def wait_until_idle(self, limit_s: float) -> set[asyncio.Future[None]]:
        """Wait until no message is being handled, or for `limit_s`. Returns the futures of those still running."""
        loop, left = asyncio.get_running_loop(), list[asyncio.Future[None]]()
        for queue in self._queues.values():
            if (item := queue.current) is not None:
                item.done = item.done or loop.create_future()
                left.append(item.done)
        return (await asyncio.wait(left, timeout=limit_s))[1] if left else set()

    async def drain(self, limit_s: float) -> None:
        """Wait until no message is being handled. After `limit_s`, the remaining runs are cancelled and abandoned."""
        late = await self.wait_until_idle(limit_s)
        for queue in self._queues.values():
            if (item := queue.current) is not None and item.done in late:
                self._late.add(item)
                if queue.task is not None:
                    queue.task.cancel()
        if late:
            await asyncio.wait(late)


def _uncancel(task: asyncio.Task[Any] | None) -> None:
    """Forget the cancellations of a task: it has survived them, and a later error would count as another one."""
    while task is not None and task.cancelling():
        task.uncancel()


# -------------------------------------------------------------------- batching


Item = TypeVar("Item")
T = TypeVar("T")

BATCH_MAX = 100
"""Maximum number of items in one batch."""


@dataclass(slots=True)
class Batcher:
    """Collects items for the same target while a batch for it is in progress, and processes them together as the next
    batch."""

    _waiting: dict[str, list[tuple[Any, asyncio.Future[Any]]]] = field(default_factory=dict)
    """Waiting items by target. A target has an entry only while a batch for it is in progress."""

    async def submit(self, what: str, item: Item, act: Callable[[Sequence[Item]], Awaitable[Sequence[T]]]) -> T:
        """Return the result of `act` for `item`, batched with the items that arrived during the previous batch.

        If `act` raises, its caller gets the exception, and the other items of the batch are tried again without it.
        """
        if what in self._waiting:
            answer: asyncio.Future[list[T] | None] = asyncio.get_running_loop().create_future()
            self._waiting[what].append((item, answer))
            try:
                found = await answer
            except asyncio.CancelledError:
                if answer.done() and not answer.cancelled() and answer.result() is None:
                    self._hand_over(what)  # it was chosen to run the next batch
                raise
            if found is not None:
                return found[0]
        else:
            self._waiting[what] = []
        batch, self._waiting[what] = self._waiting[what][: BATCH_MAX - 1], self._waiting[what][BATCH_MAX - 1 :]
        try:
            mine, *others = await act([item, *(i for i, _ in batch)])
            for (_, answer), made in zip(batch, others, strict=True):
                if not answer.done():
                    answer.set_result([made])
            batch = []
            return mine
        finally:
            self._waiting[what] = [*batch, *self._waiting[what]]
            self._hand_over(what)

    def _hand_over(self, what: str) -> None:
        """Let the next waiting task run a batch, or forget the target if there is none."""
        waiting = self._waiting[what]
        while waiting:
            _, answer = waiting.pop(0)
            if not answer.done():
                answer.set_result(None)
                return
        del self._waiting[what]
