"""Official parser of AsyncAPI, which npm fetches once: what it makes of a document, and its complaints."""

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.servers.npm import fetched_by_npm

HERE = Path(__file__).with_name("asyncapi")
FOLDER = Path(__file__).parents[2] / "build" / "asyncapi"
PARSE_S = 60


def parser_folder() -> Path:
    """Folder with the parser. Raises `ServersMissing` where it cannot be had."""
    return fetched_by_npm(HERE, FOLDER, "the parser of AsyncAPI")


def parsed(folder: Path, *documents: Path) -> list[Any]:
    """Findings of the parser in `folder` about each of these documents."""
    command = ["node", str(HERE / "validate.mjs"), str(folder), *map(str, documents)]
    done = subprocess.run(command, check=True, timeout=PARSE_S, capture_output=True, text=True)
    return [json.loads(line) for line in done.stdout.splitlines()]
