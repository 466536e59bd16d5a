"""Names under which classes are generated: `OrderPlaced` is the newest version of a contract, `OrderPlaced.v1` that
one, as the class `OrderPlacedV1`."""

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from difflib import get_close_matches

from saga.contracts import schema
from saga.contracts.contract import Version, called
from saga.contracts.library import Library

_NAMED = re.compile(r"(?P<name>.*)\.v(?P<number>[1-9][0-9]{0,8})", re.DOTALL)


def unknown(library: Library, name: str) -> str | None:
    """Reason that no class can be generated for a name; `None` if one can."""
    if name in library.contracts:
        return None
    named = _NAMED.fullmatch(name)
    contract = library.contracts.get(named["name"]) if named else None
    if named and contract is not None:
        last = len(contract.versions)
        if 1 <= int(named["number"]) <= last:
            return None
        there = "is version 1 alone" if last == 1 else f"are versions 1 to {last}"
        return f"{contract.name} has no version {named['number']} in {library.folder}; there {there}"
    close = get_close_matches(named["name"] if named else name, library.contracts, n=1)
    hint = f"; is it {close[0]}?" if close else ""
    return f"{name} is no contract in {library.folder}{hint}"


def versions_of(library: Library, names: Sequence[str]) -> list[Version]:
    """Versions that these names mean, of which each is known: see `unknown`. In one that is named by its number the
    types are called after that, but for parts that are the same in a newest version among them."""
    newest = [library.contracts[name].newest for name in names if name in library.contracts]
    known = [part for version in newest for part in types_in(version.record)]
    return [_version(library, name, known) for name in names]


def _version(library: Library, name: str, known: Sequence[schema.Type]) -> Version:
    if name in library.contracts:
        return library.contracts[name].newest
    named = _NAMED.fullmatch(name)
    assert named is not None
    version = library.contracts[named["name"]].versions[int(named["number"]) - 1]
    record = _numbered(version.record, version.number, lambda part: part in known)
    assert isinstance(record, schema.RecordType)
    if record.name == version.name:  # the same as the newest, which is the version itself
        record = replace(record, name=called(version.name, version.number))
    return replace(version, record=record)


def name_for(cls: str, path: ast.expr | None) -> str:
    """Name for which a class was generated: with the number if the class has it in its own."""
    text = path.value if isinstance(path, ast.Constant) and isinstance(path.value, str) else ""
    name = text.rpartition("/")[2]
    named = _NAMED.fullmatch(name)
    return name if named is not None and cls == called(named["name"], int(named["number"])) else cls


def types_in(type_: schema.Type) -> Iterator[schema.RecordType | schema.EnumType]:
    """Records and enums of a type, each after those it is made of; the type itself last."""
    match type_:
        case schema.ArrayType(inner) | schema.MapType(inner) | schema.OptionalType(inner):
            yield from types_in(inner)
        case schema.EnumType():
            yield type_
        case schema.RecordType(fields=fields):
            for field in fields:
                yield from types_in(field.type)
            yield type_
        case schema.ScalarType() | schema.DecimalType():
            return


def _numbered(type_: schema.Type, number: int, is_shared: Callable[[schema.Type], bool]) -> schema.Type:
    """Type with the number of its version in the names of its records and enums, but for those that are shared."""
    match type_:
        case schema.ArrayType(items):
            return schema.ArrayType(_numbered(items, number, is_shared))
        case schema.MapType(values):
            return schema.MapType(_numbered(values, number, is_shared))
        case schema.OptionalType(inner):
            return schema.OptionalType(_numbered(inner, number, is_shared))
        case schema.EnumType() if not is_shared(type_):
            return replace(type_, name=called(type_.name, number))
        case schema.RecordType(fields=fields) if not is_shared(type_):
            inside = tuple(replace(field, type=_numbered(field.type, number, is_shared)) for field in fields)
            return replace(type_, name=called(type_.name, number), fields=inside)
        case _:
            return type_
