"""The clock of the operating system: waits end in time, and a cancelled task stays cancelled."""

import asyncio
from contextlib import suppress

import pytest

from saga.support.clock import SystemClock

CLOCK = SystemClock()


def made() -> "asyncio.Future[str]":
    return asyncio.get_running_loop().create_future()


def answer(future: "asyncio.Future[str]") -> None:
    future.set_result("yes")


def fail(future: "asyncio.Future[str]") -> None:
    future.set_exception(LookupError("no"))


async def test_a_future_gives_its_result_or_its_error_within_the_time() -> None:
    loop, there, comes, fails = asyncio.get_running_loop(), made(), made(), made()
    answer(there)
    loop.call_soon(answer, comes)
    loop.call_soon(fail, fails)
    assert [await CLOCK.within(60, there), await CLOCK.within(60, comes)] == ["yes", "yes"]
    with pytest.raises(LookupError, match="no"):
        await CLOCK.within(60, fails)


async def test_a_future_that_is_late_is_cancelled_and_its_task_is_not() -> None:
    future = made()
    with pytest.raises(TimeoutError):
        await CLOCK.within(0.001, future)
    assert future.cancelled()
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


async def test_a_cancelled_future_raises_cancelled_error_not_a_timeout() -> None:
    future = made()
    asyncio.get_running_loop().call_soon(future.cancel)
    with pytest.raises(asyncio.CancelledError):
        await CLOCK.within(60, future)


@pytest.fixture
def moments(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The times that the event loop of a test has seen, the last one for ever: a busy machine changes nothing."""
    seen = [CLOCK.monotonic_s()]
    monkeypatch.setattr(asyncio.BaseEventLoop, "time", lambda _: seen[-1])
    return seen


@pytest.mark.parametrize("seconds", [1, 60])
async def test_a_task_that_is_cancelled_while_it_waits_stays_cancelled(seconds: float, moments: list[float]) -> None:
    loop, ended = asyncio.get_running_loop(), list[str]()

    async def waits() -> None:
        try:
            await CLOCK.within(seconds, made())
        except TimeoutError:
            ended.append("late")

    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(waits())
        await CLOCK.sleep(0)  # it waits by now
        moments.append(moments[-1] + 0.5)
        loop.call_later(1, task.cancel)  # behind its own time, and before it goes on
        moments.append(moments[-1] + 2)
    assert (task.cancelled(), ended) == (True, [])


async def test_a_task_that_survived_a_cancellation_gets_a_timeout_of_a_later_future() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await CLOCK.sleep(0)
    assert task.cancelling() == 1
    with pytest.raises(TimeoutError):
        await CLOCK.within(0.001, made())
    task.uncancel()


async def survive() -> None:
    """Survive a cancellation of this task, which stays counted."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await CLOCK.sleep(0)


async def survive_and_wait() -> None:
    await survive()
    await made()


async def test_a_coroutine_that_survived_a_cancellation_is_late_as_any_other() -> None:
    with pytest.raises(TimeoutError):
        await CLOCK.within(0.001, survive_and_wait())
    task = asyncio.current_task()
    assert task is not None
    assert task.uncancel() == 0, "only the one that it survived was left"


@pytest.mark.parametrize("seconds", [1, 60])
async def test_a_task_that_is_cancelled_in_a_coroutine_stays_cancelled(seconds: float, moments: list[float]) -> None:
    loop = asyncio.get_running_loop()

    async def waits() -> None:
        await survive()
        await CLOCK.within(seconds, survive_and_wait())

    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(waits())
        for _ in range(5):
            await CLOCK.sleep(0)  # it waits by now
        moments.append(moments[-1] + 0.5)
        loop.call_later(1, task.cancel)  # behind its own time, and before it goes on
        moments.append(moments[-1] + 2)
    assert task.cancelled()


@pytest.mark.parametrize("way", ["alone", "in a task", "gathered"])
async def test_a_cancellation_that_is_on_its_way_when_the_time_is_over_is_not_lost(way: str) -> None:
    loop = asyncio.get_running_loop()

    async def waits() -> None:
        while True:
            with suppress(TimeoutError):
                if way == "alone":
                    await CLOCK.within(0.002, survive_and_wait())
                elif way == "in a task":
                    await CLOCK.within(0.002, loop.create_task(survive_and_wait()))
                else:
                    await CLOCK.within(0.002, asyncio.gather(survive_and_wait(), survive_and_wait()))

    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(waits())
        for _ in range(5):
            await CLOCK.sleep(0)  # it waits by now
        loop.call_later(0.001, task.cancel)  # before its own time, and both are over in one turn
        busy_until_s = CLOCK.monotonic_s() + 0.01
        while CLOCK.monotonic_s() < busy_until_s:
            pass
        await CLOCK.within(5, asyncio.wait([task]))
    assert task.cancelled()


async def test_two_times_that_end_together_are_over_for_the_outer_one() -> None:
    async def inner() -> str:
        with suppress(TimeoutError):
            await CLOCK.within(0.001, survive_and_wait())
        return await made()

    task = asyncio.current_task()
    assert task is not None
    with pytest.raises(TimeoutError):
        await CLOCK.within(0.001, inner())
    assert task.uncancel() == 0, "only the one that it survived was left"


@pytest.mark.parametrize("cleaned_s", [0.001, 60])
async def test_a_task_that_cleans_up_after_a_cancellation_when_its_time_is_over_stays_cancelled(
    cleaned_s: float,
) -> None:
    async def work() -> None:
        try:
            await made()
        finally:
            await CLOCK.sleep(cleaned_s)

    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(CLOCK.within(0.05, work()))
        await CLOCK.sleep(0)
        task.cancel()
    assert task.cancelled()


async def test_two_times_are_over_though_the_cleanup_of_the_inner_one_reaches_the_outer_one() -> None:
    async def work() -> None:
        try:
            await made()
        finally:
            await made()

    with pytest.raises(TimeoutError):
        await CLOCK.within(0.02, CLOCK.within(0.001, work()))
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
