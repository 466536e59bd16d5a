"""The types of which a schema may consist. `saga.contracts.schema_parser` makes them from an `.avsc` file and refuses
everything else.

The rest of the toolkit sees `RecordType` and its parts, never the JSON. Values come in three forms:
- typed: what services see (`Decimal`, `UUID`, tuples, frozen dataclasses);
- raw: what Avro itself writes (bytes, int, str, lists, dicts), with logical types not yet applied. Defaults are raw;
- JSON: what people write in lines for `saga publish` (`saga.contracts.json_form`).
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
"""Type that each logical type must annotate, and the kind it makes of it; decimal has a class of its own."""

BOUNDS: Final[Mapping[ScalarKind, tuple[int, int]]] = {
    "int": (-(2**31), 2**31 - 1),
    "long": (-(2**63), 2**63 - 1),
    "date": (-719_162, 2_932_896),
    "timestamp-millis": (-62_135_596_800_000, 253_402_300_799_999),
    "timestamp-micros": (-62_135_596_800_000_000, 253_402_300_799_999_999),
}
"""Bounds of raw values, smallest and greatest; of dates and timestamps those that Python has, years 1 to 9999."""
FLOAT_MAX = float.fromhex("0x1.fffffep+127")
NO_TEXT: Final = "half of a surrogate pair is no text"


def is_text(text: str) -> bool:
    """True if the text can be written as UTF-8."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return False
    return True


class Missing:
    """Type of `MISSING`."""


MISSING: Final = Missing()
"""Default of a field that has none."""


@dataclass(frozen=True, slots=True)
class ScalarType:
    """Primitive type, or one with a logical type that needs no parameters."""

    kind: ScalarKind


@dataclass(frozen=True, slots=True)
class ForeignType(ScalarType):
    """Type in a schema of somebody else's that no contract can have. Contracts never hold one: it says what is written,
    so that nobody takes it for something else."""

    words: str
    """Description of what is written, for people."""
    is_plain: bool = False
    """True if Avro itself sees `kind` in it, without a logical type; else only text is read as what it is."""


@dataclass(frozen=True, slots=True)
class DecimalType:
    """Exact number with `scale` digits behind the point and at most `precision` digits in all, as bytes."""

    precision: int
    scale: int


@dataclass(frozen=True, slots=True)
class EnumType:
    """Type of which the values are a few words."""

    name: str
    symbols: tuple[str, ...]
    doc: str
    default: str | None = None
    """Symbol as which symbols that are not known are read; without one such a message cannot be read."""
    aliases: tuple[str, ...] = ()
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class ArrayType:
    """List of values of one type, in order."""

    items: "Type"


@dataclass(frozen=True, slots=True)
class MapType:
    """Values of one type by text keys."""

    values: "Type"


@dataclass(frozen=True, slots=True)
class OptionalType:
    """Type of a value that may be absent: a union with null."""

    inner: "Type"


@dataclass(frozen=True)
class Field:
    """Field of a record. `default` is raw, or `MISSING`."""

    name: str
    type: "Type"
    default: object
    aliases: tuple[str, ...]
    sensitive: bool = False
    """True if people see `***` in its place."""


@dataclass(frozen=True)
class RecordType:
    """Record type: an event, or a part of one."""

    name: str
    """Name without namespace."""
    fields: tuple[Field, ...]
    doc: str
    aliases: tuple[str, ...] = ()
    """Names that it had in earlier versions, as the file has them."""
    namespace: str = ""

    def field(self, name: str) -> Field | None:
        """Field of that name, if there is one."""
        return next((field for field in self.fields if field.name == name), None)


Type: TypeAlias = ScalarType | DecimalType | EnumType | ArrayType | MapType | OptionalType | RecordType


def raw_default(type_: Type, default: object) -> object:
    """Turn a default, as the file has it, into raw form. Raises `ValueError` if it is none of the type."""
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
    """Describe a type in words, for messages."""
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
    """Fields in which two versions mean different things by the same bytes: their logical types differ.

    Avro's resolution ignores logical types, so an amount would be misread tenfold without anybody noticing. A decimal's
    precision may differ: it only limits what is written.
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
    """Name of a type with its namespace, as Avro completes it.

    >>> full_name("Money", "com.shop"), full_name("a.Money", "com.shop"), full_name("Money", "")
    ('com.shop.Money', 'a.Money', 'Money')
    """
    return f"{namespace}.{name}" if namespace and "." not in name else name


def without_logical_types(schema: Any, around: str = "") -> Any:
    """Reduce a schema's JSON to what Avro writes: raw values, with the names, aliases, defaults that resolution
    needs. Aliases of types are completed: fastavro takes them as they stand. `around`: the namespace there."""
    if isinstance(schema, list):
        return [without_logical_types(branch, around) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    kept = ("name", "namespace", "aliases", "symbols", "size", "default")
    plain = {key: schema[key] for key in kept if key in schema}
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
    """Meaning of the bytes beyond themselves; `None` for types without a logical type."""
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
    """Return whether two versions mean one field, perhaps by two names."""
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
    """Default of a float, in the 32 bits in which it comes back from a log."""
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
