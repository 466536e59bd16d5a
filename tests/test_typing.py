"""Types from the user's side: what strict checkers accept, and that each misuse is refused by whom it says, there.

Each `tests/typing/bad_*.py` claims in its docstring who refuses it: both checkers, on its `# bad` lines and nowhere
else; or neither of them, but the import of the module, on such a line, with a `DeclarationError` that says so.
"""

import json
import re
import runpy
import subprocess
import sys
import traceback
from pathlib import Path

import msgspec
import pytest

from saga import DeclarationError

ROOT = Path(__file__).parents[1]
BAD = sorted((ROOT / "tests/typing").glob("bad_*.py"))
GOOD = [*sorted((ROOT / "services").rglob("*.py")), *(f for f in (ROOT / "tests/typing").glob("*.py") if f not in BAD)]
AT_IMPORT = [file for file in BAD if "Rejected by: DeclarationError" in file.read_text()]
BY_CHECKERS = [file for file in BAD if "Rejected by: mypy, basedpyright." in file.read_text()]

Refused = dict[Path, set[int]]


class Place(msgspec.Struct):
    line: int


class Range(msgspec.Struct):
    start: Place


class Diagnostic(msgspec.Struct):
    file: str
    range: Range
    severity: str


class Report(msgspec.Struct):
    generalDiagnostics: list[Diagnostic]


def marked(file: Path) -> set[int]:
    """The lines that a misuse marks as bad."""
    return {number for number, line in enumerate(file.read_text().splitlines(), 1) if line.endswith("# bad")}


def expected() -> Refused:
    """Errors that checkers should give: the marked lines of the misuses that are for them, of everything else
    nothing."""
    return {file: marked(file) for file in BY_CHECKERS}


def mypy_says(cache: Path) -> Refused:
    """The lines of the files here in which strict mypy finds an error."""
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context"]
    command += ["--disallow-any-decorated", "--disallow-any-unimported", f"--cache-dir={cache}"]
    done = subprocess.run([*command, *map(str, (*GOOD, *BAD))], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    refused: Refused = {}
    for name, line in re.findall(r"^(.+?):(\d+): error: ", done.stdout, re.MULTILINE):
        refused.setdefault(ROOT / name, set()).add(int(line))
    return {file: lines for file, lines in refused.items() if file in GOOD or file in BAD}


def basedpyright_says(config: Path) -> Refused:
    """The lines in which basedpyright finds an error, in the mode that pyright calls strict."""
    include = [str(ROOT / "services"), str(ROOT / "tests/typing")]
    settings = {"include": include, "exclude": [], "extraPaths": [str(ROOT)], "typeCheckingMode": "strict"}
    config.write_text(json.dumps({**settings, "pythonVersion": "3.11"}))
    program = Path(sys.executable).with_name("basedpyright")
    command = [str(program), "--outputjson", "--pythonpath", sys.executable, "-p", str(config)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    refused: Refused = {}
    for found in msgspec.json.decode(done.stdout, type=Report).generalDiagnostics:
        if found.severity == "error":
            refused.setdefault(Path(found.file), set()).add(found.range.start.line + 1)
    return refused


def test_every_misuse_says_who_refuses_it_and_where() -> None:
    assert sorted([*AT_IMPORT, *BY_CHECKERS]) == BAD
    assert [file.name for file in BAD if not marked(file)] == []


def test_strict_mypy_refuses_the_misuses_where_they_are_and_nothing_else(tmp_path: Path) -> None:
    assert mypy_says(tmp_path) == expected()


def test_strict_basedpyright_refuses_the_misuses_where_they_are_and_nothing_else(tmp_path: Path) -> None:
    assert basedpyright_says(tmp_path / "pyrightconfig.json") == expected()


@pytest.mark.parametrize("file", AT_IMPORT, ids=lambda file: file.stem[4:])
def test_a_misuse_that_checkers_cannot_see_is_refused_at_import(file: Path) -> None:
    claim = re.search(r'Rejected by: DeclarationError "(.+?)"\.', file.read_text())
    assert claim is not None
    with pytest.raises(DeclarationError, match=claim[1]) as refused:
        runpy.run_path(str(file))
    lines = [frame.lineno for frame in traceback.extract_tb(refused.tb) if frame.filename == str(file)]
    assert set(lines) == marked(file)


def test_users_need_no_ignores() -> None:
    text = {str(file.relative_to(ROOT)): file.read_text() for file in (*GOOD, *BAD)}
    assert [name for name, content in text.items() if re.search(r"# (type: ignore|pyright:)", content)] == []
