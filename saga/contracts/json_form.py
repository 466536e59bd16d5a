"""Convert events to JSON and back: to show them to people, and to read the lines given to `saga publish`.

Decimals, UUIDs, dates and timestamps are text; bytes are base64 text; unions are untagged; enums are their symbols. NaN
and the infinities, which JSON does not have, are the strings `"NaN"`, `"Infinity"` and `"-Infinity"`.

Reading takes two steps: `make_problem_finder` finds every problem, in time linear in the size of the JSON; `from_json`
converts JSON that has no problems. For external senders (`foreign`) both accept some more forms, which common libraries
write and which are unambiguous. A time that is more precise than its type is then truncated.
"""

import base64
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from math import isfinite
from typing import Any, Final, Never, TypeAlias
from uuid import UUID

from saga.contracts import schema
from saga.contracts.conversion import (
    Classes,
    Convert,
    InvalidValue,
    NoSuchField,
    convert_optional,
    to_raw,
    to_typed,
    wrong_type,
)

_ANY = re.compile(r"(?s).*")
_DECIMAL = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?([Zz]|[+-][0-9]{2}:[0-9]{2})"
)
_WHOLE = re.compile(r"-?[0-9]{1,20}")
_ANY_DECIMAL = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]{1,3})?")
_ANY_TIME = re.compile(
    r"(?P<day>[0-9]{4}-[0-9]{2}-[0-9]{2})[Tt ](?P<minute>[0-9]{2}:[0-9]{2})"
    r"(:(?P<second>[0-9]{2})(\.(?P<part>[0-9]{1,12}))?)?"
    r"(?P<zone>[Zz]|[+-][0-9]{2}(:?[0-9]{2})?)"
)
_WHOLE_FLOAT_MAX = 2**53 - 1
"""Largest number up to which whole numbers in JSON can be read as floats without loss. Above it, two different numbers
may become the same float: 2**53 + 1 becomes 2**53."""
_NO_NUMBERS: Final = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}

_A_TIME = 'a time with its zone as text: "2026-11-21T14:06:40.123Z"'
Look: TypeAlias = Callable[[Any], Iterator[InvalidValue]]
"""Function that yields all problems in JSON, in the order in which they occur."""
SHOWN_MAX = 60
"""Largest number of characters of a name that an error shows, because the sender chooses the name."""


def to_json(type_: schema.Type, classes: Classes, *, essential: bool = False) -> Convert:
    """Make a function that converts typed values to JSON.

    If `essential` is true, the function leaves out fields that equal their default, and gives equal values one form:
    0.0 and -0.0 are equal.
    """
    match type_:
        case schema.ScalarType("float" | "double") if essential:
            return lambda value: _number_to_json(value + 0.0)
        case schema.ScalarType(kind):
            return _SCALARS_TO_JSON.get(kind, _keep_value)
        case schema.DecimalType():
            return "{:f}".format
        case schema.EnumType():
            return str
        case schema.ArrayType(items):
            each = to_json(items, classes, essential=essential)
            return lambda values: [each(value) for value in values]
        case schema.MapType(values):
            one = to_json(values, classes, essential=essential)
            return lambda values: {key: one(value) for key, value in values.items()}
        case schema.OptionalType(inner):
            return convert_optional(to_json(inner, classes, essential=essential))
        case schema.RecordType():
            return _record_to_json(type_, classes, essential)


def from_json(type_: schema.Type, classes: Classes, *, foreign: bool = False) -> Convert:
    """Make a function that converts JSON to typed values, after `make_problem_finder` found no problem in it.

    The function relies on that check. It raises `InvalidValue` only for a value that it has to parse, such as a decimal
    or a time. Values that are the same in Python and JSON (text, whole numbers, true and false) are returned unchecked.
    """
    match type_:
        case schema.ScalarType(kind):
            return (_SCALARS_FROM_FOREIGN_JSON if foreign else _SCALARS_FROM_JSON).get(kind, _keep_value)
        case schema.DecimalType():
            return _parse_with(_ANY_DECIMAL if foreign else _DECIMAL, Decimal, 'a decimal as text: "9.80"')
        case schema.EnumType(symbols=symbols, default=default):
            cls, wanted = classes[type_.name], f"one of {', '.join(symbols)}"
            if foreign and default is not None:  # as in Avro: a sender may know symbols that came later
                return _parse_with(_ANY, lambda text: cls(text if text in symbols else default), wanted)
            return _parse_with(_ANY, cls, wanted)
        case schema.ArrayType(items):
            each = from_json(items, classes, foreign=foreign)
            return lambda data: tuple(map(each, data))
        case schema.MapType(values):
            one = from_json(values, classes, foreign=foreign)
            return lambda data: {key: one(value) for key, value in data.items()}
        case schema.OptionalType(inner):
            return convert_optional(from_json(inner, classes, foreign=foreign))
        case schema.RecordType(fields=fields):
            cls = classes[type_.name]
            parts = {field.name: from_json(field.type, classes, foreign=foreign) for field in fields}
            return lambda data: cls(**{name: parts[name](value) for name, value in data.items()})


def _record_to_json(record: schema.RecordType, classes: Classes, essential: bool) -> Convert:
    parts = []
    for field in record.fields:
        default: object = schema.MISSING
        if essential and field.default is not schema.MISSING:
            default = to_typed(field.type, field.default, classes)
        parts.append((field.name, to_json(field.type, classes, essential=essential), default))

    def convert(value: Any) -> dict[str, Any]:
        return {name: part(v) for name, part, default in parts if (v := getattr(value, name)) != default}

    return convert


def _parse_with(form: re.Pattern[str], parse: Callable[[str], Any], wanted: str) -> Convert:
    def convert(data: Any) -> Any:
        with suppress(ValueError, OverflowError):  # a date that does not exist is as wrong as a string of another form
            if isinstance(data, str) and form.fullmatch(data):
                return parse(data)
        raise InvalidValue(f"must be {wanted}")

    return convert


def read_json(text: bytes | str) -> tuple[Any, list[str]]:
    """Parse JSON. Return the value, and the names that occur more than once in one object, because the parser silently
    keeps only the last value of such a name.

    Raises `ValueError` for invalid JSON, and `RecursionError` if it is nested too deeply.
    """
    read, twice = read_objects(text)
    return read, [name for _, names in twice for name in names]


def read_objects(text: bytes | str) -> tuple[Any, list[tuple[dict[str, Any], list[str]]]]:
    """Parse JSON. Return the parsed value and a list of the objects that contain duplicate names, each paired with
    those names. Raises the same errors as `read_json`."""
    twice: list[tuple[dict[str, Any], list[str]]] = []
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8-sig")
        except UnicodeDecodeError as why:
            raise ValueError(f"it is not UTF-8: its byte {why.start + 1} is {text[why.start]:02x}") from None

    def object_(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        read = dict(pairs)
        if len(read) < len(pairs):
            twice.append((read, [name for name, times in Counter(name for name, _ in pairs).items() if times > 1]))
        return read

    read = json.loads(text, object_pairs_hook=object_, parse_constant=_no_constant, parse_float=_parse_float)
    return read, twice


def _no_constant(constant: str) -> Never:
    raise ValueError(f"{constant} is no number in JSON")


def _parse_float(text: str) -> float:
    """Parse a number. Raises `ValueError` for one beyond the range of a float, because it would become an infinity,
    which the sender has not written."""
    number = float(text)
    if not isfinite(number):
        raise ValueError("it has a number that is too great for a float")
    return number


def _keep_value(value: Any) -> Any:
    return value


def _number_to_json(value: Any) -> float | str:
    return float(value) if isfinite(value) else json.dumps(value)


def _number_from_json(data: Any) -> Any:
    if isinstance(data, str) and data in _NO_NUMBERS:
        return _NO_NUMBERS[data]
    if type(data) is int:
        try:
            number = float(data)
        except OverflowError:
            raise InvalidValue("is too great a number") from None
        return number if number == data else data
    if not isinstance(data, float):
        raise wrong_type(data, float)
    return data


def _timestamp_to_json(timespec: str) -> Convert:
    def convert(value: Any) -> str:
        text: str = value.astimezone(UTC).isoformat(timespec=timespec)
        return text.replace("+00:00", "Z")

    return convert


_timestamp_from_json = _parse_with(_TIME, lambda text: datetime.fromisoformat(text.upper()).astimezone(UTC), _A_TIME)


def _whole_from_foreign_json(data: Any) -> Any:
    """Convert a whole number that is written as text, as Protobuf and JavaScript write large ones, or as a float such
    as 7.0.

    Any other value is returned unchanged.
    """
    if isinstance(data, str) and _WHOLE.fullmatch(data):
        return int(data)
    if isinstance(data, float) and data.is_integer() and abs(data) <= _WHOLE_FLOAT_MAX:
        return int(data)
    return data


def _time_from_foreign_json(digits: int) -> Convert:
    """Make a function that parses an ISO 8601 time with a time zone, and truncates it to `digits` decimal places of a
    second."""

    def parse(text: str) -> datetime:
        time = _ANY_TIME.fullmatch(text)
        assert time is not None
        part = (time["part"] or "")[:digits].ljust(6, "0")
        made = f"{time['day']}T{time['minute']}:{time['second'] or '00'}.{part}{time['zone'].upper()}"
        return datetime.fromisoformat(made).astimezone(UTC)

    return _parse_with(_ANY_TIME, parse, _A_TIME)


_SCALARS_TO_JSON: Final[dict[schema.ScalarKind, Convert]] = {
    "float": _number_to_json,
    "double": _number_to_json,
    "bytes": lambda value: base64.b64encode(value).decode(),
    "uuid": str,
    "date": date.isoformat,
    "timestamp-millis": _timestamp_to_json("milliseconds"),
    "timestamp-micros": _timestamp_to_json("microseconds"),
}
_SCALARS_FROM_JSON: Final[dict[schema.ScalarKind, Convert]] = {
    "float": _number_from_json,
    "double": _number_from_json,
    "bytes": _parse_with(_ANY, lambda text: base64.b64decode(text, validate=True), "bytes as base64 text"),
    "uuid": _parse_with(_UUID, UUID, "a UUID as text, with its four hyphens"),
    "date": _parse_with(_DATE, date.fromisoformat, 'a date as text: "2026-11-21"'),
    "timestamp-millis": _timestamp_from_json,
    "timestamp-micros": _timestamp_from_json,
}
_SCALARS_FROM_FOREIGN_JSON: Final[dict[schema.ScalarKind, Convert]] = {
    **_SCALARS_FROM_JSON,
    "int": _whole_from_foreign_json,
    "long": _whole_from_foreign_json,
    "timestamp-millis": _time_from_foreign_json(3),
    "timestamp-micros": _time_from_foreign_json(6),
}


# Finding problems


def make_problem_finder(type_: schema.Type, classes: Classes, *, foreign: bool = False) -> Look:
    """Make a function that yields all reasons why JSON is not a valid value of the type.

    The function checks the form, and yields the errors that `to_raw` would raise.
    """
    match type_:
        case schema.RecordType():
            return _check_record(type_, classes, foreign)
        case schema.ArrayType(items):
            return _check_array(make_problem_finder(items, classes, foreign=foreign))
        case schema.MapType(values):
            return _check_map(make_problem_finder(values, classes, foreign=foreign))
        case schema.OptionalType(inner):
            inside = make_problem_finder(inner, classes, foreign=foreign)
            return lambda data: iter(()) if data is None else inside(data)
        case _:
            return _check_value(type_, classes, foreign)


def _check_value(type_: schema.Type, classes: Classes, foreign: bool) -> Look:
    made_of, raw_of = from_json(type_, classes, foreign=foreign), to_raw(type_, classes)

    def look(data: Any) -> Iterator[InvalidValue]:
        try:
            made = raw_of(made_of(data))
        except InvalidValue as why:
            yield why
            return
        if isinstance(made, str) and not schema.is_text(made):
            yield InvalidValue(schema.NO_TEXT)

    return look


def _check_record(record: schema.RecordType, classes: Classes, foreign: bool) -> Look:
    parts = {field.name: make_problem_finder(field.type, classes, foreign=foreign) for field in record.fields}
    hides = {field.name for field in record.fields if field.sensitive}
    required = [field.name for field in record.fields if field.default is schema.MISSING]

    def look(data: Any) -> Iterator[InvalidValue]:
        if not isinstance(data, dict):
            yield InvalidValue(f"must be an object with the fields of {record.name}")
            return
        for name, value in data.items():
            if name not in parts:
                yield NoSuchField(f"{record.name} has no such field; it has {', '.join(parts)}", _escape_name(name))
                continue
            for why in parts[name](value):
                yield why.inside(name) if name in hides else why.under(name)
        for name in required:
            if name not in data:
                yield InvalidValue("is missing", name)

    return look


def _check_array(inside: Look) -> Look:
    def look(data: Any) -> Iterator[InvalidValue]:
        if not isinstance(data, list):
            yield InvalidValue("must be a list")
            return
        for number, value in enumerate(data):
            for why in inside(value):
                yield why.under(f"[{number}]")

    return look


def _check_map(inside: Look) -> Look:
    def look(data: Any) -> Iterator[InvalidValue]:
        if not isinstance(data, dict):
            yield InvalidValue("must be an object")
            return
        for key, value in data.items():
            at = f"['{_escape_name(key)}']"
            if not schema.is_text(key):
                yield InvalidValue(schema.NO_TEXT, at)
            for why in inside(value):
                yield why.under(at)

    return look


def _escape_name(name: str) -> str:
    """Escape and shorten a name for a message."""
    return ascii(name[:SHOWN_MAX])[1:-1] + ("..." if len(name) > SHOWN_MAX else "")
