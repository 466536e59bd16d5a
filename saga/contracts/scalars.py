"""Forms of values that have no parts, typed and raw, and what is said of a value that fits neither."""

from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal, Inexact
from typing import Any, Final, TypeAlias
from uuid import UUID

from saga.contracts.schema import BOUNDS, FLOAT_MAX, DecimalType, ScalarKind

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


class Wrong(Exception):
    """Error of a value that does not fit; each record, array and map around it puts its part before the path."""

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(reason)
        self.reason, self.path = reason, path

    def under(self, part: str) -> "Wrong":
        """Make the same error, seen from one level further out."""
        between = "." if self.path and not self.path.startswith("[") else ""
        return type(self)(self.reason, f"{part}{between}{self.path}")

    def inside(self, part: str) -> "Wrong":
        """Make the same error of a sensitive part: not even the path inside of it is told, for keys are values."""
        return type(self)(self.reason, part)

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}" if self.path else self.reason


class NoSuchField(Wrong):
    """Error of a field that the record does not have: a newer version of its contract may have it."""


class NotOfTheSchema(Wrong):
    """Error of bytes that are not of their schema."""


def is_not(value: object, wanted: type) -> Wrong:
    """Make the error for a value of another type: it names the types, never the value."""
    found = _WORDS.get(type(value), type(value).__name__)
    return Wrong(f"is {found}, not {_WORDS.get(wanted, wanted.__name__)}")


def exact(precision: int) -> Context:
    """Make a decimal context in which nothing is ever rounded: what would be, raises."""
    return Context(prec=precision, traps=[Inexact])


def decimal_to_raw(type_: DecimalType) -> Convert:
    """Make a function from `Decimal` to bytes. It refuses what it would have to round."""
    limit, scale = 10**type_.precision, type_.scale
    before = type_.precision - scale
    scaleb = exact(type_.precision + 400).scaleb

    def convert(value: Any) -> Any:
        if type(value) is not Decimal:
            raise is_not(value, Decimal)
        if not value.is_finite() or value.adjusted() > before:
            raise Wrong(f"must be a number with at most {before} digits before the point")
        try:
            scaled = scaleb(value, scale)
        except Inexact:
            raise Wrong(f"has more than {scale} digits after the point; round it before") from None
        whole = int(scaled)
        if whole != scaled:
            raise Wrong(f"has more than {scale} digits after the point; round it before")
        if not -limit < whole < limit:
            raise Wrong(f"must be a number with at most {before} digits before the point")
        return whole.to_bytes((whole + (whole < 0)).bit_length() // 8 + 1, "big", signed=True)

    return convert


def decimal_from_raw(type_: DecimalType) -> Convert:
    """Make a function from bytes to `Decimal`, with all digits of the scale. It refuses more digits than the
    precision."""
    limit, scale = 10**type_.precision, type_.scale
    scaleb = exact(type_.precision).scaleb
    from_bytes = int.from_bytes

    def convert(value: Any) -> Any:
        whole = from_bytes(value, "big", signed=True)
        if not -limit < whole < limit:
            raise Wrong(f"has more than {type_.precision} digits")
        return scaleb(Decimal(whole), -scale)

    return convert


def _only(kind: type, raw: Convert) -> Convert:
    """Make a function that takes values of one class."""

    def convert(value: Any) -> Any:
        if isinstance(value, kind):
            return raw(value)
        raise is_not(value, kind)

    return convert


def _whole_to_raw(kind: ScalarKind) -> Convert:
    least, most = BOUNDS[kind]

    def convert(value: Any) -> Any:
        if not isinstance(value, int) or isinstance(value, bool):
            raise is_not(value, int)
        if least <= value <= most:
            return int(value)
        raise Wrong(f"must lie between {least} and {most}")

    return convert


def _double_to_raw(value: Any) -> Any:
    if isinstance(value, float):
        return float(value)
    if type(value) is not int:
        raise is_not(value, float)
    try:
        number = float(value)
    except OverflowError:
        number = 0.0
    if number != value:
        raise Wrong("is a whole number with more digits than a float can hold")
    return number


def _float_to_raw(value: Any) -> Any:
    number = _double_to_raw(value)
    if FLOAT_MAX < abs(number) < float("inf"):
        raise Wrong("is too great for 32 bits")
    return number


def _date_to_raw(value: Any) -> Any:
    if type(value) is not date:
        raise is_not(value, date)
    return value.toordinal() - _EPOCH_DAY


def _micros_to_raw(value: Any) -> Any:
    if not isinstance(value, datetime):
        raise is_not(value, datetime)
    if value.utcoffset() is None:
        raise Wrong("has no time zone; give it one: datetime(..., tzinfo=UTC)")
    since = value - _EPOCH
    micros = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    least, most = BOUNDS["timestamp-micros"]
    if least <= micros <= most:
        return micros
    raise Wrong("is, in UTC, a time before year 1 or after 9999")


def _millis_to_raw(value: Any) -> Any:
    millis, rest = divmod(_micros_to_raw(value), 1000)
    if rest:
        raise Wrong("has microseconds, and its contract keeps milliseconds; round it before")
    return millis


def _made(make: Convert, problem: str) -> Convert:
    """Make a function from raw values of which some mean nothing: `make` raises for these."""

    def convert(value: Any) -> Any:
        try:
            return make(value)
        except (ValueError, OverflowError):
            raise Wrong(problem) from None

    return convert


TO_RAW: Final[Mapping[ScalarKind, Convert]] = {
    "boolean": _only(bool, bool),
    "int": _whole_to_raw("int"),
    "long": _whole_to_raw("long"),
    "float": _float_to_raw,
    "double": _double_to_raw,
    "string": _only(str, str.__str__),
    "bytes": _only(bytes, bytes),
    "uuid": _only(UUID, str),
    "date": _date_to_raw,
    "timestamp-millis": _millis_to_raw,
    "timestamp-micros": _micros_to_raw,
}
FROM_RAW: Final[Mapping[ScalarKind, Convert]] = {
    "uuid": _made(UUID, "is no UUID"),
    "date": _made(lambda days: date.fromordinal(days + _EPOCH_DAY), "is a date before year 1 or after 9999"),
    "timestamp-millis": _made(lambda millis: _EPOCH + timedelta(milliseconds=millis), _NO_TIME),
    "timestamp-micros": _made(lambda micros: _EPOCH + timedelta(microseconds=micros), _NO_TIME),
}
