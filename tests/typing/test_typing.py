"""Test which code the public types accept and reject: with mypy, with basedpyright, and when it is imported.

`api.py` and the services are correct code, which both checkers accept at their strictest. `mistakes.test` is a table of
mistakes with the error codes that each checker reports for them. Each checker runs once, over all of it.
"""

import json
import os
import re
import runpy
import subprocess
import sys
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from saga import DeclarationError

ROOT = Path(__file__).parents[2]
TABLE = Path(__file__).with_name("mistakes.test").read_text("utf-8")
API = [ROOT / "tests/typing/api.py", ROOT / "tests/typing/values.py"]
SERVICES = sorted((ROOT / "services").rglob("*.py"))

Reports = dict[str, set[str]]
"""Error codes by module and line. The line of a snippet is that of the table."""


@dataclass(frozen=True)
class Case:
    """One snippet of the table."""

    name: str
    code: str
    """Begins with as many empty lines as there are lines above it in the table, so that line numbers agree."""

    @property
    def marks(self) -> dict[int, str]:
        """What is expected, by line."""
        marks = (line.partition("  # E: ")[2] for line in self.code.splitlines())
        return {number: mark for number, mark in enumerate(marks, 1) if mark}

    @property
    def names_in_error(self) -> list[str]:
        """Names in the message of the `DeclarationError` that the import raises; none if the checkers report it."""
        return [
            name for mark in self.marks.values() if mark.startswith("DeclarationError ") for name in mark.split()[1:]
        ]

    def write(self, folder: Path) -> Path:
        """Write the snippet as a module."""
        folder.mkdir(exist_ok=True)
        file = folder / f"{self.name}.py"
        file.write_text(self.code, "utf-8")
        return file


def read_cases(table: str) -> list[Case]:
    """Parse the table."""
    found = re.finditer(r"^\[case (\w+)\]\n(.*?)(?=^\[case |\Z)", table, re.MULTILINE | re.DOTALL)
    return [
        Case(case[1], "\n" * table.count("\n", 0, case.start(2)) + re.sub("^--", "#", case[2], flags=re.MULTILINE))
        for case in found
    ]


CASES = read_cases(TABLE)
AT_IMPORT = [case for case in CASES if case.names_in_error]
BY_CHECKERS = [case for case in CASES if not case.names_in_error]


def expected(*, basedpyright: bool) -> Reports:
    """The reports that one of the checkers has to make. Only basedpyright's codes begin with `report`."""
    reports = {f"{case.name}:{line}": mark.split(", ") for case in BY_CHECKERS for line, mark in case.marks.items()}
    return {
        place: {code for code in codes if code.startswith("report") == basedpyright} for place, codes in reports.items()
    }


def collect(errors: Iterable[tuple[str, int, str]]) -> Reports:
    """Group errors, given as file, line and code, by their place."""
    reports: Reports = {}
    for file, line, code in errors:
        path = ROOT / file
        name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.stem
        reports.setdefault(f"{name}:{line}", set()).add(code)
    return reports


class MypyError(msgspec.Struct):
    file: str
    line: int
    code: str | None
    severity: str


def run_mypy(folder: Path, cache: Path) -> Reports:
    """Check the snippets, the correct code and the services; of modules that they import nothing is reported."""
    command = [sys.executable, "-m", "mypy", "--strict", "--disallow-any-decorated", "--disallow-any-unimported"]
    command += ["--follow-imports=silent", "--output=json", f"--cache-dir={cache}"]
    files = [*(case.write(folder) for case in CASES), *API, *SERVICES]
    environment = {**os.environ, "MYPYPATH": str(folder)}
    done = subprocess.run(
        [*command, *map(str, files)], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    errors = [msgspec.json.decode(line, type=MypyError) for line in done.stdout.splitlines()]
    return collect((e.file, e.line, e.code or "") for e in errors if e.severity == "error")


class Position(msgspec.Struct):
    line: int


class Range(msgspec.Struct):
    start: Position


class Diagnostic(msgspec.Struct):
    file: str
    range: Range
    severity: str
    rule: str = ""


class BasedpyrightReport(msgspec.Struct):
    generalDiagnostics: list[Diagnostic]


def run_basedpyright(folder: Path, config: Path) -> Reports:
    """Check the snippets and the correct code. `make check` checks the services in the same mode."""
    files = [*(case.write(folder) for case in CASES), *API]
    settings = {"include": [str(file) for file in files], "exclude": [], "extraPaths": [str(ROOT)]}
    config.write_text(json.dumps({**settings, "typeCheckingMode": "strict", "pythonVersion": "3.11"}))
    program = Path(sys.executable).with_name("basedpyright")
    command = [str(program), "--outputjson", "--pythonpath", sys.executable, "-p", str(config)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    errors = msgspec.json.decode(done.stdout, type=BasedpyrightReport).generalDiagnostics
    return collect((e.file, e.range.start.line + 1, e.rule) for e in errors if e.severity == "error")


@pytest.mark.slow
def test_strict_mypy_reports_each_mistake_and_nothing_else(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    assert run_mypy(tmp_path / "snippets", pytestconfig.cache.mkdir("mypy")) == expected(basedpyright=False)


@pytest.mark.slow
def test_strict_basedpyright_reports_each_mistake_and_nothing_else(tmp_path: Path) -> None:
    assert run_basedpyright(tmp_path / "snippets", tmp_path / "pyrightconfig.json") == expected(basedpyright=True)


@pytest.mark.parametrize("case", AT_IMPORT, ids=lambda case: case.name)
def test_importing_a_mistake_that_no_checker_sees_raises_a_declaration_error(case: Case, tmp_path: Path) -> None:
    file = case.write(tmp_path)
    with pytest.raises(DeclarationError) as error:
        runpy.run_path(str(file))
    lines = {frame.lineno for frame in traceback.extract_tb(error.tb) if frame.filename == str(file)}
    assert lines == set(case.marks)
    message = str(error.value)
    assert [n for n in case.names_in_error if not re.search(rf"(?<!\w){re.escape(n)}(?!\w)", message)] == []


def test_each_case_is_expected_of_both_checkers_or_at_import() -> None:
    assert len(CASES) == len({case.name for case in CASES}) == TABLE.count("[case ") - 1
    assert [case.name for case in CASES if not case.marks] == []
    assert [
        place for checker in (True, False) for place, codes in expected(basedpyright=checker).items() if not codes
    ] == []
    assert [case.name for case in AT_IMPORT if len(case.marks) != 1] == []


def test_users_need_no_ignores() -> None:
    texts = [TABLE, *(file.read_text("utf-8") for file in (*API, *SERVICES))]
    assert [line for text in texts for line in re.findall(r".*# (?:type: ignore|pyright:).*", text)] == []
