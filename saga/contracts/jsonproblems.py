"""Problems of an event as JSON, all of them, where `saga.contracts.jsonform` stops at the first.

Only for lines that have been refused already: so it may take its time, and is linear in what there is to look at.
"""

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from saga.contracts.convert import Classes, to_raw
from saga.contracts.jsonform import from_json
from saga.contracts.scalars import Wrong
from saga.contracts.schema import MISSING, NO_TEXT, ArrayType, MapType, OptionalType, RecordType, Type, is_text

Look: TypeAlias = Callable[[Any], Iterator[Wrong]]
"""Function from JSON to all that is wrong with it, in the order in which it is there."""

SHOWN_MAX = 60
"""Most characters that are shown of a name that somebody made up."""


def problems_in(type_: Type, classes: Classes) -> Look:
    """Make a function that finds all that makes `from_json`, or then `to_raw`, raise."""
    match type_:
        case RecordType():
            return _of_record(type_, classes)
        case ArrayType(items):
            return _of_array(problems_in(items, classes))
        case MapType(values):
            return _of_map(problems_in(values, classes))
        case OptionalType(inner):
            inside = problems_in(inner, classes)
            return lambda data: iter(()) if data is None else inside(data)
        case _:
            return _of_value(type_, classes)


def _of_value(type_: Type, classes: Classes) -> Look:
    typed, raw = from_json(type_, classes), to_raw(type_, classes)

    def look(data: Any) -> Iterator[Wrong]:
        try:
            made = raw(typed(data))
        except Wrong as why:
            yield why
            return
        if isinstance(made, str) and not is_text(made):
            yield Wrong(NO_TEXT)

    return look


def _of_record(record: RecordType, classes: Classes) -> Look:
    parts = {field.name: problems_in(field.type, classes) for field in record.fields}
    required = [field.name for field in record.fields if field.default is MISSING]

    def look(data: Any) -> Iterator[Wrong]:
        if not isinstance(data, dict):
            yield Wrong(f"must be an object with the fields of {record.name}")
            return
        for name, value in data.items():
            if name not in parts:
                yield Wrong(f"{record.name} has no such field; it has {', '.join(parts)}", _shown(name))
                continue
            for why in parts[name](value):
                yield why.under(name)
        for name in required:
            if name not in data:
                yield Wrong("is missing", name)

    return look


def _of_array(inside: Look) -> Look:
    def look(data: Any) -> Iterator[Wrong]:
        if not isinstance(data, list):
            yield Wrong("must be a list")
            return
        for number, value in enumerate(data):
            for why in inside(value):
                yield why.under(f"[{number}]")

    return look


def _of_map(inside: Look) -> Look:
    def look(data: Any) -> Iterator[Wrong]:
        if not isinstance(data, dict):
            yield Wrong("must be an object")
            return
        for key, value in data.items():
            at = f"['{_shown(key)}']"
            if not is_text(key):
                yield Wrong(NO_TEXT, at)
            for why in inside(value):
                yield why.under(at)

    return look


def _shown(name: str) -> str:
    """Escape a name for a message, and cut it."""
    return ascii(name[:SHOWN_MAX])[1:-1] + ("..." if len(name) > SHOWN_MAX else "")
