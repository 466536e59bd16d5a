"""The event loop of simulated worlds: virtual time, random order, and otherwise the behaviour of asyncio."""

import asyncio
import gc
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress

import pytest

from saga.errors import SagaError
from saga.testing.fault_plans import Chance
from saga.testing.simulation.loop import Process, SimulatedClock, SimulatedLoop
from tests.testing.simulation.planted_faults import begin, passes, ticks

DAY_S = 86_400.0


# -------------------------------------------------------------------- time


def test_time_jumps_to_the_next_timer(loop: SimulatedLoop) -> None:
    real_s = time.perf_counter()
    loop.run_until_complete(passes(365 * DAY_S))
    assert loop.time() == 365 * DAY_S
    assert time.perf_counter() - real_s < 10


def test_a_run_until_a_time_ends_at_it(loop: SimulatedLoop) -> None:
    log: list[float] = []
    begin(loop, None, ticks(log))
    loop.run(3.5)
    assert (log, loop.time()) == ([1, 2, 3], 3.5)
    loop.run(4)
    assert (log, loop.time()) == ([1, 2, 3, 4], 4)


def test_a_run_until_a_time_ends_at_it_even_if_nothing_happens(loop: SimulatedLoop) -> None:
    loop.run(DAY_S)
    assert loop.time() == DAY_S


def test_timers_come_in_order_and_those_of_one_time_in_the_order_in_which_they_were_made(loop: SimulatedLoop) -> None:
    log: list[str] = []
    for when_s, what in ((2.0, "c"), (1.0, "a"), (2.0, "d"), (1.0, "b")):
        loop.call_at(when_s, log.append, what)
    loop.run()
    assert log == ["a", "b", "c", "d"]


def test_idle_timers_do_not_keep_a_run_going(loop: SimulatedLoop) -> None:
    log: list[str] = []
    loop.idle_later(5, lambda: log.append("idle"))
    loop.run()
    assert (log, loop.time()) == ([], 0)


def test_idle_timers_come_while_something_else_is_awaited(loop: SimulatedLoop) -> None:
    log: list[str] = []
    loop.idle_later(5, lambda: log.append("idle"))
    loop.call_later(6, log.append, "awaited")
    loop.idle_later(7, lambda: log.append("too late"))
    loop.run()
    assert (log, loop.time()) == (["idle", "awaited"], 6)


def test_idle_timers_come_in_a_run_until_a_time(loop: SimulatedLoop) -> None:
    log: list[str] = []
    loop.idle_later(5, lambda: log.append("idle"))
    loop.run(5)
    assert log == ["idle"]


def test_cancelled_timers_do_not_keep_a_run_going(loop: SimulatedLoop) -> None:
    timers = [loop.call_later(5, lambda: None) for _ in range(3)]
    for timer in timers:
        timer.cancel()
        timer.cancel()  # a second time is nothing
    loop.idle_later(1, lambda: None)
    loop.run()
    assert loop.time() == 0


def test_a_timer_that_is_cancelled_when_it_is_due_does_nothing(loop: SimulatedLoop) -> None:
    log: list[str] = []
    second = loop.call_at(2, log.append, "second")
    loop.call_at(1, second.cancel)
    third = loop.call_at(2, log.append, "third")
    loop.call_at(2, third.cancel)
    loop.run()
    assert (log, loop.time()) == (["third"], 2)


# -------------------------------------------------------------------- order


def order_of_tasks(seed: int) -> list[str]:
    log: list[str] = []

    async def append_numbered(what: str) -> None:
        for number in range(3):
            log.append(f"{what}{number}")
            await passes(0)

    async def all_of_them() -> None:
        await asyncio.gather(*(append_numbered(what) for what in "abcdef"))

    loop = SimulatedLoop(seed)
    loop.run_until_complete(all_of_them())
    loop.end()
    return log


def test_chance_decides_which_task_goes_first_and_the_seed_decides_the_chance() -> None:
    orders = [order_of_tasks(seed) for seed in range(5)]
    assert orders == [order_of_tasks(seed) for seed in range(5)]
    assert len({tuple(order) for order in orders}) == 5
    assert all(sorted(order) == sorted(orders[0]) for order in orders)


def test_call_soon_keeps_its_order_among_tasks() -> None:
    for seed in range(10):
        log: list[str] = []

        async def append_name(what: str, entries: list[str] = log) -> None:
            entries.append(what)

        loop = SimulatedLoop(seed)
        for what in ("1", "2", "task 3", "task 4", "5", "6", "task 7", "task 8"):
            if what.startswith("task"):
                begin(loop, None, append_name(what))
            else:
                loop.call_soon(log.append, what)
        loop.run()
        assert [log[:2], sorted(log[2:4]), log[4:6], sorted(log[6:])] == [
            ["1", "2"],
            ["task 3", "task 4"],
            ["5", "6"],
            ["task 7", "task 8"],
        ]
        loop.end()


def test_a_lock_is_given_in_the_order_of_waiting() -> None:
    for seed in range(5):
        loop = SimulatedLoop(seed)
        loop.run_until_complete(taking_turns())
        loop.end()


async def taking_turns() -> None:
    lock, came, entered = asyncio.Lock(), list[int](), list[int]()

    async def enters(number: int) -> None:
        came.append(number)
        async with lock:
            entered.append(number)
            await passes(1)

    await asyncio.gather(*(enters(number) for number in range(6)))
    assert entered == came


# -------------------------------------------------------------------- asyncio as it is


def test_a_loop_does_what_asyncio_needs(loop: SimulatedLoop) -> None:
    loop.run_until_complete(primitives())


def test_a_coroutine_that_survived_a_cancellation_is_late_as_any_other(loop: SimulatedLoop) -> None:
    clock = SimulatedClock(Process("payment-1", "payment"), Chance(1))

    async def survive_and_wait() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        with suppress(asyncio.CancelledError):
            await passes(1)
        await passes(60)

    with pytest.raises(TimeoutError):
        loop.run_until_complete(clock.within(5, survive_and_wait()))
    assert loop.time() == 5


async def primitives() -> None:
    assert list(await asyncio.gather(gives(1, after_s=2), gives(2, after_s=1))) == [1, 2]
    async with asyncio.TaskGroup() as tasks:
        both = [tasks.create_task(gives(number, after_s=1)) for number in range(2)]
    assert [task.result() for task in both] == [0, 1]

    began_s, times = asyncio.get_running_loop().time(), list[float]()
    with pytest.raises(ExceptionGroup):  # in a task of its own: Python 3.11.2 leaves it cancelled once
        await asyncio.get_running_loop().create_task(a_group_of_which_one_fails(times))
    assert times == [began_s + 1, began_s + 2]

    began_s = asyncio.get_running_loop().time()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5):
            await asyncio.Event().wait()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.Event().wait(), 5)
    assert asyncio.get_running_loop().time() == began_s + 10
    assert await asyncio.wait_for(gives(1, after_s=1), 5) == 1

    inner = asyncio.get_running_loop().create_task(gives(7, after_s=2))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await asyncio.shield(inner)
    assert await inner == 7

    queue: asyncio.Queue[int] = asyncio.Queue(1)
    _, _, first, second = await asyncio.gather(queue.put(1), queue.put(2), queue.get(), queue.get())
    assert {first, second} == {1, 2}

    condition = asyncio.Condition()

    async def notifies() -> None:
        async with condition:
            condition.notify_all()

    async with condition:
        notifying = asyncio.get_running_loop().create_task(notifies())
        await condition.wait()
    await notifying
    assert [await each for each in asyncio.as_completed([gives(1, after_s=2), gives(2, after_s=1)])] == [2, 1]
    assert asyncio.current_task() in asyncio.all_tasks()


async def a_group_of_which_one_fails(times: list[float]) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(ticks(times))
        tasks.create_task(fails(after_s=2.5))


async def gives(number: int, *, after_s: float) -> int:
    await passes(after_s)
    return number


async def fails(*, after_s: float) -> None:
    await passes(after_s)
    raise ValueError("it fails")


async def in_a_thread() -> None:
    await asyncio.to_thread(gc.collect)


async def stops() -> None:
    asyncio.get_running_loop().stop()


async def from_a_thread() -> None:
    asyncio.get_running_loop().call_soon_threadsafe(gc.collect)


async def connects() -> None:
    await asyncio.open_connection("localhost", 80)


async def looks_up() -> None:
    await asyncio.get_running_loop().getaddrinfo("localhost", 80)


async def starts_a_program() -> None:
    await asyncio.create_subprocess_exec("true")


@pytest.mark.parametrize(
    ("work", "what"),
    [
        (in_a_thread, "to run in a thread.*make it a resource"),
        (stops, "neither run nor stop its event loop"),
        (from_a_thread, "no threads"),
        (connects, "no network"),
        (looks_up, "no network"),
        (starts_a_program, "no other programs"),
    ],
)
def test_calls_that_leave_the_world_are_refused(
    loop: SimulatedLoop, work: "Callable[[], Coroutine[object, object, None]]", what: str
) -> None:
    with pytest.raises(SagaError, match=what):
        loop.run_until_complete(work())
