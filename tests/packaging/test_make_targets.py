"""Each target of the Makefile runs in a fresh clone, in its shortest form, whether or not another one ran before."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from saga.testing.servers.kafka import make_class_archive

ROOT = Path(__file__).parents[2]
SHORT = {
    "help": (),
    "demo": ("ORDERS=4",),
    "travel": (),
    "loan": (),
    "test": ("ARGS=tests/support/test_clock.py", "WORKERS=0"),
    "test-slow": ("ARGS=tests/testing/plugin/test_all_runs.py -k two_crashes", "WORKERS=0"),
    "coverage": ("ARGS=tests/support/test_clock.py -n 0",),
    "bench": ("ARGS=instructions",),
    "bench-servers": ("ARGS=restart",),
    "simulate": ("SEEDS=1",),
    "explore": ("DEEP='seed 17'", "WORLDS=1", "WORKERS=0", "ARGS=--collect-only -q"),
    "fuzz": ("RECORDS=20",),
    "torture": ("MINUTES=0.05",),
    "docs": (),
    "reference": (),
    "format": (),
    "clean": (),
}
"""Target -> the variables with which it takes seconds."""
ON_SERVERS = {"bench-servers", "fuzz", "torture"}
SLOW = {
    "bench",
    "bench-servers",
    "coverage",
    "demo",
    "docs",
    "explore",
    "fuzz",
    "loan",
    "reference",
    "test-slow",
    "torture",
    "travel",
}
"""Targets that take up to a minute even so: `make explore` runs them, `make test` reads them, and has what they run
among its tests."""
IN_FULL = "SAGA_TEST_EACH_TARGET" in os.environ
RUN = sorted(SHORT.keys() if IN_FULL else SHORT.keys() - SLOW)
ELSEWHERE = {
    "check": "CI runs it in a fresh clone, and it takes minutes",
    "test-pythons": "it fetches a Python and installs all that the tests need",
    "compose-test": "it needs a container engine; tests/compose has its parts",
    "lock": "it writes other pins",
}
"""Targets that are only read here, each with the reason."""
RUN_S_MAX = 280
TARGETS = sorted(set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)))


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of the project that are under version control, or will be."""
    folder = tmp_path_factory.mktemp("clone")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout
    for name in filter(None, listed.decode().split("\0")):
        if (ROOT / name).is_file():  # else it is removed, and not committed yet
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run make, with the packages that are installed here: installing them is what `make test` itself shows."""
    with_tools = (f"BIN={Path(sys.executable).parent}", "-o", ".venv/runtime", "-o", ".venv/tools")
    names = ("PYTEST_CURRENT_TEST", "PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "MAKEFLAGS", "MAKELEVEL")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    return subprocess.run(
        ["make", *with_tools, *arguments],
        cwd=folder,
        env=environment | {"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_S_MAX,
    )


def test_every_make_target_is_run_here_or_in_a_named_place() -> None:
    assert sorted(SHORT.keys() | ELSEWHERE.keys()) == TARGETS


def test_each_test_is_run_by_one_of_two_targets_and_by_ci() -> None:
    # What this run was started with, such as `make test ARGS=...`, is not what CI runs.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    printed = {
        target: subprocess.run(
            ["make", "--dry-run", "--always-make", target],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for target in ("test", "test-slow")
    }
    assert re.findall(r"pytest -n auto (.+?) *$", printed["test"], re.MULTILINE) == ['-m "not slow"']
    assert re.findall(r"pytest -n auto (.+?) *$", printed["test-slow"], re.MULTILINE) == ["-m slow"]
    called = re.findall(r"^make (\S+)$", (ROOT / ".ci/run").read_text("utf-8"), re.MULTILINE)
    assert called == ["check", "test", "test-slow"]


@pytest.mark.timeout(RUN_S_MAX)
@pytest.mark.parametrize("target", [target for target in RUN if target not in ON_SERVERS])
def test_a_target_runs_in_a_fresh_clone(clone: Path, target: str) -> None:
    done = make(clone, target, *SHORT[target])
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


@pytest.mark.timeout(RUN_S_MAX)
@pytest.mark.parametrize("target", [target for target in RUN if target in ON_SERVERS])
def test_a_target_that_starts_servers_runs_in_a_fresh_clone(clone: Path, target: str, server_jars: Path) -> None:
    make_class_archive()
    done = make(clone, target, *SHORT[target])
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


@pytest.mark.parametrize("target", [target for target in TARGETS if target not in RUN])
def test_a_target_that_takes_too_long_here_can_be_read(clone: Path, target: str) -> None:
    assert make(clone, "--dry-run", target).returncode == 0
