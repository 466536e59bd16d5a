"""Convert between typed and raw values. The functions for this are compiled once per class, because every message needs
them.

The function for a record is generated as source, with one or two lines per field, so that nothing has to be looked up
at run time. `tests/contracts/test_roundtrip.py` tests it with every kind of schema. Errors name the path of the field,
but never its value, which may be sensitive.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal, Inexact
from enum import StrEnum
from typing import Any, Final, TypeAlias
from uuid import UUID

from saga.contracts import schema
from saga.contracts.schema import BOUNDS, FLOAT_MAX, DecimalType, ScalarKind

Classes: TypeAlias = Mapping[str, type[Any]]
"""Classes of records and enums, by the name of the schema type."""

Convert: TypeAlias = Callable[[Any], Any]
PYTHON_TYPES: Final[Mapping[ScalarKind, type]] = {
    "boolean": bool,
    "int": int,
    "long": int,
    "float": float,
    "double": float,
    "string": str,
    "bytes": bytes,
    "uuid": UUID,
    "date": date,
    "timestamp-millis": datetime,
    "timestamp-micros": datetime,
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NO_TIME = "is a time before year 1 or after 9999"
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_WORDS: Final[Mapping[type, str]] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    bytes: "bytes",
    Decimal: "a Decimal",
    UUID: "a UUID",
    date: "a date",
    datetime: "a datetime",
    type(None): "None",
}


def to_raw(type_: schema.Type, classes: Classes) -> Convert:
    """Make a function that converts typed values of a type to raw ones. That function raises `InvalidValue` for values
    that the type does not allow."""
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
            return convert_optional(to_raw(inner, classes))
        case schema.RecordType():
            return _record_to_raw(type_, classes)


def from_raw(type_: schema.Type, classes: Classes) -> Convert | None:
    """Make a function that converts raw values, as Avro reads them, to typed ones. Return `None` if the type needs no
    conversion, because its typed and raw values are the same.

    That function raises `InvalidValue` for values that Avro accepts and the type does not allow.
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
            # A copy, because fastavro returns the same default for every message that lacks the field.
            return dict if each is None else convert_values(each)
        case schema.OptionalType(inner):
            inside = from_raw(inner, classes)
            return None if inside is None else convert_optional(inside)
        case schema.RecordType():
            return _record_from_raw(type_, classes)


def to_typed(type_: schema.Type, raw: Any, classes: Classes) -> Any:
    """Convert a single raw value, such as a default, to a typed one."""
    convert = from_raw(type_, classes)
    return raw if convert is None else convert(raw)


# Records are compiled from source. Field names are safe in that source: `schema_parser` accepts only identifiers.


def _record_to_raw(record: schema.RecordType, classes: Classes) -> Convert:
    cls = classes[record.name]
    names: dict[str, Any] = {"cls": cls, "InvalidValue": InvalidValue, "wrong_type": wrong_type}
    lines = [
        "def convert(value):",
        "    if type(value) is not cls:",
        "        raise wrong_type(value, cls)",
        "    at = ''",
        "    try:",
    ]
    for i, field in enumerate(record.fields):
        lines.append(f"        at = {field.name!r}")
        lines.append(f"        v{i} = value.{field.name}")
        names[f"c{i}"] = to_raw(field.type, classes)
        doubt = _raw_check(field.type, f"v{i}")
        lines += [f"        if {doubt}:", f"            v{i} = c{i}(v{i})"] if doubt else [f"        v{i} = c{i}(v{i})"]
    lines += _error_lines(record, names)
    lines.append(f"    return {{{', '.join(f'{field.name!r}: v{i}' for i, field in enumerate(record.fields))}}}")
    return _compile(lines, names)


def _raw_check(type_: schema.Type, value: str) -> str | None:
    """Return the source of a condition that is true if `value` needs the conversion function; `None` if every value
    needs it."""
    match type_:
        case schema.ScalarType("int" | "long" as kind):
            least, most = schema.BOUNDS[kind]
            return f"type({value}) is not int or not {least} <= {value} <= {most}"
        case schema.ScalarType("string" | "boolean" | "double" | "bytes" as kind):
            return f"type({value}) is not {PYTHON_TYPES[kind].__name__}"
        case schema.OptionalType(inner):
            inside = _raw_check(inner, value)
            return f"{value} is not None" + (f" and ({inside})" if inside else "")
        case _:
            return None


def _record_from_raw(record: schema.RecordType, classes: Classes) -> Convert:
    cls = classes[record.name]
    names: dict[str, Any] = {"cls": cls, "InvalidValue": InvalidValue}
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
        lines += _error_lines(record, names)
    lines.append(f"    return cls({', '.join(given)})")
    return _compile(lines, names)


def _error_lines(record: schema.RecordType, names: dict[str, Any]) -> list[str]:
    """Return the source of the `except` clause of a conversion. The clause puts the name of the current field in front
    of the error's path. For a sensitive field it drops the rest of the path, which may contain map keys, because these
    are sensitive, too."""
    names["hides"] = frozenset(field.name for field in record.fields if field.sensitive)
    under = "(why.inside(at) if at in hides else why.under(at))" if names["hides"] else "why.under(at)"
    return ["    except InvalidValue as why:", f"        raise {under} from None"]


def _compile(lines: list[str], names: dict[str, Any]) -> Convert:
    code = compile("\n".join(lines), f"<conversion of {names['cls'].__qualname__}>", "exec")
    exec(code, names)
    made: Convert = names["convert"]
    return made


# Types that contain other types


def convert_optional(inside: Convert) -> Convert:
    """Make a conversion that leaves `None` as it is and converts any other value."""

    def convert(value: Any) -> Any:
        return None if value is None else inside(value)

    return convert


def _array_to_raw(each: Convert) -> Convert:
    def convert(value: Any) -> Any:
        if type(value) is not tuple and type(value) is not list:
            raise InvalidValue("must be a tuple")
        return convert_items(each, value)

    return convert


def _array_from_raw(each: Convert) -> Convert:
    def convert(value: Any) -> Any:
        return tuple(convert_items(each, value))

    return convert


def convert_items(each: Convert, values: Any) -> list[Any]:
    """Return all values after converting them. The path of an error contains the index of the value."""
    made: list[Any] = []
    try:
        for value in values:
            made.append(each(value))  # noqa: PERF401 - the error needs the index that failed
    except InvalidValue as why:
        raise why.under(f"[{len(made)}]") from None
    return made


def _map_to_raw(each: Convert) -> Convert:
    inside = convert_values(each)

    def convert(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise InvalidValue("must be a mapping from text")
        for key in value:
            if type(key) is not str:
                raise InvalidValue("all keys must be text")
        return inside(value)

    return convert


def convert_values(each: Convert) -> Convert:
    """Make a function that converts all values of a mapping. The path of an error contains the key of the value."""

    def convert(value: Any) -> Any:
        made = {}
        for key, part in value.items():
            try:
                made[key] = each(part)
            except InvalidValue as why:
                raise why.under(f"[{key!r}]") from None
        return made

    return convert


# Enums


def _enum_to_raw(cls: type[StrEnum]) -> Convert:
    def convert(value: Any) -> Any:
        if type(value) is not cls:
            raise wrong_type(value, cls)
        return value._value_

    return convert


def _enum_from_raw(cls: type[StrEnum]) -> Convert:
    return {member.value: member for member in cls}.__getitem__


# -------------------------------------------------------------------- scalars


class InvalidValue(Exception):
    """Error for a value that its type does not allow. Each enclosing record, array or map adds its part to the front of
    the path."""

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(reason)
        self.reason, self.path = reason, path

    def under(self, part: str) -> "InvalidValue":
        """Return the error with one more part at the front of its path."""
        between = "." if self.path and not self.path.startswith("[") else ""
        return type(self)(self.reason, f"{part}{between}{self.path}")

    def inside(self, part: str) -> "InvalidValue":
        """Return the error for a value inside of a sensitive field. Its path ends at that field, because the rest may
        contain map keys, which are sensitive, too."""
        return type(self)(self.reason, part)

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}" if self.path else self.reason


class NoSuchField(InvalidValue):
    """Error for a field that the record does not have. Perhaps a newer version of the contract has it."""


class MalformedBytes(InvalidValue):
    """Error for bytes that do not match their schema."""


def wrong_type(value: object, wanted: type) -> InvalidValue:
    """Make the error for a value of the wrong type. Its text names the types and never the value."""
    found = _WORDS.get(type(value), type(value).__name__)
    return InvalidValue(f"is {found}, not {_WORDS.get(wanted, wanted.__name__)}")


def exact_context(precision: int) -> Context:
    """Return a decimal context that raises an error instead of rounding."""
    return Context(prec=precision, traps=[Inexact])


def decimal_to_raw(type_: DecimalType) -> Convert:
    """Make a function that converts `Decimal` to bytes. It refuses values that it would have to round."""
    limit, scale = 10**type_.precision, type_.scale
    before = type_.precision - scale
    scaleb = exact_context(type_.precision + 400).scaleb

    def convert(value: Any) -> Any:
        if type(value) is not Decimal:
            raise wrong_type(value, Decimal)
        if not value:
            return b"\0"  # whatever its exponent, which may be greater than the type's digits
        if not value.is_finite() or value.adjusted() > before:
            raise InvalidValue(f"must be a number with at most {before} digits before the point")
        try:
            scaled = scaleb(value, scale)
        except Inexact:
            raise InvalidValue(f"has more than {scale} digits after the point; round it before") from None
        whole = int(scaled)
        if whole != scaled:
            raise InvalidValue(f"has more than {scale} digits after the point; round it before")
        if not -limit < whole < limit:
            raise InvalidValue(f"must be a number with at most {before} digits before the point")
        return whole.to_bytes((whole + (whole < 0)).bit_length() // 8 + 1, "big", signed=True)

    return convert


def decimal_from_raw(type_: DecimalType) -> Convert:
    """Make a function that converts bytes to `Decimal`, with as many decimal places as the scale.

    It refuses numbers with more digits than the precision.
    """
    limit, scale = 10**type_.precision, type_.scale
    scaleb = exact_context(type_.precision).scaleb
    from_bytes = int.from_bytes

    def convert(value: Any) -> Any:
        whole = from_bytes(value, "big", signed=True)
        if not -limit < whole < limit:
            raise InvalidValue(f"has more than {type_.precision} digits")
        return scaleb(Decimal(whole), -scale)

    return convert


def _accept_only(kind: type, raw: Convert) -> Convert:
    """Make a function that converts values of one class, and refuses all others."""

    def convert(value: Any) -> Any:
        if isinstance(value, kind):
            return raw(value)
        raise wrong_type(value, kind)

    return convert


def _whole_to_raw(kind: ScalarKind) -> Convert:
    least, most = BOUNDS[kind]

    def convert(value: Any) -> Any:
        if not isinstance(value, int) or isinstance(value, bool):
            raise wrong_type(value, int)
        if least <= value <= most:
            return int(value)
        raise InvalidValue(f"must lie between {least} and {most}")

    return convert


def _double_to_raw(value: Any) -> Any:
    if isinstance(value, float):
        return float(value)
    if type(value) is not int:
        raise wrong_type(value, float)
    try:
        number = float(value)
    except OverflowError:
        number = 0.0
    if number != value:
        raise InvalidValue("is a whole number with more digits than a float can hold")
    return number


def _float_to_raw(value: Any) -> Any:
    number = _double_to_raw(value)
    if FLOAT_MAX < abs(number) < float("inf"):
        raise InvalidValue("is too great for 32 bits")
    return number


def _date_to_raw(value: Any) -> Any:
    if type(value) is not date:
        raise wrong_type(value, date)
    return value.toordinal() - _EPOCH_DAY


def _micros_to_raw(value: Any) -> Any:
    if not isinstance(value, datetime):
        raise wrong_type(value, datetime)
    if value.utcoffset() is None:
        raise InvalidValue("has no time zone; give it one: datetime(..., tzinfo=UTC)")
    since = value - _EPOCH
    micros = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    least, most = BOUNDS["timestamp-micros"]
    if least <= micros <= most:
        return micros
    raise InvalidValue("is, in UTC, a time before year 1 or after 9999")


def _millis_to_raw(value: Any) -> Any:
    millis, rest = divmod(_micros_to_raw(value), 1000)
    if rest:
        raise InvalidValue("has microseconds, and its contract keeps milliseconds; round it before")
    return millis


def _parse_raw(make: Convert, problem: str) -> Convert:
    """Make a function that converts raw values with `make`, and refuses those for which `make` raises."""

    def convert(value: Any) -> Any:
        try:
            return make(value)
        except (ValueError, OverflowError):
            raise InvalidValue(problem) from None

    return convert


TO_RAW: Final[Mapping[ScalarKind, Convert]] = {
    "boolean": _accept_only(bool, bool),
    "int": _whole_to_raw("int"),
    "long": _whole_to_raw("long"),
    "float": _float_to_raw,
    "double": _double_to_raw,
    "string": _accept_only(str, str.__str__),
    "bytes": _accept_only(bytes, bytes),
    "uuid": _accept_only(UUID, str),
    "date": _date_to_raw,
    "timestamp-millis": _millis_to_raw,
    "timestamp-micros": _micros_to_raw,
}
FROM_RAW: Final[Mapping[ScalarKind, Convert]] = {
    "uuid": _parse_raw(UUID, "is no UUID"),
    "date": _parse_raw(lambda days: date.fromordinal(days + _EPOCH_DAY), "is a date before year 1 or after 9999"),
    "timestamp-millis": _parse_raw(lambda millis: _EPOCH + timedelta(milliseconds=millis), _NO_TIME),
    "timestamp-micros": _parse_raw(lambda micros: _EPOCH + timedelta(microseconds=micros), _NO_TIME),
}
