"""Whatever the schema and the value: generated classes, bytes and JSON give back what was put in."""

import json
import tempfile
from collections.abc import Callable
from datetime import UTC
from decimal import Decimal
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from saga.contracts import codec
from saga.contracts.codegen import classes_in, generate
from saga.contracts.library import Library, binding_of
from saga.contracts.scalars import PYTHON_TYPES
from saga.contracts.schema import (
    FLOAT_MAX,
    ArrayType,
    DecimalType,
    EnumType,
    MapType,
    OptionalType,
    RecordType,
    ScalarType,
    Type,
)
from saga.messages import Event
from tests.contracts.folders import field, generated, schema, write

PLAIN: list[Any] = [
    *("boolean", "int", "long", "float", "double", "string", "bytes"),
    {"type": "string", "logicalType": "uuid"},
    {"type": "int", "logicalType": "date"},
    {"type": "long", "logicalType": "timestamp-millis"},
    {"type": "long", "logicalType": "timestamp-micros"},
]
WORDS = st.sampled_from(
    ["RED", "green", "title", "name", "value", "mro", "None", "class", "_x", "__y__", "count", "A1"]
)
FIELDS = st.sampled_from(
    [
        *("date", "datetime", "str", "bytes", "field", "Decimal", "dict", "tuple", "UUID", "Event"),
        *("self", "cls", "convert", "raw", "at", "value", "Wrong", "is_not", "c0", "v1"),
        *("_private", "type", "a", "b", "total"),
    ]
)
"""Names that a generated module, or a generated function, uses itself."""


class Names:
    """Names of types that are all different, as Avro wants it within one schema."""

    def __init__(self) -> None:
        self.count = 0

    def next(self, kind: str) -> str:
        self.count += 1
        return f"{kind}{self.count}"


def types(draw: Callable[[st.SearchStrategy[Any]], Any], names: Names, depth: int) -> Any:
    """The JSON of a type."""
    kinds = ["plain", "plain", "plain", "decimal", "enum", *(["array", "map", "optional", "record"] if depth else [])]
    match draw(st.sampled_from(kinds)):
        case "plain":
            return draw(st.sampled_from(PLAIN))
        case "decimal":
            precision = draw(st.integers(1, 40))
            scale = draw(st.integers(0, precision))
            return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
        case "enum":
            symbols = draw(st.lists(WORDS, min_size=1, max_size=5, unique=True))
            return {"type": "enum", "name": names.next("Enum"), "symbols": symbols}
        case "array":
            return {"type": "array", "items": types(draw, names, depth - 1)}
        case "map":
            return {"type": "map", "values": types(draw, names, depth - 1)}
        case "optional":
            inner = types(draw, names, depth - 1)
            if isinstance(inner, list):
                return inner
            return ["null", inner] if draw(st.booleans()) else [inner, "null"]
        case _:
            name = names.next("Record")
            return {"type": "record", "name": name, "fields": fields(draw, names, depth - 1, least=1)}


def fields(draw: Callable[[st.SearchStrategy[Any]], Any], names: Names, depth: int, least: int) -> list[dict[str, Any]]:
    made = []
    for name in draw(st.lists(FIELDS, min_size=least, max_size=4, unique=True)):
        type_ = types(draw, names, depth)
        default = {"default": defaults(draw, type_)} if draw(st.booleans()) else {}
        made.append(field(name, type_, **default))
    return made


def defaults(draw: Callable[[st.SearchStrategy[Any]], Any], type_: Any) -> Any:
    """The JSON of a default, from the JSON of a type."""
    match type_:
        case [first, _]:
            return None if first == "null" else defaults(draw, first)
        case {"logicalType": "decimal"}:
            return draw(st.sampled_from(["\u0000", "\u0009", "\u00f7"]))
        case {"logicalType": "uuid"}:
            return str(draw(st.uuids()))
        case {"logicalType": _}:
            return draw(st.integers(-700_000, 2_900_000))
        case {"symbols": symbols}:
            return draw(st.sampled_from(symbols))
        case {"items": items}:
            return [defaults(draw, items) for _ in range(draw(st.integers(0, 2)))]
        case {"values": values}:
            return {key: defaults(draw, values) for key in draw(st.lists(st.text(max_size=3), max_size=2, unique=True))}
        case {"fields": parts}:
            return {p["name"]: defaults(draw, p["type"]) for p in parts if "default" not in p or draw(st.booleans())}
        case "boolean":
            return draw(st.booleans())
        case "int" | "long":
            return draw(st.integers(-(2**31), 2**31 - 1))
        case "float" | "double":
            return draw(st.floats(width=32, allow_nan=False, allow_infinity=False))
        case "string":
            return draw(st.text(max_size=5) | st.sampled_from(["\"'", "'", '"', '\\"', '""\'', "\n"]))
        case _:
            return draw(st.binary(max_size=3)).decode("latin-1")


def values(type_: Type, classes: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Typed values of a type."""
    match type_:
        case ScalarType("int"):
            return st.integers(-(2**31), 2**31 - 1)
        case ScalarType("long"):
            return st.integers(-(2**63), 2**63 - 1)
        case ScalarType("float"):
            return st.floats(width=32).filter(lambda x: x != x or abs(x) in (float("inf"),) or abs(x) <= FLOAT_MAX)
        case ScalarType("string"):
            return st.text(max_size=20)
        case ScalarType("timestamp-millis" | "timestamp-micros" as kind):
            unit = 1000 if kind == "timestamp-millis" else 1
            moments = st.datetimes(timezones=st.just(UTC))
            return moments.map(lambda when: when.replace(fold=0, microsecond=when.microsecond // unit * unit))
        case ScalarType("date"):
            return st.dates()
        case ScalarType(kind):
            return st.from_type(PYTHON_TYPES[kind])
        case DecimalType(precision, scale):
            whole = st.integers(1 - 10**precision, 10**precision - 1)
            return whole.map(lambda n: Decimal((n < 0, tuple(map(int, str(abs(n)))), -scale)))
        case EnumType(name=name):
            return st.sampled_from(list(classes[name]))
        case ArrayType(items):
            return st.lists(values(items, classes), max_size=3).map(tuple)
        case MapType(inner):
            return st.dictionaries(st.text(max_size=5), values(inner, classes), max_size=3)
        case OptionalType(inner):
            return st.none() | values(inner, classes)
        case RecordType():
            required = {f.name: values(f.type, classes) for f in type_.fields if not f.has_default}
            optional = {f.name: values(f.type, classes) for f in type_.fields if f.has_default}
            given_ = st.fixed_dictionaries(required, optional=optional)
            return given_.map(lambda given: classes[type_.name](**given))


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_events_of_any_schema_come_back_from_bytes_and_from_json(data: st.DataObject) -> None:
    whole = schema("Said", *fields(data.draw, Names(), 3, least=0))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        library = Library.load(write(folder, whole))
        module = generated(folder, "Said")
        assert module.__file__ is not None
        source = Path(module.__file__).read_text("utf-8")
        said: type[Event] = module.Said
        binding = binding_of(said)
    assert classes_in(source) == ["Said"]
    assert generate(library, ["Said"]) == source
    for event in data.draw(st.lists(values(binding.version.record, dict(binding.classes)), min_size=1, max_size=5)):
        # Texts are compared, because NaN is not equal to itself, and 0.0 is equal to -0.0.
        value = codec.encode(event)
        back = codec.decode(value, said, library)
        assert repr(back) == repr(event)
        assert codec.encode(back) == value
        assert codec.content(back) == codec.content(event)
        line = json.dumps(codec.to_json(event))
        assert repr(codec.from_json(json.loads(line), said)) == repr(event)
