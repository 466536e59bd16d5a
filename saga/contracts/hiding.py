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


def renamed(schema: Mapping[str, Any], newest: Mapping[str, Any]) -> Any:
    """Call the fields of a schema as `newest` calls them, which may know them by an alias. Types have no names then.

    >>> old = {"type": "record", "name": "R", "fields": [{"name": "card", "type": "string", "sensitive": True}]}
    >>> new = {"type": "record", "name": "R", "fields": [{"name": "pan", "type": "string", "aliases": ["card"]}]}
    >>> hidden({"pan": "4242"}, renamed(old, new))
    {'pan': '***'}
    """
    named: tuple[dict[str, Any], dict[str, Any]] = {}, {}
    _name(schema, named[0])
    _name(newest, named[1])
    return _renamed(schema, newest, *named)


def _renamed(schema: Any, newest: Any, named: Mapping[str, Any], newly: Mapping[str, Any]) -> Any:
    schema, newest = _plain(schema, named), _plain(newest, newly)
    if not isinstance(schema, dict) or not isinstance(newest, dict):
        return schema
    if schema["type"] == newest["type"] == "record":
        known = {name: f for f in newest["fields"] for name in (*f.get("aliases", ()), f["name"])}
        return {
            **schema,
            "fields": [
                {**f, "name": of["name"], "type": _renamed(f["type"], of["type"], named, newly)}
                for f in schema["fields"]
                if (of := known.get(f["name"])) is not None  # else the newest has no such field
            ],
        }
    return {
        **schema,
        **{
            below: _renamed(schema[below], newest[below], named, newly)
            for below in ("items", "values")
            if below in schema and below in newest
        },
    }


def _plain(schema: Any, named: Mapping[str, Any]) -> Any:
    """A type itself: without the null beside it, not by its name, and not as the type of a type."""
    while True:
        if isinstance(schema, list):
            schema = next((branch for branch in schema if branch != "null"), "null")
        elif isinstance(schema, str) and (known := named.get(schema, named.get(schema.rpartition(".")[2]))) is not None:
            return known
        elif isinstance(schema, dict) and isinstance(schema.get("type"), dict | list):
            schema = schema["type"]
        else:
            return schema


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
