"""Writing of schemas: the first version of a contract from a few words, in the form that people read and edit."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from saga.contracts.schema import LOGICAL, PRIMITIVES

_FIELD = re.compile(r"(?P<name>\w+):(?P<type>[^:]+):(?P<doc>.+)", re.DOTALL)
_DECIMAL = re.compile(r"decimal\(([0-9]+),([0-9]+)\)")
KINDS: Final = f"{', '.join([*PRIMITIVES, *LOGICAL])}, decimal(12,2)"


def first_version(name: str, terms: Mapping[str, Any], fields: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Make the schema of a new contract. `terms`: its other attributes; those that are `None` or false are left out."""
    given = {term: value for term, value in terms.items() if value not in (None, False)}
    return {"type": "record", "name": name, **given, "fields": [dict(field) for field in fields]}


def field_of(text: str) -> dict[str, Any]:
    """Make a field of `NAME:TYPE:DESCRIPTION`. Raises `ValueError` with what is wrong."""
    match = _FIELD.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not NAME:TYPE:DESCRIPTION, as quantity:int:How many of it.")
    kind, optional = match["type"].strip(), match["type"].strip().endswith("?")
    type_ = _type(kind.removesuffix("?"))
    default = {"default": None} if optional else {}
    doc = match["doc"].strip()
    return {"name": match["name"], "type": ["null", type_] if optional else type_, **default, "doc": doc}


def text_of(schema: Mapping[str, Any]) -> str:
    """Write a schema: an attribute a line, a field a line."""
    lines = [f"  {json.dumps(name)}: {_json(value)}" for name, value in schema.items() if name != "fields"]
    fields = ",\n".join(f"    {_json(field)}" for field in schema["fields"])
    lines.append(f'  "fields": [\n{fields}\n  ]')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _type(kind: str) -> Any:
    if kind.endswith("[]"):
        return {"type": "array", "items": _type(kind.removesuffix("[]"))}
    if kind in PRIMITIVES:
        return kind
    if kind in LOGICAL:
        return {"type": LOGICAL[kind][0], "logicalType": kind}
    decimal = _DECIMAL.fullmatch(kind)
    if decimal is None:
        raise ValueError(
            f"there is no type {kind!r}; there are {KINDS}, each with [] for many, or ? for an optional one"
        )
    precision, scale = int(decimal[1]), int(decimal[2])
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
