"""Comparison of a class with a schema: classes of its nested types, and where the two have drifted apart."""

import dataclasses
import types
from collections.abc import Mapping
from decimal import Decimal
from enum import StrEnum
from typing import Any, Union, get_args, get_origin, get_type_hints

from saga.contracts import schema
from saga.contracts.contract import Version, called
from saga.contracts.convert import Classes, typed
from saga.contracts.scalars import PYTHON_TYPES


def classes_of(event: type[Any], version: Version) -> tuple[Classes, list[str]]:
    """Compare an event's class with its version: the classes of the record and of the types in it, and every
    difference; the classes are whole if there is none. Each class is called as its type, or with the version's number
    behind that."""
    record, comparison = version.record, _Comparison(version.number)
    comparison.record(record, event, "")
    return comparison.classes, comparison.differences


class _Comparison:
    """Walk along a class and a schema side by side."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.classes: dict[str, type[Any]] = {}
        self.differences: list[str] = []

    def differs(self, at: str, difference: str) -> None:
        self.differences.append(f"{at}: {difference}" if at else difference)

    def record(self, record: schema.RecordType, cls: Any, at: str) -> None:
        if not self.is_new(record.name, cls, at):
            return
        if not dataclasses.is_dataclass(cls):
            return self.differs(at, f"{cls!r} is no dataclass")
        fields = {field.name: field for field in dataclasses.fields(cls)}
        try:
            hints = get_type_hints(cls)
        except NameError as why:
            return self.differs(at, f"an annotation cannot be understood: {why}")
        wanted = [field.name for field in record.fields]
        for name in fields.keys() - set(wanted):
            self.differs(_join(at, name), "is not in the schema")
        for field in record.fields:
            if field.name not in fields:
                self.differs(_join(at, field.name), "is missing in the class")
                continue
            before = len(self.differences)
            self.type_(field.type, hints[field.name], _join(at, field.name))
            if len(self.differences) == before:
                self.default(field, fields[field.name], _join(at, field.name))
        if not self.differences and list(fields) != wanted:
            self.differs(at, f"its fields stand in another order: {', '.join(wanted)}")

    def type_(self, type_: schema.Type, hint: Any, at: str) -> None:
        origin, arguments = get_origin(hint), get_args(hint)
        match type_:
            case schema.ScalarType(kind) if hint is PYTHON_TYPES[kind]:
                return
            case schema.DecimalType() if hint is Decimal:
                return
            case schema.EnumType():
                return self.enum(type_, hint, at)
            case schema.ArrayType(items) if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
                return self.type_(items, arguments[0], f"{at}[]")
            case schema.MapType(values) if origin is Mapping and arguments[0] is str:
                return self.type_(values, arguments[1], f"{at}{{}}")
            case schema.OptionalType(inner) if origin in (Union, types.UnionType) and type(None) in arguments:
                rest = [argument for argument in arguments if argument is not type(None)]
                if len(rest) == 1:
                    return self.type_(inner, rest[0], at)
            case schema.RecordType() if isinstance(hint, type):
                return self.record(type_, hint, at)
            case _:
                pass
        self.differs(at, f"is {getattr(hint, '__name__', hint)} in the class, {schema.described(type_)} in the schema")

    def enum(self, type_: schema.EnumType, hint: Any, at: str) -> None:
        if not isinstance(hint, type) or not issubclass(hint, StrEnum):
            return self.differs(at, f"is {getattr(hint, '__name__', hint)}, not a StrEnum")
        if self.is_new(type_.name, hint, at) and tuple(hint) != type_.symbols:
            self.differs(at, f"the words of {type_.name} are {', '.join(type_.symbols)} in the schema")

    def default(self, field: schema.Field, found: "dataclasses.Field[Any]", at: str) -> None:
        given: Any = found.default
        if found.default_factory is not dataclasses.MISSING:
            given = found.default_factory()
        if field.default is schema.MISSING:
            if given is not dataclasses.MISSING:
                self.differs(at, "has a default in the class, none in the schema")
            return
        wanted = typed(field.type, field.default, self.classes)
        if given is dataclasses.MISSING or type(given) is not type(wanted) or given != wanted:
            self.differs(at, f"its default is {wanted!r} in the schema")

    def is_new(self, name: str, cls: Any, at: str) -> bool:
        """Return whether this type is met for the first time; everywhere else it must be the same class."""
        if getattr(cls, "__name__", None) not in (name, called(name, self.number)):
            self.differs(at, f"is {getattr(cls, '__name__', cls)}, not {name}")
            return False
        if name not in self.classes:
            self.classes[name] = cls
            return True
        if self.classes[name] is not cls:
            self.differs(at, f"is another class {name} than elsewhere in the event")
        return False


def _join(at: str, name: str) -> str:
    return f"{at}.{name}" if at else name
