"""Lanes: one message of a saga at a time, and no count that is wrong after what was dropped."""

import asyncio

from saga.messages import Partition, Position
from saga.runtime.lanes import Item, Lanes
from saga.runtime.offsets import Prefix
from tests.runtime.real_worker import an_order, message_of


class Handles:
    """Goes on when it is let, and remembers what it had in hand."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []
        self.gate = asyncio.Event()
        self.finishes = True

    async def __call__(self, item: Item) -> bool:
        self.seen.append((item.message.saga, item.position.offset))
        await self.gate.wait()
        return self.finishes


def items(saga: str, prefix: Prefix, partition: int, *offsets: int) -> list[Item]:
    message = message_of(an_order(saga), started=None)
    for offset in offsets:
        prefix.begun(offset)
    return [Item(message, Position("orders", partition, offset), prefix, 0.0) for offset in offsets]


async def test_what_is_forgotten_is_neither_handled_nor_finished_nor_counted() -> None:
    handles, left, stays = Handles(), Prefix(0), Prefix(0)
    async with asyncio.TaskGroup() as tasks:
        lanes = Lanes(tasks, handles, handles)
        for item in [*items("a", left, 0, 0, 1, 2), *items("b", stays, 1, 0, 1)]:
            lanes.add(item)
        size = lanes.inflight_bytes // 5
        assert lanes.inflight == 5
        await asyncio.sleep(0)  # noqa: TID251 - let them begin
        lanes.forget([Partition("orders", 0)])
        assert (lanes.inflight, lanes.inflight_bytes) == (3, 3 * size)
        handles.gate.set()
    assert handles.seen == [("a", 0), ("b", 0), ("b", 1)]
    assert (lanes.inflight, lanes.inflight_bytes, left.to_commit(), stays.to_commit()) == (0, 0, 1, 2)


async def test_what_is_not_finished_holds_the_prefix_and_is_no_longer_counted() -> None:
    handles, prefix = Handles(), Prefix(0)
    handles.finishes = False
    handles.gate.set()
    async with asyncio.TaskGroup() as tasks:
        lanes = Lanes(tasks, handles, handles)
        for item in items("a", prefix, 0, 0, 1):
            lanes.add(item)
    assert (lanes.inflight, prefix.to_commit(), len(prefix)) == (0, None, 2)


async def test_draining_waits_for_what_is_in_hand_and_leaves_what_takes_too_long() -> None:
    handles, prefix = Handles(), Prefix(0)
    async with asyncio.TaskGroup() as tasks:
        lanes = Lanes(tasks, handles, handles)
        for item in items("a", prefix, 0, 0):
            lanes.add(item)
        await asyncio.sleep(0)  # noqa: TID251
        await lanes.drained([Partition("orders", 7)], 60)
        assert lanes.inflight == 1, "it is of another partition"
        await lanes.drained(None, 0.01)
        assert (lanes.inflight, prefix.to_commit()) == (0, None)
        handles.gate.set()
        for item in items("a", prefix, 0, 1):
            lanes.add(item)
    assert handles.seen == [("a", 0), ("a", 1)]


async def test_a_message_that_ends_though_it_was_to_be_left_leaves_nothing_behind_for_the_next_one() -> None:
    prefix, cancels = Prefix(0), list[int]()

    async def stubborn(item: Item) -> bool:
        task = asyncio.current_task()
        assert task is not None
        cancels.append(task.cancelling())
        try:
            await asyncio.sleep(0 if item.position.offset else 60)  # noqa: TID251
        except asyncio.CancelledError:
            assert item.position.offset == 0
        return True

    async with asyncio.TaskGroup() as tasks:
        lanes = Lanes(tasks, stubborn, stubborn)
        for item in items("a", prefix, 0, 0, 1):
            lanes.add(item)
        await asyncio.sleep(0)  # noqa: TID251
        await lanes.drained(None, 0.01)
    assert (cancels, prefix.to_commit(), lanes._late) == ([0, 0], 2, set())
