"""Conversion between typed values and raw ones: functions compiled once per class, because every message passes them.

A record's function is written as source, a line or two per field, so that nothing is looked up or interpreted while it
runs; tests of `tests/contracts/test_roundtrip.py` hold it against every kind of schema. Errors name the path of the
field and never its value, which may be sensitive.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, TypeAlias

from saga.contracts import schema
from saga.contracts.scalars import (
    FROM_RAW,
    PYTHON_TYPES,
    TO_RAW,
    Convert,
    Wrong,
    decimal_from_raw,
    decimal_to_raw,
    is_not,
)

Classes: TypeAlias = Mapping[str, type[Any]]
"""Classes of records and enums, by the type's name."""


def to_raw(type_: schema.Type, classes: Classes) -> Convert:
    """Make a function from typed values to raw ones. It raises `Wrong` for whatever the type does not allow."""
    match type_:
        case schema.ScalarType(kind):
            return TO_RAW[kind]
        case schema.DecimalType():
            return decimal_to_raw(type_)
        case schema.EnumType():
            return _enum_to_raw(classes[type_.name])
        case schema.ArrayType(items):
            return _array_to_raw(to_raw(items, classes))
        case schema.MapType(values):
            return _map_to_raw(to_raw(values, classes))
        case schema.OptionalType(inner):
            return optional(to_raw(inner, classes))
        case schema.RecordType():
            return _record_to_raw(type_, classes)


def from_raw(type_: schema.Type, classes: Classes) -> Convert | None:
    """Make a function from raw values, as Avro reads them, to typed ones; `None` if they are the same.

    It raises `Wrong` for what Avro lets pass and the type does not.
    """
    match type_:
        case schema.ScalarType(kind):
            return FROM_RAW.get(kind)
        case schema.DecimalType():
            return decimal_from_raw(type_)
        case schema.EnumType():
            return _enum_from_raw(classes[type_.name])
        case schema.ArrayType(items):
            each = from_raw(items, classes)
            return tuple if each is None else _array_from_raw(each)
        case schema.MapType(values):
            each = from_raw(values, classes)
            return None if each is None else mapped(each)
        case schema.OptionalType(inner):
            inside = from_raw(inner, classes)
            return None if inside is None else optional(inside)
        case schema.RecordType():
            return _record_from_raw(type_, classes)


def typed(type_: schema.Type, raw: Any, classes: Classes) -> Any:
    """Typed value of one raw value, as a default is."""
    convert = from_raw(type_, classes)
    return raw if convert is None else convert(raw)


# Records, as source. Field names are identifiers and no words of Python: `saga.contracts.reading` refuses others.


def _record_to_raw(record: schema.RecordType, classes: Classes) -> Convert:
    cls = classes[record.name]
    names: dict[str, Any] = {"cls": cls, "Wrong": Wrong, "is_not": is_not}
    lines = [
        "def convert(value):",
        "    if type(value) is not cls:",
        "        raise is_not(value, cls)",
        "    at = ''",
        "    try:",
    ]
    for i, field in enumerate(record.fields):
        lines.append(f"        at = {field.name!r}")
        lines.append(f"        v{i} = value.{field.name}")
        names[f"c{i}"] = to_raw(field.type, classes)
        doubt = _doubt(field.type, f"v{i}")
        lines += [f"        if {doubt}:", f"            v{i} = c{i}(v{i})"] if doubt else [f"        v{i} = c{i}(v{i})"]
    lines += _told(record, names)
    lines.append(f"    return {{{', '.join(f'{field.name!r}: v{i}' for i, field in enumerate(record.fields))}}}")
    return _compiled(lines, names)


def _doubt(type_: schema.Type, value: str) -> str | None:
    """Expression that is false when the value certainly is raw already; `None` if it never is."""
    match type_:
        case schema.ScalarType("int" | "long" as kind):
            least, most = schema.BOUNDS[kind]
            return f"type({value}) is not int or not {least} <= {value} <= {most}"
        case schema.ScalarType("string" | "boolean" | "double" | "bytes" as kind):
            return f"type({value}) is not {PYTHON_TYPES[kind].__name__}"
        case schema.OptionalType(inner):
            inside = _doubt(inner, value)
            return f"{value} is not None" + (f" and ({inside})" if inside else "")
        case _:
            return None


def _record_from_raw(record: schema.RecordType, classes: Classes) -> Convert:
    cls = classes[record.name]
    names: dict[str, Any] = {"cls": cls, "Wrong": Wrong}
    given, converted = [], []
    for i, field in enumerate(record.fields):
        convert = from_raw(field.type, classes)
        if convert is None:
            given.append(f"{field.name}=raw[{field.name!r}]")
            continue
        names[f"c{i}"] = convert
        if isinstance(field.type, schema.OptionalType):
            absent = f"        v{i} = raw[{field.name!r}]"
            converted += [f"        at = {field.name!r}", absent, f"        if v{i} is not None:"]
            converted.append(f"            v{i} = c{i}(v{i})")
        else:
            converted += [f"        at = {field.name!r}", f"        v{i} = c{i}(raw[{field.name!r}])"]
        given.append(f"{field.name}=v{i}")
    lines = ["def convert(raw):"]
    if converted:
        lines += ["    at = ''", "    try:", *converted]
        lines += _told(record, names)
    lines.append(f"    return cls({', '.join(given)})")
    return _compiled(lines, names)


def _told(record: schema.RecordType, names: dict[str, Any]) -> list[str]:
    """Lines that put the field before the path of an error; of a sensitive one nothing inside of it is told."""
    names["hides"] = frozenset(field.name for field in record.fields if field.sensitive)
    under = "(why.inside(at) if at in hides else why.under(at))" if names["hides"] else "why.under(at)"
    return ["    except Wrong as why:", f"        raise {under} from None"]


def _compiled(lines: list[str], names: dict[str, Any]) -> Convert:
    code = compile("\n".join(lines), f"<conversion of {names['cls'].__qualname__}>", "exec")
    exec(code, names)
    made: Convert = names["convert"]
    return made


# Parts that hold others


def optional(inside: Convert) -> Convert:
    """Make the conversion of what may be `None`."""

    def convert(value: Any) -> Any:
        return None if value is None else inside(value)

    return convert


def _array_to_raw(each: Convert) -> Convert:
    def convert(value: Any) -> Any:
        if type(value) is not tuple and type(value) is not list:
            raise Wrong("must be a tuple")
        return listed(each, value)

    return convert


def _array_from_raw(each: Convert) -> Convert:
    def convert(value: Any) -> Any:
        return tuple(listed(each, value))

    return convert


def listed(each: Convert, values: Any) -> list[Any]:
    """Convert each of the values; an error names its place among them."""
    made: list[Any] = []
    try:
        for value in values:
            made.append(each(value))  # noqa: PERF401  the error needs to know how far it came
    except Wrong as why:
        raise why.under(f"[{len(made)}]") from None
    return made


def _map_to_raw(each: Convert) -> Convert:
    inside = mapped(each)

    def convert(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise Wrong("must be a mapping from text")
        for key in value:
            if type(key) is not str:
                raise Wrong("all keys must be text")
        return inside(value)

    return convert


def mapped(each: Convert) -> Convert:
    """Make the conversion of each value of a mapping; an error names its key."""

    def convert(value: Any) -> Any:
        made = {}
        for key, part in value.items():
            try:
                made[key] = each(part)
            except Wrong as why:
                raise why.under(f"[{key!r}]") from None
        return made

    return convert


# Enums


def _enum_to_raw(cls: type[StrEnum]) -> Convert:
    def convert(value: Any) -> Any:
        if type(value) is not cls:
            raise is_not(value, cls)
        return value._value_

    return convert


def _enum_from_raw(cls: type[StrEnum]) -> Convert:
    return {member.value: member for member in cls}.__getitem__
