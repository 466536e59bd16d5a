"""Coverage: pure folders are covered whole by their own tests; measuring misses no process and no plugin; floors only
rise."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.coverage import floors

ROOT = Path(__file__).parents[2]
PURE = ("saga/progress", "saga/policies")
POLICIES = ("blame", "retry", "rules", "windows", "breaker", "turns", "yielding")
OWN_TESTS = (*PURE, "tests/progress", *(f"tests/policies/test_{name}.py" for name in POLICIES))
"""Tests of one decision at a time, without chance: what they reach they reach each time."""


def measured(folder: Path, files: Sequence[str], *arguments: str) -> dict[str, object]:
    """The report of a run of pytest on some files, one by one, as `make coverage` would measure them."""
    settings = (ROOT / "pyproject.toml").read_text("utf-8")
    config = folder / "pyproject.toml"
    config.write_text(settings.replace('"build/coverage/data"', json.dumps(str(folder / "data"))), "utf-8")

    def coverage(*command: str) -> None:
        program = [sys.executable, "-m", "coverage", command[0], f"--rcfile={config}", *command[1:]]
        done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    coverage("run", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *arguments)
    coverage("combine", "--quiet")
    coverage("json", "--quiet", f"--include={','.join(files)}", "-o", str(folder / "report.json"))
    report: dict[str, object] = json.loads((folder / "report.json").read_text("utf-8"))["files"]
    return report


def missing(report: dict[str, object], folder: str) -> dict[str, object]:
    """Lines and branches of a folder that did not run, by file."""
    found: dict[str, object] = {}
    for file, of_file in report.items():
        assert isinstance(of_file, dict)
        if file.startswith(f"{folder}/") and (of_file["missing_lines"] or of_file["missing_branches"]):
            found[file] = (of_file["missing_lines"], of_file["missing_branches"])
    return found


@pytest.mark.timeout(300)
def test_every_line_and_branch_of_what_is_pure_is_run_by_its_own_tests(tmp_path: Path) -> None:
    report = measured(tmp_path, [f"{folder}/*" for folder in PURE], "-m", "not hypothesis", *OWN_TESTS)
    for folder in PURE:
        assert any(file.startswith(folder) for file in report), f"nothing of {folder} was measured"
        assert missing(report, folder) == {}


def test_the_plugin_and_other_processes_are_measured(tmp_path: Path) -> None:
    test = tmp_path / "test_one.py"
    test.write_text(
        "import subprocess, sys\n"
        "def test_one(tmp_path):\n"
        "    code = 'import os, saga.addresses; os._exit(0)'\n"
        "    subprocess.run([sys.executable, '-c', code], check=True, cwd=tmp_path)\n"
    )
    files = ("saga/testing/plugin.py", "saga/addresses.py")
    report = measured(tmp_path, files, "-c", "/dev/null", "--rootdir", str(tmp_path), str(test))
    for file in files:
        of_file = report[file]
        assert isinstance(of_file, dict)
        definitions = {n for n, line in enumerate((ROOT / file).read_text().splitlines(), 1) if line.startswith("def ")}
        assert definitions
        assert definitions <= set(of_file["executed_lines"])


def a_report(**ran: tuple[int, int, int, int]) -> dict[str, object]:
    names = ("covered_lines", "num_statements", "covered_branches", "num_branches")
    return {
        "files": {
            f"saga/{name.replace('__', '/')}.py": {"summary": dict(zip(names, numbers, strict=True))}
            for name, numbers in ran.items()
        }
    }


def test_a_folder_is_as_covered_as_all_its_files_together_and_never_rounded_up() -> None:
    report = a_report(store__a=(10, 10, 0, 0), store__b__c=(5, 10, 4, 10), progress__d=(99_999, 100_000, 1, 1))
    assert floors.by_folder(report) == {"saga/progress": 99.9, "saga/store": 63.3}


def test_less_than_the_floor_is_told_and_a_folder_that_is_new_or_gone() -> None:
    told = floors.below({"saga/a": 90.0, "saga/b": 80.0, "saga/c": 10.0}, {"saga/a": 89.9, "saga/b": 80.0, "saga/d": 1})
    assert told == [
        "saga/a: 89.9 %, and the floor is 90.0 %",
        "saga/c: 0.0 %, and the floor is 10.0 %",
        "saga/d: has no floor in floors.toml",
    ]


def test_a_floor_is_raised_to_what_was_reached_and_never_lowered() -> None:
    text = '# why\n[floors]\n"saga/a" = 90.0\n"saga/b" = 80\n'
    raised = floors.raised(text, {"saga/a": 95.5, "saga/b": 20.0})
    assert raised == '# why\n[floors]\n"saga/a" = 95.5\n"saga/b" = 80.0\n'


def test_each_folder_has_a_floor_and_what_is_pure_the_highest() -> None:
    folders = {floors.folder_of(path.relative_to(ROOT).as_posix()) for path in (ROOT / "saga").rglob("*.py")}
    assert set(floors.read()) == folders
    assert [floors.read()[folder] for folder in PURE] == [100, 100]
