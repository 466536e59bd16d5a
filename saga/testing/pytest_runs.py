"""Run tests with worlds under pytest: choose the worlds and the number of runs, and report failures.

Simulated runs use all seeds, and a failing run is shrunk. Worlds of real processes are loaded only on request. They run
few seeds, because a run takes seconds, and only with the faults that can happen to real processes.
"""

import functools
import inspect
import unittest
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from saga.errors import SagaError
from saga.support.printable import count_noun
from saga.testing.decorators import Crashes, Mode, Replayed, Seeds, mode_of
from saga.testing.simulation.reports import describe_dead_letters, report, save_schedule, summary
from saga.testing.simulation.runs import (
    FAILURES,
    FailedScenario,
    Run,
    RunOptions,
    Shrunk,
    Tally,
    check_some_ended,
    check_targets,
    describe_dead_letter,
    run_all,
)
from saga.testing.simulation.simulated_world import SimulatedWorld
from saga.testing.world import World

if TYPE_CHECKING:
    from saga.testing.processes.process_world import ProcessWorld
    from saga.testing.processes.servers import ServerAddresses, ServerProvider

OPTIONS = RunOptions(failures=(*FAILURES, pytest.fail.Exception))
PROVIDER = "saga.testing.servers.provider:servers"
"""Provider of servers that is used unless `--saga-servers` names another one."""
REPORTED = "saga"
"""Name of the pytest user property that holds the line about a test's runs. The plugin prints this line to the
terminal.
"""
SEEDS_MAX = 2
"""Maximum number of seeds with real processes, because a run takes seconds."""
SERVER_SEEDS_MAX = 1
"""Maximum number of seeds on servers, because a run takes half a minute."""


@contextmanager
def first_world(request: pytest.FixtureRequest) -> Iterator[World]:
    """Provide the world of the fixture `world`. A test that runs only once uses this world.

    Raises `SagaError` for an `async` test, and for a test that asks for the world only while it runs.
    """
    if request.node.get_closest_marker("saga_world") is None:
        raise SagaError(
            f"{request.node.name} gets its world by getfixturevalue, so the world would never be verified: let the "
            "test, or a fixture of it, take a parameter `world: World`"
        )
    if inspect.iscoroutinefunction(request.function):
        raise SagaError(
            f"{request.node.name} is async, and a world runs a loop of its own: write it as a plain `def`, nothing of "
            "a world has to be awaited"
        )
    config = request.config
    if _is_simulated(config):
        with SimulatedWorld(config.getoption("--saga-seed") or 0) as simulated:
            yield simulated
        return
    from saga.testing.processes.process_world import ProcessWorld

    processes = ProcessWorld(servers=_server_provider(config))
    if mode_of(request.function) is not None:  # the test itself runs in other worlds, so start no servers for this one
        yield processes
        return
    with _skipping(), processes as world:
        yield world


@contextmanager
def run_servers(config: pytest.Config, folder: Path) -> "Iterator[ServerAddresses]":
    """Run the servers of the configured provider, for tests that use servers without a world."""
    from saga.testing.processes.servers import load_provider

    with _skipping(), load_provider(config.getoption("--saga-servers") or PROVIDER)(folder) as servers:
        yield servers.aside


@contextmanager
def _skipping() -> Iterator[None]:
    """Skip the test if the block raises `ServersMissing`."""
    from saga.testing.servers.missing import ServersMissing, skip_without_servers

    try:
        yield
    except ServersMissing as why:
        skip_without_servers(why)


def check_is_no_unittest(item: pytest.Item) -> None:
    """Raise `SagaError` for a test of a `unittest.TestCase`. `unittest` itself calls them, so the world would never
    be verified, and a decorator would have no effect.
    """
    owner = getattr(item, "cls", None)
    if owner is not None and issubclass(owner, unittest.TestCase):
        raise SagaError(
            f"{item.name} is a test of a unittest.TestCase, which verifies no world: write it as a function, or in a "
            "plain class"
        )


def run_test(item: pytest.Function) -> bool | None:
    """Run the test as its decorator prescribes. Return `None` if its fixture `world` is not a world of this kit.

    Raises the exception of the smallest failing run, with the report as a note.
    """
    mode, config, world = mode_of(item.function), item.config, item.funcargs.get("world")
    given = {name: item.funcargs[name] for name in item._fixtureinfo.argnames}
    if mode is None:
        return _run_once(item, given, world) if isinstance(world, World) else None
    _check_fixtures(item, given)
    if not isinstance(world, World):
        raise SagaError(f"{item.name} is to be run in many worlds, and its fixture 'world' is another one: rename that")
    if isinstance(mode, Seeds) and (count := config.getoption("--saga-seeds")):
        mode = replace(mode, count=count, unreached=mode.unreached if count >= mode.count else None)
    scenario = functools.partial(_call_test, item.obj, given)
    if not _is_simulated(config):
        return _run_processes(item, scenario, mode)
    tally = Tally()
    only = config.getoption("--saga-seed")
    failed = run_all(scenario, mode, tally, OPTIONS, None if only is None else [only])
    item.user_properties.append((REPORTED, summary(tally)))
    if failed is None:
        return True
    raise _add_report(item, failed)


def _is_simulated(config: pytest.Config) -> bool:
    return bool(config.getoption("--saga-world") == "simulated")


def _add_report(item: pytest.Function, failed: FailedScenario) -> BaseException:
    """Return the exception of the smallest failing run, with the whole report added as notes."""
    small = failed.shrunk.run
    assert small.failure is not None
    small.failure.add_note(report(failed, item.name))
    if item.config.getoption("--saga-save"):
        try:
            small.failure.add_note(f"saved: {save_schedule(item.function, small.schedule, str(small.failure))}")
        except Exception as why:  # noqa: BLE001 - an error here, as of a full disk, must not hide the test's failure
            small.failure.add_note(f"not saved: {why}")
    return small.failure


def _call_test(test: Callable[..., None], given: dict[str, Any], world: World) -> None:
    if isinstance(world, SimulatedWorld):
        world.saving = lambda: save_schedule(test, world.schedule(), "as it was saved")
    test(**{**given, "world": world})


def _run_once(item: pytest.Function, given: dict[str, Any], world: World) -> bool:
    """Run the test in the world of the fixture. Other fixtures may already have started services in that world.

    Raises `SagaError` if no saga ended because of dead letters.
    """
    if isinstance(world, SimulatedWorld):
        world.saving = lambda: save_schedule(item.function, world.schedule(), "as it was saved")
    try:
        item.obj(**given)
        world.verify()
    except OPTIONS.failures as why:
        if not isinstance(world, SimulatedWorld):
            _add_mistakes(why, _as_processes(world))
            raise
        only = Run(world.schedule(), why, world)
        _add_report(item, FailedScenario(only, Shrunk(only, runs=0)))
        raise
    tally = Tally()
    if (processes := _as_processes(world)) is not None:
        _count_processes(tally, processes)
        _report_processes(item, processes, tally)
    elif isinstance(world, SimulatedWorld):
        tally.add(Run(world.schedule(), None, world))
        if tally.dead or tally.mistakes:
            item.user_properties.append((REPORTED, summary(tally)))
    check_some_ended(tally)
    return True


def _as_processes(world: World) -> "ProcessWorld | None":
    """Return the world if it is one of real processes."""
    if isinstance(world, SimulatedWorld):
        return None
    from saga.testing.processes.process_world import ProcessWorld

    return world if isinstance(world, ProcessWorld) else None


def _check_fixtures(item: pytest.Function, given: Container[str]) -> None:
    """Raise `SagaError` if the test does not take `world`, or if another fixture takes it, even one of the same name. A
    decorated test runs in many worlds, and the other fixture would get a different world from the test.
    """
    for name, definitions in item._fixtureinfo.name2fixturedefs.items():
        if "world" in definitions[-1].argnames:
            raise SagaError(
                f"the fixture {name!r} takes a world, and {item.name} is run in many: let the test itself call what "
                f"{name!r} does with its world"
            )
    if "world" not in given:
        raise SagaError(f"{item.name} is to be run in many worlds, and takes none: give it a parameter `world: World`")


# ---------------------------------------------------------------- real processes


def _run_processes(item: pytest.Function, scenario: Callable[[World], None], mode: Mode) -> bool:
    """Run the test with real processes, and follow its decorator as far as real processes allow. Skip a test with
    `replay`. Leave out and report faults that real processes cannot produce. Errors of a run propagate.

    A fault's target does not limit where the fault happens here, but it must exist. Raises `SagaError` for a target
    that does not exist, and if no saga ended in any run because of dead letters.
    """
    from saga.testing.processes.process_world import ProcessWorld

    if isinstance(mode, Replayed):
        pytest.skip("a schedule is one of the simulated world: it means nothing to real processes")
    kinds: dict[str, float] = {"crash": 0.05} if isinstance(mode, Crashes) else {}
    if isinstance(mode, Seeds):
        kinds = {rule.kind: max(rule.rate, kinds.get(rule.kind, 0)) for rule in mode.faults.rules}
    only = item.config.getoption("--saga-seed")
    provider = _server_provider(item.config)
    seeds_max = SEEDS_MAX if provider is None else SERVER_SEEDS_MAX
    seeds = [only] if only is not None else range(min(seeds_max, getattr(mode, "count", 1)))
    missing, tally, world = dict[str, None](), Tally(), None
    for seed in seeds:
        try:
            with _skipping(), ProcessWorld(seed, kinds, servers=provider) as world:
                missing |= dict.fromkeys(kind for kind in kinds if world.left_out([kind]))
                scenario(world)
                world.verify()
                _count_processes(tally, world)
        except OPTIONS.failures as why:
            _add_mistakes(why, world)
            why.add_note(
                f"again: {_format_options(item.config)} --saga-seed={seed}, though no run of real processes repeats "
                "another"
            )
            raise
    assert world is not None
    if only is None:
        check_some_ended(tally)
    if isinstance(mode, Seeds):
        check_targets(tally, mode.faults)
    _report_processes(item, world, tally, missing)
    return True


def _count_processes(tally: Tally, world: "ProcessWorld") -> None:
    """Add what happened in a world of real processes to the tally."""
    tally.runs += 1
    tally.mistakes |= dict.fromkeys(world.mistakes)
    tally.ended = tally.ended or world.has_commanded or world.has_ended
    tally.targets |= world.fault_targets
    tally.dead.update(map(describe_dead_letter, world.dead_letters()))


def _add_mistakes(why: BaseException, world: "ProcessWorld | None") -> None:
    """Add the mistakes of the world's fakes as notes to the exception with which the test failed."""
    for mistake in () if world is None else world.mistakes:
        why.add_note(mistake)


def _report_processes(
    item: pytest.Function,
    world: "ProcessWorld",
    tally: Tally,
    missing: Iterable[str] = (),
) -> None:
    """Add a line for the terminal: mistakes of fakes, the number of runs, dead letters, the faults that were left out,
    and the checks that were impossible.
    """
    on_servers = " on servers" if item.config.getoption("--saga-world") == "servers" else ""
    parts = [
        *tally.mistakes,
        f"{count_noun(tally.runs, 'run')} as real processes{on_servers}",
        *([describe_dead_letters(tally.dead)] if tally.dead else []),
        *([f"left out there: {', '.join(missing)}"] if missing else []),
        f"not looked at there: {', '.join(world.unseen)}",
    ]
    item.user_properties.append((REPORTED, "; ".join(parts)))


def _server_provider(config: pytest.Config) -> "ServerProvider | None":
    """Load the function that provides servers, if worlds run on servers. Raises `SagaError` if it cannot be loaded."""
    from saga.testing.processes.servers import load_provider

    if config.getoption("--saga-world") != "servers":
        return None
    return load_provider(config.getoption("--saga-servers") or PROVIDER)


def _format_options(config: pytest.Config) -> str:
    servers = config.getoption("--saga-servers")
    return f"--saga-world={config.getoption('--saga-world')}{f' --saga-servers={servers}' if servers else ''}"
