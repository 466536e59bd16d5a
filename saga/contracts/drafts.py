"""Create the schema of a new contract from the short strings that are passed as options to `saga contracts new`."""

import json
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Final, NamedTuple

from saga.contracts.conversion import InvalidValue, decimal_to_raw
from saga.contracts.schema import DecimalType
from saga.contracts.schema_parser import KINDS, type_to_json

_FIELD = re.compile(r"(?:(?P<record>\w+)\.)?(?P<name>\w+):(?P<type>[^:]+):(?P<doc>.+)", re.DOTALL)
_RECORD = re.compile(r"(?P<name>\w+):(?P<doc>.+)", re.DOTALL)
_ENUM = re.compile(r"(?P<name>\w+)=(?P<symbols>\w+(?:,\w+)*):(?P<doc>.+)", re.DOTALL)
_DEFAULT = re.compile(r"(?P<path>\w+(?:\.\w+)?)=(?P<value>.*)", re.DOTALL)
_WORDS: Final = ("string", "bytes")
"""Primitive types whose defaults are taken from the option as plain text. The defaults of all other types are parsed as
JSON."""


class FieldTexts(NamedTuple):
    """Strings that describe the fields of a new contract. The key field is not among them."""

    fields: Sequence[str]
    """Fields: `NAME:TYPE:DESCRIPTION` for a field of the event, `RECORD.NAME:TYPE:DESCRIPTION` for a field of a nested
    record."""
    records: Sequence[str] = ()
    """Nested records: `NAME:DESCRIPTION`."""
    enums: Sequence[str] = ()
    """Enums: `NAME=SYMBOL,SYMBOL:DESCRIPTION`."""
    sensitive: Sequence[str] = ()
    """Sensitive fields: `NAME` or `RECORD.NAME`. `NAME=false` says that a field is not sensitive, although its name
    suggests it."""
    defaults: Sequence[str] = ()
    """Defaults: `NAME=VALUE` or `RECORD.NAME=VALUE` for a field, `ENUM=SYMBOL` for an enum."""


def make_first_version(name: str, terms: Mapping[str, Any], fields: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Make the schema of a new contract.

    Args:
        name: name of the record.
        terms: the contract attributes. Attributes that are `None` or false are left out.
        fields: JSON of the fields.
    """
    given = {term: value for term, value in terms.items() if value not in (None, False)}
    return {"type": "record", "name": name, **given, "fields": [dict(field) for field in fields]}


def draft_fields(texts: FieldTexts) -> list[dict[str, Any]]:
    """Make the JSON of the fields that these strings describe. Raises `ValueError` for the first problem."""
    return _Draft(texts).fields()


class _Draft:
    """The fields of an event that is being drafted, and the named types that they use."""

    def __init__(self, texts: FieldTexts) -> None:
        self.types: dict[str, dict[str, Any]] = {}
        for text in texts.records:
            match = _match(_RECORD, text, "NAME:DESCRIPTION, as Address:Where the goods go.")
            self.add({"type": "record", "name": match["name"], "doc": match["doc"].strip(), "fields": []})
        for text in texts.enums:
            match = _match(_ENUM, text, "NAME=SYMBOL,SYMBOL:DESCRIPTION, as Carrier=POST,OTHER:Who brings the goods.")
            symbols = match["symbols"].split(",")
            self.add({"type": "enum", "name": match["name"], "doc": match["doc"].strip(), "symbols": symbols})
        self.event: list[dict[str, Any]] = []
        for text in texts.fields:
            self.add_field(text)
        for text in texts.sensitive:
            path, _, value = text.partition("=")
            self.find(path)["sensitive"] = value != "false"
        for text in texts.defaults:
            self.add_default(_match(_DEFAULT, text, "NAME=VALUE, as quantity=1"))

    def fields(self) -> list[dict[str, Any]]:
        """Return the fields of the event. The first field that uses a named type contains the definition of the
        type."""
        unused = dict(self.types)
        made = [{**field, "type": _define(field["type"], unused)} for field in self.event]
        if unused:
            name, type_ = next(iter(unused.items()))
            raise ValueError(f"no field has the type {name}: leave the {type_['type']} out, or name it in a field")
        return made

    def add(self, type_: dict[str, Any]) -> None:
        if self.types.setdefault(type_["name"], type_) is not type_:
            raise ValueError(f"there are two types {type_['name']}: give one of them another name")

    def add_field(self, text: str) -> None:
        match = _match(_FIELD, text, "NAME:TYPE:DESCRIPTION, as quantity:int:How many of it.")
        kind = match["type"].strip()
        optional = kind.endswith("?")
        type_ = self.type_(kind.removesuffix("?"))
        default = {"default": None} if optional else {}
        made = {"name": match["name"], "type": ["null", type_] if optional else type_, **default}
        home = self.event if match["record"] is None else self.record(match["record"])["fields"]
        home.append({**made, "doc": match["doc"].strip()})

    def type_(self, kind: str) -> Any:
        if kind.endswith("[]"):
            return {"type": "array", "items": self.type_(kind.removesuffix("[]"))}
        if kind.endswith("{}"):
            return {"type": "map", "values": self.type_(kind.removesuffix("{}"))}
        if kind in self.types:
            return kind
        try:
            return type_to_json(kind)
        except ValueError:
            known = ", ".join([KINDS, *self.types])
            raise ValueError(
                f"there is no type {kind!r}; there are {known}, each with [] for a list, {{}} for a map, or ? for an "
                "optional one; --record and --enum name others"
            ) from None

    def record(self, name: str) -> dict[str, Any]:
        found = self.types.get(name, {})
        if found.get("type") != "record":
            raise ValueError(f"there is no record {name}: name it with --record {name}:DESCRIPTION")
        return found

    def find(self, path: str) -> dict[str, Any]:
        """Return the field at a path."""
        owner, _, name = path.rpartition(".")
        fields: list[dict[str, Any]] = self.record(owner)["fields"] if owner else self.event
        found = next((field for field in fields if field["name"] == name), None)
        if found is None:
            there = ", ".join(field["name"] for field in fields) or "none"
            raise ValueError(f"there is no field {path}; there are {there}")
        return found

    def add_default(self, match: re.Match[str]) -> None:
        path, text = match["path"], match["value"]
        enum = self.types.get(path)
        if enum is not None and enum["type"] == "enum":
            enum["default"] = text
            return
        field = self.find(path)
        type_ = field["type"][1] if isinstance(field["type"], list) else field["type"]
        value = self.write_decimals(path, type_, text if self.is_text(type_) else _read_json(path, text))
        if isinstance(field["type"], list) and value is not None:
            field["type"] = [type_, "null"]
        doc = field.pop("doc")
        field |= {"default": value, "doc": doc}

    def write_decimals(self, path: str, type_: Any, value: Any) -> Any:
        """Return a default with its decimals in the form that a schema has for them: the bytes of the number, as
        text."""
        match type_, value:
            case {"logicalType": "decimal"}, str():
                return _decimal_to_json(path, DecimalType(type_["precision"], type_["scale"]), value)
            case {"logicalType": "decimal"}, int() | float():  # a float would lose digits
                raise ValueError(f'the default of {path} has {value}: write decimals as text, as "9.80"')
            case {"items": items}, list():
                return [self.write_decimals(path, items, each) for each in value]
            case {"values": values}, dict():
                return {key: self.write_decimals(path, values, each) for key, each in value.items()}
            case ["null", inner] | [inner, "null"], _ if value is not None:
                return self.write_decimals(path, inner, value)
            case str(), dict() if "fields" in self.types.get(type_, {}):
                types = {field["name"]: field["type"] for field in self.types[type_]["fields"]}
                return {name: self.write_decimals(path, types.get(name), each) for name, each in value.items()}
            case _:
                return value

    def is_text(self, type_: Any) -> bool:
        """Return whether a default of this type is plain text, not JSON."""
        if isinstance(type_, dict):
            return type_["type"] in _WORDS
        return type_ in _WORDS or self.types.get(type_, {}).get("type") == "enum"


def _match(pattern: re.Pattern[str], text: str, form: str) -> re.Match[str]:
    match = pattern.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not {form}")
    return match


def _read_json(path: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise ValueError(f"the default of {path} is {text!r}, which is no JSON, as 1, true, [] or null") from None


def _decimal_to_json(path: str, type_: DecimalType, text: str) -> str:
    try:
        raw: bytes = decimal_to_raw(type_)(Decimal(text))
    except InvalidOperation:
        raise ValueError(f"the default of {path} is {text!r}, which is no decimal, as 9.80") from None
    except InvalidValue as why:
        raise ValueError(f"the default of {path} is {text!r}, which {why}") from None
    return raw.decode("latin-1")


def _define(type_: Any, unused: dict[str, dict[str, Any]]) -> Any:
    """Replace the first use of a named type with its definition, and remove the definition from `unused`."""
    if isinstance(type_, list):
        return [_define(branch, unused) for branch in type_]
    if isinstance(type_, dict):
        return {key: _define(value, unused) if key in ("items", "values") else value for key, value in type_.items()}
    if type_ not in unused:
        return type_
    made = unused.pop(type_)
    if "fields" not in made:
        return made
    return {**made, "fields": [{**field, "type": _define(field["type"], unused)} for field in made["fields"]]}
