"""The same tests as real processes: a run of each kind, and the report of what is left out."""

import pytest

from tests.testing.plugin.conftest import Runs

pytest_plugins = ["pytester"]


@pytest.mark.timeout(120)
def test_the_same_tests_run_as_real_processes(runs: Runs) -> None:
    result = runs(
        """
def test_plain(world: World) -> None:
    scenario(orders=1, asked_max=1)(world)

@simulate(seeds=9, faults=faults.of("duplicate", rate=0.1) | faults.of("clock"))
def test_many(world: World) -> None:
    scenario(orders=1, asked_max=9)(world)

@crash_everywhere
def test_points(world: World) -> None:
    scenario(orders=1, asked_max=9)(world)

@simulate(seeds=9, faults=faults.of("duplicate", target="till.ring") | faults.of("duplicate", target="tlil"))
def test_misspelt(world: World) -> None:
    scenario(orders=1, asked_max=9)(world)

@replay(seed=3)
def test_kept(world: World) -> None:
    raise AssertionError("not run")

@simulate(seeds=9)
def test_fails(world: World) -> None:
    scenario(orders=1, asked_max=0, customer="c-0")(world)
""",
        "--saga-world=embedded",
        "--saga-seed=3",
        "-rs",
    )
    result.assert_outcomes(passed=3, skipped=1, failed=2)
    result.stdout.fnmatch_lines(
        [
            "E *.SagaError: in 1 run the faults for target 'tlil' (did you mean 'till'?) never happened*",
            "E *AssertionError: c-0 was asked 1 times",
            "E *again: --saga-world=embedded --saga-seed=3*",
            "test_it.py::test_many: 1 run as real processes; left out there: clock; not looked at there: calls made "
            "before they were written down, older versions of progresses and documents, reruns",
            "test_it.py::test_plain: 1 run as real processes; not looked at there: calls made *, reruns",
            "test_it.py::test_points: 1 run as real processes; not looked at there: calls made *, reruns",
            "SKIPPED*a schedule is one of the simulated world*",
        ]
    )
