"""Tests that are run in many worlds: their options, their report, and that of a failure."""

import re
import time

import pytest

from saga.testing.simulation.simulated_world import SimulatedWorld
from tests.testing.plugin.buggy_service import Drawer, an_order, till
from tests.testing.plugin.conftest import Runs, note_of

pytest_plugins = ["pytester"]

FAILING = """
@simulate(seeds=60, faults=BREAKING)
def test_charged_once(world: World) -> None:
    scenario(orders=4, asked_max=1)(world)
"""
FINE = """
@simulate(seeds=4, faults=BREAKING)
def test_many(world: World) -> None:
    scenario(orders=2, asked_max=99)(world)
"""
POINTS = """
@crash_everywhere(pairs=False)
def test_points(world: World) -> None:
    scenario(orders=1, asked_max=2)(world)
"""


def report_of(note: str) -> str:
    """Report of the failure, without how it came to be shrunk."""
    return re.sub(r"shrunk .*\n", "", note)


def test_a_failure_is_reported_with_seed_faults_and_timeline_and_how_to_repeat_it(runs: Runs) -> None:
    result = runs(FAILING)
    result.assert_outcomes(failed=1)
    result.stdout.re_match_lines(
        [
            r"E .*AssertionError: c-1 was asked 2 times",
            r"E .*seed \d+ of test_charged_once fails: AssertionError: c-1 was asked 2 times",
            r"E .*shrunk from \d+ faults? to 1 and from 4 events to 1 in \d+ runs",
            r"E .*faults:",
            r"E +till-\d#\d+ crash (before|after)",
            r"E .*timeline of order-1:|E .*timeline:",
            r"E .*application +publishes OrderPlaced of order-1",
            r"E .*calls put by till.ring of order-1",
            r"E .*\*\*\* till-\d#\d+ crash (before|after) \*\*\*",
            r"E .*till-\d +begins again",
            r"E .*calls put by till.ring of order-1",
            r"E .*order-1: ring\(OrderPlaced\) handled",
            r"E .*again: --saga-seed=\d+ runs this seed alone; --saga-save",
        ]
    )


def test_a_broken_invariant_is_named(runs: Runs) -> None:
    result = runs("""
@simulate(seeds=60, faults=BREAKING)
def test_charged_once(world: World) -> None:
    drawer = Drawer()
    world.always("c-1 is asked once", lambda: drawer.asked["c-1"] <= 1)
    world.start(till, use=[drawer])
    world.publish(an_order(1))
    world.run_until_quiet()
""")
    result.assert_outcomes(failed=1)
    assert "test_charged_once fails: your own invariant: c-1 is asked once - does not hold at" in note_of(result)


def test_a_single_seed_reproduces_its_failure(runs: Runs) -> None:
    many = note_of(runs(FAILING))
    seed = re.search(r"again: --saga-seed=(\d+)", many)
    assert seed is not None
    alone = runs(FAILING, f"--saga-seed={seed[1]}")
    alone.assert_outcomes(failed=1)
    assert report_of(note_of(alone)) == report_of(many)
    alone.stdout.fnmatch_lines(["test_it.py::test_charged_once: 1 run; *"])


def test_a_seed_that_does_not_fail_passes_alone(runs: Runs) -> None:
    result = runs(
        """
seen = []

@simulate(seeds=9)
def test_many(world: World) -> None:
    seen.append(world.seed)
    world.start(till, use=[Drawer()])
    assert world.seed != 4

def test_the_seeds() -> None:
    assert set(seen) == {7}
""",
        "--saga-seed=7",
    )
    result.assert_outcomes(passed=2)


def test_the_number_of_seeds_can_be_overridden(runs: Runs) -> None:
    result = runs(FINE + POINTS, "--saga-seeds=7")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["test_it.py::test_many: 7 runs; 14 events published; *"])


def test_a_test_that_asks_for_all_handlers_fails_under_all_its_seeds_only(runs: Runs) -> None:
    idle = """
@simulate(seeds=3, unreached=[])
def test_idle(world: World) -> None:
    world.start(till, use=[Drawer()])
    world.run_until_quiet()
"""
    result = runs(idle)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E *in 3 runs these handlers never ran, *: till.ring (handler). *"])
    fewer = runs(idle, "--saga-seeds=2")
    fewer.assert_outcomes(passed=1)
    fewer.stdout.fnmatch_lines(["test_it.py::test_idle: 2 runs; no events published; NEVER RAN: till.ring (handler)"])


def test_no_seeds_at_all_are_refused(runs: Runs) -> None:
    result = runs(FINE, "--saga-seeds=0")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--saga-seeds=0: at least one*"])


def test_the_runs_are_summarised_at_the_end(runs: Runs) -> None:
    result = runs(FINE + POINTS)
    result.assert_outcomes(passed=2)
    result.stdout.re_match_lines(
        [
            r"=+ runs of worlds =+",
            r"test_it.py::test_many: 4 runs; 8 events published; \d+ faults \(\d+ crash, \d+ delay\)",
            r"test_it.py::test_points: (\d+) runs; \1 events published; a crash at each of \d+ points",
        ]
    )


@pytest.mark.slow
def test_runs_of_xdist_workers_are_summarised_too(runs: Runs) -> None:
    result = runs(FINE + POINTS + FAILING, "-n2")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*seed * of test_charged_once fails: AssertionError: c-1 was asked 2 times",
            "*runs of worlds*",
            "test_it.py::test_charged_once: * run*; *",
            "test_it.py::test_many: 4 runs; *",
            "test_it.py::test_points: * runs; *a crash at each of * points",
        ]
    )


@pytest.mark.parametrize("decorator", ["", "@simulate(seeds=3)", "@crash_everywhere", "@replay(seed=1)"])
def test_a_skip_inside_a_scenario_skips(runs: Runs, decorator: str) -> None:
    runs(f"""
{decorator}
def test_it(world: World) -> None:
    pytest.skip("not today")
""").assert_outcomes(skipped=1)


def test_a_fail_inside_a_scenario_is_shrunk_as_a_failure(runs: Runs) -> None:
    result = runs("""
@simulate(seeds=60, faults=BREAKING)
def test_it(world: World) -> None:
    drawer = Drawer()
    world.start(till, use=[drawer])
    world.publish(*map(an_order, range(3)))
    world.run_until_quiet()
    if drawer.asked["c-2"] > 1:
        pytest.fail("asked twice")
""")
    result.assert_outcomes(failed=1)
    result.stdout.re_match_lines(
        [
            r"E .*Failed: asked twice",
            r"E .*seed \d+ of test_it fails: Failed: asked twice",
            r"E .*shrunk from .* in \d+ runs",
        ]
    )


def test_a_replay_runs_what_is_in_the_schedule(runs: Runs) -> None:
    result = runs(
        """
@replay(seed=3, faults=["till-1#1 crash after", "till-2#1 crash after"], without=[1])
def test_it(world: World) -> None:
    drawer = Drawer()
    world.start(till, use=[drawer])
    world.publish(*map(an_order, range(3)))
    world.run_until_quiet()
    assert set(drawer.asked) == {"c-0", "c-2"}
""",
        "--saga-seed=9",
    )
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["test_it.py::test_it: 1 run; 2 events published; 2 faults (2 crash)"])


def test_an_interrupt_is_not_replaced_by_what_the_guard_has_caught() -> None:
    class Interrupted(Drawer):
        async def put(self, key: str, customer: str) -> None:
            time.time()  # noqa: TID251 - what the guard catches
            raise KeyboardInterrupt

    with SimulatedWorld() as world:
        world.start(till, use=[Interrupted()])
        world.publish(an_order(1))
        with pytest.raises(KeyboardInterrupt):
            world.run_until_quiet()


def test_the_garbage_of_earlier_tests_is_not_collected_while_the_guard_looks(runs: Runs) -> None:
    result = runs("""
import gc
import time

class Connection:
    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        time.monotonic()

@pytest.fixture
def garbage():
    kept = [Connection() for _ in range(2)]
    gc.collect()
    before = gc.get_threshold()
    gc.set_threshold(1)
    yield kept
    gc.set_threshold(*before)

def test_it(garbage, world: World) -> None:
    world.start(till, use=[Drawer()])
    world.publish(an_order(1))
    world.always("the garbage of an earlier test", lambda: garbage.clear() is None)
    world.run_until_quiet()
""")
    result.assert_outcomes(passed=1)
