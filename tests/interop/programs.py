"""Programs in other languages, built when they are missing or have changed."""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from saga.testing.servers.jars import FETCH_S, cache_folder, fetch_folder
from saga.testing.servers.missing import ServersMissing

HERE = Path(__file__).parent
RUN_S = 90


def java_program() -> Path:
    """Folder with the classes of `Interop.java` and all that they need. Raises `ServersMissing`."""
    pom = HERE / "java" / "pom.xml"
    goal = ("dependency:copy-dependencies", "-DoutputDirectory={folder}", "-DincludeScope=runtime")
    folder = fetch_folder("interop-java", pom, *goal)
    if shutil.which("javac") is None:
        raise ServersMissing("no javac on this machine: apt-get install -y openjdk-17-jdk-headless")
    source = HERE / "java" / "Interop.java"
    made = folder / f"classes-{_digest(source)}"
    if not made.exists():
        making = made.with_name(f"{made.name}.{os.getpid()}")
        _built(["javac", "-d", str(making), "-cp", f"{folder}/*", str(source)], HERE)
        _put(making, made)
    return made


def go_program() -> Path:
    """The program `interop` in Go. Raises `ServersMissing`."""
    if shutil.which("go") is None:
        raise ServersMissing("no go on this machine: https://go.dev/doc/install")
    sources = [HERE / "go" / name for name in ("go.mod", "go.sum", "main.go")]
    cache_folder().mkdir(parents=True, exist_ok=True)
    made = cache_folder() / f"interop-go-{_digest(*sources)}"
    if not made.exists():
        making = made.with_name(f"{made.name}.{os.getpid()}")
        _built(["go", "build", "-mod=readonly", "-o", str(making), "."], HERE / "go")
        _put(making, made)
    return made


def read_output_lines(command: Sequence[str]) -> list[str]:
    """Lines that a program prints."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=RUN_S)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def _built(command: Sequence[str], folder: Path) -> None:
    """Build, with whatever has to be fetched. Raises `ServersMissing` with the output of the compiler."""
    try:
        subprocess.run(command, cwd=folder, check=True, timeout=FETCH_S, capture_output=True, text=True)
    except subprocess.CalledProcessError as why:
        raise ServersMissing(f"{command[0]} could not build {folder.name}: {why.stderr[-2000:]}") from why
    except subprocess.TimeoutExpired as why:
        raise ServersMissing(f"{command[0]} did not build {folder.name} within {FETCH_S} s") from why


def _put(making: Path, made: Path) -> None:
    """Put what was made in its place, unless another process was first."""
    try:
        making.rename(made)
    except OSError:
        shutil.rmtree(making, ignore_errors=True)


def _digest(*files: Path) -> str:
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]
