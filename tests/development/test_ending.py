"""`saga dev` ends whenever it is asked to, and leaves no process behind: not what a service has started, either."""

import asyncio
import os
import re
import signal
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from textwrap import dedent

import pytest

from saga.development.processes import QUIET_S, ServiceProcesses
from saga.support.clock import SystemClock
from tests.development.test_crew import is_alive

END_S_MAX = 25.0
"""Less than it takes to give up a service that does not end, or one that cannot be loaded."""


class WatchedClock(SystemClock):
    """Says when a pause of this length begins."""

    def __init__(self, pause_s: float) -> None:
        self.pause_s, self.began = pause_s, asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        if seconds == self.pause_s:
            self.began.set()
        await super().sleep(seconds)


class Output:
    """The lines that were printed, and who waits for one."""

    def __init__(self, fails_at: str | None = None) -> None:
        self.lines: list[str] = []
        self._fails_at, self._came, self.is_closed = fails_at, asyncio.Event(), False

    def __call__(self, name: str, line: str) -> None:
        if self.is_closed:
            raise BrokenPipeError("nobody reads it")
        self.lines.append(line)
        self._came.set()
        self.is_closed = self._fails_at is not None and self._fails_at in line

    async def find(self, pattern: str) -> re.Match[str]:
        while (found := next(filter(None, (re.search(pattern, line) for line in self.lines)), None)) is None:
            self._came.clear()
            await self._came.wait()
        return found


@asynccontextmanager
async def running(
    folder: Path, source: str, output: Output, clock: SystemClock | None = None
) -> AsyncIterator[tuple[ServiceProcesses, asyncio.Event]]:
    """Run a service with this source until the block ends. It has to end in time then."""
    (folder / "services").mkdir()
    (folder / "services/__init__.py").touch()  # else another package of this name in PYTHONPATH is taken
    (folder / "services/odd.py").write_text(dedent(source))
    stop = asyncio.Event()
    crew = ServiceProcesses(folder / "services", folder, os.environ, clock or SystemClock(), output)
    try:
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(crew.run(stop))
            async with asyncio.timeout(60):
                yield crew, stop
            stop.set()
            async with asyncio.timeout(END_S_MAX):
                await task
    finally:  # whatever has failed, no process stays
        for process in re.findall(r"started, process (\d+)", "\n".join(output.lines)):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(int(process), signal.SIGKILL)


async def has_ended(process: int) -> None:
    async with asyncio.timeout(20):
        while is_alive(process):
            await SystemClock().sleep(0.01)


@pytest.mark.parametrize("stdout", [None, subprocess.DEVNULL])
async def test_what_a_service_left_running_is_ended_and_its_end_is_shown(tmp_path: Path, stdout: int | None) -> None:
    """Also a process that does not have the output of the service."""
    output = Output()
    source = f"""
        import subprocess
        from saga import Service

        helper = subprocess.Popen(["sleep", "3600"], stdout={stdout}, stderr={stdout})
        print("helper", helper.pid, flush=True)
        odd = Service("odd")  # without a handler, so it ends at once
    """
    async with running(tmp_path, source, output):
        helper = int((await output.find(r"helper (\d+)"))[1])
        await output.find("ended by itself with code 2")
        await has_ended(helper)


async def test_a_service_that_is_killed_takes_what_it_has_started_with_it(tmp_path: Path) -> None:
    output = Output()
    source = """
        import signal
        import subprocess
        from saga import Service

        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        helper = subprocess.Popen(["sleep", "3600"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        print("helper", helper.pid, flush=True)
        signal.pause()
        odd = Service("odd")
    """
    async with running(tmp_path, source, output) as (crew, _):
        helper = int((await output.find(r"helper (\d+)"))[1])
        crew.hurry.set()
    assert any("did not end in time, and is killed" in line for line in output.lines)
    await has_ended(helper)


async def test_it_ends_although_files_never_stop_changing(tmp_path: Path) -> None:
    clock, output = WatchedClock(QUIET_S), Output()
    source = """
        import time
        from pathlib import Path
        from saga import Service

        while True:
            Path("report.toml").write_text(str(time.monotonic_ns()))
            time.sleep(0.01)
        odd = Service("odd")
    """
    async with running(tmp_path, source, output, clock):
        await clock.began.wait()
    assert not any("changed" in line for line in output.lines), "it was still waiting for the last of the changes"


async def test_it_ends_and_starts_nothing_while_new_code_is_loaded(tmp_path: Path) -> None:
    output = Output()
    source = """
        import signal
        import sys
        from pathlib import Path
        from saga import Service

        Path(sys.argv[1]).touch()
        signal.pause()
        odd = Service("odd")
    """
    async with running(tmp_path, source, output):
        await until(lambda: (tmp_path / "run").exists())
        (tmp_path / "services/odd.py").write_text(dedent(source) + "\n")
        await until(lambda: (tmp_path / "manifest").exists())
    assert sum("started, process" in line for line in output.lines) == 1


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await SystemClock().sleep(0.01)


async def test_it_ends_with_its_services_when_its_output_is_closed(tmp_path: Path) -> None:
    output = Output(fails_at="ready")
    source = """
        import signal
        from saga import Service

        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("ready", flush=True)
        print("more", flush=True)
        signal.pause()
        odd = Service("odd")
    """
    async with running(tmp_path, source, output) as (crew, stop):
        process = int((await output.find(r"started, process (\d+)"))[1])
        crew.hurry.set()
        await stop.wait()
    await has_ended(process)
