"""JSON of an event as the bytes of its contract, without a class of anybody's: for what comes from outside."""

from dataclasses import field as dataclass_field
from dataclasses import make_dataclass
from enum import StrEnum
from functools import lru_cache
from io import BytesIO
from typing import Any

from fastavro import parse_schema, schemaless_writer

from saga.contracts import jsonform
from saga.contracts.bounds import check_json
from saga.contracts.codec import HEADER_SIZE, MARKER, Read, reader_between
from saga.contracts.contract import Contract, Version
from saga.contracts.convert import Classes, to_raw, typed
from saga.contracts.library import Library
from saga.contracts.scalars import Convert, NoSuchField, Wrong
from saga.contracts.schema import (
    MISSING,
    ArrayType,
    EnumType,
    Field,
    MapType,
    OptionalType,
    RecordType,
    Type,
    without_logical_types,
)
from saga.errors import BadInput

PROBLEMS_MAX = 5
"""Most problems of one event that are told."""


class MoreFields(BadInput):
    """JSON that would be an event of its version, had it not fields that a newer one may have."""


def from_json(data: bytes, version: Version) -> bytes:
    """Body of an event of this version, as Avro has it, from JSON as `saga publish` takes it. Raises `BadInput` with
    what is wrong, each with its path; as `MoreFields`, if that is only what the version does not know."""
    try:
        read, twice = jsonform.read_json(data)
    except RecursionError:
        raise BadInput(f"{version.name}: its JSON is nested too deeply") from None
    except ValueError as why:
        raise BadInput(f"{version.name}: it is to be JSON, and cannot be read as that: {why}") from None
    plain = _plain(version)
    problems = [f"the name {name!a} comes twice in one object" for name in twice[:1]]
    try:
        check_json(read)
    except Wrong as why:
        problems.append(str(why))
    if not problems:
        found = list(plain.problems_in(read))  # no more than there are values, which were counted
        problems = [str(each) for each in found[:PROBLEMS_MAX]]
        if found and all(isinstance(each, NoSuchField) for each in found):
            raise MoreFields(f"{version.name}: {'; '.join(problems)}")
    if problems:
        raise BadInput(f"{version.name}: {'; '.join(problems)}")
    out = BytesIO()
    schemaless_writer(out, plain.schema, plain.to_raw(plain.from_json(read)))
    return out.getvalue()


def id_in(value: bytes, contract: Contract, library: Library) -> str | None:
    """Id of an event in the field that its contract names; `None` if it cannot be read, or is empty. `value`: a single
    object, or JSON that is none yet."""
    assert contract.id_field is not None
    try:
        version = library.by_fingerprint.get(value[2:HEADER_SIZE]) if value.startswith(MARKER) else None
        found = _reader(version, contract.newest)(value) if version else jsonform.read_json(value)[0]
    except (BadInput, ValueError, RecursionError):
        return None
    id_ = found.get(contract.id_field) if isinstance(found, dict) else None
    return str(id_) or None if isinstance(id_, str | int) and not isinstance(id_, bool) else None


@lru_cache(maxsize=1024)  # there are not many versions
def _reader(version: Version, newest: Version) -> Read:
    return reader_between(parse_schema(without_logical_types(version.schema)), newest)


class _Plain:
    """Conversions of one version, by classes that nobody else knows."""

    def __init__(self, version: Version) -> None:
        classes: dict[str, type[Any]] = {}
        _classes(version.record, classes)
        self.schema: Any = parse_schema(without_logical_types(version.schema))
        self.problems_in = jsonform.problems_in(version.record, classes, foreign=True)
        self.from_json: Convert = jsonform.from_json(version.record, classes, foreign=True)
        self.to_raw: Convert = to_raw(version.record, classes)


@lru_cache(maxsize=1024)  # there are not many versions
def _plain(version: Version) -> _Plain:
    return _Plain(version)


def _classes(type_: Type, made: dict[str, type[Any]]) -> None:
    """Make a class for each record and enum in a type that has none yet, those of its parts first."""
    match type_:
        case RecordType(name=name, fields=fields) if name not in made:
            for each in fields:
                _classes(each.type, made)
            made[name] = make_dataclass(name, [_field(each, made) for each in fields], kw_only=True)
        case EnumType(name=name, symbols=symbols) if name not in made:
            members = [(f"SYMBOL_{n}", symbol) for n, symbol in enumerate(symbols)]
            made[name] = StrEnum(name, members)  # type: ignore[assignment]  # made of a schema, as dataclasses are
        case ArrayType(inner) | MapType(inner) | OptionalType(inner):
            _classes(inner, made)
        case _:
            pass


def _field(field: Field, made: Classes) -> tuple[str, Any, Any]:
    if field.default is MISSING:
        return field.name, Any, dataclass_field()
    return field.name, Any, dataclass_field(default_factory=lambda: typed(field.type, field.default, made))
