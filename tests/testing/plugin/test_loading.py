"""Modules that the plugin loads into a run of pytest: none that was not asked for, so that coverage sees the rest."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
LEAF = {"saga", "saga.testing", "saga.testing.plugin"}
PLAIN = "def test_plain() -> None: ...\n"
WORLD = """
from tests.testing.plugin.buggy_service import scenario

def test_in_a_world(world) -> None:
    scenario(orders=1, asked_max=1)(world)
"""
TELLING = """
import sys

def pytest_sessionfinish() -> None:
    loaded = [name for name in sys.modules if name == "saga" or name.startswith("saga.")]
    print("\\nloaded:", *sorted(loaded))
"""
WITHOUT = ("no:xdist", "no:cacheprovider", "no:hypothesispytest", "no:cov")


def loaded(folder: Path, test: str, *options: str) -> set[str]:
    """The modules of the toolkit that one run of pytest has loaded when it ends."""
    (folder / "conftest.py").write_text(TELLING)
    (folder / "test_it.py").write_text(test)
    command = [sys.executable, "-m", "pytest", "-q", "-s", *(f"-p{name}" for name in WITHOUT), *options]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    run = subprocess.run(
        [*command, "--rootdir", str(folder), str(folder)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    [line] = [line for line in run.stdout.splitlines() if line.startswith("loaded:")]
    return set(line.split()[1:])


def folders(names: set[str]) -> set[str]:
    """The folders and modules directly in `saga.testing`."""
    return {name.split(".")[2] for name in names if name.startswith("saga.testing.")}


def test_a_run_without_a_world_loads_the_plugin_alone(tmp_path: Path) -> None:
    assert loaded(tmp_path, PLAIN) == LEAF


def test_a_run_with_a_simulated_world_loads_no_other_kind_of_test(tmp_path: Path) -> None:
    names = loaded(tmp_path, WORLD)
    assert "saga.testing.simulation.simulated_world" in names
    assert "saga.engine.execution.message_processor" in names
    assert folders(names).isdisjoint({"processes", "conformance", "idempotence", "trials", "stateful", "strategies"})
    assert not [name for name in names if name.startswith(("saga.cli.", "saga.broker.kafka", "saga.store.couchbase"))]


@pytest.mark.parametrize("option", ["--saga-world=embedded", "--saga-seeds=1"])
def test_an_option_alone_loads_nothing(tmp_path: Path, option: str) -> None:
    assert loaded(tmp_path, PLAIN, option) == LEAF


@pytest.mark.timeout(60)
def test_a_run_with_real_processes_loads_them(tmp_path: Path) -> None:
    assert "processes" in folders(loaded(tmp_path, WORLD, "--saga-world=embedded"))
