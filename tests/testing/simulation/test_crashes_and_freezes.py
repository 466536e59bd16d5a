"""Processes of a simulated world die in the middle of anything, or freeze and go on later."""

import asyncio
from datetime import timedelta
from functools import partial

import pytest

from saga.declarations.values import Declared
from saga.engine.prepared_service import PreparedService, prepare
from saga.testing.simulation import workers
from saga.testing.simulation.loop import Process, SimulatedLoop
from saga.testing.simulation.network import TraceNote
from saga.testing.simulation.simulated_world import SimulatedWorld
from tests.testing.simulation.orders import an_order, begun
from tests.testing.simulation.planted_faults import begin, context_of, passes, ticks


def test_a_killed_process_runs_no_finally_block(loop: SimulatedLoop, process: Process) -> None:
    log: list[str] = []

    async def work() -> None:
        try:
            await passes(10)
        finally:
            log.append("finally")

    task = begin(loop, process, work())
    loop.call_later(5, loop.kill, process)
    loop.run()
    assert (log, loop.time(), task.done()) == ([], 5, False)


def test_a_process_can_be_killed_by_what_it_does_itself(loop: SimulatedLoop, process: Process) -> None:
    log: list[str] = []

    async def work() -> None:
        loop.call_soon(log.append, "soon, before")
        loop.kill(process)
        loop.call_soon(log.append, "soon")
        loop.call_later(1, log.append, "later")
        await passes(1)
        log.append("went on")

    begin(loop, process, work())
    loop.run()
    assert (log, loop.time()) == ([], 0)


def test_an_answer_to_a_dead_process_is_lost(loop: SimulatedLoop, process: Process) -> None:
    log: list[str] = []
    answer = loop.create_future()

    async def work() -> None:
        log.append(await answer)

    begin(loop, process, work())
    loop.call_later(1, loop.kill, process)
    loop.call_later(2, answer.set_result, "answer")
    loop.run()
    assert (log, loop.time()) == ([], 2)


def test_the_other_processes_continue_when_one_is_killed(loop: SimulatedLoop, process: Process) -> None:
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


def test_a_frozen_process_continues_later_with_its_answers(loop: SimulatedLoop, process: Process) -> None:
    log: list[tuple[str, float]] = []
    answer = loop.create_future()

    async def waits() -> None:
        log.append((await answer, loop.time()))

    async def sleeps() -> None:
        await passes(2)
        log.append(("slept", loop.time()))

    begin(loop, process, waits())
    begin(loop, process, sleeps())
    loop.call_later(2, lambda: log.append(("timer", loop.time())), context=context_of(process))
    loop.call_later(1, loop.freeze, process)
    loop.call_later(3, answer.set_result, "answer")
    loop.call_later(20, loop.thaw, process)
    loop.run()
    assert sorted(log) == [("answer", 20), ("slept", 20), ("timer", 20)]


def test_callbacks_of_a_frozen_process_keep_their_order(loop: SimulatedLoop, process: Process) -> None:
    log: list[int] = []
    for number in range(20):
        if number == 10:
            loop.freeze(process)
        loop.call_soon(log.append, number, context=context_of(process))
    loop.thaw(process)
    loop.run()
    assert log == list(range(20))


def test_a_process_that_is_killed_while_frozen_does_not_continue(loop: SimulatedLoop, process: Process) -> None:
    log: list[float] = []
    for when_s in (1.0, 2.0, 7.0):
        loop.call_later(when_s, log.append, when_s, context=context_of(process))
    loop.call_later(1.5, loop.freeze, process)
    loop.call_later(5, loop.kill, process)
    loop.call_later(6, loop.thaw, process)
    loop.run()
    assert log == [1]


def test_tasks_of_a_crashed_process_end_with_it(loop: SimulatedLoop, process: Process) -> None:
    log: list[float] = []

    async def work() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(ticks(log))
            loop.call_later(3, log.append, -1.0)

    begin(loop, process, work())
    loop.call_later(1.5, loop.kill, process)
    loop.run()
    assert log == [1]


def test_a_service_is_prepared_once_for_all_its_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []

    def counted(declared: Declared) -> PreparedService:
        names.append(declared.name)
        return prepare(declared)

    monkeypatch.setattr(workers, "prepare", counted)
    with SimulatedWorld(seed=1) as world:
        begun(world)
        world.publish(an_order(1))
        world.run_until_quiet()
        for life in world.workers._lives.values():
            world._loop.run_inside(partial(world.workers.crash, life.process, 0.1))
        world.publish(an_order(2))
        world.run_until_quiet()
        assert {life.process.life for life in world.workers._lives.values()} == {2}
    assert sorted(names) == ["inventory", "order", "payment", "shipping"]


def test_a_worker_that_ends_in_good_order_and_then_dies_of_a_late_answer_begins_once() -> None:
    with SimulatedWorld(0) as world:
        begun(world)
        world.run_for(timedelta(seconds=1))
        for life in list(world.workers._lives.values()):
            life.stop.set()
            assert life.task is not None
            life.task.add_done_callback(partial(_dies, world, life.process))
        world.publish(an_order(1))
        world.run_until_quiet()
        again = [
            line.process for line in world.trace.lines if isinstance(line, TraceNote) and line.what == "begins again"
        ]
        assert sorted(again) == sorted(world.workers.names())


def _dies(world: SimulatedWorld, process: Process, _: object) -> None:
    world.workers.crash(process, 0.1)
