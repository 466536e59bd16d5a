"""Fields of an event as people may see them: those that its contract calls sensitive are hidden."""

from collections.abc import Mapping
from dataclasses import replace

from saga.contracts.schema import ArrayType, MapType, OptionalType, RecordType, Type

HIDDEN = "***"


def hidden(fields: Mapping[str, object], record: RecordType) -> dict[str, object]:
    """Hide the fields of the JSON form that a schema marks with `"sensitive": true`: at any depth, in lists, maps and
    optional values too.

    >>> from saga.contracts.schema import MISSING, Field, ScalarType
    >>> card = Field("card", ScalarType("string"), MISSING, aliases=(), sensitive=True)
    >>> hidden({"card": "4242", "sum": 7}, RecordType("R", (card,), ""))
    {'card': '***', 'sum': 7}
    """
    known = {field.name: field for field in record.fields}
    return {
        name: part if name not in known else HIDDEN if known[name].sensitive else _hidden(part, known[name].type)
        for name, part in fields.items()
    }


def _hidden(value: object, type_: Type) -> object:
    match type_, value:
        case RecordType(), dict():
            return hidden(value, type_)
        case ArrayType(items), list():
            return [_hidden(part, items) for part in value]
        case MapType(values), dict():
            return {name: _hidden(part, values) for name, part in value.items()}
        case OptionalType(inner), _:
            return _hidden(value, inner)
        case _:
            return value


def renamed(record: RecordType, newest: RecordType) -> RecordType:
    """Call the fields of a record as `newest` calls them, which may know them by an alias.

    >>> from saga.contracts.schema import MISSING, Field, ScalarType
    >>> old = RecordType("R", (Field("card", ScalarType("string"), MISSING, aliases=(), sensitive=True),), "")
    >>> new = RecordType("R", (Field("pan", ScalarType("string"), MISSING, aliases=("card",)),), "")
    >>> hidden({"pan": "4242"}, renamed(old, new))
    {'pan': '***'}
    """
    known = {name: field for field in newest.fields for name in (*field.aliases, field.name)}
    return replace(
        record,
        fields=tuple(
            replace(field, name=of.name, type=_renamed(field.type, of.type))
            for field in record.fields
            if (of := known.get(field.name)) is not None  # else the newest has no such field
        ),
    )


def _renamed(type_: Type, newest: Type) -> Type:
    match type_, newest:
        case OptionalType(inner), _:
            return _renamed(inner, newest)
        case _, OptionalType(inner):
            return _renamed(type_, inner)
        case RecordType(), RecordType():
            return renamed(type_, newest)
        case ArrayType(items), ArrayType(others):
            return ArrayType(_renamed(items, others))
        case MapType(values), MapType(others):
            return MapType(_renamed(values, others))
        case _:
            return type_
