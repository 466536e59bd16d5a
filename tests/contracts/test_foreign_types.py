"""Foreign schemas that contracts cannot have: their meaning is not guessed, and what is not read of them is
of no matter."""

import json
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from fastavro import parse_schema, schemaless_writer

from saga.contracts.compatibility import compare_schemas
from saga.contracts.foreign_values import frame, from_foreign_json, to_single_object
from saga.contracts.library import Library
from saga.contracts.schema import without_logical_types
from saga.contracts.schema_parser import read_foreign
from saga.errors import BadInput
from saga.messages import Outgoing, Writer
from saga.registry.edge import RegistryCache
from saga.support.clock import SystemClock
from tests.contracts.folders import decimal, field, schema, write
from tests.registry.fake_registry import FakeRegistry

OURS: dict[str, Any] = {
    "boolean": "boolean",
    "int": "int",
    "long": "long",
    "float": "float",
    "double": "double",
    "string": "string",
    "bytes": "bytes",
    "decimal": decimal(),
    "uuid": {"type": "string", "logicalType": "uuid"},
    "date": {"type": "int", "logicalType": "date"},
    "timestamp-millis": {"type": "long", "logicalType": "timestamp-millis"},
    "timestamp-micros": {"type": "long", "logicalType": "timestamp-micros"},
}
FOREIGN = (
    *("timestamp-nanos", "local-timestamp-millis", "local-timestamp-micros", "local-timestamp-nanos"),
    *("time-millis", "time-micros", "big-decimal", "decimal", "duration", "uuid", "date", "x-of-nobody", 7, ["a"]),
)
"""Logical types on whatever they stand on here: those that contracts do not have, or not on that."""
VALUES: dict[str, Any] = {
    "boolean": True,
    "int": 20_000,
    "long": 1_700_000_000_000_000,
    "float": 0.5,
    "double": 0.5,
    "string": "2f1a5f0e-6c3b-4f52-9b6e-0c1d2e3f4a5b",
    "bytes": b"\x0a\x47\x0e",
}
PLACES: dict[str, Callable[[Any], Any]] = {
    "a field": lambda type_: type_,
    "an optional field": lambda type_: ["null", type_],
    "a list": lambda type_: {"type": "array", "items": type_},
    "a map": lambda type_: {"type": "map", "values": type_},
    "a record": lambda type_: {"type": "record", "name": "Part", "fields": [{"name": "part", "type": type_}]},
}
INSIDE: dict[str, Callable[[Any], Any]] = {
    "a field": lambda value: value,
    "an optional field": lambda value: value,
    "a list": lambda value: [value],
    "a map": lambda value: {"k": value},
    "a record": lambda value: {"part": value},
}


def library(folder: Path, *fields: dict[str, Any], **more: Any) -> Library:
    return Library.load(write(folder, schema("Said", *fields, **more)))


def written(theirs: dict[str, Any], **values: Any) -> tuple[bytes, Writer]:
    """A value in the wire format of a registry, and what the registry has for it."""
    out = BytesIO()
    schemaless_writer(out, parse_schema(without_logical_types(theirs)), {"order_id": "o-1", **values})
    return b"\0\0\0\0\7" + out.getvalue(), Writer(7, json.dumps(theirs), "http://registry")


def theirs_with(type_: Any, *more: dict[str, Any], name: str = "it") -> dict[str, Any]:
    fields = [{"name": "order_id", "type": "string"}, {"name": name, "type": type_}, *more]
    return {"type": "record", "name": "Said", "fields": fields}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("ours", OURS)
def test_a_logical_type_that_contracts_do_not_have_is_never_taken_for_ours(
    tmp_path: Path, ours: str, place: str
) -> None:
    known = library(tmp_path, field("it", PLACES[place](OURS[ours])))
    base = OURS[ours] if isinstance(OURS[ours], str) else OURS[ours]["type"]
    for logical in FOREIGN:
        other = {"type": base, "logicalType": logical}
        for extra in ((), ({"name": "more", "type": "string"},)):  # our version by its fingerprint, and another one
            theirs = theirs_with(PLACES[place](other), *extra)
            more = {"more": "x"} if extra else {}
            value, writer = written(theirs, it=INSIDE[place](VALUES[base]), **more)
            meant = other == OURS[ours] or (ours, base) == ("string", "string")  # text is text
            if meant:
                assert (
                    to_single_object(value, writer, "Said", known)[2:10] == known.contracts["Said"].newest.fingerprint
                )
                continue
            with pytest.raises(BadInput, match="would be misread: it") as raised:
                to_single_object(value, writer, "Said", known)
            assert type(raised.value) is BadInput, "it does not wait for what can never be in contracts/"


@pytest.mark.parametrize(
    ("theirs", "written_form"),
    [
        ({"type": "fixed", "name": "F", "size": 8}, "fixed of 8 bytes"),
        (
            {"type": "fixed", "name": "F", "size": 8, "logicalType": "decimal", "precision": 12, "scale": 2},
            "fixed of 8 bytes with the logical type 'decimal'",
        ),
        (["null", "string", "long"], "one of 'null' or 'string' or 'long'"),
        (["string", "long"], "one of 'string' or 'long'"),
        ({"type": "bytes", "logicalType": "decimal"}, "bytes with the logical type 'decimal'"),
        (
            {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]},
            "record Node",
        ),
    ],
)
def test_what_is_read_and_cannot_be_held_is_refused_and_named(tmp_path: Path, theirs: Any, written_form: str) -> None:
    known = library(tmp_path, field("it", decimal()))
    value = b"\0\0\0\0\7\x06o-1\0"
    with pytest.raises(BadInput) as raised:
        to_single_object(value, Writer(7, json.dumps(theirs_with(theirs)), "http://registry"), "Said", known)
    assert f"it is written as {written_form}" in str(raised.value)
    assert "as decimal(12,2)" in str(raised.value)
    assert type(raised.value) is BadInput


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        ({"type": "fixed", "name": "F", "size": 3}, b"abc"),
        (["null", {"type": "fixed", "name": "F", "size": 3}], b"abc"),
        (["null", "string", "long"], 3),
        ("null", None),
        ({"type": "array", "items": "null"}, [None, None]),
        ({"type": "int", "logicalType": "time-millis"}, 3),
        ({"type": "fixed", "name": "D", "size": 12, "logicalType": "duration"}, b"x" * 12),
        ({"type": "record", "name": "Empty", "fields": []}, {}),
        (
            {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]},
            {"next": {"next": None}},
        ),
        ({"type": "record", "name": "a.Said", "fields": [{"name": "class", "type": "int"}]}, {"class": 1}),
    ],
)
def test_what_is_not_read_is_of_no_matter(tmp_path: Path, type_: Any, value: Any) -> None:
    known = library(tmp_path, field("text", "string"))
    theirs = theirs_with(type_, {"name": "text", "type": "string"}, name="more")
    body, writer = written(theirs, more=value, text="x")
    newest = known.contracts["Said"].newest
    assert to_single_object(body, writer, "Said", known) == b"\xc3\x01" + newest.fingerprint + b"\x06o-1\x02x"


def test_a_logical_type_that_is_null_is_none(tmp_path: Path) -> None:
    value, writer = written(theirs_with({"type": "int", "logicalType": None}), it=3)
    assert to_single_object(value, writer, "Said", library(tmp_path, field("it", "int")))[10:] == b"\x06o-1\x06"


def test_a_type_that_is_defined_where_it_is_not_read_is_known_where_it_is(tmp_path: Path) -> None:
    part = {"type": "record", "name": "Part", "fields": [{"name": "cents", "type": "long"}]}
    known = library(tmp_path, field("part", part))
    theirs = theirs_with(["null", "string", part], {"name": "part", "type": "Part"}, name="more")
    body, writer = written(theirs, more="x", part={"cents": 980})
    assert to_single_object(body, writer, "Said", known)[10:] == b"\x06o-1" + b"\xa8\x0f"


@pytest.mark.parametrize(
    ("theirs", "bytes_", "reason"),
    [
        ({"type": "array", "items": "null"}, b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01\0", "at most 100000 values"),
        (
            {"type": "array", "items": {"type": "record", "name": "Empty", "fields": []}},
            b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01\0",
            "at most 100000 values",
        ),
        (
            {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]},
            b"\2" * 50_000 + b"\0",
            "nested too deeply",
        ),
    ],
)
def test_a_few_bytes_of_a_foreign_schema_do_not_keep_a_reader_busy(
    tmp_path: Path, theirs: Any, bytes_: bytes, reason: str
) -> None:
    known = library(tmp_path)
    writer = Writer(7, json.dumps(theirs_with(theirs, name="more")), "http://registry")
    with pytest.raises(BadInput, match=reason):
        to_single_object(b"\0\0\0\0\7\x06o-1" + bytes_, writer, "Said", known)


@pytest.mark.parametrize("name", ["io.debezium.time.Timestamp", "io.debezium.time.MicroTimestamp", "of.Nobody"])
def test_a_time_of_debezium_is_no_time_of_ours_and_the_reason_names_it(tmp_path: Path, name: str) -> None:
    theirs = theirs_with({"type": "long", "connect.version": 1, "connect.name": name})
    value, writer = written(theirs, it=1)
    known = library(tmp_path, field("it", OURS["timestamp-micros"]))
    with pytest.raises(BadInput, match=rf"it is written as long \('{name}'\) and read as timestamp-micros"):
        to_single_object(value, writer, "Said", known)
    known = library(tmp_path, field("it", "long"))
    assert to_single_object(value, writer, "Said", known)[10:] == b"\x06o-1\2", "a long that says what it is"


async def test_nothing_is_published_under_a_schema_that_means_something_else(tmp_path: Path) -> None:
    (tmp_path / "contracts/orders").mkdir(parents=True)
    (tmp_path / "contracts/orders/topic.json").write_text('{"wire": "registry"}')
    known = library(tmp_path, field("it", OURS["timestamp-millis"]))
    contract = known.contracts["Said"]
    registry = FakeRegistry()
    registry.put(contract.subject, theirs_with({"type": "long", "logicalType": "timestamp-nanos"}))
    ids = RegistryCache(registry, SystemClock())
    assert await ids.id_of(contract, contract.newest) is None
    value = b"\xc3\x01" + contract.newest.fingerprint + b"\x06o-1\2"
    message = Outgoing("orders", b"o-1", value, (), contract.subject)
    with pytest.raises(Exception, match="does not have the schema with the fingerprint"):
        await ids.to_wire_format(message)
    right = registry.put(contract.subject, contract.newest.schema)
    assert (await ids.to_wire_format(message)).value == frame(right, value)


@pytest.mark.parametrize(
    ("namespace", "aliases", "was", "fits"),
    [
        ("com.shop", ["Old"], "com.shop.Old", True),
        ("com.shop", ["com.shop.Old"], "com.shop.Old", True),
        ("com.shop", ["com.else.Old"], "com.else.Old", True),
        ("com.shop", ["Old"], "com.else.Old", False),
        ("com.shop", ["com.else.Old"], "com.shop.Old", False),
        ("", ["Old"], "Old", True),
    ],
)
def test_an_alias_of_a_type_is_its_full_name(
    tmp_path: Path, namespace: str, aliases: list[str], was: str, fits: bool
) -> None:
    part = {"type": "record", "name": "New", "namespace": namespace, "aliases": aliases, "fields": [field("a", "int")]}
    known = library(tmp_path, field("part", part))
    theirs = theirs_with({**part, "name": was, "aliases": []}, {"name": "more", "type": "int"}, name="part")
    value, writer = written(theirs, part={"a": 1}, more=2)
    read = to_single_object(value, writer, "Said", known)
    assert (read[2:10] == known.contracts["Said"].newest.fingerprint) is fits
    if fits:
        assert read[10:] == b"\x06o-1\x02"
    findings = compare_schemas(read_foreign(theirs), known.contracts["Said"].newest.record)
    assert [each.rule for each in findings] == ([] if fits else ["type-name"])


def test_a_field_that_its_sender_calls_otherwise_by_now_is_not_read_by_its_name(tmp_path: Path) -> None:
    ours = schema("Said", field("x", "int"))
    theirs = schema("Said", field("y", "int", aliases=["x"]), field("x", "int"))
    record = Library.load(write(tmp_path, ours)).contracts["Said"].newest.record
    (found,) = compare_schemas(read_foreign(theirs), record)
    assert (found.rule, found.path, found.effect) == ("alias", "x", "misread")


def test_an_unknown_symbol_in_json_is_read_as_the_default_of_its_enum(tmp_path: Path) -> None:
    enum = {"type": "enum", "name": "Colour", "symbols": ["red", "other"]}
    write(tmp_path, schema("Painted", field("colour", {**enum, "default": "other"})))
    write(tmp_path, schema("Drawn", field("colour", enum)))
    known = Library.load(tmp_path / "contracts").contracts
    painted, drawn = known["Painted"].newest, known["Drawn"].newest

    def line(colour: str) -> bytes:
        return f'{{"order_id": "o-1", "colour": {colour}}}'.encode()

    assert from_foreign_json(line('"blue"'), painted) == from_foreign_json(line('"other"'), painted)
    for colour, version in (('"blue"', drawn), ("null", painted), ("1", painted)):
        with pytest.raises(BadInput, match="colour: must be one of red, other"):
            from_foreign_json(line(colour), version)


def test_a_whole_number_that_a_float_changes_is_refused(tmp_path: Path) -> None:
    write(tmp_path, schema("Counted", field("count", "long")))
    version = Library.load(tmp_path / "contracts").contracts["Counted"].newest

    def read(count: str) -> bytes:
        return from_foreign_json(f'{{"order_id": "o-1", "count": {count}}}'.encode(), version)

    assert read("9007199254740991.0") == read("9007199254740991")
    assert read("-9007199254740991.0") == read("-9007199254740991")
    assert read('"9007199254740993"') == read("9007199254740993")
    for count in ("9007199254740993.0", "9007199254740992.0", "-9007199254740993.0", "1e18"):
        with pytest.raises(BadInput, match="count: is a number, not a whole number"):
            read(count)
