"""The same seed gives the same run: in one process, in another, with other hashes of texts, in another Python."""

import os
import subprocess
import sys
from pathlib import Path
from shutil import which

import pytest

from saga.testing.faults import faults
from saga.testing.simulation.plan import Scheduled
from tests.testing.simulation.orders import drawn, fingerprint, ran

ROOT = Path(__file__).parents[3]
SEEDS = range(12)
OTHER_PYTHONS = [
    name for name in ("python3.11", "python3.12", "python3.13") if name != f"python3.{sys.version_info[1]}"
]


def elsewhere(python: str, **environment: str) -> list[str]:
    """The fingerprints that another process comes to."""
    done = subprocess.run(
        [python, "-m", "tests.testing.simulation.orders", *map(str, SEEDS)],
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
    again, _ = ran(seed, Scheduled([line.planned for line in first.trace.faults]))
    assert first.trace.faults
    assert again.fingerprint() == first.fingerprint()


@pytest.mark.parametrize("hash_seed", ["0", "1", "4711"])
def test_hashes_of_texts_change_nothing(here: list[str], hash_seed: str) -> None:
    assert elsewhere(sys.executable, PYTHONHASHSEED=hash_seed) == here


@pytest.mark.parametrize("python", OTHER_PYTHONS)
def test_another_python_changes_nothing(here: list[str], python: str) -> None:
    found = which(python)
    if (
        found is None
        or subprocess.run([found, "-c", "import fastavro, msgspec, structlog"], capture_output=True).returncode
    ):
        pytest.skip(f"{python} with what saga depends on is not here")
    assert elsewhere(found) == here
