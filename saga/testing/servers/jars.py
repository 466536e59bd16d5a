"""Fetch the jars of the servers. Maven fetches them once, into a folder of the user's cache that all projects share."""

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from saga.testing.servers.missing import ServersMissing

POM = Path(__file__).with_name("pom.xml")
INSTALL = "apt-get install -y openjdk-17-jre-headless maven"
FETCH_S = 600


def cache_folder() -> Path:
    """Return the folder for everything that is fetched: `saga/servers` in the user's cache (`XDG_CACHE_HOME`, or
    `~/.cache`).
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "saga" / "servers"


def jars() -> Path:
    """Return the folder with the jars of Kafka and CouchbaseMock.

    Its name contains a hash of the POM that lists the jars, so that two versions of this package can use the cache at
    the same time. Raises `ServersMissing` if the jars cannot be fetched.
    """
    goal = ("dependency:copy-dependencies", "-DoutputDirectory={folder}", "-DincludeScope=runtime")
    return fetch_folder(f"libs-{_hash(POM)[:12]}", POM, *goal)


def fetch_folder(name: str, pom: Path, *goal: str) -> Path:
    """Return the folder `name` of the cache. Maven fills it as the POM says, and fills it again after the POM has
    changed.

    Args:
        goal: goal of Maven and its options; `{folder}` stands for the folder.

    Raises:
        ServersMissing: Java or Maven is not installed, or Maven failed.
    """
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            raise ServersMissing(f"no {program} on this machine: {INSTALL}")
    return fill_folder(name, _hash(pom), lambda folder: _fetch(pom, [word.format(folder=folder) for word in goal]))


def _hash(pom: Path) -> str:
    return hashlib.sha256(pom.read_bytes()).hexdigest()


def fill_folder(name: str, wanted: str, fill: Callable[[Path], None]) -> Path:
    """Return the folder `name` of the cache. The first process fills it by calling `fill`; the others wait. It is
    filled again if `wanted` has changed since then.
    """
    folder, complete = cache_folder() / name, cache_folder() / f"{name}.complete"
    with hold_lock(name):
        if complete.exists() and complete.read_text() == wanted:
            return folder
        complete.unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        fill(folder)
        complete.write_text(wanted)
    return folder


@contextmanager
def hold_lock(name: str) -> Iterator[None]:
    """Hold the lock `name`, which all processes that write to the cache share. Create the cache if it is missing."""
    cache_folder().mkdir(parents=True, exist_ok=True)
    with (cache_folder() / f"{name}.lock").open("w") as lock:
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
