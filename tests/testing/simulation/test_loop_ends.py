"""Ends of runs in a simulated world, of which nothing is left."""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import timedelta
from decimal import Decimal
from weakref import ref

import pytest

from saga.errors import SagaError
from saga.testing.fault_plans import faults
from saga.testing.simulation import loop as loop_module
from saga.testing.simulation.loop import NotQuiet, Process, SimulatedLoop
from saga.testing.simulation.simulated_world import SimulatedWorld
from services.payment import payment
from services.payment.bank import Bank
from tests.testing.simulation.orders import an_order, drawn
from tests.testing.simulation.planted_faults import begin, passes, ticks

DAY_S = 86_400.0


def test_a_world_that_never_comes_to_rest_fails_with_that_reason(
    loop: SimulatedLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_module, "CALLBACKS_MAX", 1000)
    begin(loop, None, ticks([]), "ticks")
    with pytest.raises(NotQuiet, match=r"after 1000 callbacks at \d+\.\d+ s"):
        loop.run()
    assert loop.pending() == ["ticks"]


def test_waiting_for_something_that_never_comes_fails(loop: SimulatedLoop) -> None:
    async def waits() -> None:
        await asyncio.Event().wait()

    with pytest.raises(NotQuiet, match="nothing will come"):
        loop.run_until_complete(waits())


def test_a_check_after_each_callback_can_end_the_run(loop: SimulatedLoop) -> None:
    log: list[float] = []
    begin(loop, None, ticks(log))

    def look() -> None:
        assert len(log) < 3

    loop.after = look
    with pytest.raises(AssertionError):
        loop.run()
    assert log == [1, 2, 3]


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
    log: list[str] = []

    def again() -> None:
        with pytest.raises(RuntimeError, match="runs already"):
            loop.run()
        log.append("refused")

    loop.call_soon(again)
    loop.run()
    assert log == ["refused"]


def test_an_error_in_a_callback_of_no_task_ends_the_run(loop: SimulatedLoop) -> None:
    def fails() -> None:
        raise ValueError("nobody takes this")

    loop.call_later(1, fails)
    with pytest.raises(ValueError, match="nobody takes this"):
        loop.run()
    assert loop.time() == 1


@asynccontextmanager
async def lasting(log: list[str]) -> AsyncIterator[None]:
    try:
        yield
    finally:
        log.append(f"out at {asyncio.get_running_loop().time()}")
        await passes(1)
        log.append("never")


async def stays(log: list[str]) -> None:
    async with lasting(log), asyncio.timeout(DAY_S), asyncio.TaskGroup() as tasks:
        tasks.create_task(ticks([]))
        await asyncio.Event().wait()


async def begins_more_on_its_way_out(log: list[str]) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        log.append("more")
        await asyncio.gather(stays(log), passes(1))


async def catches_everything(log: list[str]) -> None:
    while len(log) < 5:
        try:
            await passes(1)
        except BaseException:  # noqa: BLE001 - that is what it is for
            log.append("caught")


async def holds_one_that_never_began(log: list[str]) -> None:
    work = stays(log)
    await asyncio.Event().wait()
    await work


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("work", [stays, begins_more_on_its_way_out, catches_everything, holds_one_that_never_began])
def test_an_end_leaves_nothing_that_complains(
    loop: SimulatedLoop, process: Process, work: "Callable[[list[str]], Coroutine[object, object, None]]", dies: bool
) -> None:
    log: list[str] = []
    begin(loop, process, work(log))
    loop.run(0.5)
    begin(loop, process, work(log))  # has not begun when the end comes
    if dies:
        loop.kill(process)
    loop.end()
    gc.collect()  # a coroutine that is left complains here, and that is an error
    assert loop.failure is None
    assert "never" not in log


def test_an_end_throws_out_what_still_runs(loop: SimulatedLoop) -> None:
    log: list[str] = []
    begin(loop, None, stays(log))
    loop.run(1)
    assert log == []
    loop.end()
    assert log == ["out at 1.0"]
    assert loop.is_closed()


class BankThatIsAway(Bank):
    async def reserve(self, key: str, card: str, amount: Decimal) -> str:
        raise ConnectionError("no answer")


def test_a_world_whose_workers_died_at_failed_attempts_leaves_nothing_in_memory() -> None:
    def run() -> "ref[SimulatedWorld]":
        with SimulatedWorld(0, drawn(0, faults.of("crash", rate=0.1)), guarded=False) as world:
            world.start(payment, use=[BankThatIsAway()])
            world.publish(*(an_order(number) for number in range(4)))
            world.run_for(timedelta(minutes=1))
        return ref(world)

    world = run()
    gc.collect()
    assert world() is None
