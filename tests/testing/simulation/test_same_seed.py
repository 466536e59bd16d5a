"""The same seed gives the same run: in one process, in another, with other hashes of texts, in another Python."""

import os
import subprocess
import sys
from pathlib import Path
from shutil import which

import pytest

from saga.testing.fault_plans import ScheduledPlan, faults
from tests.testing.simulation.orders import drawn, fingerprint, ran

ROOT = Path(__file__).parents[3]
SEEDS = range(12)
PYTHONS = "SAGA_TEST_PYTHONS"
"""Names other interpreters, with what saga depends on, by their paths: these are compared, or the test fails."""
OTHER_PYTHONS = [
    name for name in ("python3.11", "python3.12", "python3.13") if name != f"python3.{sys.version_info[1]}"
]
NEEDED = "import fastavro, msgspec, structlog, typing_extensions"


def elsewhere(python: str, *options: str, **environment: str) -> list[str]:
    """The fingerprints that another process comes to."""
    done = subprocess.run(
        [python, *options, "-m", "tests.testing.simulation.orders", *map(str, SEEDS)],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def here() -> list[str]:
    return [fingerprint(seed) for seed in SEEDS]


def test_the_same_seed_gives_the_same_run(here: list[str]) -> None:
    assert [fingerprint(seed) for seed in SEEDS] == here


def test_another_seed_gives_another_run(here: list[str]) -> None:
    assert len({line.split()[1] for line in here}) == len(SEEDS)


def test_a_seed_is_followed_without_faults_too() -> None:
    runs = [[world.fingerprint() for world, _ in map(ran, SEEDS)] for _ in range(2)]
    assert runs[0] == runs[1]
    assert len(set(runs[0])) == len(SEEDS)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_faults_that_were_drawn_give_the_same_run_when_they_are_planted(seed: int) -> None:
    first, _ = ran(seed, drawn(seed, faults.everything()))
    again, _ = ran(seed, ScheduledPlan([line.planned for line in first.trace.faults]))
    assert first.trace.faults
    assert again.fingerprint() == first.fingerprint()


@pytest.mark.parametrize("hash_seed", ["0", "1", "4711"])
def test_hashes_of_texts_change_nothing(here: list[str], hash_seed: str) -> None:
    assert elsewhere(sys.executable, PYTHONHASHSEED=hash_seed) == here


@pytest.mark.parametrize(
    ("options", "environment"),
    [
        (("-O",), {}),
        (("-X", "dev"), {"PYTHONMALLOC": "debug"}),
        (("-X", "utf8=0"), {"TZ": "Asia/Kathmandu", "LC_ALL": "C", "PYTHONUTF8": "0"}),
    ],
    ids=["without assertions", "in development mode", "in another zone and language"],
)
def test_how_an_interpreter_is_called_changes_nothing(
    here: list[str], options: tuple[str, ...], environment: dict[str, str]
) -> None:
    assert elsewhere(sys.executable, *options, **environment) == here


def test_other_interpreters_change_nothing(here: list[str]) -> None:
    """On all that are named, else on all that are found; on none there is nothing to compare, which is reported."""
    if named := os.environ.get(PYTHONS, "").split():
        found = named
    else:
        found = [path for path in map(which, OTHER_PYTHONS) if path is not None and has_what_is_needed(path)]
    if not found:
        pytest.skip(
            f"NOT COMPARED: none of {', '.join(OTHER_PYTHONS)} is here with what saga depends on; make an environment "
            f"of it from requirements.lock, and name its interpreter in {PYTHONS}"
        )
    assert {path: elsewhere(path) for path in found} == dict.fromkeys(found, here)


def has_what_is_needed(python: str) -> bool:
    return subprocess.run([python, "-c", NEEDED], capture_output=True, check=False).returncode == 0
