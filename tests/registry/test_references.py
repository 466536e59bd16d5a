"""Schemas that refer to others: a registry gives them in parts, and here they are whole."""

import json
import re
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from fastavro import parse_schema
from fastavro.schema import SchemaParseException, UnknownType

from saga.contracts.foreign_values import inline_references
from saga.messages import Record
from saga.registry import http
from saga.registry.edge import RegistryCache
from saga.registry.http import HttpRegistry
from saga.registry.port import RegistryOptions, SchemaIncomplete
from saga.support.clock import SystemClock
from tests.servers.listening import listening

MONEY = {
    "type": "record",
    "name": "Money",
    "namespace": "com.shop",
    "fields": [{"name": "cents", "type": "long"}, {"name": "in", "type": "com.shop.Currency"}],
}
CURRENCY = {"type": "enum", "name": "com.shop.Currency", "symbols": ["EUR"]}
PLACED = {
    "type": "record",
    "name": "Placed",
    "namespace": "com.shop",
    "fields": [
        {"name": "total", "type": "Money"},
        {"name": "more", "type": ["null", {"type": "array", "items": "com.shop.Money"}], "default": None},
        {"name": "by", "type": {"type": "map", "values": "Currency"}},
    ],
}


def whole(schema: Any, *others: Any) -> Any:
    return json.loads(inline_references(json.dumps(schema), [json.dumps(other) for other in others]))


def test_each_type_is_inlined_where_it_is_used_first() -> None:
    made = whole(PLACED, MONEY, CURRENCY)
    total, more, by = [each["type"] for each in made["fields"]]
    assert (total["name"], total["fields"][1]["type"]["symbols"]) == ("Money", ["EUR"])
    assert (more[1]["items"], by["values"]) == ("com.shop.Money", "Currency")
    parse_schema(made)


def test_a_type_that_a_referenced_type_defines_can_be_used_alone() -> None:
    money = {**MONEY, "fields": [{"name": "in", "type": CURRENCY}, {"name": "also", "type": "Currency"}]}
    by, total = {"name": "by", "type": "Currency"}, {"name": "total", "type": "Money"}
    for fields in ([by, total], [total, by], [by], [by, by | {"name": "again"}, total]):
        made = whole({**PLACED, "fields": fields}, money)
        parsed: Any = parse_schema(made)
        assert [each["name"] for each in parsed["fields"]] == [each["name"] for each in fields]
        assert json.dumps(made).count('"EUR"') == 1, "it is defined once, where it is used first"


def test_two_referenced_schemas_may_define_the_same_type() -> None:
    price = {"type": "record", "name": "com.shop.Price", "fields": [{"name": "in", "type": CURRENCY}]}
    cost = {"type": "record", "name": "com.shop.Cost", "fields": [{"name": "in", "type": {**CURRENCY, "doc": "Code."}}]}
    fields = [{"name": "price", "type": "Price"}, {"name": "cost", "type": "Cost"}]
    parse_schema(whole({**PLACED, "fields": fields}, price, cost))


TURNED = {**CURRENCY, "symbols": ["USD", "EUR"]}


@pytest.mark.parametrize("order", [1, -1])
def test_a_type_with_two_definitions_is_none(order: int) -> None:
    """Values of one would be read as values of the other, such as dollars as euros."""
    price = {"type": "record", "name": "com.shop.Price", "fields": [{"name": "in", "type": CURRENCY}]}
    cost = {"type": "record", "name": "com.shop.Cost", "fields": [{"name": "in", "type": TURNED}]}
    used = [{"name": "price", "type": "Price"}, {"name": "cost", "type": "Cost"}]
    by = {"name": "by", "type": "Currency"}
    for fields, others, error in (
        (used, (price, cost), "redefined"),
        ([by], (price, cost), "com.shop.Currency"),
        ([by, {"name": "own", "type": TURNED}], (CURRENCY,), "redefined"),
    ):
        with pytest.raises((SchemaParseException, UnknownType), match=error):
            parse_schema(whole({**PLACED, "fields": fields}, *others[::order]))
    made = whole({**PLACED, "fields": [by]}, *(CURRENCY, cost)[::order])
    assert made["fields"][0]["type"]["symbols"] == ["EUR"], "the outermost definition, as nothing uses the other one"


def test_a_type_without_a_namespace_is_found_inside_of_one() -> None:
    bare = {"type": "fixed", "name": "Bare", "size": 2}
    made = whole({"type": "record", "name": "a.B", "fields": [{"name": "x", "type": "Bare"}]}, bare)
    assert made["fields"][0]["type"] == {**bare, "namespace": ""}
    parse_schema(made)


def test_a_type_that_contains_itself_is_inlined_once() -> None:
    node = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
    made = whole({"type": "record", "name": "B", "fields": [{"name": "x", "type": "Node"}]}, node)
    assert made["fields"][0]["type"]["fields"][0]["type"] == ["null", "Node"]
    parse_schema(made)


@pytest.mark.parametrize(
    "text", ["{", "3", '"x"', "[" * 5000, '{"type": "record", "fields": 3, "name": 4}', '[{"type": 1}]']
)
def test_text_that_is_no_schema_is_not_changed(text: str) -> None:
    made = inline_references(text, [json.dumps(MONEY), "{", "7"])
    assert made == text or json.loads(made) == json.loads(text)


@dataclass
class Parts:
    """A registry that has these answers, by path."""

    port: int = 0
    responses: dict[str, Any] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)
    """Paths of versions that were deleted softly: the registry gives them only to those who ask for deleted ones."""
    asked: list[str] = field(default_factory=list)

    async def serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        path = (re.match(r"GET (\S+) ", head) or [""])[1]
        self.asked.append(path)
        plain = path.removesuffix("?deleted=true")
        found = None if path in self.deleted else self.responses.get(plain)
        body = json.dumps({"error_code": 40403} if found is None else found).encode()
        writer.write(b"HTTP/1.1 %d Said\r\nContent-Length: %d\r\n" % (404 if found is None else 200, len(body)))
        writer.write(b"Connection: close\r\n\r\n" + body)
        await writer.drain()

    def has(self, path: str, schema: Any, *references: tuple[str, str, Any], **more: Any) -> None:
        listed = [{"name": name, "subject": subject, "version": version} for name, subject, version in references]
        self.responses[path] = {"schema": json.dumps(schema), "references": listed, **more}


@pytest.fixture
async def parts() -> AsyncIterator[Parts]:
    answering = Parts()
    async with listening(answering.serve) as answering.port:
        answering.has("/schemas/ids/7", PLACED, ("com.shop.Money", "money", 1))
        answering.has("/subjects/money/versions/1", MONEY, ("com.shop.Currency", "cur/rency", 3))
        answering.has("/subjects/cur%2Frency/versions/3", CURRENCY)
        yield answering


def registry_of(parts: Parts) -> HttpRegistry:
    return HttpRegistry(RegistryOptions(registry=f"http://127.0.0.1:{parts.port}"))


async def test_each_reference_of_a_schema_is_requested_once_and_inlined(parts: Parts) -> None:
    parts.has("/subjects/orders-com.shop.Placed/versions/2", PLACED, ("com.shop.Money", "money", 1), id=7)
    async with registry_of(parts) as registry:
        made = await registry.schema(7)
        assert json.loads(made) == whole(PLACED, MONEY, CURRENCY)
        paths = ["/schemas/ids/7", "/subjects/money/versions/1", "/subjects/cur%2Frency/versions/3"]
        assert [path.removesuffix("?deleted=true") for path in parts.asked] == paths
        assert (await registry.version("orders-com.shop.Placed", 2)).schema == made


async def test_a_reference_that_was_deleted_softly_is_inlined(parts: Parts) -> None:
    """The log may hold messages of a schema whose subject is no longer in use. Its id is valid for ever."""
    parts.deleted = {"/subjects/money/versions/1", "/subjects/cur%2Frency/versions/3"}
    async with registry_of(parts) as registry:
        assert json.loads(await registry.schema(7)) == whole(PLACED, MONEY, CURRENCY)


async def test_a_missing_reference_is_named_and_requested_again_later(parts: Parts) -> None:
    currency = parts.responses.pop("/subjects/cur%2Frency/versions/3")
    async with registry_of(parts) as registry:
        with pytest.raises(SchemaIncomplete, match=r"the schema with id 7 refers to 'com.shop.Currency', version 3 of"):
            await registry.schema(7)
        known = RegistryCache(registry, SystemClock())
        writer = await known.ask(7)
        assert (writer.schema, writer.lacks[:21]) == ("", "the schema with id 7 ")
        record = Record("orders", 0, 0, b"k", b"\0\0\0\0\7x", (), 0)
        assert known.resolve(record).writer == writer
        parts.responses["/subjects/cur%2Frency/versions/3"] = currency
        assert (await known.ask(7)).schema


async def test_endless_references_are_not_followed(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "REFERENCES_MAX", 1)
    async with registry_of(parts) as registry:
        with pytest.raises(SchemaIncomplete, match="refers to more than 1 others"):
            await registry.schema(7)


async def test_malformed_references_are_ignored(parts: Parts) -> None:
    parts.responses["/schemas/ids/8"] = {
        "schema": '"string"',
        "references": [7, {"name": 3}, {"name": "a", "subject": "b"}],
    }
    parts.responses["/schemas/ids/9"] = {"schema": '"string"', "references": "none"}
    async with registry_of(parts) as registry:
        assert [await registry.schema(8), await registry.schema(9)] == ['"string"'] * 2


async def test_a_reference_to_a_subject_that_no_address_can_contain_is_missing(parts: Parts) -> None:
    """JSON can express half of a surrogate pair."""
    parts.has("/schemas/ids/7", PLACED, ("com.shop.Money", "mon\ud800ey", 1))
    async with registry_of(parts) as registry:
        with pytest.raises(SchemaIncomplete, match=r"refers to 'com.shop.Money', version 1 of 'mon\\ud800ey'"):
            await registry.schema(7)
    assert parts.asked == ["/schemas/ids/7"]
