"""Packages that tests run with node: fetched once by npm, as a lock file beside the tests names them."""

import fcntl
import hashlib
import shutil
import subprocess
from pathlib import Path

from saga.testing.servers.missing import ServersMissing

FETCH_S = 300


def fetched_by_npm(files: Path, folder: Path, what: str) -> Path:
    """Folder with the packages of `package.json` and its lock file in `files`. `what`: they are, for an error.

    Raises `ServersMissing` where they cannot be had.
    """
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            raise ServersMissing(f"no {program} on this machine: apt-get install -y nodejs npm")
    folder.mkdir(parents=True, exist_ok=True)
    named = [files / "package.json", files / "package-lock.json"]
    wanted = hashlib.sha256(b"".join(path.read_bytes() for path in named)).hexdigest()
    complete = folder / "complete"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not complete.exists() or complete.read_text("utf-8") != wanted:
            complete.unlink(missing_ok=True)
            for path in named:
                shutil.copy(path, folder)
            _fetch(folder, what)
            complete.write_text(wanted, "utf-8")
    return folder


def _fetch(folder: Path, what: str) -> None:
    command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(folder)]
    try:
        subprocess.run(command, check=True, timeout=FETCH_S, capture_output=True, text=True, cwd=folder)
    except subprocess.CalledProcessError as why:
        raise ServersMissing(f"npm could not fetch {what}: {why.stderr[-2000:]}") from why
    except subprocess.TimeoutExpired as why:
        raise ServersMissing(f"npm did not fetch {what} within {FETCH_S} s") from why
