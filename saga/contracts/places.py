"""Places in the text of a schema's file: lines on which fields are defined, for what shows problems beside them."""

import json
import re
from collections.abc import Iterator
from typing import Any


def line_of(text: str, at: str) -> int:
    """Line of the file on which the field at this path has its name, `items[].price`; 1 for the whole file, and if
    there is no such field."""
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError):
        return 1
    named = list(_named(schema))
    field = _field(schema, at, {name: part for name, part in named if "fields" in part})
    if field is None:
        return 1
    name = field["name"]
    # JSON keeps its order, so the n-th object of that name is the n-th place where the name stands in the text.
    number = next(i for i, part in enumerate(part for other, part in named if other == name) if part is field)
    places = [match.start() for match in re.finditer(rf'"name"\s*:\s*"{re.escape(name)}"', text)]
    return text.count("\n", 0, places[number]) + 1 if number < len(places) else 1


def _named(part: Any) -> Iterator[tuple[str, Any]]:
    """Objects with a name, in the order in which the names stand in the file."""
    if isinstance(part, list):
        for one in part:
            yield from _named(one)
    elif isinstance(part, dict):
        for key, value in part.items():
            if key == "name" and isinstance(value, str):
                yield value, part
            yield from _named(value)


def _field(schema: Any, at: str, records: dict[str, Any]) -> Any:
    """Field at a path, as the file has it."""
    field = None
    inside = schema
    for name in re.sub(r"\[\]|\{\}", "", at).split("."):
        record = _record(inside, records)
        field = next((one for one in (record or {}).get("fields", []) if one.get("name") == name), None)
        if field is None:
            return None
        inside = field.get("type")
    return field


def _record(type_: Any, records: dict[str, Any]) -> Any:
    """Record in a type, wherever it is defined."""
    match type_:
        case {"fields": list()}:
            return type_
        case {"items": inner} | {"values": inner}:
            return _record(inner, records)
        case list():
            return next((found for branch in type_ if (found := _record(branch, records)) is not None), None)
        case str():
            return records.get(type_.rpartition(".")[2], records.get(type_))
        case _:
            return None
