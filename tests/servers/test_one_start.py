"""A server of a module is started once, however many workers run the tests."""

import os
import subprocess
import sys
from pathlib import Path

CONFTEST = """
import pytest
from tests.servers.fixtures import pytest_xdist_make_scheduler

@pytest.fixture(scope="session")
def server_jars():
    return None
"""
MODULE = """
import os, pathlib, pytest

@pytest.fixture(scope="module")
def server(server_jars):
    with open(os.environ["STARTS"], "a") as starts:
        starts.write("start ")

@pytest.mark.parametrize("number", range(20))
def test_on_it(server, number):
    pass
"""
OTHERS = """
import os, pathlib, pytest, time

@pytest.mark.parametrize("number", range(20))
def test_without(number):
    with open(os.environ["WORKERS"], "a") as workers:
        workers.write(os.environ["PYTEST_XDIST_WORKER"] + " ")
    until_s = time.monotonic() + 30  # the other worker comes when it is done with what shares the server
    while len(set(pathlib.Path(os.environ["WORKERS"]).read_text().split())) < 2:
        assert time.monotonic() < until_s, "all of them are for one worker"
        time.sleep(0.01)
"""


def test_tests_that_share_a_server_of_their_module_have_one_worker_and_all_others_any(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_shared.py").write_text(MODULE)
    (tmp_path / "test_others.py").write_text(OTHERS)
    starts, workers = tmp_path / "starts", tmp_path / "workers"
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "2", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-c", os.devnull, "--rootdir", str(tmp_path), str(tmp_path)],
        env={
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "STARTS": str(starts),
            "WORKERS": str(workers),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert "40 passed" in done.stdout, done.stdout + done.stderr
    assert starts.read_text().split() == ["start"]
    assert set(workers.read_text().split()) == {"gw0", "gw1"}
