"""The event loop of simulated worlds: virtual time, processes that die and freeze, order by chance."""

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from contextvars import Context, copy_context

import pytest

from saga.errors import SagaError
from saga.testing.simulation import loop as loop_module
from saga.testing.simulation.loop import NotQuiet, SimulatedLoop
from saga.testing.simulation.processes import CURRENT, Process

DAY_S = 86_400.0


@pytest.fixture
def loop() -> Iterator[SimulatedLoop]:
    loop = SimulatedLoop()
    yield loop
    loop.end()
    gc.collect()  # what complains about its end does it in its own test


@pytest.fixture
def process() -> Process:
    return Process("payment-1", "payment")


def begin(
    loop: SimulatedLoop, process: Process | None, work: Coroutine[object, object, object], name: str = "task"
) -> "asyncio.Task[object]":
    """A task of that process."""
    return loop.create_task(work, name=name, context=context_of(process))


def context_of(process: Process | None) -> Context:
    """What it begins in this is that process's."""
    context = copy_context()
    context.run(CURRENT.set, process)
    return context


async def passes(seconds: float) -> None:
    await asyncio.sleep(seconds)  # noqa: TID251 - the virtual time is what these tests are about


async def ticks(said: list[float]) -> None:
    while True:
        await passes(1)
        said.append(asyncio.get_running_loop().time())


# -------------------------------------------------------------------- time


def test_time_jumps_to_the_next_timer(loop: SimulatedLoop) -> None:
    real_s = time.perf_counter()
    loop.run_until_complete(passes(365 * DAY_S))
    assert loop.time() == 365 * DAY_S
    assert time.perf_counter() - real_s < 10


def test_a_run_until_a_time_ends_at_it(loop: SimulatedLoop) -> None:
    said: list[float] = []
    begin(loop, None, ticks(said))
    loop.run(3.5)
    assert (said, loop.time()) == ([1, 2, 3], 3.5)
    loop.run(4)
    assert (said, loop.time()) == ([1, 2, 3, 4], 4)


def test_a_run_until_a_time_ends_at_it_even_if_nothing_happens(loop: SimulatedLoop) -> None:
    loop.run(DAY_S)
    assert loop.time() == DAY_S


def test_timers_come_in_order_and_those_of_one_time_in_the_order_in_which_they_were_made(loop: SimulatedLoop) -> None:
    said: list[str] = []
    for when_s, what in ((2.0, "c"), (1.0, "a"), (2.0, "d"), (1.0, "b")):
        loop.call_at(when_s, said.append, what)
    loop.run()
    assert said == ["a", "b", "c", "d"]


def test_idle_timers_do_not_keep_a_run_going(loop: SimulatedLoop) -> None:
    said: list[str] = []
    loop.idle_later(5, lambda: said.append("idle"))
    loop.run()
    assert (said, loop.time()) == ([], 0)


def test_idle_timers_come_while_something_else_is_awaited(loop: SimulatedLoop) -> None:
    said: list[str] = []
    loop.idle_later(5, lambda: said.append("idle"))
    loop.call_later(6, said.append, "awaited")
    loop.idle_later(7, lambda: said.append("too late"))
    loop.run()
    assert (said, loop.time()) == (["idle", "awaited"], 6)


def test_idle_timers_come_in_a_run_until_a_time(loop: SimulatedLoop) -> None:
    said: list[str] = []
    loop.idle_later(5, lambda: said.append("idle"))
    loop.run(5)
    assert said == ["idle"]


def test_cancelled_timers_do_not_keep_a_run_going(loop: SimulatedLoop) -> None:
    timers = [loop.call_later(5, lambda: None) for _ in range(3)]
    for timer in timers:
        timer.cancel()
        timer.cancel()  # a second time is nothing
    loop.idle_later(1, lambda: None)
    loop.run()
    assert loop.time() == 0


def test_a_timer_that_is_cancelled_when_it_is_due_does_nothing(loop: SimulatedLoop) -> None:
    said: list[str] = []
    second = loop.call_at(2, said.append, "second")
    loop.call_at(1, second.cancel)
    third = loop.call_at(2, said.append, "third")
    loop.call_at(2, third.cancel)
    loop.run()
    assert (said, loop.time()) == (["third"], 2)


# -------------------------------------------------------------------- processes


def test_a_killed_process_runs_no_finally_block(loop: SimulatedLoop, process: Process) -> None:
    said: list[str] = []

    async def work() -> None:
        try:
            await passes(10)
        finally:
            said.append("finally")

    task = begin(loop, process, work())
    loop.call_later(5, loop.kill, process)
    loop.run()
    assert (said, loop.time(), task.done()) == ([], 5, False)


def test_a_process_can_be_killed_by_what_it_does_itself(loop: SimulatedLoop, process: Process) -> None:
    said: list[str] = []

    async def work() -> None:
        loop.call_soon(said.append, "soon, before")
        loop.kill(process)
        loop.call_soon(said.append, "soon")
        loop.call_later(1, said.append, "later")
        await passes(1)
        said.append("went on")

    begin(loop, process, work())
    loop.run()
    assert (said, loop.time()) == ([], 0)


def test_an_answer_to_a_dead_process_reaches_nobody(loop: SimulatedLoop, process: Process) -> None:
    said: list[str] = []
    answer = loop.create_future()

    async def work() -> None:
        said.append(await answer)

    begin(loop, process, work())
    loop.call_later(1, loop.kill, process)
    loop.call_later(2, answer.set_result, "answer")
    loop.run()
    assert (said, loop.time()) == ([], 2)


def test_the_other_processes_go_on_when_one_is_killed(loop: SimulatedLoop, process: Process) -> None:
    mine: list[float] = []
    others: list[float] = []
    begin(loop, process, ticks(mine))
    begin(loop, Process("payment-2", "payment"), ticks(others))
    loop.call_later(2.5, loop.kill, process)
    loop.run(5)
    assert (mine, others) == ([1, 2], [1, 2, 3, 4, 5])


def test_tasks_of_the_dead_are_not_pending(loop: SimulatedLoop, process: Process) -> None:
    begin(loop, process, ticks([]), "dead")
    begin(loop, None, ticks([]), "living")
    loop.run(1)
    loop.kill(process)
    assert loop.pending() == ["living"]


def test_a_frozen_process_goes_on_later_with_its_answers(loop: SimulatedLoop, process: Process) -> None:
    said: list[tuple[str, float]] = []
    answer = loop.create_future()

    async def waits() -> None:
        said.append((await answer, loop.time()))

    async def sleeps() -> None:
        await passes(2)
        said.append(("slept", loop.time()))

    begin(loop, process, waits())
    begin(loop, process, sleeps())
    loop.call_later(2, lambda: said.append(("timer", loop.time())), context=context_of(process))
    loop.call_later(1, loop.freeze, process)
    loop.call_later(3, answer.set_result, "answer")
    loop.call_later(20, loop.thaw, process)
    loop.run()
    assert sorted(said) == [("answer", 20), ("slept", 20), ("timer", 20)]


def test_callbacks_of_a_frozen_process_keep_their_order(loop: SimulatedLoop, process: Process) -> None:
    said: list[int] = []
    for number in range(20):
        if number == 10:
            loop.freeze(process)
        loop.call_soon(said.append, number, context=context_of(process))
    loop.thaw(process)
    loop.run()
    assert said == list(range(20))


def test_a_process_that_is_killed_while_frozen_does_not_go_on(loop: SimulatedLoop, process: Process) -> None:
    said: list[float] = []
    for when_s in (1.0, 2.0, 7.0):
        loop.call_later(when_s, said.append, when_s, context=context_of(process))
    loop.call_later(1.5, loop.freeze, process)
    loop.call_later(5, loop.kill, process)
    loop.call_later(6, loop.thaw, process)
    loop.run()
    assert said == [1]


def test_what_a_task_begins_dies_with_its_process(loop: SimulatedLoop, process: Process) -> None:
    said: list[float] = []

    async def work() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(ticks(said))
            loop.call_later(3, said.append, -1.0)

    begin(loop, process, work())
    loop.call_later(1.5, loop.kill, process)
    loop.run()
    assert said == [1]


# -------------------------------------------------------------------- order


def order_of_tasks(seed: int) -> list[str]:
    said: list[str] = []

    async def says(what: str) -> None:
        for number in range(3):
            said.append(f"{what}{number}")
            await passes(0)

    async def all_of_them() -> None:
        await asyncio.gather(*(says(what) for what in "abcdef"))

    loop = SimulatedLoop(seed)
    loop.run_until_complete(all_of_them())
    loop.end()
    return said


def test_chance_says_which_task_goes_first_and_the_seed_says_the_chance() -> None:
    orders = [order_of_tasks(seed) for seed in range(5)]
    assert orders == [order_of_tasks(seed) for seed in range(5)]
    assert len({tuple(order) for order in orders}) == 5
    assert all(sorted(order) == sorted(orders[0]) for order in orders)


def test_what_is_called_soon_keeps_its_order_also_among_tasks() -> None:
    for seed in range(10):
        said: list[str] = []

        async def says(what: str, said: list[str] = said) -> None:
            said.append(what)

        loop = SimulatedLoop(seed)
        for what in ("1", "2", "task 3", "task 4", "5", "6", "task 7", "task 8"):
            if what.startswith("task"):
                begin(loop, None, says(what))
            else:
                loop.call_soon(said.append, what)
        loop.run()
        assert [said[:2], sorted(said[2:4]), said[4:6], sorted(said[6:])] == [
            ["1", "2"],
            ["task 3", "task 4"],
            ["5", "6"],
            ["task 7", "task 8"],
        ]
        loop.end()


def test_who_waits_first_for_a_lock_gets_it_first() -> None:
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


# -------------------------------------------------------------------- ends


def test_a_world_that_never_comes_to_rest_says_so(loop: SimulatedLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "CALLBACKS_MAX", 1000)
    begin(loop, None, ticks([]), "ticks")
    with pytest.raises(NotQuiet, match=r"after 1000 callbacks at \d+\.\d+ s"):
        loop.run()
    assert loop.pending() == ["ticks"]


def test_who_waits_for_something_that_never_comes_is_told(loop: SimulatedLoop) -> None:
    async def waits() -> None:
        await asyncio.Event().wait()

    with pytest.raises(NotQuiet, match="nothing will come"):
        loop.run_until_complete(waits())


def test_what_is_looked_at_after_each_callback_ends_the_run(loop: SimulatedLoop) -> None:
    said: list[float] = []
    begin(loop, None, ticks(said))

    def look() -> None:
        assert len(said) < 3

    loop.after = look
    with pytest.raises(AssertionError):
        loop.run()
    assert said == [1, 2, 3]


def test_a_failure_that_is_set_ends_the_run_and_is_raised(loop: SimulatedLoop) -> None:
    failure = SagaError("it does not work")

    def fails() -> None:
        loop.failure = failure

    begin(loop, None, ticks([]))
    loop.call_later(2.5, fails)
    with pytest.raises(SagaError, match="it does not work"):
        loop.run()
    assert loop.time() == 2.5


def test_a_loop_does_not_run_inside_itself(loop: SimulatedLoop) -> None:
    said: list[str] = []

    def again() -> None:
        with pytest.raises(RuntimeError, match="runs already"):
            loop.run()
        said.append("refused")

    loop.call_soon(again)
    loop.run()
    assert said == ["refused"]


def test_errors_that_nobody_takes_are_kept(loop: SimulatedLoop) -> None:
    def fails() -> None:
        raise ValueError("nobody sees this")

    loop.call_soon(fails)
    loop.run()
    assert [str(context["exception"]) for context in loop.uncaught] == ["nobody sees this"]


@asynccontextmanager
async def lasting(said: list[str]) -> AsyncIterator[None]:
    try:
        yield
    finally:
        said.append(f"out at {asyncio.get_running_loop().time()}")
        await passes(1)
        said.append("never")


async def stays(said: list[str]) -> None:
    async with lasting(said), asyncio.timeout(DAY_S), asyncio.TaskGroup() as tasks:
        tasks.create_task(ticks([]))
        await asyncio.Event().wait()


async def begins_more_on_its_way_out(said: list[str]) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        said.append("more")
        await asyncio.gather(stays(said), passes(1))


async def catches_everything(said: list[str]) -> None:
    while len(said) < 5:
        try:
            await passes(1)
        except BaseException:  # noqa: BLE001 - that is what it is for
            said.append("caught")


async def holds_one_that_never_began(said: list[str]) -> None:
    work = stays(said)
    await asyncio.Event().wait()
    await work


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("work", [stays, begins_more_on_its_way_out, catches_everything, holds_one_that_never_began])
def test_an_end_leaves_nothing_that_complains(
    loop: SimulatedLoop, process: Process, work: "Callable[[list[str]], Coroutine[object, object, None]]", dies: bool
) -> None:
    said: list[str] = []
    begin(loop, process, work(said))
    loop.run(0.5)
    begin(loop, process, work(said))  # has not begun when the end comes
    if dies:
        loop.kill(process)
    loop.end()
    gc.collect()  # a coroutine that is left complains here, and that is an error
    assert loop.uncaught == []  # a task that is left says so here
    assert "never" not in said


def test_an_end_throws_out_what_still_runs(loop: SimulatedLoop) -> None:
    said: list[str] = []
    begin(loop, None, stays(said))
    loop.run(1)
    assert said == []
    loop.end()
    assert said == ["out at 1.0"]
    assert loop.is_closed()


# -------------------------------------------------------------------- asyncio as it is


def test_a_loop_does_what_asyncio_needs(loop: SimulatedLoop) -> None:
    loop.run_until_complete(primitives())


async def primitives() -> None:
    assert list(await asyncio.gather(gives(1, after_s=2), gives(2, after_s=1))) == [1, 2]
    async with asyncio.TaskGroup() as tasks:
        both = [tasks.create_task(gives(number, after_s=1)) for number in range(2)]
    assert [task.result() for task in both] == [0, 1]

    began_s, said = asyncio.get_running_loop().time(), list[float]()
    with pytest.raises(ExceptionGroup):
        await a_group_of_which_one_fails(said)
    assert said == [began_s + 1, began_s + 2]

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


async def a_group_of_which_one_fails(said: list[float]) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(ticks(said))
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
def test_what_leads_out_of_the_world_is_refused(
    loop: SimulatedLoop, work: "Callable[[], Coroutine[object, object, None]]", what: str
) -> None:
    with pytest.raises(SagaError, match=what):
        loop.run_until_complete(work())
