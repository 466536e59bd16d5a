"""Any schema that the toolkit takes, and any event of it: strategies for properties."""

from collections.abc import Callable
from datetime import UTC
from decimal import Decimal
from typing import Any, TypeAlias

from hypothesis import strategies as st

from saga.contracts.conversion import PYTHON_TYPES
from saga.contracts.schema import (
    FLOAT_MAX,
    MISSING,
    ArrayType,
    DecimalType,
    EnumType,
    MapType,
    OptionalType,
    RecordType,
    ScalarType,
    Type,
)
from tests.contracts.folders import field

Draw: TypeAlias = Callable[[st.SearchStrategy[Any]], Any]

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
        *("self", "cls", "convert", "raw", "at", "value", "InvalidValue", "wrong_type", "c0", "v1"),
        *("_private", "type", "a", "b", "total", "Total", "TOTAL", "_", "match", "print"),
        *("Record1", "Record1_", "Enum2", "Said", "date_", "Event_", "StrEnum", "Mapping", "ClassVar", "dataclass"),
        *("MISSING", "_type_a", "object", "super", "replace", "fields", "property", "name", "RED", "__class"),
    ]
).filter(lambda name: not name.startswith("__"))
"""Names that a generated module, a generated function or a dataclass uses itself, and those of types."""
TYPES = st.sampled_from(
    [
        "date",
        "Decimal",
        "Event",
        "str",
        "total",
        "a",
        "type",
        "Mapping",
        "field",
        "Event_",
        "date_",
        "_",
        "_Part",
        "Any",
    ]
)
DOCS = st.one_of(
    st.none(),
    st.text(max_size=30),
    st.text(alphabet="\"'\\ \n\tx", max_size=12),
    st.text(alphabet=' ax"-\\', min_size=90, max_size=260),
    st.sampled_from(["\ud800", "\x00\x1b[31m", "\u2028", "{x} %s #", '"""', '""""""', 'a\\"', "\\", "\\N{x}", "\\x"]),
)


class Names:
    """Names of types that are all different, as Avro wants it within one schema."""

    def __init__(self) -> None:
        self.count = 0
        self.taken = {"Said"}

    def next(self, draw: Draw, kind: str) -> str:
        self.count += 1
        name = draw(TYPES) if draw(st.booleans()) else f"{kind}{self.count}"
        while name in self.taken:
            name += "x"
        self.taken.add(name)
        return name


def types(draw: Draw, names: Names, depth: int) -> Any:
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
            return {"type": "enum", "name": names.next(draw, "Enum"), "symbols": symbols, "doc": draw(DOCS)}
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
            name = names.next(draw, "Record")
            return {
                "type": "record",
                "name": name,
                "doc": draw(DOCS),
                "fields": fields(draw, names, depth - 1, least=1),
            }


def fields(draw: Draw, names: Names, depth: int, least: int) -> list[dict[str, Any]]:
    made = []
    for name in draw(st.lists(FIELDS, min_size=least, max_size=4, unique=True)):
        type_ = types(draw, names, depth)
        default = {"default": defaults(draw, type_)} if draw(st.booleans()) else {}
        made.append(field(name, type_, **default))
    return made


def defaults(draw: Draw, type_: Any) -> Any:
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
        case "float":
            return draw(
                st.floats(width=32, allow_nan=False, allow_infinity=False) | st.sampled_from([0.1, 1, -0.0, 3e38])
            )
        case "double":
            huge = st.sampled_from([1e308, -1.7976931348623157e308, 5e-324, 1e22, 1e16, 10**300, -0.0, 0.1])
            return draw(st.floats(allow_nan=False, allow_infinity=False) | huge)
        case "string":
            odd = [
                "\"'",
                "'",
                '"',
                '\\"',
                '""\'',
                "\n",
                "\\'",
                "\\",
                "\\\\'\"",
                "\\n",
                "\x00\x85\u2028",
                "{}%s",
                "é\U0001f600",
            ]
            return draw(st.text(max_size=5) | st.sampled_from(odd))
        case _:
            return draw(st.binary(max_size=3) | st.sampled_from([b"\\'", b"'", b'"\\', b"\\x41"])).decode("latin-1")


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
            required = {f.name: values(f.type, classes) for f in type_.fields if f.default is MISSING}
            optional = {f.name: values(f.type, classes) for f in type_.fields if f.default is not MISSING}
            given_ = st.fixed_dictionaries(required, optional=optional)
            return given_.map(lambda given: classes[type_.name](**given))
