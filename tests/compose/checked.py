"""Checks of compose files without an engine: by the schema of the Compose Specification, and by Compose itself."""

import json
import shutil
import subprocess
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import jsonschema
import yaml

COMPOSE_S_MAX = 60.0
"""Longest time for Compose to read files."""


def problems_in(file: Path) -> list[str]:
    """Reasons for which a file is none by the schema, each with its place."""
    # Of check-jsonschema the schema is taken, and not the command: that needs a newer click than others allow.
    package = find_spec("check_jsonschema")
    assert package is not None
    assert package.origin is not None
    schema = Path(package.origin).parent / "builtin_schemas" / "vendor" / "compose-spec.json"
    validator = jsonschema.Draft202012Validator(json.loads(schema.read_text("utf-8")))
    found = validator.iter_errors(yaml.safe_load(file.read_text("utf-8")))
    return [f"{'.'.join(map(str, each.absolute_path))}: {each.message}" for each in found]


def compose_here() -> Sequence[str] | None:
    """Command of Compose on this machine: a plugin of docker, or the older program; `None`: there is none."""
    docker = shutil.which("docker")
    if docker is not None and subprocess.run([docker, "compose", "version"], capture_output=True).returncode == 0:
        return docker, "compose"
    older = shutil.which("docker-compose")
    return None if older is None else (older,)


def config_of(compose: Sequence[str], *files: Path) -> str:
    """All that these files say together, as Compose understands them. Raises `AssertionError` with what it says."""
    names = [word for file in files for word in ("-f", str(file))]
    done = subprocess.run(
        [*compose, *names, "config"], capture_output=True, text=True, timeout=COMPOSE_S_MAX, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
