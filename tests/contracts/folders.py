"""Contracts folders and generated modules for tests, made in a temporary folder."""

import importlib.util
import itertools
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from saga.contracts.codegen import generate
from saga.contracts.library import Library
from saga.messages import Event

_numbers = itertools.count(1)


def schema(name: str, *fields: dict[str, Any], **attributes: Any) -> dict[str, Any]:
    """A schema with an `order_id` and these fields; an attribute that is `None` is left out."""
    whole = {
        "type": "record",
        "name": name,
        "doc": f"{name} happened.",
        "topic": "orders",
        "key": "order_id",
        "owner": "order",
        **attributes,
        "fields": [{"name": "order_id", "type": "string"}, *fields],
    }
    return {key: value for key, value in whole.items() if value is not None}


def field(name: str, type_: Any, **attributes: Any) -> dict[str, Any]:
    return {"name": name, "type": type_, **attributes}


def decimal(precision: int = 12, scale: int = 2) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


def write(folder: Path, *schemas: dict[str, Any], version: int = 1) -> Path:
    """Write the schemas below `folder`/contracts, each in the folder of its topic."""
    contracts = folder / "contracts"
    for whole in schemas:
        put(contracts / whole["topic"] / f"{whole['name']}.v{version}.avsc", json.dumps(whole))
    return contracts


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


def generated(folder: Path, *names: str) -> ModuleType:
    """The module with these classes, generated beside `contracts/` and imported."""
    number = next(_numbers)
    path = folder / f"events_{number}.py"
    path.write_text(generate(Library.load(folder / "contracts"), names), "utf-8")
    spec = importlib.util.spec_from_file_location(f"generated_for_a_test_{number}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def event(folder: Path, *fields: dict[str, Any], name: str = "Said", **attributes: Any) -> type[Event]:
    """The class of one contract, written, generated and imported."""
    write(folder, schema(name, *fields, **attributes))
    made: type[Event] = getattr(generated(folder, name), name)
    return made
