"""Official parser of AsyncAPI, which npm fetches once: what it makes of a document, and its complaints."""

import fcntl
import hashlib
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from tests.servers.jars import ServersMissing

HERE = Path(__file__).with_name("asyncapi")
FOLDER = Path(__file__).parents[2] / "build" / "asyncapi"
FETCH_S, PARSE_S = 300, 60


def parser_folder() -> Path:
    """Folder with the parser. Raises `ServersMissing` where it cannot be had."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            raise ServersMissing(f"no {program} on this machine: apt-get install -y nodejs npm")
    FOLDER.mkdir(parents=True, exist_ok=True)
    files = [HERE / "package.json", HERE / "package-lock.json"]
    wanted = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
    complete = FOLDER / "complete"
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not complete.exists() or complete.read_text("utf-8") != wanted:
            complete.unlink(missing_ok=True)
            for path in files:
                shutil.copy(path, FOLDER)
            _fetch()
            complete.write_text(wanted, "utf-8")
    return FOLDER


def _fetch() -> None:
    command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(FOLDER)]
    try:
        subprocess.run(command, check=True, timeout=FETCH_S, capture_output=True, text=True, cwd=FOLDER)
    except subprocess.CalledProcessError as why:
        raise ServersMissing(f"npm could not fetch the parser of AsyncAPI: {why.stderr[-2000:]}") from why
    except subprocess.TimeoutExpired as why:
        raise ServersMissing(f"npm did not fetch the parser of AsyncAPI within {FETCH_S} s") from why


def parsed(folder: Path, *documents: Path) -> list[Any]:
    """Findings of the parser in `folder` about each of these documents."""
    command = ["node", str(HERE / "validate.mjs"), str(folder), *map(str, documents)]
    done = subprocess.run(command, check=True, timeout=PARSE_S, capture_output=True, text=True)
    return [json.loads(line) for line in done.stdout.splitlines()]
