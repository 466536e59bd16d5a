"""Batches: what waits for one thing is done together, and no caller is forgotten when the one who acts is stopped."""

import asyncio
from collections.abc import Sequence

import pytest

from saga.engine.consumer.keyed_executor import BATCH_MAX, Batcher


class Acts:
    """Remembers the batches, and waits inside each until the gate opens."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.gate = asyncio.Event()

    async def __call__(self, items: Sequence[int]) -> list[int]:
        self.batches.append(list(items))
        await self.gate.wait()
        return [item * 10 for item in items]


async def test_updates_that_arrive_during_a_write_share_the_next_one() -> None:
    batches, acts = Batcher(), Acts()
    async with asyncio.TaskGroup() as tasks:
        all_of_them = [tasks.create_task(batches.submit("tea", n, acts)) for n in range(5)]
        await asyncio.sleep(0)  # noqa: TID251 - let them begin
        acts.gate.set()
    assert [task.result() for task in all_of_them] == [0, 10, 20, 30, 40]
    assert acts.batches == [[0], [1, 2, 3, 4]]


async def test_two_things_do_not_wait_for_each_other() -> None:
    batches, acts = Batcher(), Acts()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(batches.submit("tea", 1, acts))
        tasks.create_task(batches.submit("rum", 2, acts))
        await asyncio.sleep(0)  # noqa: TID251
        assert acts.batches == [[1], [2]]
        acts.gate.set()


async def test_a_batch_is_bounded() -> None:
    batches, acts = Batcher(), Acts()
    async with asyncio.TaskGroup() as tasks:
        for n in range(2 * BATCH_MAX + 1):
            tasks.create_task(batches.submit("tea", n, acts))
        await asyncio.sleep(0)  # noqa: TID251 - let them begin
        acts.gate.set()
    assert [len(batch) for batch in acts.batches] == [1, BATCH_MAX, BATCH_MAX]
    assert [n for batch in acts.batches for n in batch] == list(range(2 * BATCH_MAX + 1))


async def test_a_cancelled_caller_is_left_out_of_the_batch_and_no_other_is_forgotten() -> None:
    batches, acts = Batcher(), Acts()
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(batches.submit("tea", 1, acts))
        second = tasks.create_task(batches.submit("tea", 2, acts))
        third = tasks.create_task(batches.submit("tea", 3, acts))
        await asyncio.sleep(0)  # noqa: TID251
        second.cancel()
        first.cancel()  # while the next in turn is one who does not wait any more
        await asyncio.wait([first, second])
        acts.gate.set()
    assert second.cancelled()
    assert third.result() == 30


async def test_waiting_writers_write_themselves_when_the_first_is_cancelled() -> None:
    batches, acts = Batcher(), Acts()
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(batches.submit("tea", 1, acts))
        second = tasks.create_task(batches.submit("tea", 2, acts))
        third = tasks.create_task(batches.submit("tea", 3, acts))
        await asyncio.sleep(0)  # noqa: TID251
        first.cancel()
        await asyncio.wait([first])
        acts.gate.set()
    assert (second.result(), third.result()) == (20, 30)


async def test_a_writer_cancelled_in_its_turn_hands_the_batch_on() -> None:
    batches, stopped = Batcher(), asyncio.Event()

    async def act(items: Sequence[int]) -> list[int]:
        if items[0] == 1:
            await asyncio.sleep(0)  # noqa: TID251 - the others come to wait
            asyncio.get_running_loop().call_soon(second.cancel)  # before it learns that it is its turn
        return [item * 10 for item in items]

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(batches.submit("tea", 1, act))
        second = tasks.create_task(batches.submit("tea", 2, act))
        third = tasks.create_task(batches.submit("tea", 3, act))
        second.add_done_callback(lambda _: stopped.set())
    assert stopped.is_set()
    assert second.cancelled()
    assert third.result() == 30


async def test_a_failure_is_raised_only_in_the_caller_whose_batch_failed() -> None:
    batches = Batcher()

    async def act(items: Sequence[int]) -> list[int]:
        await asyncio.sleep(0)  # noqa: TID251
        if items[0] == 1:
            raise ValueError("bad")
        return list(items)

    tasks = [asyncio.ensure_future(batches.submit("tea", n, act)) for n in (0, 1, 2)]  # noqa: TID251
    first, second, third = await asyncio.gather(*tasks, return_exceptions=True)
    assert (first, third) == (0, 2)
    assert isinstance(second, ValueError)
    with pytest.raises(KeyError):
        batches._waiting["tea"]
