"""Compares what was covered with the floors: folder by folder, in percent of lines and branches together."""

import json
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FLOORS = Path(__file__).with_name("floors.toml")


@dataclass(slots=True)
class Sum:
    """Lines and branches of one folder: how many there are, and how many ran."""

    all: int = 0
    ran: int = 0

    @property
    def percent(self) -> float:
        """Never rounded up: 100 is all."""
        return 100.0 if self.ran == self.all else math.floor(1000 * self.ran / self.all) / 10


def folder_of(file: str) -> str:
    """Folder whose floor counts for a file: the one right below the package, or the package itself.

    >>> folder_of("saga/store/couchbase/store.py"), folder_of("saga/errors.py")
    ('saga/store', 'saga')
    """
    return "/".join(file.split("/")[:2]) if file.count("/") > 1 else "saga"


def by_folder(report: Mapping[str, Any]) -> dict[str, float]:
    """Percent of each folder, from the JSON that coverage makes."""
    sums: dict[str, Sum] = {}
    for file, measured in report["files"].items():
        found = measured["summary"]
        folder = sums.setdefault(folder_of(file), Sum())
        folder.all += found["num_statements"] + found["num_branches"]
        folder.ran += found["covered_lines"] + found["covered_branches"]
    return {name: folder.percent for name, folder in sorted(sums.items())}


def read() -> dict[str, float]:
    """The floors as they are."""
    found: dict[str, float] = tomllib.loads(FLOORS.read_text("utf-8"))["floors"]
    return found


def below(floors: Mapping[str, float], covered: Mapping[str, float]) -> list[str]:
    """Folders that are below their floors, for people. A folder that has no floor yet has to get one."""
    wrong = [
        f"{name}: {covered.get(name, 0.0)} %, and the floor is {floor} %"
        for name, floor in floors.items()
        if covered.get(name, 0.0) < floor
    ]
    return [*wrong, *(f"{name}: has no floor in {FLOORS.name}" for name in covered if name not in floors)]


def raised(text: str, covered: Mapping[str, float]) -> str:
    """The file with each floor at what was covered, where that is more: what was reached once is kept."""

    def line(found: re.Match[str]) -> str:
        name, floor = found["name"], float(found["floor"])
        return f'"{name}" = {max(floor, covered.get(name, 0.0))}'

    return re.sub(r'^"(?P<name>[\w/]+)" = (?P<floor>[\d.]+)$', line, text, flags=re.MULTILINE)


def load(file: Path) -> dict[str, float]:
    """Percent of each folder in a report of coverage."""
    return by_folder(json.loads(file.read_text("utf-8")))
