"""Choice of interpreters for the tested Python versions, and the report of missing ones."""

import sys
from pathlib import Path

import pytest

from tests.pythons.__main__ import verdict
from tests.pythons.interpreters import interpreter, is_one

HERE = "{}.{}".format(*sys.version_info)


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all of the path; nothing can be fetched."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    return tmp_path


def test_a_program_of_the_right_name_is_no_python_yet(alone: Path) -> None:
    shim = alone / f"python{HERE}"
    shim.write_text("#!/bin/sh\necho 'not found' >&2\nexit 127\n")
    shim.chmod(0o755)
    assert interpreter(HERE, fetched_to=alone / "fetched") is None


def test_a_python_on_the_path_is_taken_for_its_version_only(alone: Path) -> None:
    real = Path(sys.base_prefix) / "bin" / f"python{HERE}"
    (alone / f"python{HERE}").symlink_to(real)
    (alone / "python3.99").symlink_to(real)
    assert interpreter(HERE, fetched_to=alone / "fetched") == alone / f"python{HERE}"
    assert not is_one(alone / "python3.99", "3.99")
    assert interpreter("3.99", fetched_to=alone / "fetched") is None


def test_a_skipped_interpreter_is_reported_and_a_failing_one_fails_the_run() -> None:
    text, well = verdict({"3.11": True, "3.13": False, "3.14": None})
    assert not well
    assert "Python 3.13: FAILED" in text
    assert "Python 3.14: LEFT OUT" in text
    assert verdict({"3.11": True, "3.14": None})[1]
