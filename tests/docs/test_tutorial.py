"""The tutorial is run as a reader would: its files are written, its commands called, its output is what it says.

The toolkit that it runs on is the wheel, installed in an environment of its own: what a release would bring.
"""

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.markdown import ROOT, blocks
from tests.packaging.environment import Environment, built

PAGES = [f"docs/tutorial/{name}.md" for name in ("README", "run", "change")]
SHOWS_WITHIN_S = 30.0
"""Time within which a command must show what is expected: other processes may take so long, and it is called again."""
CALL_S_MAX = 30.0


class Ended(AssertionError):
    """A command ended with an error."""


class Shell:
    """Calls commands in a folder. Whatever they leave running ends with the shell."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self._folder = folder
        self._groups: list[int] = []
        self._environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SAGA_", "PYTHON", "PYTEST_", "COVERAGE_"))
        }
        self._environment["PATH"] = f"{programs}{os.pathsep}{os.environ['PATH']}"

    def call(self, script: str) -> str:
        """Output of the commands. Fails when one of them does."""
        with subprocess.Popen(
            ["bash", "-euc", script],
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            self._groups.append(process.pid)
            printed, _ = process.communicate(timeout=CALL_S_MAX)
        if process.returncode != 0:
            raise Ended(f"{script}\nended with {process.returncode}:\n{printed}\n{self.logs()}")
        return printed

    def look(self, script: str) -> str:
        """Output of commands that only look, and that end with an error while there is nothing to see: they are called
        until it is there."""
        until = time.monotonic() + SHOWS_WITHIN_S
        while True:
            try:
                return self.call(script)
            except Ended:
                if time.monotonic() > until:
                    raise

    def logs(self) -> str:
        """Logs of all that runs in the background."""
        return "\n".join(f"{file.name}:\n{file.read_text()}" for file in sorted(self._folder.glob("*.log")))

    def end(self) -> None:
        for group in self._groups:
            try:
                os.killpg(group, signal.SIGKILL)
            except ProcessLookupError:
                continue


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    """An environment that has the wheel and what it requires, and nothing else."""
    environment = Environment(tmp_path / "env")
    environment.install(built(tmp_path / "built"))
    return environment


@pytest.fixture
def shell(tmp_path: Path, environment: Environment) -> Iterator[Shell]:
    folder = tmp_path / "shop"
    folder.mkdir()
    shell = Shell(folder, environment.bin)
    try:
        yield shell
    finally:
        shell.end()


def first_missing(expected: str, printed: str) -> str | None:
    """The first expected line that no line of the output matches, in order; `...` stands for anything."""
    lines = iter(printed.splitlines())
    for wanted in expected.splitlines():
        words = (".*" if word == "..." else re.escape(word) for word in wanted.split())
        pattern = re.compile(r"\s*" + r"\s+".join(words).replace(r".*\s+", ".*").replace(r"\s+.*", ".*") + r"\s*")
        if not any(pattern.fullmatch(line) for line in lines):
            return wanted
    return None


@pytest.mark.slow
def test_the_tutorial_does_what_it_says(shell: Shell, environment: Environment, tmp_path: Path) -> None:
    where = shell.call("python -c 'import saga; print(saga.__file__)'; command -v saga").split()
    assert [Path(path).is_relative_to(tmp_path / "env") for path in where] == [True, True]
    script = ""
    for block in blocks("\n".join((ROOT / page).read_text("utf-8") for page in PAGES)):
        if block.title is not None:
            file = tmp_path / "shop" / block.title
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.body, "utf-8")
        elif block.language == "sh":
            if "pytest" in block.body:  # all before it runs without
                environment.require("saga-choreography", "testing")
            only_looks = all(line.startswith("saga sagas show ") for line in block.body.splitlines())
            script, printed = block.body, (shell.look if only_looks else shell.call)(block.body)
        elif block.language == "text":
            until = time.monotonic() + SHOWS_WITHIN_S
            while (missing := first_missing(block.body, printed)) is not None:
                assert time.monotonic() < until, f"{script}\nnever printed {missing!r}, but:\n{printed}\n{shell.logs()}"
                printed = shell.call(script)


def test_an_expected_line_is_found_in_order_only() -> None:
    printed = "10:00 stock 0 set_aside handled -> GoodsSetAside\n10:01 order 1 decide handled\n"
    assert first_missing("... stock ... handled ...\n... order ... decide handled\n", printed) is None
    assert first_missing("... order ... decide handled\n... stock ... handled ...\n", printed) is not None
    assert first_missing("... order ... waiting ...\n", printed) == "... order ... waiting ..."
