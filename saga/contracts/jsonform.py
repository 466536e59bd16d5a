"""JSON form of events, for people and for lines of `saga publish`.

Decimals, UUIDs, dates and timestamps are text, bytes are base64, unions are untagged, enums are their words; NaN and
the infinities, which JSON does not have, are the text `"NaN"`, `"Infinity"`, `"-Infinity"`.
"""

import base64
import re
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from saga.contracts.convert import Classes, from_raw
from saga.contracts.scalars import Convert, Wrong, is_not
from saga.contracts.schema import (
    MISSING,
    ArrayType,
    DecimalType,
    EnumType,
    MapType,
    OptionalType,
    RecordType,
    ScalarKind,
    ScalarType,
    Type,
)

_DECIMAL = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?([Zz]|[+-][0-9]{2}:[0-9]{2})"
)
_NO_NUMBERS: Final = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


def to_json(type_: Type, classes: Classes, *, essential: bool = False) -> Convert:
    """Make a function from typed values to JSON. `essential`: leaves out the fields of records that equal their
    default."""
    match type_:
        case ScalarType(kind):
            return _SCALARS_TO_JSON.get(kind, _same)
        case DecimalType():
            return _decimal_to_json
        case EnumType():
            return str
        case ArrayType(items):
            each = to_json(items, classes, essential=essential)
            return lambda values: [each(value) for value in values]
        case MapType(values):
            one = to_json(values, classes, essential=essential)
            return lambda values: {key: one(value) for key, value in values.items()}
        case OptionalType(inner):
            inside = to_json(inner, classes, essential=essential)
            return lambda value: None if value is None else inside(value)
        case RecordType():
            return _record_to_json(type_, classes, essential)


def from_json(type_: Type, classes: Classes) -> Convert:
    """Make a function from JSON to typed values. It raises `Wrong` where the form is wrong.

    What Python writes alike (text, whole numbers, true and false) is handed on unseen: `to_raw` looks at it anyway.
    """
    match type_:
        case ScalarType(kind):
            return _SCALARS_FROM_JSON.get(kind, _same)
        case DecimalType():
            return _parsed(_DECIMAL, Decimal, 'a decimal as text: "9.80"')
        case EnumType(symbols=symbols):
            return _enum_from_json(classes[type_.name], symbols)
        case ArrayType(items):
            return _array_from_json(from_json(items, classes))
        case MapType(values):
            return _map_from_json(from_json(values, classes))
        case OptionalType(inner):
            inside = from_json(inner, classes)
            return lambda value: None if value is None else inside(value)
        case RecordType():
            return _record_from_json(type_, classes)


def _record_to_json(record: RecordType, classes: Classes, essential: bool) -> Convert:
    parts = []
    for field in record.fields:
        default: object = MISSING
        if essential and field.default is not MISSING:
            typed = from_raw(field.type, classes)
            default = field.default if typed is None else typed(field.default)
        parts.append((field.name, to_json(field.type, classes, essential=essential), default))

    def convert(value: Any) -> dict[str, Any]:
        return {name: part(v) for name, part, default in parts if (v := getattr(value, name)) != default}

    return convert


def _record_from_json(record: RecordType, classes: Classes) -> Convert:
    cls = classes[record.name]
    parts = {field.name: from_json(field.type, classes) for field in record.fields}
    required = [field.name for field in record.fields if field.default is MISSING]

    def convert(data: Any) -> Any:
        if not isinstance(data, dict):
            raise Wrong(f"must be an object with the fields of {record.name}")
        given = {}
        for name, value in data.items():
            if name not in parts:
                raise Wrong(f"{record.name} has no such field; it has {', '.join(parts)}", str(name))
            try:
                given[name] = parts[name](value)
            except Wrong as why:
                raise why.under(name) from None
        for name in required:
            if name not in given:
                raise Wrong("is missing", name)
        return cls(**given)

    return convert


def _array_from_json(each: Convert) -> Convert:
    def convert(data: Any) -> tuple[Any, ...]:
        if not isinstance(data, list):
            raise Wrong("must be a list")
        made: list[Any] = []
        try:
            for value in data:
                made.append(each(value))  # noqa: PERF401  the error needs to know how far it came
        except Wrong as why:
            raise why.under(f"[{len(made)}]") from None
        return tuple(made)

    return convert


def _map_from_json(each: Convert) -> Convert:
    def convert(data: Any) -> dict[str, Any]:
        if not isinstance(data, dict):
            raise Wrong("must be an object")
        made = {}
        for key, value in data.items():
            try:
                made[key] = each(value)
            except Wrong as why:
                raise why.under(f"[{key!r}]") from None
        return made

    return convert


def _enum_from_json(cls: type[Any], symbols: tuple[str, ...]) -> Convert:
    members = {symbol: cls(symbol) for symbol in symbols}

    def convert(data: Any) -> Any:
        if not isinstance(data, str) or data not in members:
            raise Wrong(f"must be one of {', '.join(symbols)}")
        return members[data]

    return convert


def _parsed(form: re.Pattern[str], parse: Callable[[str], Any], wanted: str) -> Convert:
    def convert(data: Any) -> Any:
        try:
            if isinstance(data, str) and form.fullmatch(data):
                return parse(data)
        except (ValueError, OverflowError):
            pass  # of the right form, but there is no such day: as wrong as another form
        raise Wrong(f"must be {wanted}")

    return convert


def _same(value: Any) -> Any:
    return value


def _decimal_to_json(value: Any) -> str:
    return format(value, "f")


def _number_to_json(value: Any) -> float | str:
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    return float(value)


def _number_from_json(data: Any) -> Any:
    if isinstance(data, str) and data in _NO_NUMBERS:
        return _NO_NUMBERS[data]
    if type(data) is int:
        try:
            number = float(data)
        except OverflowError:
            raise Wrong("is too great a number") from None
        return number if number == data else data
    if not isinstance(data, float):
        raise is_not(data, float)
    return data


def _bytes_to_json(value: Any) -> str:
    return base64.b64encode(value).decode()


def _bytes_from_json(data: Any) -> bytes:
    try:
        if isinstance(data, str):
            return base64.b64decode(data, validate=True)
    except ValueError:
        pass  # said below
    raise Wrong("must be bytes as base64 text")


def _timestamp_to_json(timespec: str) -> Convert:
    def convert(value: Any) -> str:
        text: str = value.astimezone(UTC).isoformat(timespec=timespec)
        return text.replace("+00:00", "Z")

    return convert


_timestamp_from_json = _parsed(
    _TIME,
    lambda text: datetime.fromisoformat(text.upper()).astimezone(UTC),
    'a time with its zone as text: "2026-11-21T14:06:40.123Z"',
)
_SCALARS_TO_JSON: Final[dict[ScalarKind, Convert]] = {
    "float": _number_to_json,
    "double": _number_to_json,
    "bytes": _bytes_to_json,
    "uuid": str,
    "date": date.isoformat,
    "timestamp-millis": _timestamp_to_json("milliseconds"),
    "timestamp-micros": _timestamp_to_json("microseconds"),
}
_SCALARS_FROM_JSON: Final[dict[ScalarKind, Convert]] = {
    "float": _number_from_json,
    "double": _number_from_json,
    "bytes": _bytes_from_json,
    "uuid": _parsed(_UUID, UUID, "a UUID as text, with its four hyphens"),
    "date": _parsed(_DATE, date.fromisoformat, 'a date as text: "2026-11-21"'),
    "timestamp-millis": _timestamp_from_json,
    "timestamp-micros": _timestamp_from_json,
}
