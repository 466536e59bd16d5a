"""Part l of the benchmarks: how long `saga contracts check` takes for a team that has 500 contracts."""

import json
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.parts import Figure

CONTRACTS = 500
VERSIONS = 3


def contracts() -> list[Figure]:
    """(l) Measure `saga contracts check`, as a process of its own, with 500 contracts of three versions; goal: 3 s"""
    with TemporaryDirectory() as name:
        folder = Path(name)
        for number in range(CONTRACTS):
            for version in range(1, VERSIONS + 1):
                schema = _schema(f"Thing{number}Happened", f"things{number % 25}", version)
                path = folder / "contracts" / schema["topic"] / f"{schema['name']}.v{version}.avsc"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(json.dumps(schema), "utf-8")
        released = _seconds(folder, "release")
        return [
            Figure(f"l {CONTRACTS} contracts checked", _seconds(folder, "check"), "s"),
            Figure(f"l {CONTRACTS} contracts linted", _seconds(folder, "lint"), "s"),
            Figure(f"l {CONTRACTS} contracts released", released, "s"),
        ]


def _seconds(folder: Path, command: str) -> float:
    """Return the seconds that a command takes on this folder, including the start of Python."""
    begin = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "saga.cli.main", "contracts", command], cwd=folder, check=True, stdout=subprocess.DEVNULL
    )
    return time.perf_counter() - begin


def _schema(name: str, topic: str, version: int) -> dict[str, Any]:
    """Return the schema of an event with twenty fields and a list of records. Each version has one more field."""
    price = {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}
    line = [_field("sku", "string"), _field("quantity", "int"), _field("price", price)]
    lines = {"type": "array", "items": {"type": "record", "name": "Line", "doc": "A line.", "fields": line}}
    way = {"type": "enum", "name": "Way", "doc": "A way.", "symbols": ["AIR", "SEA"], "default": "SEA"}
    fields = [_field("order_id", "string"), _field("way", way), _field("lines", lines)]
    fields += [_field(f"text_{i}", "string") for i in range(10)]
    fields += [_field(f"number_{i}", ["null", "long"], default=None) for i in range(8)]
    fields += [_field(f"more_{i}", "int", default=0) for i in range(version)]
    return {
        "type": "record",
        "name": name,
        "doc": "Something happened.",
        "topic": topic,
        "key": "order_id",
        "owner": "owner",
        "fields": fields,
    }


def _field(name: str, type_: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": type_, "doc": "A part of it, in euros if it is money.", **more}
