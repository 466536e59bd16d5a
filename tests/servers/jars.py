"""The jars of the servers: fetched by Maven when they are missing, once for all processes."""

import fcntl
import hashlib
import shutil
import subprocess
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
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            raise ServersMissing(f"no {program} on this machine: {INSTALL}")
    FOLDER.mkdir(parents=True, exist_ok=True)
    libs, wanted = FOLDER / "libs", hashlib.sha256(POM.read_bytes()).hexdigest()
    complete = FOLDER / "libs.complete"
    with (FOLDER / "libs.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if complete.exists() and complete.read_text() == wanted:
            return libs
        complete.unlink(missing_ok=True)
        shutil.rmtree(libs, ignore_errors=True)
        _fetch(libs)
        complete.write_text(wanted)
    return libs


def _fetch(libs: Path) -> None:
    command = ["mvn", "-q", "-B", "-f", str(POM), "dependency:copy-dependencies", f"-DoutputDirectory={libs}"]
    try:
        subprocess.run(
            [*command, "-DincludeScope=runtime"], check=True, timeout=FETCH_S, capture_output=True, text=True
        )
    except subprocess.CalledProcessError as why:
        raise ServersMissing(f"Maven could not fetch the servers: {why.stdout[-2000:]}{why.stderr[-2000:]}") from why
    except subprocess.TimeoutExpired as why:
        raise ServersMissing(f"Maven did not fetch the servers within {FETCH_S} s") from why
