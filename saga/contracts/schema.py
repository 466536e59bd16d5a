"""The types of which a contract's schema may consist. `saga.contracts.schema_parser` makes them from an `.avsc`
file and refuses everything else.

The rest of the toolkit works with `RecordType` and its parts, never with the JSON. Values have three forms:
- typed: the values in event classes, which services use (`Decimal`, `UUID`, tuples, frozen dataclasses);
- raw: the values that Avro itself encodes (bytes, int, str, lists, dicts), before logical types are applied. Defaults
  are raw;
- JSON: the form that people read and write, as in the lines given to `saga publish` (`saga.contracts.json_form`).
"""

import math
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias
from uuid import UUID

ScalarKind: TypeAlias = Literal[
    "boolean",
    "int",
    "long",
    "float",
    "double",
    "string",
    "bytes",
    "uuid",
    "date",
    "timestamp-millis",
    "timestamp-micros",
]

PRIMITIVES: Final[Mapping[str, ScalarKind]] = {
    name: name for name in ("boolean", "int", "long", "float", "double", "string", "bytes")
}
LOGICAL: Final[Mapping[str, tuple[str, ScalarKind]]] = {
    "uuid": ("string", "uuid"),
    "date": ("int", "date"),
    "timestamp-millis": ("long", "timestamp-millis"),
    "timestamp-micros": ("long", "timestamp-micros"),
}
"""For each logical type, the primitive type that it must annotate and the resulting kind. `decimal` is not listed,
because it has parameters and a class of its own."""

BOUNDS: Final[Mapping[ScalarKind, tuple[int, int]]] = {
    "int": (-(2**31), 2**31 - 1),
    "long": (-(2**63), 2**63 - 1),
    "date": (-719_162, 2_932_896),
    "timestamp-millis": (-62_135_596_800_000, 253_402_300_799_999),
    "timestamp-micros": (-62_135_596_800_000_000, 253_402_300_799_999_999),
}
"""Smallest and largest raw value of each kind. Dates and timestamps have the range of Python's `datetime`: years 1 to
9999."""
FLOAT_MAX = float.fromhex("0x1.fffffep+127")
NO_TEXT: Final = "half of a surrogate pair is no text"


def is_text(text: str) -> bool:
    """Return whether a string can be encoded as UTF-8."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return False
    return True


class Missing:
    """Type of `MISSING`."""


MISSING: Final = Missing()
"""Value of `Field.default` for a field without a default."""


@dataclass(frozen=True, slots=True)
class ScalarType:
    """A primitive type, or a logical type without parameters."""

    kind: ScalarKind


@dataclass(frozen=True, slots=True)
class ForeignType(ScalarType):
    """A type in a foreign schema that contracts do not support.

    Schemas of contracts never contain one. It records what type an external sender writes, so that its values are
    not misread as another type.
    """

    words: str
    """Description of the type, as readable text."""
    is_plain: bool = False
    """True if the type is the primitive `kind` without a logical type that Avro defines; its values are then read as
    that primitive. If false, its values are read only if they are text."""


@dataclass(frozen=True, slots=True)
class DecimalType:
    """Type of an exact number with at most `precision` digits, `scale` of them after the decimal point. Avro encodes it
    as bytes."""

    precision: int
    scale: int


@dataclass(frozen=True, slots=True)
class EnumType:
    """Type whose values are the symbols of a fixed list."""

    name: str
    symbols: tuple[str, ...]
    doc: str
    default: str | None = None
    """Symbol that replaces an unknown symbol in a message. Without a default, such a message cannot be read."""
    aliases: tuple[str, ...] = ()
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class ArrayType:
    """Type of a list of values of one type."""

    items: "Type"


@dataclass(frozen=True, slots=True)
class MapType:
    """Type of a mapping from text to values of one type."""

    values: "Type"


@dataclass(frozen=True, slots=True)
class OptionalType:
    """Type whose value may be absent: in Avro a union with null."""

    inner: "Type"


@dataclass(frozen=True)
class Field:
    """A field of a record. `default` is a raw value, or `MISSING`."""

    name: str
    type: "Type"
    default: object
    aliases: tuple[str, ...]
    sensitive: bool = False
    """True if the value of the field is replaced by `***` where people see it."""


@dataclass(frozen=True)
class RecordType:
    """Type of a record: an event, or a part of one."""

    name: str
    """Name without its namespace."""
    fields: tuple[Field, ...]
    doc: str
    aliases: tuple[str, ...] = ()
    """Names of the record in earlier versions, as they stand in the file."""
    namespace: str = ""

    def field(self, name: str) -> Field | None:
        """Return the field of that name; `None` if there is none."""
        return next((field for field in self.fields if field.name == name), None)


Type: TypeAlias = ScalarType | DecimalType | EnumType | ArrayType | MapType | OptionalType | RecordType


def raw_default(type_: Type, default: object) -> object:
    """Convert a default from a file's JSON to its raw form. Raises `ValueError` if the type does not allow the
    default."""
    match type_:
        case ScalarType(kind):
            return _scalar_default(kind, default)
        case DecimalType():
            raw = _latin(default)
            if abs(int.from_bytes(raw, "big", signed=True)) >= 10**type_.precision:
                raise ValueError(f"has more than {type_.precision} digits")
            return raw
        case EnumType(symbols=symbols) if isinstance(default, str) and default in symbols:
            return default
        case ArrayType(items) if isinstance(default, list):
            return [raw_default(items, item) for item in default]
        case MapType(values) if isinstance(default, dict):
            return {_text_default(key): raw_default(values, value) for key, value in default.items()}
        case OptionalType(inner):
            return None if default is None else raw_default(inner, default)
        case RecordType(fields=fields) if isinstance(default, dict):
            for name in default:
                if type_.field(name) is None:
                    raise ValueError(f"names {name!r}, which is no field of {type_.name}")
            return {field.name: _part_default(field, default) for field in fields}
        case _:
            raise ValueError(f"is {default!r}, which is no {describe_type(type_)}")


def describe_type(type_: Type) -> str:
    """Describe a type as readable text."""
    match type_:
        case ForeignType(words=words):
            return words
        case ScalarType(kind):
            return kind
        case DecimalType(precision, scale):
            return f"decimal({precision},{scale})"
        case EnumType(name=name):
            return f"enum {name}"
        case ArrayType(items):
            return f"array of {describe_type(items)}"
        case MapType(values):
            return f"map of {describe_type(values)}"
        case OptionalType(inner):
            return f"optional {describe_type(inner)}"
        case RecordType(name=name):
            return f"record {name}"


def meaning_changes(one: Type, other: Type, at: str = "") -> list[str]:
    """Return the paths of fields whose bytes have different meanings in two versions, because their logical types
    differ.

    Avro's schema resolution ignores logical types, so an amount could silently be read as ten times its value. The
    precision of a decimal may differ, because it only limits which values can be written.
    """
    match one, other:
        case OptionalType(inner), _:
            return meaning_changes(inner, other, at)
        case _, OptionalType(inner):
            return meaning_changes(one, inner, at)
        case ArrayType(first), ArrayType(second):
            return meaning_changes(first, second, f"{at}[]")
        case MapType(first), MapType(second):
            return meaning_changes(first, second, f"{at}{{}}")
        case RecordType(), RecordType():
            pairs = [(a, b) for a in one.fields for b in other.fields if is_same_field(a, b)]
            return [c for a, b in pairs for c in meaning_changes(a.type, b.type, f"{at}.{a.name}".lstrip("."))]
        case _ if meaning_of(one) != meaning_of(other):
            return [f"{at} is {describe_type(one)} in one and {describe_type(other)} in the other"]
        case _:
            return []


def full_name(name: str, namespace: str) -> str:
    """Return the name of a type with its namespace. A name without a namespace gets the enclosing one, as Avro
    prescribes.

    >>> full_name("Money", "com.shop"), full_name("a.Money", "com.shop"), full_name("Money", "")
    ('com.shop.Money', 'a.Money', 'Money')
    """
    return f"{namespace}.{name}" if namespace and "." not in name else name


def without_logical_types(schema: Any, around: str = "") -> Any:
    """Return the JSON of a schema with primitive types only, and with the names, aliases and defaults that schema
    resolution needs.

    With the result, fastavro reads and writes raw values. Aliases of types get their namespace here, because fastavro
    does not add it.

    Args:
        schema: the JSON of a schema, or of a part of one.
        around: the enclosing namespace.
    """
    if isinstance(schema, list):
        return [without_logical_types(branch, around) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    attributes = ("name", "namespace", "aliases", "symbols", "size", "default")
    plain = {key: schema[key] for key in attributes if key in schema}
    if schema.get("type") in ("record", "enum", "fixed") and isinstance(schema.get("name"), str):
        around = full_name(schema["name"], schema.get("namespace", around) or "").rpartition(".")[0]
        if isinstance(schema.get("aliases"), list):
            plain["aliases"] = [full_name(alias, around) for alias in schema["aliases"]]
    for key in ("type", "items", "values"):
        if key in schema:
            plain[key] = without_logical_types(schema[key], around)
    if "fields" in schema:
        plain["fields"] = [without_logical_types(field, around) for field in schema["fields"]]
    return plain


def meaning_of(type_: Type) -> object:
    """Return what a logical type adds to the meaning of the bytes; `None` for types without one.

    Values of one type must not be read as another type with a different meaning.
    """
    match type_:
        case DecimalType(scale=scale):
            return "decimal", scale
        case ForeignType(kind, words, is_plain):
            return None if is_plain else (kind, words)
        case ScalarType(kind) if kind not in PRIMITIVES:
            return kind
        case _:
            return None


def is_same_field(one: Field, other: Field) -> bool:
    """Return whether fields of two versions are the same field: they have the same name, or one has the other's name as
    an alias."""
    return one.name == other.name or one.name in other.aliases or other.name in one.aliases


def _part_default(field: Field, given: dict[str, object]) -> object:
    if field.name in given:
        return raw_default(field.type, given[field.name])
    if field.default is MISSING:
        raise ValueError(f"leaves out {field.name!r}, which has no default")
    return field.default


def _latin(default: object) -> bytes:
    if not isinstance(default, str):
        raise ValueError(f"is {default!r}; bytes are written as text of the characters U+0000 to U+00FF")
    try:
        return default.encode("latin-1")
    except UnicodeEncodeError as why:
        raise ValueError("has characters above U+00FF: bytes are written with U+0000 to U+00FF") from why


def _float_default(kind: ScalarKind, default: float) -> float:
    """Return a default if it is a finite number; otherwise raise `ValueError`. A `float` is rounded to 32 bits, as the
    value will be when it is read from the log."""
    with suppress(OverflowError):
        number = float(default)
        if math.isfinite(number):
            return number if kind == "double" else float(struct.unpack("<f", struct.pack("<f", number))[0])
    raise ValueError(f"is too great a number for {kind}, or none: a default is finite")


def _text_default(default: str) -> str:
    if not is_text(default):
        raise ValueError(f"cannot be written: {NO_TEXT}")
    return default


def _scalar_default(kind: ScalarKind, default: object) -> object:
    match kind, default:
        case "boolean", bool():
            return default
        case (("int" | "long" | "date" | "timestamp-millis" | "timestamp-micros"), int()) if type(default) is int:
            if BOUNDS[kind][0] <= default <= BOUNDS[kind][1]:
                return default
            raise ValueError(f"is {default}, which is outside of what {kind} can be")
        case (("float" | "double"), (int() | float())) if type(default) is not bool:
            return _float_default(kind, default)
        case "string", str():
            return _text_default(default)
        case "uuid", str():
            return str(UUID(default))
        case "bytes", _:
            return _latin(default)
        case _:
            raise ValueError(f"is {default!r}, which is no {kind}")
