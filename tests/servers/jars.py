"""The jars of the servers: fetched by Maven when they are missing, once for all processes."""

import fcntl
import hashlib
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
POM = Path(__file__).with_name("pom.xml")
FOLDER = ROOT / "build" / "servers"
INSTALL = "apt-get install -y openjdk-17-jre-headless maven"
FETCH_S = 600


class ServersMissing(Exception):
    """No server can be started on this machine; its message says what to do."""


def jars() -> Path:
    """The folder with all of them. Raises `ServersMissing`."""
    return fetched("libs", POM, "dependency:copy-dependencies", "-DoutputDirectory={folder}", "-DincludeScope=runtime")


def fetched(name: str, pom: Path, *goal: str) -> Path:
    """Folder `name` beside the others, filled by Maven from what `pom` lists, anew whenever that changes. `goal`: of
    Maven, and its options; `{folder}` in them becomes the folder. Raises `ServersMissing`."""
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            raise ServersMissing(f"no {program} on this machine: {INSTALL}")
    wanted = hashlib.sha256(pom.read_bytes()).hexdigest()
    return filled(name, wanted, lambda folder: _fetch(pom, [word.format(folder=folder) for word in goal]))


def filled(name: str, wanted: str, fill: Callable[[Path], None]) -> Path:
    """Folder `name` below `FOLDER`, once `fill` has filled it, by one process for all; anew when `wanted` is another
    text."""
    folder, complete = FOLDER / name, FOLDER / f"{name}.complete"
    with locked(name):
        if complete.exists() and complete.read_text() == wanted:
            return folder
        complete.unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        fill(folder)
        complete.write_text(wanted)
    return folder


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold the lock `name` of all processes that make something below `FOLDER`, which is made if it is missing."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(pom: Path, goal: Sequence[str]) -> None:
    command = ["mvn", "-q", "-B", "-f", str(pom), *goal]
    try:
        subprocess.run(command, check=True, timeout=FETCH_S, capture_output=True, text=True)
    except subprocess.CalledProcessError as why:
        raise ServersMissing(f"Maven could not fetch the servers: {why.stdout[-2000:]}{why.stderr[-2000:]}") from why
    except subprocess.TimeoutExpired as why:
        raise ServersMissing(f"Maven did not fetch the servers within {FETCH_S} s") from why
