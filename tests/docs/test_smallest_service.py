"""The smallest service is built and run as a reader of its page would: its files, its commands, their output."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.markdown import ROOT, blocks

ENDS_WITHIN_S = 30.0
"""Time within which a program that runs in the background must end."""


@pytest.fixture
def environment() -> dict[str, str]:
    others = {n: v for n, v in os.environ.items() if not n.startswith(("SAGA_", "PYTHON", "PYTEST_", "COVERAGE_"))}
    return others | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def commands(console: str) -> Iterator[tuple[str, str]]:
    """Commands of a console block, each with the output behind it."""
    for part in console.removeprefix("$ ").split("\n$ "):
        command, _, output = part.partition("\n")
        yield command, output.strip()


def test_the_smallest_service_runs_as_its_page_says(tmp_path: Path, environment: dict[str, str]) -> None:
    found = blocks((ROOT / "docs/start/smallest.md").read_text("utf-8"))
    for block in found:
        if block.title is not None:
            file = tmp_path / block.title
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.body, "utf-8")
    [console] = [block.body for block in found if block.language == "console"]
    started: list[subprocess.Popen[bytes]] = []
    try:
        for command, output in commands(console):
            if command.endswith(" &"):
                program = command.removesuffix(" &").split()
                started.append(subprocess.Popen(program, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL))
                continue
            shown = call(command, tmp_path, environment)
            assert output in shown, f"{command} shows {shown!r}"
        assert started, "nothing was run"
    finally:
        for process in started:
            process.terminate()
            process.wait(timeout=ENDS_WITHIN_S)


def call(command: str, folder: Path, environment: dict[str, str]) -> str:
    """Output of a command. It may wait for a minute where the page waits for less: a busy machine takes longer until a
    service runs."""
    command = re.sub(r"--wait \d+s\b", "--wait 60s", command)
    ended = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return ended.stdout + ended.stderr
