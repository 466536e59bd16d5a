"""Finds an interpreter of a version: on the path, among those of pyenv, or by uv."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ASK_S_MAX = 10.0
FETCH_S_MAX = 300.0


def interpreter(version: str, *, fetched_to: Path) -> Path | None:
    """An interpreter of a version such as 3.12, that runs and can make environments; none if there is none to be had.

    What is here is taken first. Only then uv is asked to fetch one, to a folder of ours.
    """
    for candidate in _candidates(version):
        if is_one(candidate, version):
            return candidate
    return _fetched(version, fetched_to)


def is_one(candidate: Path, version: str) -> bool:
    """True if it is of that version and has `venv`: a shim may name what it has not, a system may have cut it off."""
    code = "import ensurepip, sqlite3, sys; print('%d.%d' % sys.version_info[:2])"
    try:
        result = subprocess.run(
            [candidate, "-c", code], capture_output=True, text=True, check=False, timeout=ASK_S_MAX, cwd="/"
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return result.returncode == 0 and result.stdout.strip() == version


def _candidates(version: str) -> Iterator[Path]:
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        if folder and (program := Path(folder) / f"python{version}").exists():
            yield program
    if pyenv := shutil.which("pyenv"):
        root = subprocess.run([pyenv, "root"], capture_output=True, text=True, check=False, timeout=ASK_S_MAX).stdout
        yield from sorted(Path(root.strip()).glob(f"versions/{version}.*/bin/python"), reverse=True)


def _fetched(version: str, folder: Path) -> Path | None:
    uv = Path(sys.executable).with_name("uv")
    command: list[str | Path] = [uv, "python", "install", "--quiet", "--no-bin", "--install-dir", folder, version]
    try:
        subprocess.run(command, capture_output=True, check=False, timeout=FETCH_S_MAX)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = sorted(folder.glob(f"cpython-{version}.*/bin/python{version}"), reverse=True)
    return next((path for path in found if is_one(path, version)), None)
