"""Runs of a test that takes a world, under pytest: kinds of worlds, number of runs, and the report of a failure."""

import functools
import inspect
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from saga.errors import SagaError
from saga.testing.decorators import Seeds, mode_of
from saga.testing.pytest_names import REPORTED, SIMULATED
from saga.testing.simulation.all_runs import Failed, Tally, run_all
from saga.testing.simulation.reports import report, summary
from saga.testing.simulation.run import FAILURES, Care, Run
from saga.testing.simulation.saving import saved
from saga.testing.simulation.shrinking import Shrunk
from saga.testing.simulation.simulated_world import SimulatedWorld
from saga.testing.world import World

CARE = Care(failures=(*FAILURES, pytest.fail.Exception))


@contextmanager
def first_world(request: pytest.FixtureRequest) -> Iterator[World]:
    """World that the fixture gives; a test that is run once runs in this very one.

    Raises `SagaError` for an `async` test.
    """
    if inspect.iscoroutinefunction(request.function):
        raise SagaError(
            f"{request.node.name} is async, and a world runs a loop of its own: write it as a plain `def`, nothing of "
            "a world has to be awaited"
        )
    config = request.config
    if not _is_simulated(config):
        from saga.testing.processes import pytest_runs as of_processes

        with of_processes.first_world(config, mode_of(request.function)) as world:
            yield world
    else:
        with SimulatedWorld(config.getoption("--saga-seed") or 0) as simulated:
            yield simulated


def _is_simulated(config: pytest.Config) -> bool:
    """True in the simulated world. Worlds of real processes are loaded only where they are asked for."""
    return bool(config.getoption("--saga-world") == SIMULATED)


def run_test(item: pytest.Function) -> bool | None:
    """Run the test as its decorator says; `None`: its `world` is a fixture of another kind, and no concern of ours.

    Raises what its smallest failing run raises, with the report as a note.
    """
    mode, config, world = mode_of(item.function), item.config, item.funcargs["world"]
    given = {name: item.funcargs[name] for name in item._fixtureinfo.argnames}
    if not isinstance(world, World):
        return None
    if mode is None:
        return _once(item, given, world)
    _check_fixtures(item, given)
    if isinstance(mode, Seeds) and config.getoption("--saga-seeds"):
        mode = replace(mode, count=config.getoption("--saga-seeds"))
    scenario = functools.partial(_called, item.obj, given)
    if not _is_simulated(config):
        from saga.testing.processes import pytest_runs as of_processes

        return of_processes.run_test(item, scenario, mode, CARE.failures)
    tally = Tally()
    only = config.getoption("--saga-seed")
    failed = run_all(scenario, mode, tally, CARE, None if only is None else [only])
    item.user_properties.append((REPORTED, summary(tally)))
    if failed is None:
        return True
    raise _told(item, failed)


def _told(item: pytest.Function, failed: Failed) -> BaseException:
    """Exception of the smallest run, with the whole report as notes."""
    small = failed.shrunk.run
    assert small.failure is not None
    small.failure.add_note(report(failed, item.name))
    if item.config.getoption("--saga-save"):
        try:
            small.failure.add_note(f"saved: {saved(item.function, small.schedule, str(small.failure))}")
        except SagaError as why:  # it must not hide what the test has found
            small.failure.add_note(f"not saved: {why}")
    return small.failure


def _called(test: Callable[..., None], given: dict[str, Any], world: World) -> None:
    if isinstance(world, SimulatedWorld):
        world.saving = lambda: saved(test, world.schedule(), "as it was saved")
    test(**{**given, "world": world})


def _once(item: pytest.Function, given: dict[str, Any], world: World) -> bool:
    """Run the test in the world of the fixture, which other fixtures may have begun to fill."""
    if isinstance(world, SimulatedWorld):
        world.saving = lambda: saved(item.function, world.schedule(), "as it was saved")
    try:
        item.obj(**given)
        world.verify()
    except CARE.failures as why:
        if not isinstance(world, SimulatedWorld):
            raise
        only = Run(world.schedule(), why, world)
        _told(item, Failed(only, Shrunk(only, runs=0)))
        raise
    if not _is_simulated(item.config):
        from saga.testing.processes import pytest_runs as of_processes

        of_processes.say_what_was_run(item, world)
    return True


def _check_fixtures(item: pytest.Function, given: Container[str]) -> None:
    """Refuse another fixture that takes the world: it would take one in which nothing runs. Raises `SagaError`."""
    for name, definitions in item._fixtureinfo.name2fixturedefs.items():
        if name != "world" and "world" in definitions[-1].argnames:
            raise SagaError(
                f"the fixture {name!r} takes a world, and {item.name} is run in many: let the test itself call what "
                f"{name!r} does with its world"
            )
    if "world" not in given:
        raise SagaError(f"{item.name} is to be run in many worlds, and takes none: give it a parameter `world: World`")
