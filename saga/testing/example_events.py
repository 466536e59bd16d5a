"""Events that bring each handler of a service to run: those that are given, and simple examples of all others, in each
version that an upcaster reads."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final, NamedTuple
from uuid import UUID

from saga.contracts.conversion import Classes
from saga.contracts.library import binding_of, contract_of
from saga.contracts.schema import (
    ArrayType,
    DecimalType,
    EnumType,
    MapType,
    OptionalType,
    RecordType,
    ScalarKind,
    ScalarType,
    Type,
)
from saga.contracts.upcasters import upcaster_of
from saga.declarations.values import Declared, Parameter, Reaction
from saga.engine.prepared_service import consumed_by
from saga.errors import SagaError
from saga.messages import Event, name_of

_NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
_SIMPLE: Final[Mapping[ScalarKind, object]] = {
    "boolean": True,
    "int": 1,
    "long": 1,
    "float": 1.0,
    "double": 1.0,
    "bytes": b"1",
    "uuid": UUID(int=1),
    "date": date(2026, 1, 1),
    "timestamp-millis": _NEW_YEAR,
    "timestamp-micros": _NEW_YEAR,
}


class Script(NamedTuple):
    """Events that have to arrive, in this order, for a handler to run."""

    handler: Reaction
    events: tuple[Event, ...]


def scripts_of(declared: Declared, given: Sequence[Event]) -> list[Script]:
    """Scripts for each handler and compensation, so that each event that it may take comes in one.

    Events that the service says itself are in no script: in their place are those that make it say so. A script is
    empty if the handler waits for what nobody else here would say. Raises `SagaError` for given events that are of two
    sagas, or that do not arrive here.
    """
    planner = _Planner(declared, given)
    handlers = declared.reactions
    return [Script(handler, events) for handler in handlers for events in planner.handler(handler, frozenset()) or [()]]


def example(event: type[Event], saga: str) -> Event:
    """A simple event of this class: every number is 1, every text is called after its field, nothing is left out."""
    binding = binding_of(event)
    record, classes = binding.version.record, binding.classes
    fields = {field.name: _simple(field.type, field.name, classes) for field in record.fields}
    key = binding.contract.key
    fields[key] = UUID(saga) if isinstance(fields[key], UUID) else saga
    return event(**fields)


def _simple(type_: Type, name: str, classes: Classes) -> Any:
    match type_:
        case ScalarType("string"):
            return f"{name.removesuffix('_id')}-1"
        case ScalarType(kind):
            return _SIMPLE[kind]
        case DecimalType(precision, scale):
            return Decimal((0, (1, *[0] * scale) if scale < precision else (1,), -scale))
        case EnumType(symbols=symbols):
            return classes[type_.name](symbols[0])
        case ArrayType(items):
            return (_simple(items, name, classes),)
        case MapType(values):
            return {f"{name}-1": _simple(values, name, classes)}
        case OptionalType(inner):
            return _simple(inner, name, classes)
        case RecordType():
            return classes[type_.name](**{f.name: _simple(f.type, f.name, classes) for f in type_.fields})


class _Planner:
    """Search for scripts. Each list that it gives holds alternatives."""

    def __init__(self, declared: Declared, given: Sequence[Event]) -> None:
        self._handlers = declared.reactions
        named = {e for h in self._handlers for e in (*h.emits, *h.takes)}
        contracts = self._contracts = {name_of(event): contract_of(event) for event in named}
        self._consumed = consumed_by(declared, contracts)
        self._given: dict[str, list[Event]] = {}
        for event in given:
            if name_of(type(event)) not in self._consumed:
                raise SagaError(
                    f"a {type(event).__name__} never arrives at {declared.name!r}: give what its handlers take, and "
                    "for an event of its own what makes it say so"
                )
            self._given.setdefault(name_of(type(event)), []).append(event)
        sagas = {str(getattr(event, contracts[name].key)) for name, same in self._given.items() for event in same}
        if len(sagas) > 1:
            raise SagaError(f"the events that are given are of several sagas, {sorted(sagas)}: give those of one")
        self._saga = next(iter(sagas), str(UUID(int=1)))

    def handler(self, handler: Reaction, above: frozenset[str]) -> list[tuple[Event, ...]]:
        """Scripts after which the handler runs; none if it waits for an event that only itself would say. `above`:
        handlers for whose sake scripts are looked for."""
        if handler.name in above:
            return []
        above |= {handler.name}
        needed = [p for p in handler.parameters if self._is_needed(handler, p)]
        needed.sort(key=lambda p: all(name_of(e) in self._consumed for e in p.events))  # own events come first
        needs = [self._parameter(p, above) for p in needed]
        if handler.undoes is not None:
            original = next(h for h in self._handlers if h.name == handler.undoes)
            needs.insert(0, self.handler(original, above))
        if not all(needs):
            return []
        return [_joined(need[n % len(need)] for need in needs) for n in range(max(map(len, needs)))]

    def _is_needed(self, handler: Reaction, parameter: Parameter) -> bool:
        """True if it has to arrive: an event, and for a compensation not the result, which the original brings."""
        if parameter.role != "event":
            return False
        return handler.undoes is None or all(self._contracts[name_of(e)].outcome for e in parameter.events)

    def _parameter(self, parameter: Parameter, above: frozenset[str]) -> list[tuple[Event, ...]]:
        return [script for event in parameter.events for script in self._event(event, above)]

    def _event(self, event: type[Event], above: frozenset[str]) -> list[tuple[Event, ...]]:
        name = name_of(event)
        if name in self._consumed:
            return [(one,) for one in self._given.get(name, ()) or self._examples(event)]
        sayers = [h for h in self._handlers if any(name_of(e) == name for e in h.emits)]
        return [script for sayer in sayers for script in self.handler(sayer, above)]

    def _examples(self, event: type[Event]) -> list[Event]:
        """An example of an event, and of each older version that an upcaster reads."""
        older = [upcaster_of(event, number) for number in sorted(binding_of(event).version.upcasts)]
        return [example(each, self._saga) for each in (event, *(one.takes for one in older if one is not None))]


def _joined(scripts: Iterable[tuple[Event, ...]]) -> tuple[Event, ...]:
    """These scripts one after another, with the first event of each kind."""
    first: dict[str, Event] = {}
    for script in scripts:
        for event in script:
            first.setdefault(name_of(type(event)), event)
    return tuple(first.values())
