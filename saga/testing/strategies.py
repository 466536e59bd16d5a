"""Hypothesis strategies for contracts: `events(OrderPlaced)` generates any event that its contract allows.

Needs hypothesis: `pip install saga-choreography[testing]`.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, TypeVar
from uuid import UUID

try:
    from hypothesis import strategies as st
except ImportError as why:
    hint = "saga.testing.strategies needs hypothesis: pip install saga-choreography[testing]"
    raise ImportError(hint, name=why.name) from why

from saga.contracts import codec
from saga.contracts.conversion import PYTHON_TYPES, Classes, InvalidValue, to_raw
from saga.contracts.library import Binding, binding_of
from saga.contracts.schema import (
    BOUNDS,
    FLOAT_MAX,
    MISSING,
    ArrayType,
    DecimalType,
    EnumType,
    Field,
    MapType,
    OptionalType,
    RecordType,
    ScalarKind,
    ScalarType,
    Type,
)
from saga.errors import SagaError
from saga.messages import Event

E = TypeVar("E", bound=Event)

SIZE_MAX = 5
"""Maximum size of an array or map. It allows an empty one, a single value, and several different values."""


def events(event: type[E], /, **fixed: object) -> st.SearchStrategy[E]:
    """Return a strategy for any event of this class that its contract allows: `@given(events(OrderPlaced,
    quantity=st.integers(1, 5)))`.

    `fixed`: fields that are not derived from the schema, by name. Each is a constant value or a strategy.

    Guarantees:
    - Each event can be published, and is decoded to an equal one.
    - Events shrink towards simple values: 0, `""`, `None`, the first symbol of an enum, the default.
    - The field with the saga id is never empty.
    - NaN is not generated, although a contract allows it, because an event with NaN would not be equal to itself.

    Raises `SagaError` for a field that the contract does not have, and for a fixed value that it does not allow. If a
    given strategy generates a value that the contract does not allow, `BadInput` is raised when the event is drawn.
    """
    binding = binding_of(event)
    record = binding.version.record
    parts: dict[str, st.SearchStrategy[Any]] = {}
    for name, given in fixed.items():
        field = record.field(name)
        if field is None:
            fields = ", ".join(field.name for field in record.fields)
            raise SagaError(f"{event.__name__} has no field {name!r}; its fields are {fields}")
        parts[name] = (
            given if isinstance(given, st.SearchStrategy) else st.just(_check_fixed(event, binding, field, given))
        )
    if binding.contract.key not in parts:
        parts[binding.contract.key] = _saga_ids(record, binding.contract.key)
    made: st.SearchStrategy[E] = _records(record.fields, binding.classes, event, parts)
    return made.map(_check_event) if fixed else made


def values(type_: Type, classes: Classes) -> st.SearchStrategy[Any]:
    """Return a strategy for any Python value of a schema's type.

    `classes`: the classes of the records and enums in the schema, by name.
    """
    match type_:
        case ScalarType(kind):
            return _scalars(kind)
        case DecimalType(precision, scale):
            whole = st.integers(1 - 10**precision, 10**precision - 1)
            return whole.map(lambda n: Decimal((n < 0, tuple(map(int, str(abs(n)))), -scale)))
        case EnumType(name=name, symbols=symbols):
            return st.sampled_from([classes[name](symbol) for symbol in symbols])
        case ArrayType(items):
            return st.lists(values(items, classes), max_size=SIZE_MAX).map(tuple)
        case MapType(inner):
            return st.dictionaries(st.text(), values(inner, classes), max_size=SIZE_MAX)
        case OptionalType(inner):
            return st.none() | values(inner, classes)
        case RecordType(name=name, fields=fields):
            return _records(fields, classes, classes[name], {})


def _records(
    fields: Iterable[Field], classes: Classes, cls: type[Any], instead: Mapping[str, st.SearchStrategy[Any]]
) -> st.SearchStrategy[Any]:
    """Return a strategy for instances of `cls` with these fields.

    A field with a default may be left out, so that an example shrinks to the default.

    `instead`: strategies for some of the fields, by name.
    """
    required: dict[str, st.SearchStrategy[Any]] = dict(instead)
    optional: dict[str, st.SearchStrategy[Any]] = {}
    for field in fields:
        if field.name not in instead:
            (optional if field.default is not MISSING else required)[field.name] = values(field.type, classes)
    return st.fixed_dictionaries(required, optional=optional).map(lambda given: cls(**given))


def _scalars(kind: ScalarKind) -> st.SearchStrategy[Any]:
    match kind:
        case "int" | "long":
            return st.integers(*BOUNDS[kind])
        case "float":
            # Only numbers that a 32-bit float represents exactly are decoded to equal values.
            return st.floats(-FLOAT_MAX, FLOAT_MAX, width=32) | st.sampled_from([float("inf"), float("-inf")])
        case "double":
            return st.floats(allow_nan=False)
        case "uuid":  # hypothesis's own UUID strategy does not shrink
            return st.integers(0, 2**128 - 1).map(lambda number: UUID(int=number))
        case "timestamp-millis":
            return _moments(1000)
        case "timestamp-micros":
            return _moments(1)
        case _:
            return st.from_type(PYTHON_TYPES[kind])


def _moments(unit: int) -> st.SearchStrategy[datetime]:
    """Return a strategy for times in UTC, rounded down to a multiple of `unit` microseconds."""
    times = st.datetimes(timezones=st.just(UTC))
    return times.map(lambda when: when.replace(fold=0, microsecond=when.microsecond // unit * unit))


def _saga_ids(record: RecordType, key: str) -> st.SearchStrategy[Any]:
    field = record.field(key)
    assert field is not None  # a contract without such a field would not be loaded
    return st.text(min_size=1) if field.type == ScalarType("string") else values(field.type, {})


def _check_fixed(event: type[Event], binding: Binding, field: Field, given: object) -> object:
    """Check a fixed value of a field, and return it. Raises `SagaError` if the contract does not allow it."""
    try:
        to_raw(field.type, binding.classes)(given)
    except InvalidValue as why:
        raise SagaError(f"{event.__name__} cannot have this: {why.under(field.name)}") from None
    if field.name == binding.contract.key and given == "":
        raise SagaError(f"{event.__name__} cannot have this: {field.name}: is empty, but it is the saga id")
    return given


def _check_event(event: E) -> E:
    """Check an event against its contract, and return it. Raises `BadInput` if the contract does not allow it."""
    codec.encode(event)
    return event
