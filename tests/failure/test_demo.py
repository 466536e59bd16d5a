"""The demonstration, as `make demo` runs it: it succeeds, the commands that it prints work, and it leaves no process
behind."""

import os
import re
import signal
import socket
import subprocess
import sys
from http.client import HTTPConnection
from pathlib import Path

import pytest

from saga.support.clock import SystemClock
from services.demo.fleet import ROOT, Fleet
from services.demo.page import HOST, Page
from tests.cli.test_dead import until

ENDED_S_MAX = 60.0
PAGE = re.compile(r"a page shows them at http://(\S+), as long as this runs\n")
OK = re.compile(r"^ok {7}(every|the|confirmed|cancelled|nothing) ", re.MULTILINE)


def demo(folder: Path) -> subprocess.Popen[str]:
    """Started as from the root of the repository, but with its files in `folder`."""
    return subprocess.Popen(
        [sys.executable, "-m", "services.demo"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def answer(address: str, path: str) -> str:
    """Page at an address."""
    connection = HTTPConnection(address, timeout=ENDED_S_MAX)
    try:
        connection.request("GET", path)
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def pids(output: str) -> list[int]:
    """Process ids of all services that were started."""
    (line,) = re.findall(r"four services run: (.*)", output)
    return [int(pid) for pid in re.findall(r"\((\d+)\)", line) + re.findall(r"as process (\d+)", output)]


@pytest.mark.slow
def test_the_demonstration_ends_with_balanced_books_and_commands_that_work(tmp_path: Path) -> None:
    process = demo(tmp_path)
    output, _ = process.communicate(timeout=ENDED_S_MAX)
    assert process.returncode == 0, output
    assert re.search(r"kill -9 \d+: payment is dead", output)
    assert "payment is started again" in output
    assert "order-0001 has expired: nobody answered in time" in output
    assert re.search(r"^cancelled: expired +[1-9]", output, re.MULTILINE)
    assert len(OK.findall(output)) == 8, output
    assert "640 orders = " in output
    assert [pid for pid in pids(output) if is_running(pid)] == []
    assert PAGE.search(output), output
    further, _, page = output.partition("To look further:\n")[2].partition("To look at all of them in a browser")
    commands = further.splitlines()
    for command, shown in zip(
        commands, ("expire     handled", "and more: raise --limit to see them", "all unchanged"), strict=True
    ):
        looked = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert looked.returncode == 0, f"{command}: {looked.stderr}"
        assert shown in looked.stdout, f"{command}: {looked.stdout[:2000]}"
    with subprocess.Popen(
        f"exec env {page.splitlines()[1]} --listen 127.0.0.1:0",
        shell=True, cwd=tmp_path, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as monitor:  # fmt: skip
        try:
            assert monitor.stdout is not None
            address = monitor.stdout.readline().strip().rpartition("/")[2]
            until(lambda: ">order-0001<" in answer(address, "/sagas?text=order-0001"))
        finally:
            monitor.kill()


@pytest.mark.parametrize("how", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_demonstration_that_is_ended_early_leaves_nothing_running(tmp_path: Path, how: signal.Signals) -> None:
    process = demo(tmp_path)
    assert process.stdout is not None
    lines: list[str] = []
    while not (shown := PAGE.search("".join(lines))) or "placed" not in lines[-1]:
        lines.append(process.stdout.readline())
        assert lines[-1], lines
    assert "<title>" in answer(shown[1], "/sagas")
    process.send_signal(how)
    output, _ = process.communicate(timeout=ENDED_S_MAX)
    assert process.returncode == 130, output
    assert "nothing is left running" in output
    assert [pid for pid in pids("".join([*lines, output])) if is_running(pid)] == []
    with pytest.raises(ConnectionRefusedError):
        answer(shown[1], "/sagas")


def test_a_missing_page_dependency_is_reported_and_does_not_stop_the_demo(tmp_path: Path) -> None:
    (tmp_path / "starlette.py").write_text("raise ImportError('no starlette here')")
    with Fleet(tmp_path / "demo", SystemClock()) as fleet, Page(fleet) as page:
        page.start(PYTHONPATH=f"{tmp_path}:{ROOT}")
        until(lambda: page.news() is not None)
        assert "no page shows them: saga: the monitor was not started" in (page.news() or "")
        assert "pip install 'saga-choreography[monitor]'" in (page.news() or "")


def test_the_page_uses_another_port_when_its_port_is_taken(tmp_path: Path) -> None:
    with socket.create_server((HOST, 0)) as taken, Fleet(tmp_path / "demo", SystemClock()) as fleet:
        port = taken.getsockname()[1]
        with Page(fleet, port) as page:
            page.start()
            until(lambda: page.news() is not None)
            shown = PAGE.search(f"{page.news()}\n")
            assert shown is not None
            assert shown[1] != f"{HOST}:{port}"
            assert "<title>" in answer(shown[1], "/sagas")


def test_a_service_that_falls_ends_the_demonstration_with_its_name_and_its_log(tmp_path: Path) -> None:
    process = demo(tmp_path)
    assert process.stdout is not None
    line = ""
    while "four services run" not in line:
        line = process.stdout.readline()
        assert line
    shipping = pids(line)[3]
    os.kill(shipping, signal.SIGKILL)
    output, _ = process.communicate(timeout=ENDED_S_MAX)
    assert process.returncode == 1, output
    assert "shipping ended by itself, with -9; its log:" in output
    assert f"{tmp_path}/.saga/demo/shipping.log" in output
    assert "Traceback" not in output
    assert [pid for pid in pids(line) if is_running(pid)] == []
