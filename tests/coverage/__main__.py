"""`make coverage`: all tests, measured; then each folder against its floor. A floor that was passed is raised.

What is given as arguments goes to pytest: `python -m tests.coverage tests/store` looks at a part, and moves no floor.
"""

import subprocess
import sys
from pathlib import Path

from tests.coverage import floors

ROOT = Path(__file__).parents[2]
REPORT = ROOT / "build" / "coverage" / "report.json"
TIMEOUT_S = 600
"""Timeout of one test: measured, tests are several times as slow."""


def coverage(*arguments: str) -> int:
    """Run coverage from the start of the process: what pytest loads before any plugin of its own counts too."""
    return subprocess.run([sys.executable, "-m", "coverage", *arguments], check=False, cwd=ROOT).returncode


def main() -> None:
    """Measure, compare, and end with 1 if a folder is below its floor.

    Failing tests are only reported: some look at time or at what is imported, and being measured changes both.
    """
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    part = sys.argv[1:]
    coverage("erase")
    failed = coverage("run", "-m", "pytest", "-n", "auto", f"--timeout={TIMEOUT_S}", *part)
    coverage("combine", "--quiet")
    coverage("json", "--quiet", "-o", str(REPORT))
    coverage("report", "--skip-covered")
    covered = floors.load(REPORT)
    wrong = [] if part else floors.below(floors.read(), covered)
    if not (part or wrong):
        floors.FLOORS.write_text(floors.raised(floors.FLOORS.read_text("utf-8"), covered), "utf-8")
    lines = [f"{name}: {percent} %" for name, percent in covered.items()]
    if failed:
        lines.append("some tests failed: `make test` judges them")
    sys.stdout.write("\n".join(["", *lines, *(f"BELOW ITS FLOOR  {line}" for line in wrong), ""]))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
