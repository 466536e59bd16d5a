"""Fields of an event as people may see them: those that its contract calls sensitive are hidden."""

from collections.abc import Mapping
from typing import Any

HIDDEN = "***"


def hidden(fields: Mapping[str, object], schema: Mapping[str, Any]) -> dict[str, object]:
    """Hide the fields of the JSON form that `schema`, as its file has it, marks with `"sensitive": true`: at any depth,
    in lists, maps and optional values too.

    >>> card = {"name": "card", "type": "string", "sensitive": True}
    >>> hidden({"card": "4242", "sum": 7}, {"type": "record", "name": "R", "fields": [card]})
    {'card': '***', 'sum': 7}
    """
    named: dict[str, Any] = {}
    _name(schema, named)
    shown = _hidden(fields, schema, named)
    assert isinstance(shown, dict)
    return shown


def _name(schema: Any, named: dict[str, Any]) -> None:
    """Note the records by their names: a record that comes again is there by its name only."""
    if isinstance(schema, list):
        for branch in schema:
            _name(branch, named)
    elif isinstance(schema, dict):
        if schema.get("type") == "record":
            name = str(schema["name"])
            named[name] = named[name.rpartition(".")[2]] = schema
            for field in schema["fields"]:
                _name(field["type"], named)
        else:
            for below in ("type", "items", "values"):
                _name(schema.get(below), named)


def _hidden(value: object, schema: Any, named: Mapping[str, Any]) -> object:
    if isinstance(schema, list):
        branches = [branch for branch in schema if branch != "null"]
        return value if value is None or not branches else _hidden(value, branches[0], named)
    if isinstance(schema, str):
        known = named.get(schema, named.get(schema.rpartition(".")[2]))
        return value if known is None else _hidden(value, known, named)
    kind = schema.get("type")
    if kind == "record" and isinstance(value, dict):
        fields = {field["name"]: field for field in schema["fields"]}
        return {
            name: part
            if name not in fields
            else HIDDEN
            if fields[name].get("sensitive")
            else _hidden(part, fields[name]["type"], named)
            for name, part in value.items()
        }
    if kind == "array" and isinstance(value, list):
        return [_hidden(part, schema["items"], named) for part in value]
    if kind == "map" and isinstance(value, dict):
        return {name: _hidden(part, schema["values"], named) for name, part in value.items()}
    return _hidden(value, kind, named) if isinstance(kind, dict | list) else value
