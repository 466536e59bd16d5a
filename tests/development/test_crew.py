"""`saga dev` in a project as `saga new` writes it: it runs its services, starts them again, and leaves none behind."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest

from saga.development.processes import ServiceProcesses
from saga.support.clock import SystemClock
from tests.cli.test_dead import until
from tests.scaffold.test_new import ROOT, saga

ORDER = "services/order/__init__.py"


class Dev:
    """The command, in a process of its own, and its output."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder, self.log = folder, folder / "log.txt"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SAGA_")}
        (folder / "settings.toml").write_text('http = "127.0.0.1:1"\ndrain_s = 5\n')
        environment = {**kept, "PYTHONPATH": str(ROOT), "SAGA_CONFIG": "settings.toml"}
        with self.log.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "saga.cli.main", "dev", *options],
                cwd=folder, env=environment, stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def read_log_lines(self) -> list[str]:
        return self.log.read_text("utf-8", "replace").splitlines()

    def times(self, pattern: str) -> int:
        return len([line for line in self.read_log_lines() if re.search(pattern, line)])

    def wait_until_logged(self, pattern: str, times: int = 1) -> None:
        def holds() -> bool:
            assert self.process.poll() is None, self.read_log_lines()
            return self.times(pattern) >= times

        until(holds, self.read_log_lines)

    def processes(self) -> list[int]:
        return [
            int(found[1]) for line in self.read_log_lines() if (found := re.search(r"started, process (\d+)", line))
        ]

    def edit(self, path: str, change: Callable[[str], str]) -> None:
        file = self.folder / path
        file.write_text(change(file.read_text()))


@pytest.fixture
def dev(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Dev]:
    monkeypatch.chdir(tmp_path)
    for name in ("SAGA_BROKER", "SAGA_STORE", "SAGA_CONTRACTS"):
        monkeypatch.delenv(name, raising=False)
    assert saga("new", "project", "shop").exit_code == 0
    monkeypatch.chdir(tmp_path / "shop")
    assert saga("new", "service", "payment").exit_code == 0
    running = Dev(tmp_path / "shop", *getattr(request, "param", ("--page", "127.0.0.1:0")))
    try:
        yield running
    finally:
        for process in running.processes():
            if is_alive(process):
                os.kill(process, signal.SIGKILL)
        running.process.kill()
        running.process.wait()


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_services_run_are_started_again_when_they_change_and_end_with_it(dev: Dev) -> None:
    dev.wait_until_logged(r"^order +\| .* assigned ")
    dev.wait_until_logged(r"^payment +\| .* assigned ")
    assert dev.times(r"^saga +\| SAGA_HTTP is ignored") == 1
    assert dev.times(r"^saga +\|   saga publish OrderPlaced --example \| saga publish OrderPlaced$") == 1
    assert dev.times(r"^saga +\|   saga sagas show order-1 --wait 10s$") == 1
    line = json.dumps({"order_id": "o-1", "sku": "tea", "quantity": 50})
    put = subprocess.run(
        [sys.executable, "-m", "saga.cli.main", "publish", "OrderPlaced"],
        cwd=dev.folder, input=line, text=True, capture_output=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert put.returncode == 0, put.stderr
    dev.wait_until_logged(r"^order +\| .* handled .*saga=o-1")
    dev.wait_until_logged(r"^page +\| the monitor answers at ")
    until(lambda: "o-1" in page_of(dev), dev.read_log_lines)

    dev.edit(ORDER, lambda text: text.replace("= 100", "= 100 +"))
    dev.wait_until_logged(
        r"^order +\| cannot be read: .*services/order/__init__.py:7: .*; the old process keeps running"
    )
    assert len(dev.processes()) == 3
    assert all(map(is_alive, dev.processes()))

    dev.edit(ORDER, lambda text: text.replace("= 100 +", "= nobody"))
    dev.wait_until_logged(r"^order +\| cannot be loaded; the old process keeps running")
    assert dev.times(r"^order +\|.*NameError: name 'nobody' is not defined") >= 1

    dev.edit(ORDER, lambda text: text.replace("= nobody", "= 10"))
    dev.wait_until_logged(r"^order +\| started, process", times=2)
    assert dev.times(r"^payment +\| started, process") == 1, "its code has not changed"
    assert dev.times(r"^page +\| started, process") == 1, "no contract has changed"

    dev.edit("contracts/payment/PaymentDone.v1.avsc", lambda text: text.replace("has done", "did"))
    dev.wait_until_logged(r"^payment +\| started, process", times=2)
    dev.wait_until_logged(r"^order +\| started, process", times=3)
    dev.wait_until_logged(r"^page +\| the monitor answers at ", times=2)
    until(lambda: "o-1" in page_of(dev), dev.read_log_lines)
    last = dev.processes()[-2:]
    os.kill(last[0], signal.SIGKILL)
    dev.wait_until_logged(r"ended by itself with code -9; it is started again when its code or a shared file changes")
    assert dev.times("ended by itself") == 1, "those that were started again were asked to end"

    dev.process.send_signal(signal.SIGINT)
    assert dev.process.wait(60) == 0, dev.read_log_lines()
    assert not any(map(is_alive, dev.processes()))


def page_of(dev: Dev) -> str:
    """Sagas, as the page shows them."""
    (*_, last) = [line for line in dev.read_log_lines() if "the monitor answers at " in line]
    connection = HTTPConnection(last.rpartition("/")[2], timeout=40)
    try:
        connection.request("GET", "/sagas")
        return connection.getresponse().read().decode()
    finally:
        connection.close()


async def test_an_occupied_page_address_is_reported_and_services_keep_running(tmp_path: Path) -> None:
    output, ended, stop = list[tuple[str, str]](), asyncio.Event(), asyncio.Event()

    def say(who: str, line: str) -> None:
        output.append((who, line))
        if "ended by itself" in line:
            ended.set()

    (tmp_path / "services").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        crew = ServiceProcesses(tmp_path / "services", tmp_path, os.environ, SystemClock(), say, page=address)
        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            running = tasks.create_task(crew.run(stop))
            await ended.wait()
            assert not running.done()
            stop.set()
    assert any(who == "page" and "it cannot listen at" in line for who, line in output), output
    assert ("page", "ended by itself with code 2; it is started again when a contract changes") in output


@pytest.mark.parametrize("dev", [("--no-page",)], indirect=True)
def test_a_service_that_does_not_drain_is_ended_by_a_second_signal(dev: Dev) -> None:
    dev.wait_until_logged(r"^order +\| .* assigned ")
    dev.wait_until_logged(r"^payment +\| .* assigned ")
    for process in dev.processes():
        os.kill(process, signal.SIGSTOP)
    dev.process.send_signal(signal.SIGINT)
    dev.edit("services/__init__.py", lambda text: text + "\n")
    until(lambda: not signal_waits(dev.process.pid))
    dev.process.send_signal(signal.SIGINT)
    assert dev.process.wait(60) == 0, dev.read_log_lines()
    assert dev.times("did not end in time, and is killed; nothing is lost") == 2
    assert dev.times(r"^page ") == 0
    assert not any(map(is_alive, dev.processes()))


def signal_waits(process: int) -> bool:
    """True while a signal was sent to a process and not yet taken: another one of its kind would be one with it."""
    status = Path(f"/proc/{process}/status").read_text()
    return any(int(mask, 16) for mask in re.findall(r"^(?:Sig|Shd)Pnd:\s+(\w+)", status, re.MULTILINE))


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = saga("dev", "elsewhere")
    assert result.exit_code == 2
    assert "elsewhere is no package of the folder" in result.stderr


def test_a_page_and_none_are_not_asked_for_at_once() -> None:
    result = saga("dev", "--page", "127.0.0.1:0", "--no-page")
    assert result.exit_code == 2
    assert "give --page or --no-page, not both" in result.stderr
