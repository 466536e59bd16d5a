"""The first pages are followed as a reader would: their commands, in their order, print what the pages show."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from saga.testing.servers.server import free_ports
from tests.docs.markdown import ROOT, blocks
from tests.docs.test_smallest_service import ENDS_WITHIN_S, call, commands, environment

__all__ = ["environment"]


class Terminal:
    """Runs commands in a folder, which `cd` changes. What runs in the background ends with the block."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder, self.environment = folder, environment
        self.started: list[subprocess.Popen[bytes]] = []

    def follow(self, page: str, *, port: int = 8000) -> None:
        """Write the files of a page, and call the commands of its console blocks: each has to print what is shown below
        it. Its web server listens on `port` instead."""
        for block in blocks((ROOT / page).read_text("utf-8")):
            if block.title is not None:
                (self.folder / block.title).write_text(block.body, "utf-8")
            if block.language == "console":
                for command, output in commands(block.body):
                    self._follow(command.replace("8000", str(port)), output)

    def _follow(self, command: str, output: str) -> None:
        command, _, entered = command.partition(" && cd ")
        if command.endswith(" &"):
            program = command.removesuffix(" &").partition(" 2> ")[0].split()
            quiet = subprocess.DEVNULL
            self.started.append(
                subprocess.Popen(program, cwd=self.folder, env=self.environment, stdout=quiet, stderr=quiet)
            )
        else:
            shown = call(command, self.folder, self.environment)
            assert output in shown, f"{command} shows {shown!r}"
        if entered:
            self.folder /= entered


@contextmanager
def terminal(folder: Path, environment: dict[str, str]) -> Iterator[Terminal]:
    terminal = Terminal(folder, environment)
    try:
        yield terminal
    finally:
        for process in terminal.started:
            process.terminate()
        for process in terminal.started:
            process.wait(timeout=ENDS_WITHIN_S)


def test_the_first_three_minutes_end_with_a_finished_saga(tmp_path: Path, environment: dict[str, str]) -> None:
    [port] = free_ports(1)
    with terminal(tmp_path, environment | {"SAGA_MONITOR": f"127.0.0.1:{port}"}) as started:
        started.follow("docs/start/quickstart.md")
        assert started.started
    assert (tmp_path / "shop/services/order/__init__.py").exists()


def test_an_application_and_a_webhook_publish_and_get_an_outcome(tmp_path: Path, environment: dict[str, str]) -> None:
    call("saga new project shop", tmp_path, environment)
    [port] = free_ports(1)
    with terminal(tmp_path / "shop", environment | {"PYTHONPATH": "."}) as started:
        started.follow("docs/guides/clients.md", port=port)
        assert len(started.started) == 2


@pytest.mark.slow
def test_the_same_service_finishes_a_saga_on_the_servers_that_the_page_starts(
    tmp_path: Path, environment: dict[str, str], server_jars: Path
) -> None:
    call("saga new project shop", tmp_path, environment)
    page = (ROOT / "docs/start/kafka.md").read_text("utf-8")
    shown, own = [exports(block.body) for block in blocks(page) if "SAGA_BROKER" in block.body]
    assert own.keys() <= shown.keys()
    assert "\npython -m saga.testing.servers\n" in page
    program = [sys.executable, "-m", "saga.testing.servers"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True, env=environment, cwd=tmp_path) as servers:
        assert servers.stdout is not None
        settings: dict[str, str] = {}
        while settings.keys() != shown.keys():
            line = servers.stdout.readline()
            assert line, "the servers ended, or print other settings than the page"
            settings |= exports(line)
        with terminal(tmp_path / "shop", environment | settings) as started:
            started.follow("docs/start/kafka.md")
            assert started.started
        servers.terminate()
    assert servers.returncode == 0


def exports(lines: str) -> dict[str, str]:
    """Settings that lines of a shell export."""
    return dict(re.findall(r"(SAGA_\w+)=(\S+)", lines))


def test_the_first_pages_name_five_commands_at_most_until_a_saga_has_finished() -> None:
    text = (ROOT / "docs/start/quickstart.md").read_text("utf-8")
    called = [command for block in blocks(text) if block.language == "console" for command, _ in commands(block.body)]
    first = next(number for number, command in enumerate(called) if command.startswith("saga sagas show"))
    assert first < 4, "a first finished saga takes five commands, and the installation is one of them"
    assert "--wait" in called[first], "the saga may need a moment to end"
