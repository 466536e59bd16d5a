"""A folder to call commands in, with the example's contracts, and the command line to call."""

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from saga.cli.main import main

Call = Callable[..., Result]
ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder; services keep their stores where they do by default: in `.saga` below it."""
    monkeypatch.chdir(tmp_path)
    for name in ("SAGA_BROKER", "SAGA_STORE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SAGA_CONTRACTS", str(ROOT / "contracts"))
    (tmp_path / ".saga").mkdir()
    return tmp_path


@pytest.fixture
def saga(folder: Path) -> Call:
    """The command `saga`: `saga("list", "--json")`."""

    def call(*args: str, stdin: str | bytes | None = None) -> Result:
        return CliRunner().invoke(main, args, input=stdin, catch_exceptions=False)

    return call
