"""Create an example of an event, in the JSON form that people read and write. All functions are pure."""

from typing import Final, TypeAlias

from saga.contracts import schema
from saga.contracts.contract import Contract

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json]"
_SCALARS: Final[dict[schema.ScalarKind, Json]] = {
    "boolean": True,
    "int": 1,
    "long": 1,
    "float": 1.5,
    "double": 1.5,
    "bytes": "AQ==",
    "uuid": "00000000-0000-4000-8000-000000000001",
    "date": "2026-01-31",
    "timestamp-millis": "2026-01-31T12:00:00.000Z",
    "timestamp-micros": "2026-01-31T12:00:00.000000Z",
}


def make_example(contract: Contract) -> dict[str, Json]:
    """Return the fields of an event of the newest version, with made-up values. Fields with a default are left out.

    The saga id is derived from the name of its field, unless that is a UUID: `order-1` for `order_id`.
    """
    example = _make_record(contract.newest.record)
    example[contract.key] = example_saga_id(contract)
    return example


def example_saga_id(contract: Contract) -> str:
    """Return the saga id of the example that `make_example` creates."""
    key = contract.newest.record.field(contract.key)
    assert key is not None  # a contract without such a field would not be loaded
    return str(_make_value(key.type, key.name))


def _make_record(record: schema.RecordType) -> dict[str, Json]:
    return {each.name: _make_value(each.type, each.name) for each in record.fields if each.default is schema.MISSING}


def _make_value(type_: schema.Type, name: str) -> Json:
    match type_:
        case schema.ScalarType(kind):
            return _SCALARS.get(kind, f"{name.removesuffix('_id').replace('_', '-')}-1")
        case schema.DecimalType(precision, scale):
            if not scale:
                return "1"
            return f"1.{'0' * scale}" if precision > scale else f"0.{'1'.ljust(scale, '0')}"
        case schema.EnumType():
            return type_.symbols[0]
        case schema.ArrayType(items):
            return [_make_value(items, name)]
        case schema.MapType(values):
            return {name: _make_value(values, name)}
        case schema.OptionalType(inner):
            return _make_value(inner, name)
        case schema.RecordType():
            return _make_record(type_)
