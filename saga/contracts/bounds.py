"""Bound on the values in one message: they are counted on its bytes, before anything is made of them.

A value of a contract takes a byte at least, for there are no records without fields and no fields of type null. So what
has fewer bytes than `VALUES_MAX` is never counted, and ordinary messages pay nothing. Depth needs no bound of its own:
types are not recursive, and `saga.contracts.reading` bounds how deep they nest. Nothing of this holds for a schema of
somebody else's: its values are always counted, and may nest as deep as Python goes.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

from saga.contracts.scalars import NotOfTheSchema, Wrong

VALUES_MAX = 100_000
"""Most values in one message: texts, numbers, records, lists, all together. Twenty times as many were seconds of an
event loop and 100 MB."""

_Walk: TypeAlias = Callable[["_Cursor"], None]
_LONG_BYTES_MAX = 10
TOO_DEEP = "its values are nested too deeply"
_NOT_OF_THE_SCHEMA = "the bytes end in the middle, or are not of its schema"


def check_values(schema: Any) -> Callable[[bytes, int], None]:
    """Make a function that counts the values in bytes, from where in them the record begins. It raises `Wrong`, with
    the path, where there is more than `VALUES_MAX`, and where the bytes are not of the schema. `schema`: as fastavro
    has parsed it."""
    walk = _walk(schema, dict(_PRIMITIVES))

    def check(value: bytes, at: int) -> None:
        cursor = _Cursor(value, at)
        try:
            walk(cursor)
        except RecursionError:
            raise Wrong(TOO_DEEP) from None
        if cursor.left < 0:
            raise _too_many()

    return check


def check_json(data: object) -> None:
    """Count the values of what was read from JSON, as `check_values` does for bytes; without a path, for nothing was
    held against the schema yet."""
    left, open_ = VALUES_MAX, [data]
    while open_:
        part = open_.pop()
        left -= 1
        if isinstance(part, list):
            open_ += part
        elif isinstance(part, dict):
            open_ += part.values()
        if len(open_) > left:
            raise _too_many()


class _Cursor:
    """Position of the walk in the bytes, and how many more values there may be."""

    __slots__ = ("at", "left", "value")

    def __init__(self, value: bytes, at: int) -> None:
        self.value, self.at, self.left = value, at, VALUES_MAX

    def long(self) -> int:
        """Read the next number, of one to ten bytes."""
        read = shift = 0
        for byte in self.value[self.at : self.at + _LONG_BYTES_MAX]:
            self.at += 1
            read |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (read >> 1) ^ -(read & 1)
            shift += 7
        raise NotOfTheSchema(_NOT_OF_THE_SCHEMA)

    def skip(self, size: int) -> None:
        """Pass over so many bytes."""
        if not 0 <= size <= len(self.value) - self.at:
            raise NotOfTheSchema(_NOT_OF_THE_SCHEMA)
        self.at += size


def _too_many() -> Wrong:
    return Wrong(f"one message holds at most {VALUES_MAX} values; say it in several, or refer to what is large")


def _walk(schema: Any, named: dict[str, _Walk]) -> _Walk:
    """Make a function that goes over one value. `named`: those of primitives, and of the named types defined before
    this one."""
    if isinstance(schema, list):
        return _union([_walk(branch, named) for branch in schema])
    if isinstance(schema, str):
        return named.get(schema) or (lambda cursor: named[schema](cursor))  # inside of itself it is not known yet
    match schema["type"]:
        case "record":
            walk = named[schema["name"]] = _record([(f["name"], _walk(f["type"], named)) for f in schema["fields"]])
            return walk
        case "fixed":
            walk = named[schema["name"]] = _fixed(schema["size"])
            return walk
        case "enum":
            named[schema["name"]] = _long
            return _long
        case "array":
            return _blocks(_walk(schema["items"], named))
        case "map":
            return _blocks(_walk(schema["values"], named), keys=True)
        case kind:
            return _walk(kind, named)


def _long(cursor: _Cursor) -> None:
    cursor.left -= 1
    cursor.long()


def _text(cursor: _Cursor) -> None:
    cursor.left -= 1
    cursor.skip(cursor.long())


def _fixed(width: int) -> _Walk:
    def walk(cursor: _Cursor) -> None:
        cursor.left -= 1
        cursor.skip(width)

    return walk


_PRIMITIVES: dict[str, _Walk] = {
    "null": _fixed(0),
    "boolean": _fixed(1),
    "float": _fixed(4),
    "double": _fixed(8),
    **dict.fromkeys(("int", "long"), _long),
    **dict.fromkeys(("string", "bytes"), _text),
}


def _union(branches: list[_Walk]) -> _Walk:
    def walk(cursor: _Cursor) -> None:
        number = cursor.long()
        if not 0 <= number < len(branches):
            raise NotOfTheSchema(_NOT_OF_THE_SCHEMA)
        branches[number](cursor)

    return walk


def _record(fields: list[tuple[str, _Walk]]) -> _Walk:
    def walk(cursor: _Cursor) -> None:
        cursor.left -= 1
        at = ""
        try:
            for at, inside in fields:  # noqa: B007  the error needs to know how far it came
                inside(cursor)
        except Wrong as why:
            raise why.under(at) from None

    return walk


def _blocks(inside: _Walk, *, keys: bool = False) -> _Walk:
    """Make a function that goes over the items of an array, or of a map, each behind its key."""

    def walk(cursor: _Cursor) -> None:
        cursor.left -= 1
        number = 0
        while count := cursor.long():
            if count < 0:
                count = -count
                cursor.long()  # how many bytes they have, which is for those who skip them
            if count > cursor.left:
                raise _too_many()
            for number in range(number + 1, number + count + 1):  # noqa: B020  goes on where the block before ended
                if keys:
                    cursor.skip(cursor.long())
                try:
                    inside(cursor)
                except Wrong as why:
                    raise why.under(f"[{number - 1}]") from None
                if cursor.left < 0:
                    raise _too_many()

    return walk
