"""`python -m tests.coverage.pure`: every line and branch of what is pure is run by its own tests.

A part of `make check`, for it runs tests of `make test` once more, and slower.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[2]
PURE = ("saga/progress", "saga/policies")
POLICIES = ("blame", "last_good", "retry", "rules", "windows", "breaker", "turns", "yielding")
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


def missing(report: dict[str, object], folder: str) -> dict[str, tuple[object, object]]:
    """Lines and branches of a folder that did not run, by file."""
    found: dict[str, tuple[object, object]] = {}
    for file, of_file in report.items():
        assert isinstance(of_file, dict)
        if file.startswith(f"{folder}/") and (of_file["missing_lines"] or of_file["missing_branches"]):
            found[file] = (of_file["missing_lines"], of_file["missing_branches"])
    return found


def main() -> None:
    """Measure; end with 1, and the lines and branches that did not run, by file, unless all did."""
    with TemporaryDirectory() as folder:
        report = measured(Path(folder), [f"{pure}/*" for pure in PURE], "-m", "not hypothesis", *OWN_TESTS)
    wrong: dict[str, tuple[object, object]] = {}
    for pure in PURE:
        assert any(file.startswith(pure) for file in report), f"nothing of {pure} was measured"
        wrong |= missing(report, pure)
    for file, (lines, branches) in wrong.items():
        sys.stdout.write(f"{file}: not run by its own tests: lines {lines}, branches {branches}\n")
    sys.stdout.write(f"{' and '.join(PURE)}: {'NOT ' if wrong else ''}covered whole by their own tests\n")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
