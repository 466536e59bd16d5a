"""Versions that are released, and may not change any more: `released.json` beside the topics, which is committed, has a
digest of each."""

import json
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from saga.contracts.contract import Version
from saga.contracts.jsonform import read_json
from saga.contracts.problems import Problem
from saga.errors import ContractError

FILE: Final = "released.json"
_FORMAT: Final = 1
_WORDS: Final = ("doc", "lint")
"""Attributes that nobody reads but people: they may be mended in a released version."""


def released(folder: Path) -> dict[str, str] | None:
    """Digests of released versions, by path; `None` if there is no such file. Raises `ContractError`."""
    path = folder / FILE
    if not path.exists():
        return None
    try:
        read, twice = read_json(path.read_text("utf-8"))
    except (ValueError, OSError, RecursionError) as why:
        raise _unreadable(path, f"is no JSON: {why}") from why
    if twice:
        raise _unreadable(path, f"names {twice[0]!r} twice")
    if not isinstance(read, dict) or read.get("format") != _FORMAT or not isinstance(read.get("versions"), dict):
        raise _unreadable(path, f'is no file of format {_FORMAT}, {{"format": {_FORMAT}, "versions": {{...}}}}')
    versions: dict[str, str] = read["versions"]
    return versions


def violated(versions: Mapping[str, Version], digests: Mapping[str, str]) -> list[Problem]:
    """Problems of released versions that have changed, or are gone. `versions`: those there are, by path."""
    problems = []
    for path, known in digests.items():
        file = f"{path}.avsc"
        if path not in versions:
            says = "is released, and is gone: messages of it cannot be read any more"
            problems.append(Problem(rule="released", file=file, says=says, remedy="bring it back"))
        elif digest(versions[path]) != known:
            says = "is released, and has changed: messages of it, and other services, are of what it was"
            remedy = "bring back what it was, and make the change in the next version: saga contracts bump"
            problems.append(Problem(rule="released", file=file, says=says, remedy=remedy))
    return problems


def release(folder: Path, versions: Iterable[Version]) -> list[str]:
    """Write the file with all of these versions. Returns the paths of those that were not in it before."""
    known = released(folder) or {}
    digests = known | {version.path: digest(version) for version in versions}
    text = json.dumps({"format": _FORMAT, "versions": dict(sorted(digests.items()))}, indent=2)
    (folder / FILE).write_text(text + "\n", "utf-8")
    return sorted(digests.keys() - known.keys())


def digest(version: Version) -> str:
    """SHA-256 of all in a version's file that somebody may rely on: also logical types, and our attributes."""
    text = json.dumps(_plain(version.schema), ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _plain(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_plain(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {name: value if name == "default" else _plain(value) for name, value in schema.items() if name not in _WORDS}


def _unreadable(path: Path, problem: str) -> ContractError:
    remedy = "bring back the file that is committed"
    return ContractError("what is released cannot be read:", [f"{path.name}: {problem}; {remedy}"])
