"""Marks of sensitive fields, over all versions of a contract: what one version hides, none shows."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from saga.contracts.schema import ArrayType, MapType, OptionalType, RecordType, Type, is_same_field


def with_marks_of(record: RecordType, others: Iterable[RecordType]) -> RecordType:
    """Mark the fields of a record that are sensitive in it or in another version: what one hides, none shows. A record
    that occurs in several places has the same marks in all of them."""
    for other in others:
        record = _with_marks_of(record, other)
    named: dict[str, set[str]] = {}
    _collect(record, named)
    made = _with_names(record, named)
    assert isinstance(made, RecordType)
    return made


def lacking_marks(written: Type, merged: Type, at: str = "") -> Iterator[str]:
    """Paths of the fields of a record that `with_marks_of` has marked."""
    match written, merged:
        case RecordType(), RecordType():
            for field, other in zip(written.fields, merged.fields, strict=True):
                path = f"{at}.{field.name}".lstrip(".")
                if other.sensitive and not field.sensitive:
                    yield path
                else:
                    yield from lacking_marks(field.type, other.type, path)
        case ArrayType(items), ArrayType(others):
            yield from lacking_marks(items, others, f"{at}[]")
        case MapType(values), MapType(others):
            yield from lacking_marks(values, others, f"{at}{{}}")
        case OptionalType(inner), OptionalType(other):
            yield from lacking_marks(inner, other, at)
        case _:
            return


def _collect(type_: Type, named: dict[str, set[str]]) -> None:
    """Collect the sensitive fields of each record in a type, by its name."""
    match type_:
        case RecordType(name=name, fields=fields):
            for field in fields:
                if field.sensitive:
                    named.setdefault(name, set()).add(field.name)
                _collect(field.type, named)
        case ArrayType(inner) | MapType(inner) | OptionalType(inner):
            _collect(inner, named)
        case _:
            return


def _with_names(type_: Type, named: Mapping[str, set[str]]) -> Type:
    match type_:
        case RecordType(name=name, fields=fields):
            marked = named.get(name, ())
            return replace(
                type_,
                fields=tuple(
                    replace(field, sensitive=field.name in marked, type=_with_names(field.type, named))
                    for field in fields
                ),
            )
        case ArrayType(inner):
            return ArrayType(_with_names(inner, named))
        case MapType(inner):
            return MapType(_with_names(inner, named))
        case OptionalType(inner):
            return OptionalType(_with_names(inner, named))
        case _:
            return type_


def _with_marks_of(record: RecordType, other: RecordType) -> RecordType:
    made = []
    for field in record.fields:
        for of in other.fields:
            if is_same_field(field, of):
                type_ = _merge_marks(field.type, of.type)
                field = replace(field, sensitive=field.sensitive or of.sensitive, type=type_)
        made.append(field)
    return replace(record, fields=tuple(made))


def _merge_marks(type_: Type, other: Type) -> Type:
    match type_, other:
        case OptionalType(inner), OptionalType(of):
            return OptionalType(_merge_marks(inner, of))
        case OptionalType(inner), _:
            return OptionalType(_merge_marks(inner, other))
        case _, OptionalType(of):
            return _merge_marks(type_, of)
        case RecordType(), RecordType():
            return _with_marks_of(type_, other)
        case ArrayType(items), ArrayType(of):
            return ArrayType(_merge_marks(items, of))
        case MapType(values), MapType(of):
            return MapType(_merge_marks(values, of))
        case _:
            return type_
