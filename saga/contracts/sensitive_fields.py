"""Find and redact the fields of an event that its contract marks as sensitive."""

from collections.abc import Iterator, Mapping
from typing import Any

from saga.contracts.library import Binding, binding_of
from saga.contracts.loading import merge_marks
from saga.contracts.schema import ArrayType, MapType, OptionalType, RecordType, Type
from saga.encryption.sensitive_fields import HIDDEN, collect_texts
from saga.messages import Event

__all__ = [
    "HIDDEN",
    "collect_secrets",
    "collect_sensitive_texts",
    "has_sensitive",
    "merge_marks",
    "record_with_marks",
    "redact_fields",
]


def redact_fields(fields: Mapping[str, object], record: RecordType) -> dict[str, object]:
    """Return the JSON form of a record with the values of sensitive fields replaced by `***`, at any depth.

    >>> from saga.contracts.schema import MISSING, Field, ScalarType
    >>> card = Field("card", ScalarType("string"), MISSING, aliases=(), sensitive=True)
    >>> redact_fields({"card": "4242", "sum": 7}, RecordType("R", (card,), ""))
    {'card': '***', 'sum': 7}
    """
    known = {field.name: field for field in record.fields}
    return {
        name: part if name not in known else HIDDEN if known[name].sensitive else _redact(part, known[name].type)
        for name, part in fields.items()
    }


def _redact(value: object, type_: Type) -> object:
    match type_, value:
        case RecordType(), dict():
            return redact_fields(value, type_)
        case ArrayType(items), list():
            return [_redact(part, items) for part in value]
        case MapType(values), dict():
            return {name: _redact(part, values) for name, part in value.items()}
        case OptionalType(inner), _:
            return _redact(value, inner)
        case _:
            return value


def has_sensitive(type_: Type) -> bool:
    """Return whether a type contains a sensitive field at any depth."""
    match type_:
        case RecordType(fields=fields):
            return any(field.sensitive or has_sensitive(field.type) for field in fields)
        case ArrayType(inner) | MapType(inner) | OptionalType(inner):
            return has_sensitive(inner)
        case _:
            return False


def record_with_marks(binding: Binding) -> RecordType:
    """Return the record type of an event class. A field in it is sensitive if any version of the contract marks the
    field."""
    return binding.version.record


def collect_secrets(event: Event) -> list[str]:
    """Return the strings that must be redacted wherever they occur, because they disclose sensitive fields of this
    event.

    A field is sensitive if any version of the contract marks it.
    """
    return list(collect_sensitive_texts(event, record_with_marks(binding_of(type(event)))))


def collect_sensitive_texts(value: Any, type_: Type) -> Iterator[str]:
    """Yield the strings that would disclose sensitive fields of an event, or of a part of one."""
    match type_:
        case RecordType(fields=fields):
            for field in fields:
                part = getattr(value, field.name, None)
                yield from _collect_all_texts(part) if field.sensitive else collect_sensitive_texts(part, field.type)
        case ArrayType(items) if isinstance(value, (tuple, list)):
            for part in value:
                yield from collect_sensitive_texts(part, items)
        case MapType(values) if isinstance(value, Mapping):
            for part in value.values():
                yield from collect_sensitive_texts(part, values)
        case OptionalType(inner) if value is not None:
            yield from collect_sensitive_texts(value, inner)
        case _:
            return


def _collect_all_texts(value: Any) -> Iterator[str]:
    """Yield all strings in a value, including the keys of maps and the strings in fields of nested records."""
    if hasattr(value, "__dataclass_fields__"):
        for name in value.__dataclass_fields__:
            yield from _collect_all_texts(getattr(value, name, None))
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _collect_all_texts(part)
    elif isinstance(value, Mapping):
        for name, part in value.items():
            yield name
            yield from _collect_all_texts(part)
    else:
        yield from collect_texts(value)
