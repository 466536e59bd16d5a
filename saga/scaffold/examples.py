"""Source of generated tests and services: examples of events, and lines that the formatter would leave as they are."""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from saga.contracts.codegen import LINE_LENGTH
from saga.contracts.contract import Contract
from saga.contracts.schema import (
    MISSING,
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

HOMES: Final = {"date": "datetime", "datetime": "datetime", "Decimal": "decimal", "UUID": "uuid"}
"""Modules of the names from elsewhere that examples call."""
_SCALARS: Final[Mapping[ScalarKind, str]] = {
    "string": '"one"',
    "boolean": "True",
    "int": "1",
    "long": "1",
    "float": "1.0",
    "double": "1.0",
    "bytes": 'b"one"',
    "uuid": "UUID(int=1)",
    "date": "date(2026, 1, 1)",
    "timestamp-millis": "datetime(2026, 1, 1, tzinfo=UTC)",
    "timestamp-micros": "datetime(2026, 1, 1, tzinfo=UTC)",
}


def example_of(contract: Contract, before: str) -> tuple[str, set[str]]:
    """Call that makes an event of a contract, with values for all fields without a default, and the names that it
    calls. `before`: what stands before it in its line."""
    called: set[str] = set()
    return made(before, contract.name, _arguments(contract.newest.record, called), ""), {contract.name, *called}


def _arguments(record: RecordType, called: set[str]) -> list[str]:
    return [f"{field.name}={_value(field.type, called)}" for field in record.fields if field.default is MISSING]


def _value(type_: Type, called: set[str]) -> str:
    match type_:
        case ScalarType(kind):
            text = _SCALARS[kind]
            called.update({text.partition("(")[0]} & HOMES.keys())
            return text
        case DecimalType():
            called.add("Decimal")
            return 'Decimal("1")'
        case EnumType(name=name, symbols=symbols):
            called.add(name)
            return f'{name}("{symbols[0]}")'
        case ArrayType():
            return "()"
        case MapType():
            return "{}"
        case OptionalType():
            return "None"
        case RecordType(name=name):
            called.add(name)
            return f"{name}({', '.join(_arguments(type_, called))})"


def imports_of(called: Collection[str]) -> str:
    """Imports of names from elsewhere that are called, a line for each module.

    >>> imports_of({"date", "datetime", "Order"})
    'from datetime import UTC, date, datetime\\n'
    """
    found: dict[str, list[str]] = {}
    for name, home in HOMES.items():
        if name in called:
            found.setdefault(home, []).extend(["UTC", name] if name == "datetime" else [name])
    return "".join(f"from {home} import {', '.join(sorted(names))}\n" for home, names in found.items())


def imported(module: str, names: Sequence[str]) -> str:
    """Import of names, in lines if it is long.

    >>> imported("a.events", ["B", "A"])
    'from a.events import A, B'
    """
    line = f"from {module} import {', '.join(sorted(names))}"
    if len(line) <= LINE_LENGTH:
        return line
    return "\n".join([f"from {module} import (", *(f"    {name}," for name in sorted(names)), ")"])


def made(before: str, name: str, arguments: Sequence[str], after: str) -> str:
    """Call, or the head of a function, in lines if it is long. `before`, `after`: what stands in its line.

    >>> made("x = ", "A", ["b=1", "c=2"], "")
    'A(b=1, c=2)'
    """
    whole = ", ".join(arguments)
    if len(f"{before}{name}({whole}){after}") <= LINE_LENGTH:
        return f"{name}({whole}){after}"
    if len(whole) + 4 <= LINE_LENGTH:
        return f"{name}(\n    {whole}\n){after}"
    return "\n".join([f"{name}(", *(f"    {argument}," for argument in arguments), f"){after}"])
