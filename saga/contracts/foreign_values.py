"""Read and write the formats of external senders: a schema registry's wire format and plain JSON.

The wire format is a byte 0, the schema's id in four bytes, and the Avro record. The record is the same as in a single
object; only the header before it differs. The consumer asks the registry for the schema of an id, and passes the answer
as a `Writer`. Nothing here calls the registry. Plain JSON is read as a version of its contract, with classes that are
made in memory.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, make_dataclass
from dataclasses import field as dataclass_field
from enum import StrEnum
from functools import lru_cache
from io import BytesIO
from typing import Any

from fastavro import parse_schema, schemaless_writer
from fastavro.schema import to_parsing_canonical_form

from saga.contracts import json_form
from saga.contracts.codec import HEADER_SIZE, MARKER, Read, check_json, make_reader
from saga.contracts.compatibility import compare_schemas
from saga.contracts.contract import Contract, Version, fingerprint_of
from saga.contracts.conversion import Classes, Convert, InvalidValue, NoSuchField, to_raw, to_typed
from saga.contracts.library import Library
from saga.contracts.schema import (
    MISSING,
    PRIMITIVES,
    ArrayType,
    EnumType,
    Field,
    MapType,
    OptionalType,
    RecordType,
    Type,
    is_text,
    meaning_changes,
    without_logical_types,
)
from saga.contracts.schema_parser import read_foreign, read_record
from saga.errors import BadInput
from saga.messages import Headers, Record, Writer
from saga.support.printable import quote_text

_NAMED = ("record", "enum", "fixed", "error")
_LOGICAL = ("logicalType", "precision", "scale")
FRAME = b"\x00"
FRAME_SIZE = 5
LONG_FRAME_SIZE = 9
"""Size in bytes of the header that some serializers write, with a schema id of 8 bytes."""
TRIED_AGAIN = "retry it: saga dead replay"
_ELSEWHERE = {
    "__value_schema_id": "have its sender write it before the value (Confluent: PrefixSchemaIdSerializer)",
    **dict.fromkeys(
        ("apicurio.value.globalid", "apicurio.value.contentid"),
        "have its sender write it before the value (Apicurio: apicurio.registry.as-confluent set to true)",
    ),
}
"""Headers in which some serializers write the schema id, in lower case. Each has a hint about what the sender should
change."""
UNWRITTEN = "default-changed"
"""Name of the rule of `saga.contracts.compatibility` for fields whose defaults differ."""
SCHEMA_BYTES_MAX = 1 << 20
"""Size in bytes of the largest schema that is accepted from a registry."""
_AVROS = (
    *(
        "type",
        "name",
        "namespace",
        "doc",
        "aliases",
        "fields",
        "items",
        "values",
        "symbols",
        "size",
        "default",
        "order",
    ),
    *("logicalType", "precision", "scale"),
)
"""Schema attributes that Avro defines. All other attributes in contract files are the contract's own, and are not
registered."""

PROBLEMS_MAX = 5
"""Largest number of problems of one event that an error lists."""


def schema_id_in(value: bytes | None) -> int | None:
    """Return the schema id in a value; `None` if the value is not in the wire format of a registry.

    >>> schema_id_in(b"\\0\\0\\0\\1\\x02..."), schema_id_in(b"\\xc3\\x01..."), schema_id_in(b"\\0\\0")
    (258, None, None)
    """
    if value is None or value[:1] != FRAME or len(value) < FRAME_SIZE:
        return None
    return int.from_bytes(value[1:FRAME_SIZE], "big")


def schema_id_of(record: Record) -> int | None:
    """Return the schema id in a record's value; `None` if there is none, or if a header contains the id instead."""
    id_ = schema_id_in(record.value)
    return None if id_ is None or why_id_elsewhere(record.headers) is not None else id_


def frame(id_: int, value: bytes) -> bytes:
    """Convert a single object to the wire format of a registry."""
    return FRAME + id_.to_bytes(4, "big") + value[HEADER_SIZE:]


def to_registered_schema(schema: Any) -> Any:
    """Return a schema in the form in which it is registered: with logical types, defaults and docs, but without the
    attributes of the contract."""
    if isinstance(schema, list):
        return [to_registered_schema(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    result = {name: part for name, part in schema.items() if name in _AVROS}
    for name in ("type", "items", "values"):
        if name in result:
            result[name] = to_registered_schema(result[name])
    if "fields" in result:
        result["fields"] = [to_registered_schema(field) for field in result["fields"]]
    return result


def registered_text(version: Version) -> str:
    """Return the schema text under which a version is registered."""
    return json.dumps(to_registered_schema(version.schema), ensure_ascii=False)


def inline_references(schema: str, others: Iterable[str]) -> str:
    """Return a schema in which references to types of other schemas are replaced with their definitions. Each
    definition is inserted where the type is used first, as Avro requires.

    Text that is not JSON, and names that no schema defines, stay as they are. Parsing will report them.

    Args:
        schema: text of the schema.
        others: JSON of the schemas that define the referenced types.
    """
    try:
        types = _collect_types([json.loads(other) for other in others])
        return json.dumps(_inline(json.loads(schema), "", types, {}), ensure_ascii=False)
    except (ValueError, RecursionError):
        return schema


def _collect_types(schemas: Iterable[Any]) -> dict[str, Any]:
    """Return the types that schemas define, by full name. The outermost ones come first. Inner types that are defined
    in several ways are left out, because it is unknown which of them is meant."""
    outer, inner, unclear = dict[str, Any](), dict[str, Any](), set[str]()
    for schema in schemas:
        for each in schema if isinstance(schema, list) else [schema]:
            for i, (full, type_) in enumerate(_named_types(each)):
                if not i:
                    outer[full] = type_
                elif _describe_values(inner.setdefault(full, type_), full) != _describe_values(type_, full):
                    unclear.add(full)
    return {full: type_ for full, type_ in inner.items() if full not in unclear} | outer


def _describe_values(schema: Mapping[str, Any], full: str) -> Any:
    """Return everything of a named type that determines how its values are written and what they mean, to compare two
    definitions. `full`: full name of the type."""
    around, fields = full.rpartition(".")[0], schema.get("fields")
    return (
        [schema.get(name) for name in ("type", "symbols", "size", *_LOGICAL)],
        [
            (field.get("name"), _describe_type(field.get("type"), around)) if isinstance(field, dict) else field
            for field in (fields if isinstance(fields, list) else ())
        ],
    )


def _describe_type(schema: Any, around: str) -> Any:
    """Return a type with the full names of the named types in it, and without their definitions."""
    if isinstance(schema, list):
        return [_describe_type(branch, around) for branch in schema]
    if isinstance(schema, str):
        return schema if schema in PRIMITIVES else _full_name(schema, around)
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") in _NAMED and isinstance(schema.get("name"), str):
        return _full_name(schema["name"], schema.get("namespace", around))
    parts = {part: _describe_type(schema[part], around) for part in ("type", "items", "values") if part in schema}
    parts |= {part: schema[part] for part in _LOGICAL if part in schema}
    return parts["type"] if parts.keys() == {"type"} else parts


def _named_types(schema: Any, around: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the named types that a schema defines, by full name, at any depth. `around` is the enclosing namespace."""
    if isinstance(schema, list):
        for each in schema:
            yield from _named_types(each, around)
    if not isinstance(schema, dict):
        return
    if schema.get("type") in _NAMED and isinstance(schema.get("name"), str):
        full = _full_name(schema["name"], schema.get("namespace", around))
        yield full, schema
        fields, around = schema.get("fields"), full.rpartition(".")[0]
        for field in fields if isinstance(fields, list) else ():
            yield from _named_types(field.get("type") if isinstance(field, dict) else None, around)
        return
    for part in ("type", "items", "values"):
        yield from _named_types(schema.get(part), around)


def _full_name(name: str, namespace: Any) -> str:
    return f"{namespace}.{name}" if isinstance(namespace, str) and namespace and "." not in name else name


def _inline(schema: Any, around: str, types: Mapping[str, Any], defined: dict[str, Any]) -> Any:
    """Return a schema with referenced types inlined.

    Args:
        schema: the JSON of a schema, or of a part of one.
        around: the enclosing namespace.
        types: definitions of the types that may be referred to, by full name.
        defined: the types defined so far, by full name; those in `schema` are added.
    """
    if isinstance(schema, list):
        return [_inline(branch, around, types, defined) for branch in schema]
    if isinstance(schema, str):
        full = next((name for name in (_full_name(schema, around), schema) if name in types), None)
        if schema in PRIMITIVES or full is None or full in defined:
            return schema
        space, _, short = full.rpartition(".")
        return _inline({**types[full], "name": short, "namespace": space}, space, types, defined)
    if not isinstance(schema, dict):
        return schema
    result = dict(schema)
    if result.get("type") in _NAMED and isinstance(result.get("name"), str):
        full = _full_name(result["name"], result.get("namespace", around))
        values = _describe_values(result, full)
        if defined.setdefault(full, values) is not values:  # another schema defines it, or its container comes later
            return full if defined[full] == values else result  # parsing reports that there are two definitions
        around = full.rpartition(".")[0]
        if isinstance(result.get("fields"), list):
            result["fields"] = [_inline_field(field, around, types, defined) for field in result["fields"]]
        return result
    for part in ("type", "items", "values"):
        if part in result:
            result[part] = _inline(result[part], around, types, defined)
    return result


def _inline_field(field: Any, around: str, types: Mapping[str, Any], defined: dict[str, Any]) -> Any:
    if not isinstance(field, dict) or "type" not in field:
        return field
    return {**field, "type": _inline(field["type"], around, types, defined)}


def is_version(schema: str, fingerprint: bytes, version: Version | None) -> bool:
    """Return whether a registered schema has this fingerprint and, unless `version` is `None`, means the same as
    `version`.

    The fingerprint alone is not enough, because it does not cover logical types.
    """
    try:
        known = _parse_foreign(schema)
    except BadInput:
        return False
    if known.fingerprint != fingerprint or version is None:
        return known.fingerprint == fingerprint
    return not meaning_changes(version.record, known.record)


def contract_name_in(value: bytes | None, writer: Writer | None, library: Library) -> str | None:
    """Return the name of the contract to which a value's schema belongs; empty if the contract is not in the library.

    Return `None` if the value is not in the wire format of a registry, or its schema is unknown. Raises `BadInput` for
    an invalid schema.
    """
    if writer is None or not writer.schema or schema_id_in(value) is None:
        return None
    full_name = _parse_foreign(writer.schema).full_name
    contract = library.contracts.get(full_name.rpartition(".")[2])
    return contract.name if contract is not None and contract.full_name == full_name else ""


def record_name_of(writer: Writer) -> str:
    """Return the full name of the record in a writer's schema, for use in messages. Raises `BadInput` for an invalid
    schema."""
    return quote_text(_parse_foreign(writer.schema).full_name)


def writer_without_registry(id_: int) -> Writer:
    """Return the `Writer` for a schema id that cannot be looked up, because no registry is configured."""
    return Writer(
        id_,
        "",
        "",
        "the value is in the wire format of a schema registry, and none was asked: set SAGA_REGISTRY to that of its "
        "sender",
    )


def why_id_elsewhere(headers: Headers) -> str | None:
    """Return the reason why a value cannot be read if one of its headers contains the schema id; `None` if no header
    does."""
    name = next((name for name, _ in headers if name.lower() in _ELSEWHERE), None)
    if name is None:
        return None
    return f"the id of its schema is in its header {quote_text(name)}, which is not read: {_ELSEWHERE[name.lower()]}"


def why_unreadable(value: bytes | None, writer: Writer | None, again: str = TRIED_AGAIN) -> str | None:
    """Return the reason why a value in the wire format of a registry cannot be read.

    Return `None` if the value can be read, or is not in that format.

    Args:
        value: the value.
        writer: what the registry knows about the value's schema id; `None` if no registry was asked.
        again: text that says what to do after the cause has been fixed.
    """
    if value is None or value[:1] != FRAME or (id_ := schema_id_in(value)) is None:
        return None
    writer = writer or writer_without_registry(id_)
    if writer.schema:
        return None
    if writer.lacks:
        return f"{writer.lacks}, then {again}"
    if id_ == 0 and len(value) >= LONG_FRAME_SIZE:
        return (
            "the value begins as one with an id of 8 bytes, which is the default of the serializers of Apicurio, and "
            "only ids of 4 bytes are read: have its sender set apicurio.registry.as-confluent to true"
        )
    return (
        f"the value says schema id {id_}, and the registry at {writer.registry} has none of that id: have its "
        f"sender register the schema there, then {again}"
    )


def to_single_object(value: bytes, writer: Writer, type_: str, library: Library) -> bytes:
    """Convert a value from the schema registry's wire format to Avro single-object encoding.

    The result depends on the schema:

    - The schema is that of a known version: the value keeps that version.
    - The schema is foreign, can be read as the newest version, and no version of the contract has upcasters: the
      value is converted to the newest version.
    - Otherwise the value keeps the fingerprint of its schema, which is unknown here. The schema may belong to a version
      that is not deployed here yet.

    Raises `BadInput` if the schema is unknown or belongs to another record; if the value would be misread because
    logical types differ; or if the schema is incompatible and uses features that a contract can never have.
    """
    id_ = writer.id
    if why := why_unreadable(value, writer):
        raise BadInput(why)
    known, contract = _parse_foreign(writer.schema), library.contracts[type_]
    if known.full_name != contract.full_name:
        raise BadInput(
            f"the value is a {quote_text(known.full_name)} by its schema (id {id_}), not a {contract.full_name}"
        )
    body = value[FRAME_SIZE:]
    version = library.by_fingerprint.get(known.fingerprint)
    nearest = version or contract.newest
    # Differing defaults do not matter, because a written record has a value for every field.
    found = [each for each in compare_schemas(known.record, nearest.record) if each.rule != UNWRITTEN]
    if misread := [f"{each.path} {each.says}" for each in found if each.effect == "misread"]:
        raise BadInput(
            f"the schema with id {id_} is not that of {nearest.path}, and would be misread: {'; '.join(misread)}"
        )
    if version is None and not known.is_possible and (breaks := [f"{e.path} {e.says}" for e in found if e.breaks]):
        raise BadInput(
            f"the schema with id {id_} cannot be read as {nearest.path}: {'; '.join(breaks)}; it can be no version of "
            "ours either, for contracts cannot have all that is in it"
        )
    as_written = MARKER + known.fingerprint + body
    if version is not None or any(each.breaks for each in found):
        return as_written
    if any(each.upcasts for each in contract.versions):  # unknown which version the sender means
        return as_written
    read, schema = _resolve(writer.schema, contract.newest)
    out = BytesIO()
    schemaless_writer(out, schema, read(as_written))
    return MARKER + contract.newest.fingerprint + out.getvalue()


@dataclass(frozen=True, slots=True)
class _ForeignSchema:
    """A parsed schema from a registry."""

    full_name: str
    fingerprint: bytes
    record: RecordType
    """The record, with its logical types."""
    is_possible: bool
    """True if the schema has only features that a contract may have, so that it could be one of its versions."""
    schema: Any


@lru_cache(maxsize=1024)  # registries give the same text for the same id, and there are not many
def _parse_foreign(schema: str) -> _ForeignSchema:
    """Parse a schema from a registry. Raises `BadInput` if it is invalid, or not the schema of a record."""
    try:
        given = json.loads(schema)
        parsed: Any = parse_schema(without_logical_types(given))
        if not isinstance(given, dict) or parsed.get("type") != "record":
            raise ValueError("it is no record")
        canonical = to_parsing_canonical_form(parsed)
        record = read_foreign(given)
    except Exception as why:  # noqa: BLE001 - anybody may have registered it, and fastavro may raise anything
        raise BadInput(f"the schema that the registry has is none that can be used: {quote_text(str(why))}") from None
    return _ForeignSchema(parsed["name"], fingerprint_of(canonical), record, read_record(given)[0] is not None, parsed)


@lru_cache(maxsize=1024)
def _resolve(schema: str, version: Version) -> tuple[Read, Any]:
    """Return a function that reads values of a foreign schema as values of a version, and that version's parsed schema
    for writing."""
    return make_reader(_parse_foreign(schema).schema, version, uncounted_bytes_max=0), parse_schema(
        without_logical_types(version.schema)
    )


# -------------------------------------------------------------------- plain JSON


class MoreFields(BadInput):
    """Error for JSON whose only problem is unknown fields. Perhaps a newer version of the contract has them."""


def from_foreign_json(data: bytes, version: Version) -> bytes:
    """Convert JSON of an external sender to the Avro record of this version, without a header.

    Raises `BadInput` with the problems, each with its path, or `MoreFields` if unknown fields are the only problem.
    """
    try:
        read, twice = json_form.read_json(data)
    except RecursionError:
        raise BadInput(f"{version.name}: its JSON is nested too deeply") from None
    except ValueError as why:
        raise BadInput(f"{version.name}: it is to be JSON, and cannot be read as that: {why}") from None
    plain = _plain_codec(version)
    problems = [f"the name {name!a} comes twice in one object" for name in twice[:1]]
    try:
        check_json(read)
    except InvalidValue as why:
        problems.append(str(why))
    if not problems:
        found = list(plain.problems_in(read))  # bounded, because `check_json` has limited the number of values
        problems = [str(each) for each in found[:PROBLEMS_MAX]]
        if found and all(isinstance(each, NoSuchField) for each in found):
            raise MoreFields(f"{version.name}: {'; '.join(problems)}")
    if problems:
        raise BadInput(f"{version.name}: {'; '.join(problems)}")
    out = BytesIO()
    schemaless_writer(out, plain.schema, plain.to_raw(plain.from_json(read)))
    return out.getvalue()


def read_declared_id(value: bytes, contract: Contract, library: Library) -> str | None:
    """Return the message id from the field that the contract declares for it; `None` if the field cannot be read, is
    empty, or has its default.

    Messages that were written without the field are read with its default. It must not make them one message.

    Args:
        value: the message, as a single object or as JSON.
        contract: a contract that has an `id_field`.
        library: the library in which the version of a single object is looked up.
    """
    assert contract.id_field is not None
    try:
        version = library.by_fingerprint.get(value[2:HEADER_SIZE]) if value.startswith(MARKER) else None
        found = _make_plain_reader(version, contract.newest)(value) if version else json_form.read_json(value)[0]
    except (BadInput, ValueError, RecursionError):
        return None
    id_ = found.get(contract.id_field) if isinstance(found, dict) else None
    field = contract.newest.record.field(contract.id_field)
    if not isinstance(id_, str | int) or isinstance(id_, bool) or (field is not None and id_ == field.default):
        return None
    return str(id_) or None if is_text(str(id_)) else None


@lru_cache(maxsize=1024)  # there are not many versions
def _make_plain_reader(version: Version, newest: Version) -> Read:
    return make_reader(parse_schema(without_logical_types(version.schema)), newest)


class _PlainCodec:
    """Conversions between plain JSON and Avro for one version, with classes made in memory."""

    def __init__(self, version: Version) -> None:
        classes: dict[str, type[Any]] = {}
        _make_classes(version.record, classes)
        self.schema: Any = parse_schema(without_logical_types(version.schema))
        self.problems_in = json_form.make_problem_finder(version.record, classes, foreign=True)
        self.from_json: Convert = json_form.from_json(version.record, classes, foreign=True)
        self.to_raw: Convert = to_raw(version.record, classes)


@lru_cache(maxsize=1024)  # there are not many versions
def _plain_codec(version: Version) -> _PlainCodec:
    return _PlainCodec(version)


def _make_classes(type_: Type, made: dict[str, type[Any]]) -> None:
    """Make a class for each record and enum in a type that is not in `made` yet, and add it there; nested types
    first."""
    match type_:
        case RecordType(name=name, fields=fields) if name not in made:
            for each in fields:
                _make_classes(each.type, made)
            made[name] = make_dataclass(name, [_make_field(each, made) for each in fields], kw_only=True)
        case EnumType(name=name, symbols=symbols) if name not in made:
            members = [(f"SYMBOL_{n}", symbol) for n, symbol in enumerate(symbols)]
            made[name] = StrEnum(name, members)  # type: ignore[assignment]  # made of a schema, as dataclasses are
        case ArrayType(inner) | MapType(inner) | OptionalType(inner):
            _make_classes(inner, made)
        case _:
            pass


def _make_field(field: Field, made: Classes) -> tuple[str, Any, Any]:
    if field.default is MISSING:
        return field.name, Any, dataclass_field()
    return field.name, Any, dataclass_field(default_factory=lambda: to_typed(field.type, field.default, made))
