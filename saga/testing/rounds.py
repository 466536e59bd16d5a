"""How a test that takes a world is run: in which worlds, how often, and what is said when it fails."""

import functools
import inspect
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from saga.errors import SagaError
from saga.testing.plugin import REPORTED
from saga.testing.processes.servers import Giver, giver_of
from saga.testing.processes.world import ProcessWorld
from saga.testing.scenarios import Crashes, Mode, Replayed, Seeds, mode_of
from saga.testing.simulation.many import Failed, Tally, many
from saga.testing.simulation.reports import report, summary
from saga.testing.simulation.runs import FAILURES, Care, Run
from saga.testing.simulation.saving import saved
from saga.testing.simulation.shrinking import Shrunk
from saga.testing.simulation.world import SimulatedWorld
from saga.testing.world import World

CARE = Care(failures=(*FAILURES, pytest.fail.Exception))
PROCESSES = ("embedded", "servers")
"""The worlds of real processes."""
PROCESS_SEEDS_MAX = 2
"""A run of real processes takes seconds: no more seeds than this are tried."""
SERVER_SEEDS_MAX = 1
"""On servers it takes half a minute."""


@contextmanager
def first_world(request: pytest.FixtureRequest) -> Iterator[World]:
    """The world that the fixture gives: for a test that is run once, the very one that it runs in.

    Raises `SagaError` for an `async` test.
    """
    if inspect.iscoroutinefunction(request.function):
        raise SagaError(
            f"{request.node.name} is async, and a world runs a loop of its own: write it as a plain `def`, nothing of "
            "a world has to be awaited"
        )
    if request.config.getoption("--saga-world") in PROCESSES:
        made = ProcessWorld(servers=_giver(request.config))
        if mode_of(request.function) is not None:  # it is run in others: no servers are started for this one
            yield made
            return
        with made as world:
            yield world
    else:
        seed = request.config.getoption("--saga-seed") or 0
        with SimulatedWorld(seed) as simulated:
            yield simulated


def rounds(item: pytest.Function) -> bool | None:
    """Run the test as it wants to be run; `None`: its `world` is a fixture of another kind, and no concern of ours.

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
    if config.getoption("--saga-world") in PROCESSES:
        return _in_processes(item, scenario, mode)
    tally = Tally()
    only = config.getoption("--saga-seed")
    failed = many(scenario, mode, tally, CARE, None if only is None else [only])
    item.user_properties.append((REPORTED, summary(tally)))
    if failed is None:
        return True
    raise _told(item, failed)


def _told(item: pytest.Function, failed: Failed) -> BaseException:
    """What the smallest run raises, now with all that there is to say of it."""
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
    """In the world of the fixture, which other fixtures may have begun to fill."""
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
    return True


def _in_processes(item: pytest.Function, scenario: Callable[[World], None], mode: Mode) -> bool:
    """As real processes, with the faults that can be had there."""
    if isinstance(mode, Replayed):
        pytest.skip("a schedule is one of the simulated world: it means nothing to real processes")
    kinds: dict[str, float] = {"crash": 0.05} if isinstance(mode, Crashes) else {}
    if isinstance(mode, Seeds):
        kinds = {rule.kind: max(rule.rate, kinds.get(rule.kind, 0)) for rule in mode.faults.rules}
    only = item.config.getoption("--saga-seed")
    giver = _giver(item.config)
    seeds_max = PROCESS_SEEDS_MAX if giver is None else SERVER_SEEDS_MAX
    seeds = [only] if only is not None else range(min(seeds_max, getattr(mode, "count", 1)))
    missing = dict[str, None]()
    for seed in seeds:
        try:
            with ProcessWorld(seed, kinds, servers=giver) as world:
                missing |= dict.fromkeys(kind for kind in kinds if world.left_out([kind]))
                scenario(world)
                world.verify()
        except CARE.failures as why:
            why.add_note(
                f"again: {_asked(item.config)} --saga-seed={seed}, though no run of real processes is as another"
            )
            raise
    said = f"{len(seeds)} run{'s' if len(seeds) > 1 else ''} as real processes{' on servers' if giver else ''}"
    item.user_properties.append((REPORTED, f"{said}; left out there: {', '.join(missing)}" if missing else said))
    return True


def _giver(config: pytest.Config) -> Giver | None:
    """Who gives servers. Raises `SagaError` for somebody whom nobody knows."""
    name: str | None = config.getoption("--saga-servers")
    return None if name is None else giver_of(name)


def _asked(config: pytest.Config) -> str:
    servers = config.getoption("--saga-servers")
    return f"--saga-world={config.getoption('--saga-world')}{f' --saga-servers={servers}' if servers else ''}"


def _check_fixtures(item: pytest.Function, given: Container[str]) -> None:
    """Raises `SagaError` for another fixture that takes the world: it would take one in which nothing runs."""
    for name, definitions in item._fixtureinfo.name2fixturedefs.items():
        if name != "world" and "world" in definitions[-1].argnames:
            raise SagaError(
                f"the fixture {name!r} takes a world, and {item.name} is run in many: let the test itself call what "
                f"{name!r} does with its world"
            )
    if "world" not in given:
        raise SagaError(f"{item.name} is to be run in many worlds, and takes none: give it a parameter `world: World`")
