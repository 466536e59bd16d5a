"""Lanes: one message of a saga at a time, and no count that is wrong after what was dropped."""

import asyncio
from collections.abc import Awaitable

import pytest

from saga.engine.consumer.keyed_executor import KeyedExecutor, WorkItem
from saga.engine.consumer.offset_tracker import OffsetTracker
from saga.messages import Partition, Position
from tests.engine.real_worker import an_order, message_of


class Handles:
    """Continues when it is let, and remembers what was running."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []
        self.gate = asyncio.Event()
        self.finishes = True

    async def __call__(self, item: WorkItem) -> bool:
        self.seen.append((item.message.saga, item.position.offset))
        await self.gate.wait()
        return self.finishes


def items(saga: str, prefix: OffsetTracker, partition: int, *offsets: int) -> list[WorkItem]:
    message = message_of(an_order(saga), started=None)
    for offset in offsets:
        prefix.begin(offset)
    return [WorkItem(message, Position("orders", partition, offset), prefix, 0.0) for offset in offsets]


async def test_dropped_messages_are_neither_handled_nor_finished_nor_counted() -> None:
    handles, left, stays = Handles(), OffsetTracker(0), OffsetTracker(0)
    async with asyncio.TaskGroup() as tasks, KeyedExecutor(tasks, handles, handles) as lanes:
        for item in [*items("a", left, 0, 0, 1, 2), *items("b", stays, 1, 0, 1)]:
            lanes.add(item)
        size = lanes.inflight_bytes // 5
        assert lanes.inflight == 5
        await asyncio.sleep(0)  # noqa: TID251 - let them begin
        lanes.forget([Partition("orders", 0)])
        assert (lanes.inflight, lanes.inflight_bytes) == (3, 3 * size)
        handles.gate.set()
    assert handles.seen == [("a", 0), ("b", 0), ("b", 1)]
    assert (lanes.inflight, lanes.inflight_bytes, left.offset_to_commit(), stays.offset_to_commit()) == (0, 0, 1, 2)


async def test_an_unfinished_message_blocks_the_offset_and_is_no_longer_counted() -> None:
    handles, prefix = Handles(), OffsetTracker(0)
    handles.finishes = False
    handles.gate.set()
    async with asyncio.TaskGroup() as tasks, KeyedExecutor(tasks, handles, handles) as lanes:
        for item in items("a", prefix, 0, 0, 1):
            lanes.add(item)
    assert (lanes.inflight, prefix.offset_to_commit(), len(prefix)) == (0, None, 2)


async def test_draining_waits_for_what_is_running_and_leaves_what_takes_too_long() -> None:
    handles, prefix = Handles(), OffsetTracker(0)
    async with asyncio.TaskGroup() as tasks, KeyedExecutor(tasks, handles, handles) as lanes:
        for item in items("a", prefix, 0, 0):
            lanes.add(item)
        await asyncio.sleep(0)  # noqa: TID251
        await lanes.drain(0.01)
        assert (lanes.inflight, prefix.offset_to_commit()) == (0, None)
        handles.gate.set()
        for item in items("a", prefix, 0, 1):
            lanes.add(item)
    assert handles.seen == [("a", 0), ("a", 1)]


async def test_a_message_that_ends_though_it_was_to_be_left_leaves_nothing_behind_for_the_next_one() -> None:
    prefix, cancels = OffsetTracker(0), list[int]()

    async def stubborn(item: WorkItem) -> bool:
        task = asyncio.current_task()
        assert task is not None
        cancels.append(task.cancelling())
        try:
            await asyncio.sleep(0 if item.position.offset else 60)  # noqa: TID251
        except asyncio.CancelledError:
            assert item.position.offset == 0
        return True

    async with asyncio.TaskGroup() as tasks, KeyedExecutor(tasks, stubborn, stubborn) as lanes:
        for item in items("a", prefix, 0, 0, 1):
            lanes.add(item)
        await asyncio.sleep(0)  # noqa: TID251
        await lanes.drain(0.01)
    assert (cancels, prefix.offset_to_commit(), lanes._late) == ([0, 0], 2, set())


async def test_a_cancellation_that_nobody_requested_ends_the_service_instead_of_standing_still() -> None:
    async def wait_for_something_cancelled(item: WorkItem) -> bool:
        gone = asyncio.get_running_loop().create_future()
        gone.cancel()
        return bool(await gone)

    async def handle_one() -> None:
        handle = wait_for_something_cancelled
        async with asyncio.TaskGroup() as tasks, KeyedExecutor(tasks, handle, handle) as lanes:
            for item in items("a", OffsetTracker(0), 0, 0):
                lanes.add(item)
            await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup, match="unhandled") as raised:
        await handle_one()
    assert str(raised.value.exceptions[0]) == "something was cancelled that the processing of saga 'a' waited for"


def test_an_event_loop_that_ends_abandons_all_messages() -> None:
    """It cancels all tasks at once, so those of the sagas may learn it first. None of them has failed."""
    abandoned, reported = list[bool](), list[object]()

    async def serve(begun: asyncio.Event) -> None:
        async def handle(item: WorkItem) -> bool:
            begun.set()
            try:
                return await asyncio.Event().wait()
            except asyncio.CancelledError:
                abandoned.append(lanes.is_abandoned())
                raise

        async with asyncio.TaskGroup() as tasks, KeyedExecutor(tasks, handle, handle) as lanes:
            for saga in "abcdefgh":
                lanes.add(*items(saga, OffsetTracker(0), 0, 0))
            await asyncio.Event().wait()

    async def main() -> asyncio.Task[None]:
        loop, begun = asyncio.get_running_loop(), asyncio.Event()
        loop.set_exception_handler(lambda _, context: reported.append(context))
        serving = loop.create_task(serve(begun))
        await begun.wait()
        return serving

    serving = asyncio.run(main())
    assert (serving.cancelled(), abandoned, reported) == (True, [True] * 8, [])


class Fails:
    """Fails with some sagas, when it is let; all others keep running until they are cancelled."""

    def __init__(self, *sagas: str) -> None:
        self.sagas, self.gate, self.ending = sagas, asyncio.Event(), asyncio.Event()
        self.cancelled: list[str] = []

    async def __call__(self, item: WorkItem) -> bool:
        saga = item.message.saga
        await self.gate.wait()
        if saga in self.sagas:
            raise OSError(saga)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.ending.set()
            for _ in range(10):  # a write that is under way comes to its end
                await asyncio.sleep(0)  # noqa: TID251
            self.cancelled.append(saga)
            raise
        return True


def lanes_left() -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("lane")]


async def errors_of(serving: Awaitable[None]) -> list[str]:
    """What ended the service, those that failed together in one."""
    with pytest.raises(ExceptionGroup) as failed:
        await serving
    flat = [why.exceptions if isinstance(why, ExceptionGroup) else (why,) for why in failed.value.exceptions]
    return sorted(repr(why) for several in flat for why in several)


async def test_a_lane_that_fails_ends_the_tasks_of_the_service_and_all_other_lanes() -> None:
    fails, prefix = Fails("b"), OffsetTracker(0)

    async def serve() -> None:
        async with asyncio.TaskGroup() as tasks, KeyedExecutor(tasks, fails, fails) as lanes:
            for saga, offset in (("a", 0), ("b", 1), ("c", 2)):
                lanes.add(*items(saga, prefix, 0, offset))
            fails.gate.set()
            await asyncio.Event().wait()

    assert await errors_of(serve()) == ["OSError('b')"]
    assert fails.cancelled == ["a", "c"]
    assert (prefix.offset_to_commit(), lanes_left()) == (None, [])


async def test_errors_of_lanes_that_fail_together_are_all_raised() -> None:
    fails, prefix = Fails("a", "c"), OffsetTracker(0)

    async def serve() -> None:
        async with asyncio.TaskGroup() as tasks, KeyedExecutor(tasks, fails, fails) as lanes:
            for saga, offset in (("a", 0), ("b", 1), ("c", 2)):
                lanes.add(*items(saga, prefix, 0, offset))
            fails.gate.set()

    assert await errors_of(serve()) == ["OSError('a')", "OSError('c')"]
    assert fails.cancelled == ["b"]


@pytest.mark.parametrize("when", ["inside the block", "while it ends"])
async def test_a_cancelled_service_leaves_no_lane(when: str) -> None:
    fails, prefix = Fails(), OffsetTracker(0)
    begun = asyncio.Event()

    async def serve() -> None:
        async with asyncio.TaskGroup() as tasks, KeyedExecutor(tasks, fails, fails) as lanes:
            lanes.add(*items("a", prefix, 0, 0))
            fails.gate.set()
            begun.set()
            if when == "inside the block":
                await asyncio.Event().wait()

    serving = asyncio.get_running_loop().create_task(serve())
    await begun.wait()
    await asyncio.sleep(0)  # noqa: TID251 - let it begin, and wait
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert fails.cancelled == ["a"]
    assert not lanes_left()


async def test_a_lane_that_begins_while_the_others_are_ended_ends_with_them() -> None:
    fails, prefix = Fails("a"), OffsetTracker(0)
    fails.gate.set()

    async def serve() -> None:
        async with asyncio.TaskGroup() as tasks, KeyedExecutor(tasks, fails, fails) as lanes:
            lanes.add(*items("a", prefix, 0, 0))
            lanes.add(*items("b", prefix, 0, 1))
            try:
                await asyncio.Event().wait()
            finally:
                lanes.add(*items("c", prefix, 0, 2))

    assert await errors_of(serve()) == ["OSError('a')"]
    assert fails.cancelled == ["b"], "c never began"
    assert not lanes_left()


async def test_a_lane_that_is_ended_before_it_begins_blocks_no_other() -> None:
    prefix, handled = OffsetTracker(0), list[str]()

    async def serve() -> None:
        async def handle(item: WorkItem) -> bool:
            handled.append(item.message.saga)
            if item.message.saga == "a":
                raise OSError("a")
            lanes.add(*items("c", prefix, 0, 2))  # in the very turn of the loop in which the first one has failed
            await asyncio.Event().wait()
            return True

        async with asyncio.TaskGroup() as tasks, KeyedExecutor(tasks, handle, handle) as lanes:
            await asyncio.sleep(0)  # noqa: TID251 - let the keeper begin
            lanes.add(*items("a", prefix, 0, 0))
            lanes.add(*items("b", prefix, 0, 1))
            await asyncio.Event().wait()

    assert await errors_of(serve()) == ["OSError('a')"]
    assert (handled, prefix.offset_to_commit()) == (["a", "b"], None)


async def test_an_error_of_a_lane_is_raised_though_the_service_ends_meanwhile_and_no_task_is_cancelled_twice() -> None:
    fails, prefix = Fails("a"), OffsetTracker(0)

    async def serve() -> None:
        async with asyncio.TaskGroup() as tasks, KeyedExecutor(tasks, fails, fails) as lanes:
            lanes.add(*items("a", prefix, 0, 0))
            lanes.add(*items("b", prefix, 0, 1))
            fails.gate.set()
            await fails.ending.wait()  # the keeper waits for b, which takes its time
            raise KeyError("mine")

    assert await errors_of(serve()) == ["KeyError('mine')", "OSError('a')"]
    assert fails.cancelled == ["b"]
