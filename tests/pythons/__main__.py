"""`make test-pythons`: on each Python an environment of its own, then the part of the suite that a version can break.

A Python that cannot be had is left out, and the last lines name it. Fails if one fails, and if none was to be had.
"""

import subprocess
import sys
from pathlib import Path

from tests.pythons.interpreters import interpreter

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "pythons"
LOCK = ROOT / "requirements-dev.lock"
RUNTIME_LOCK = ROOT / "requirements.lock"
SUITE = (
    "saga",
    "tests/progress",
    "tests/policies",
    "tests/contracts",
    "tests/encryption",
    "tests/service",
    "tests/engine",
    "tests/store/test_sqlite.py",
    "tests/broker/test_embedded_conformance.py",
    "tests/cli",
    "tests/telemetry",
    "tests/testing/simulation",
    "tests/testing/invariants",
    "tests/test_front_door.py",
    "tests/configuration/test_settings.py",
    "tests/messaging/test_envelope.py",
    "tests/test_loading.py",
)
"""Without servers and without what kills processes: those show what a Python's version does not change."""


def print_line(line: str) -> None:
    """Print it at once: what pytest prints comes between."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def environment(python: Path, version: str) -> Path:
    """The Python of an environment that has what the lock files name. Created again when they are newer than it is."""
    folder = FOLDER / version
    made = folder / "made"
    own = folder / "bin" / "python"
    if made.exists() and made.stat().st_mtime > max(LOCK.stat().st_mtime, RUNTIME_LOCK.stat().st_mtime):
        return own
    subprocess.run([python, "-m", "venv", "--clear", folder], check=True)
    for lock in (RUNTIME_LOCK, LOCK):
        pip: list[str | Path] = [
            own,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--require-hashes",
            "-r",
            lock,
        ]
        subprocess.run(pip, check=True)
    editable: list[str | Path] = ["--no-deps", "--no-build-isolation", "-e", ROOT]
    subprocess.run([own, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *editable], check=True)
    made.touch()
    return own


def passes(python: Path, version: str) -> bool:
    """True if the environment can be made and its tests pass; both say what they have to say."""
    print_line(f"\n== Python {version}: {python}")
    try:
        own = environment(python, version)
    except subprocess.CalledProcessError as failed:
        print_line(f"Python {version}: the environment cannot be made: {failed}")
        return False
    suite: list[str | Path] = [own, "-m", "pytest", "-q", "-n", "auto", "-k", "not kafka", *SUITE]
    return subprocess.run(suite, check=False, cwd=ROOT).returncode == 0


def verdict(results: dict[str, bool | None]) -> tuple[str, bool]:
    """Lines to end with, and whether all is well. `None` is a Python that was not to be had."""
    verdicts = {
        True: "passed",
        False: "FAILED",
        None: "LEFT OUT, it is not here and cannot be fetched: NOTHING is shown about it",
    }
    lines = [f"Python {version}: {verdicts[result]}" for version, result in results.items()]
    return "\n".join(lines), False not in results.values() and True in results.values()


def main() -> None:
    """Run all versions that are given, one after the other."""
    results: dict[str, bool | None] = {}
    for version in sys.argv[1:]:
        python = interpreter(version, fetched_to=FOLDER / "fetched")
        results[version] = None if python is None else passes(python, version)
    text, well = verdict(results)
    print_line(f"\n{text}")
    sys.exit(not well)


if __name__ == "__main__":
    main()
