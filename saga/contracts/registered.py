"""Values in the wire format of a schema registry: a byte 0, the schema's id in four bytes, the Avro record. The record
is the same as in a single object, so only what stands before it is another.

What a registry says of an id comes with the record, as a `Writer`: nothing here asks anybody.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from typing import Any

from fastavro import parse_schema, schemaless_writer
from fastavro.schema import to_parsing_canonical_form

from saga.contracts.codec import HEADER_SIZE, MARKER, Read, reader_between
from saga.contracts.compat import reading
from saga.contracts.contract import Version
from saga.contracts.fingerprints import fingerprint_of
from saga.contracts.library import Library
from saga.contracts.reading import read_foreign, read_record
from saga.contracts.schema import PRIMITIVES, RecordType, meaning_changes, without_logical_types
from saga.errors import BadInput
from saga.messages import Headers, Record, Writer
from saga.support.printable import quoted

FRAME = b"\x00"
FRAME_SIZE = 5
LONG_FRAME_SIZE = 9
"""Size of what stands before a record that is written with an id of 8 bytes."""
TRIED_AGAIN = "have it tried again: saga dead replay"
_ELSEWHERE = {
    "__value_schema_id": "have its sender write it before the value (Confluent: PrefixSchemaIdSerializer)",
    **dict.fromkeys(
        ("apicurio.value.globalid", "apicurio.value.contentid"),
        "have its sender write it before the value (Apicurio: apicurio.registry.as-confluent set to true)",
    ),
}
"""Headers in which others write the id of a schema, in small letters, each with what to do."""
UNWRITTEN = "default-changed"
"""Rule of `saga.contracts.compat` for defaults that differ."""
SCHEMA_BYTES_MAX = 1 << 20
"""Longest schema that is taken from a registry."""
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
"""Attributes that Avro knows: all others in our files are promises of a contract, and no part of its schema."""


def id_in(value: bytes | None) -> int | None:
    """Id of the schema in a value; `None` if it is not in the wire format of a registry.

    >>> id_in(b"\\0\\0\\0\\1\\x02..."), id_in(b"\\xc3\\x01..."), id_in(b"\\0\\0")
    (258, None, None)
    """
    if value is None or value[:1] != FRAME or len(value) < FRAME_SIZE:
        return None
    return int.from_bytes(value[1:FRAME_SIZE], "big")


def id_of(record: Record) -> int | None:
    """Id of the schema of a record's value, where it stands before the value."""
    id_ = id_in(record.value)
    return None if id_ is None or elsewhere(record.headers) is not None else id_


def framed(id_: int, value: bytes) -> bytes:
    """A single object in the wire format of a registry."""
    return FRAME + id_.to_bytes(4, "big") + value[HEADER_SIZE:]


def published(schema: Any) -> Any:
    """Schema as it is registered: with logical types, defaults and docs, without what only we read in it."""
    if isinstance(schema, list):
        return [published(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {name: part for name, part in schema.items() if name in _AVROS}
    for name in ("type", "items", "values"):
        if name in kept:
            kept[name] = published(kept[name])
    if "fields" in kept:
        kept["fields"] = [published(field) for field in kept["fields"]]
    return kept


def published_text(version: Version) -> str:
    """Text of a version's schema as it is registered."""
    return json.dumps(published(version.schema), ensure_ascii=False)


def inline_references(schema: str, others: Iterable[str]) -> str:
    """A schema in which each type that is defined in another one stands where it is used first, as Avro wants it. What
    is no JSON, and what nobody defines, stays as it is: whoever reads it says so."""
    try:
        types = dict[str, Any]()
        for other in others:
            part = json.loads(other)
            types |= dict(_named(part))
        return json.dumps(_with(json.loads(schema), "", types, set()), ensure_ascii=False)
    except (ValueError, RecursionError):
        return schema


def _named(schema: Any) -> Iterator[tuple[str, Any]]:
    """Types that a schema defines by name at its top."""
    for each in schema if isinstance(schema, list) else [schema]:
        if isinstance(each, dict) and isinstance(each.get("name"), str):
            yield _full_name(each["name"], each.get("namespace")), each


def _full_name(name: str, namespace: Any) -> str:
    return f"{namespace}.{name}" if isinstance(namespace, str) and namespace and "." not in name else name


def _with(schema: Any, around: str, types: Mapping[str, Any], defined: set[str]) -> Any:
    """A schema with what it refers to. `around`: the namespace there. `defined`: grows by what is defined so far."""
    if isinstance(schema, list):
        return [_with(branch, around, types, defined) for branch in schema]
    if isinstance(schema, str):
        full = next((name for name in (_full_name(schema, around), schema) if name in types), None)
        if schema in PRIMITIVES or full is None or full in defined:
            return schema
        space, _, short = full.rpartition(".")
        return _with({**types[full], "name": short, "namespace": space}, space, types, defined)
    if not isinstance(schema, dict):
        return schema
    kept = dict(schema)
    if kept.get("type") in ("record", "enum", "fixed", "error") and isinstance(kept.get("name"), str):
        full = _full_name(kept["name"], kept.get("namespace", around))
        defined.add(full)
        around = full.rpartition(".")[0]
        if isinstance(kept.get("fields"), list):
            kept["fields"] = [_field_with(field, around, types, defined) for field in kept["fields"]]
        return kept
    for part in ("type", "items", "values"):
        if part in kept:
            kept[part] = _with(kept[part], around, types, defined)
    return kept


def _field_with(field: Any, around: str, types: Mapping[str, Any], defined: set[str]) -> Any:
    if not isinstance(field, dict) or "type" not in field:
        return field
    return {**field, "type": _with(field["type"], around, types, defined)}


def is_version(schema: str, fingerprint: bytes, version: Version | None) -> bool:
    """True if a registered schema has this fingerprint, and its bytes mean the same as those of `version`, if that is
    known."""
    try:
        known = _read(schema)
    except BadInput:
        return False
    if known.fingerprint != fingerprint or version is None:
        return known.fingerprint == fingerprint
    return not meaning_changes(version.record, known.record)


def name_in(value: bytes | None, writer: Writer | None, library: Library) -> str | None:
    """Record name of the contract that wrote a value; empty if it is none of the library's. `None`: it is in no wire
    format of a registry, or nobody knows its schema. Raises `BadInput` for a schema that is none."""
    if writer is None or not writer.schema or id_in(value) is None:
        return None
    full_name = _read(writer.schema).full_name
    contract = library.contracts.get(full_name.rpartition(".")[2])
    return contract.name if contract is not None and contract.full_name == full_name else ""


def full_name_of(writer: Writer) -> str:
    """Full name of the record of a schema, for people. Raises `BadInput` for a schema that is none."""
    return quoted(_read(writer.schema).full_name)


def writer_without_registry(id_: int) -> Writer:
    """Say of an id that there is no registry to be asked for its schema."""
    return Writer(
        id_,
        "",
        "",
        "the value is in the wire format of a schema registry, and none was asked: set SAGA_REGISTRY to that of its "
        "sender",
    )


def elsewhere(headers: Headers) -> str | None:
    """Reason that a value cannot be read of which the schema's id is in a header; `None` if it is in none."""
    name = next((name for name, _ in headers if name.lower() in _ELSEWHERE), None)
    if name is None:
        return None
    return f"the id of its schema is in its header {quoted(name)}, which is not read: {_ELSEWHERE[name.lower()]}"


def unreadable(value: bytes | None, writer: Writer | None, again: str = TRIED_AGAIN) -> str | None:
    """Reason that a value in the wire format of a registry cannot be read; `None` if it is in none, or can be. `again`:
    what to do once that is mended."""
    if value is None or value[:1] != FRAME or (id_ := id_in(value)) is None:
        return None
    writer = writer or writer_without_registry(id_)
    if writer.schema:
        return None
    if writer.lacks:
        return f"{writer.lacks}, then {again}"
    if id_ == 0 and len(value) >= LONG_FRAME_SIZE:
        return (
            "the value begins as one with an id of 8 bytes, as the serializers of Apicurio write it unless they are "
            "told otherwise, and only ids of 4 bytes are read: have its sender set apicurio.registry.as-confluent to "
            "true"
        )
    return (
        f"the value says schema id {id_}, and the registry at {writer.registry} has none of that id: have its "
        f"sender register the schema there, then {again}"
    )


def single_object(value: bytes, writer: Writer, type_: str, library: Library) -> bytes:
    """The value as a single object: of the version that it was written with, or, where it was written with a schema of
    somebody else's that can be read as the newest version, of that one. With a schema that cannot, it is one of an
    unknown version: of one that is to be deployed yet.

    Raises `BadInput`: no schema is known, it is one of another record, or its logical types mean something else.
    """
    id_ = writer.id
    if why := unreadable(value, writer):
        raise BadInput(why)
    known, contract = _read(writer.schema), library.contracts[type_]
    if known.full_name != contract.full_name:
        raise BadInput(f"the value is a {quoted(known.full_name)} by its schema (id {id_}), not a {contract.full_name}")
    body = value[FRAME_SIZE:]
    version = library.by_fingerprint.get(known.fingerprint)
    nearest = version or contract.newest
    # What a field without a value would be here or there is of no matter: in what was written each has one.
    found = [each for each in reading(known.record, nearest.record) if each.rule != UNWRITTEN]
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
    if any(each.upcasts for each in contract.versions):  # nobody can tell which meaning its sender has in mind
        return as_written
    read, schema = _resolution(writer.schema, contract.newest)
    out = BytesIO()
    schemaless_writer(out, schema, read(as_written))
    return MARKER + contract.newest.fingerprint + out.getvalue()


@dataclass(frozen=True, slots=True)
class _Known:
    """Schema of a registry, as it was understood."""

    full_name: str
    fingerprint: bytes
    record: RecordType
    """Record with its logical types."""
    is_possible: bool
    """True if contracts could have it."""
    schema: Any


@lru_cache(maxsize=1024)  # registries give the same text for the same id, and there are not many
def _read(schema: str) -> _Known:
    """Understand a schema. Raises `BadInput` for what is no record's."""
    try:
        given = json.loads(schema)
        parsed: Any = parse_schema(without_logical_types(given))
        if not isinstance(given, dict) or parsed.get("type") != "record":
            raise ValueError("it is no record")
        canonical = to_parsing_canonical_form(parsed)
        record = read_foreign(given)
    except Exception as why:  # noqa: BLE001 - anybody may have registered it, and fastavro raises what it likes
        raise BadInput(f"the schema that the registry has is none that can be used: {quoted(str(why))}") from None
    return _Known(parsed["name"], fingerprint_of(canonical), record, read_record(given)[0] is not None, parsed)


@lru_cache(maxsize=1024)
def _resolution(schema: str, version: Version) -> tuple[Read, Any]:
    """Reader of a foreign schema as one of our versions, and that version's schema to write it again."""
    return reader_between(_read(schema).schema, version, uncounted_bytes_max=0), parse_schema(
        without_logical_types(version.schema)
    )
