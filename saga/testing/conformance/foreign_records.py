"""Records as producers of other projects write them, each with the verdict that a service must reach.
`BrokerConformance` sends all of them through its broker.

A row is one record: the family of producers, what is unusual about it, its value and headers, the verdict and the
reason. A row either represents one order, `{"order_id": "o-1", "total": 9.80, "quantity": 3, "at":
2026-11-21T14:06:40.123Z}`, of the contract `com.shop.OrderPlaced`, or it is not an order.

A service must not refuse a record because of parts that it does not need. If it refuses or skips a record, it gives a
reason. It never guesses a value.
"""

import base64
import json
import struct
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from saga import Service
from saga.broker.port import Broker
from saga.contracts.codegen import make_event_class
from saga.contracts.foreign_values import schema_id_of
from saga.contracts.library import Library
from saga.engine.consumer.record_router import BadRecord, route_record
from saga.engine.prepared_service import PreparedService, prepare
from saga.errors import BadInput, SchemaUnasked, UnknownSchema
from saga.messages import Event, Headers, Message, Outgoing, Record, Writer

Verdict: TypeAlias = Literal["handled", "waits", "refused", "letter", "passed"]
"""How a service treats a record.

- `handled`: handled as the order that the row represents.
- `waits`: its saga is parked until a release that knows its version is deployed.
- `refused`: a dead letter that blocks its saga and can be replayed.
- `letter`: a dead letter that blocks no saga.
- `passed`: skipped, and counted unless the record is certainly meant for others.
"""

KEY: Final = b"o-1"
TOTAL: Final = {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}
AT: Final = {"type": "long", "logicalType": "timestamp-millis"}
STRING, LONG = "string", "long"
CONTRACTS: Final[tuple[dict[str, Any], ...]] = tuple(
    {
        "type": "record",
        "name": name,
        "namespace": "com.shop",
        "topic": "orders",
        "key": "order_id",
        "owner": "order",
        "starts": True,
        "produced_by": "external",
        **more,
        "fields": [
            {"name": "order_id", "type": STRING},
            {"name": "total", "type": TOTAL},
            {"name": "quantity", "type": LONG},
            {"name": "at", "type": AT},
            {"name": "note", "type": ["null", STRING], "default": None},
        ],
    }
    for name, more in (("OrderPlaced", {}), ("OrderPacked", {}), ("OrderRelayed", {"id_header": "id"}))
)


def _schema(name: str = "OrderPlaced", space: str | None = "com.shop", **types: Any) -> dict[str, Any]:
    """Return a sender's schema: ours with the field types in `types`. New fields are added; fields with the type `None`
    are left out.
    """
    fields = {field["name"]: field["type"] for field in CONTRACTS[0]["fields"]} | types
    named = [{"name": field, "type": type_} for field, type_ in fields.items() if type_ is not None]
    return {"type": "record", "name": name, **({"namespace": space} if space else {}), "fields": named}


_RAW: Final = {"order_id": "o-1", "total": b"\x03\xd4", "quantity": 3, "at": 1_795_270_000_123, "note": None}
FINGERPRINTS: Final = {
    "OrderPlaced": bytes.fromhex("9ee610325c4cd3d6"),
    "OrderPacked": bytes.fromhex("bb90f8e81a079e72"),
    "OrderRelayed": bytes.fromhex("155394ce28b08e52"),
}
"""Fingerprints of our contracts, as every implementation of Avro computes them."""


def _long(number: int) -> bytes:
    number, written = (number << 1) ^ (number >> 63), bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*written, number))


def _avro(schema: Any, value: Any) -> bytes:
    """Encode a value. The encoder is written by hand for the few types in these schemas, so that no library is tested
    against its own output.
    """
    match schema:
        case "null" | {"type": "null"}:
            return b""
        case "int" | "long":
            return _long(value)
        case "double":
            return struct.pack("<d", value)
        case "string" | "bytes":
            text = _bytes(value)
            return _long(len(text)) + text
        case list():
            branch = next(
                n for n, each in enumerate(schema) if (each == "null") == (value is None) and _fits(each, value)
            )
            return _long(branch) + _avro(schema[branch], value)
        case {"type": "record", "fields": fields}:
            return b"".join(_avro(field["type"], value[field["name"]]) for field in fields)
        case {"type": "fixed"}:
            return bytes(value)
        case {"type": inner}:
            return _avro(inner, value)
        case _:
            raise ValueError(f"{schema} is none of these types")


def _fits(schema: Any, value: Any) -> bool:
    return not isinstance(value, str | int) or isinstance(value, str) == (schema == "string")


def _body(schema: Any, **values: Any) -> bytes:
    return _avro(schema, _RAW | values)


def _single(name: str = "OrderPlaced") -> bytes:
    """Encode an order, or the same fields as another of our contracts, in Avro single-object encoding."""
    return b"\xc3\x01" + FINGERPRINTS[name] + _body(_schema(name))


def _unknown() -> bytes:
    """Encode a value in Avro single-object encoding with a schema that the service does not know."""
    return b"\xc3\x01unknown!" + _body(_schema(more=STRING), more="x")


SCHEMAS: Final[dict[int, str]] = {}
"""Schemas in the registry, by id."""


def _frame(schema: Any = None, **values: Any) -> bytes:
    """Encode a value in the wire format of a schema registry, and add its schema to the registry."""
    given = _schema() if schema is None else schema
    id_ = len(SCHEMAS) + 1
    SCHEMAS[id_] = json.dumps(given)
    return b"\0" + id_.to_bytes(4, "big") + _body(given, **values)


_FIELDS: Final = {"order_id": "o-1", "total": "9.80", "quantity": 3, "at": "2026-11-21T14:06:40.123Z", "note": None}


def _json(**fields: Any) -> bytes:
    return json.dumps({name: value for name, value in (_FIELDS | fields).items() if value is not ...}).encode()


def _event(**attributes: Any) -> bytes:
    """Encode a CloudEvent in structured mode."""
    event = {"specversion": "1.0", "id": "7", "source": "/shop", "type": "com.shop.OrderPlaced", "data": _FIELDS}
    return json.dumps({name: value for name, value in (event | attributes).items() if value is not ...}).encode()


def _ce(type_: str = "com.shop.OrderPlaced", **more: str | bytes | None) -> Headers:
    """Return the headers of a CloudEvent in binary mode. `content`, among `more`, is its content type."""
    named = {"type": type_, "id": "7", "source": "/shop", "specversion": "1.0", **more}
    content = named.pop("content", None)
    made = [(f"ce_{name}", _bytes(value)) for name, value in named.items() if value is not None]
    return (*made, *((("content-type", _bytes(content)),) if content is not None else ()))


def _bytes(text: str | bytes | None) -> bytes:
    return text.encode() if isinstance(text, str) else text or b""


JSON: Final = "application/json"
STRUCTURED: Final[Headers] = (("content-type", b"application/cloudevents+json; charset=utf-8"),)
NONE: Final[Headers] = ()


def _type_header(type_: str) -> Headers:
    return (("ce_type", type_.encode()),)


@dataclass(frozen=True, slots=True)
class ForeignRecord:
    """A record of another project, with the correct verdict."""

    family: str
    what: str
    value: bytes | None
    headers: Headers
    verdict: Verdict = "handled"
    reason: str = ""
    """Text that the reason must contain if the record is not handled."""
    key: bytes | None = KEY


# fmt: off
def _java_records() -> tuple[ForeignRecord, ...]:
    sender = "Java, Avro and CloudEvents"
    uuid = {"type": "string", "avro.java.string": "String"}
    ours, newer = _single(), _unknown()
    return (
        ForeignRecord(sender, "BinaryMessageEncoder, CloudEvents in binary mode", ours, _ce(content="application/avro")),
        ForeignRecord(sender, "no header at all", ours, NONE),
        ForeignRecord(sender, "no content type", ours, _ce()),
        ForeignRecord(sender, "a type without its namespace", ours, _ce("OrderPlaced")),
        ForeignRecord(sender, "java.lang.String in the schema", _frame(_schema(order_id=uuid)), _ce()),
        ForeignRecord(sender, "fields in another order", _frame(dict(_schema(), fields=_schema()["fields"][::-1])), _ce()),
        ForeignRecord(sender, "an int where we have a long", _frame(_schema(quantity="int")), _ce()),
        ForeignRecord(sender, "a quantity that may be absent", _frame(_schema(quantity=["null", LONG])), _ce(), "waits", "has the fingerprint"),
        ForeignRecord(sender, "no note", _frame(_schema(note=None)), _ce()),
        ForeignRecord(sender, "a field more", _frame(_schema(more="double"), more=0.5), _ce()),
        ForeignRecord(sender, "a fixed more", _frame(_schema(trace=_fixed_schema(16)), trace=b"t" * 16), _ce()),
        ForeignRecord(sender, "an optional fixed more", _frame(_schema(trace=["null", _fixed_schema(16)]), trace=None), _ce()),
        ForeignRecord(sender, "a union of three more", _frame(_schema(more=["null", STRING, LONG]), more=3), _ce()),
        ForeignRecord(sender, "an Instant in nanoseconds more", _frame(_schema(more=_logical(LONG, "timestamp-nanos")), more=1), _ce()),
        ForeignRecord(sender, "a LocalDateTime more", _frame(_schema(more=_logical(LONG, "local-timestamp-micros")), more=1), _ce()),
        ForeignRecord(sender, "a LocalTime more", _frame(_schema(more=_logical("int", "time-millis")), more=1), _ce()),
        ForeignRecord(sender, "a Duration more", _frame(_schema(more=_fixed_schema(12, "duration")), more=b"d" * 12), _ce()),
        ForeignRecord(sender, "a recursive record more", _frame(_schema(more=NODE), more={"next": None}), _ce()),
        ForeignRecord(sender, "a reserved word of Python as a field", _frame(_schema(**{"class": "int"}), **{"class": 1}), _ce()),
        ForeignRecord(sender, "a BigDecimal as big-decimal", _frame(_schema(total=_logical("bytes", "big-decimal"))), _ce(), "refused", "total is written as bytes with the logical type 'big-decimal'"),
        ForeignRecord(sender, "a decimal with three places", _frame(_schema(total=dict(TOTAL, scale=3))), _ce(), "refused", "would be misread: total"),
        ForeignRecord(sender, "a decimal on a fixed", _frame(_schema(total=_fixed_schema(2, "decimal")), total=b"\x03\xd4"), _ce(), "refused", "fixed of 2 bytes with the logical type 'decimal'"),
        ForeignRecord(sender, "plain bytes for a decimal", _frame(_schema(total="bytes")), _ce(), "refused", "would be misread: total"),
        ForeignRecord(sender, "a double for a decimal", _frame(_schema(total="double"), total=9.8), _ce(), "waits", "has the fingerprint"),
        ForeignRecord(sender, "an Instant in microseconds", _frame(_schema(at=_logical(LONG, "timestamp-micros"))), _ce(), "refused", "would be misread: at"),
        ForeignRecord(sender, "an Instant in nanoseconds", _frame(_schema(at=_logical(LONG, "timestamp-nanos"))), _ce(), "refused", "logical type 'timestamp-nanos'"),
        ForeignRecord(sender, "a LocalDateTime", _frame(_schema(at=_logical(LONG, "local-timestamp-millis"))), _ce(), "refused", "logical type 'local-timestamp-millis'"),
        ForeignRecord(sender, "a time as a plain long", _frame(_schema(at=LONG)), _ce(), "refused", "would be misread: at"),
        ForeignRecord(sender, "an unknown logical type on a string", _frame(_schema(order_id=_logical(STRING, "order-no"))), _ce()),
        ForeignRecord(sender, "a union of three that is read", _frame(_schema(note=["null", STRING, "int"]), note="x"), _ce(), "refused", "note is written as one of"),
                ForeignRecord(sender, "a record of another namespace", _frame(_schema(space="com.other")), _ce(), "refused", "is a 'com.other.OrderPlaced' by its schema"),
        ForeignRecord(sender, "the same without a type", _frame(_schema(space="com.other")), NONE, "passed", "com.other.OrderPlaced"),
        ForeignRecord(sender, "another event of ours, which nobody consumes", _single("OrderPacked"), NONE, "passed", "no handler"),
        ForeignRecord(sender, "a newer version that is not here", newer, _ce(), "waits", "has the fingerprint"),
        ForeignRecord(sender, "the same without a type", newer, NONE, "letter", "has the fingerprint"),
        ForeignRecord(sender, "bytes behind the end", ours + b"!", _ce(), "refused", "1 bytes behind the end"),
        ForeignRecord(sender, "cut off", ours[:-3], _ce(), "refused", "cannot be read as com.shop.OrderPlaced"),
        ForeignRecord(sender, "no value, as the log may forget its key", None, _ce(), "passed", "no value"),
        ForeignRecord(sender, "no value and no header", None, NONE, "passed", "no value"),
        ForeignRecord(sender, "an empty value", b"", _ce(), "letter", "empty"),
        ForeignRecord(sender, "no key", ours, _ce(), "letter", "no key", None),
        ForeignRecord(sender, "another key", ours, _ce(), "refused", "both must be the saga id", b"o-2"),
        ForeignRecord(sender, "the subject is not the key", ours, _ce(subject="o-2"), "letter", "not its subject"),
    )


NODE: Final = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}


def _logical(type_: str, logical: str) -> dict[str, Any]:
    return {"type": type_, "logicalType": logical}


def _fixed_schema(size: int, logical: str | None = None) -> dict[str, Any]:
    more = {} if logical is None else {"logicalType": logical, "precision": 4, "scale": 2}
    return {"type": "fixed", "name": f"Fixed{size}", "size": size, **more}


def _records_of_odd_types() -> tuple[ForeignRecord, ...]:
    """Return records whose type header is spelled in an unusual way."""
    ours, at_end = _single(), "OrderPlaced comes near"
    return (
        ForeignRecord("Go, watermill", "a version behind the type", ours, _type_header("com.shop.OrderPlaced.v1")),
        ForeignRecord("Go, watermill", "a date behind the type", ours, _type_header("com.shop.OrderPlaced.2024-01")),
        ForeignRecord("Go, watermill", "dots in a word", ours, _type_header("com.shop.order.placed")),
        ForeignRecord("Go, watermill", "a slash and a version", ours, _type_header("shop/OrderPlaced/1.0")),
        ForeignRecord("Node, kafkajs", "small letters", ours, _type_header("orderplaced")),
        ForeignRecord("Node, kafkajs", "with hyphens", ours, _type_header("order-placed")),
        ForeignRecord("Node, kafkajs", "with a version in the word", ours, _type_header("OrderPlacedV2")),
        ForeignRecord("Spring", "in JSON's quotes", ours, _type_header('"OrderPlaced"')),
        ForeignRecord("Spring", "in JSON's quotes, with the namespace", ours, _type_header('"com.shop.OrderPlaced"')),
        ForeignRecord(".NET", "a blank behind it", ours, _type_header("OrderPlaced ")),
        ForeignRecord("librdkafka, C", "a zero byte behind it", ours, _type_header("OrderPlaced\0")),
        ForeignRecord("librdkafka, C", "no text", ours, (("ce_type", b"\xff\xfe"),), "letter", "its bytes are those of orders/OrderPlaced.v1"),
        ForeignRecord(".NET", "CE_TYPE, and bytes that say it", ours, (("CE_TYPE", b"OrderPlaced"),)),
        ForeignRecord(".NET", "CE_TYPE, and JSON", _json(), (("CE_TYPE", b"OrderPlaced"), ("content-type", b"application/json")), "letter", "'CE_TYPE' is not looked at"),
        ForeignRecord("Knative", "ce-type, as over HTTP", _json(), (("ce-type", b"com.shop.OrderPlaced"), ("content-type", b"application/json")), "letter", "'ce-type' is not looked at"),
        ForeignRecord("Azure", "cloudEvents:type, as over AMQP", _json(), (("cloudEvents:type", b"com.shop.OrderPlaced"), ("content-type", b"application/json")), "letter", "only its header ce_type"),
        ForeignRecord("Java, Avro and CloudEvents", "a namespace of somebody else, and our bytes", ours, _type_header("com.other.OrderPlaced")),
        ForeignRecord("Java, Avro and CloudEvents", "another type than its bytes", ours, _type_header("com.shop.BasketEmptied"), "letter", "its bytes are those of orders/OrderPlaced.v1"),
        ForeignRecord("Java, Avro and CloudEvents", "another event of ours than its bytes", ours, _type_header("com.shop.OrderPacked"), "letter", "its bytes are those of orders/OrderPlaced.v1"),
        ForeignRecord("Java, Avro and CloudEvents", "the type of an order, and other bytes", _single("OrderPacked"), _ce(), "refused", "it is a OrderPacked"),
        ForeignRecord("Java, Avro and CloudEvents", "another type, of a registry's bytes", _frame(), _type_header("com.shop.BasketEmptied"), "letter", "by their schema"),
        ForeignRecord("Java, Avro and CloudEvents", "a type of somebody else", _unknown(), _type_header("com.shop.BasketEmptied"), "passed", "BasketEmptied"),
        ForeignRecord("Go, watermill", "JSON with a version behind the type", _json(), _ce("com.shop.OrderPlaced.v1", content=JSON), "letter", at_end[:11]),
        ForeignRecord("Node, kafkajs", "JSON with a type in small letters", _json(), _ce("orderplaced", content=JSON), "letter", "OrderPlaced"),
        ForeignRecord("Knative", "JSON with dots in the type", _json(), _ce("com.shop.order.placed", content=JSON), "letter", "com.shop.OrderPlaced"),
        ForeignRecord("Java, Avro and CloudEvents", "JSON of another namespace", _json(), _ce("com.other.OrderPlaced", content=JSON), "letter", "com.shop.OrderPlaced"),
        ForeignRecord("Spring", "JSON, all headers in quotes", _json(), _ce('"OrderPlaced"', id='"7"', source='"/s"', time='"2026-11-21T14:06:40Z"', subject='"o-1"', content='"application/json"')),
        ForeignRecord("Spring", "JSON of a type that nobody has", _json(), _ce("com.shop.BasketEmptied", content=JSON), "passed", "BasketEmptied"),
        ForeignRecord("Spring", "__TypeId__ alone", _json(), (("__TypeId__", b"com.shop.OrderPlaced"), ("content-type", b"application/json")), "letter", "only its header ce_type"),
        ForeignRecord("Spring", "JSON without any header", _json(), NONE, "letter", "it looks like JSON"),
    )


def _json_records() -> tuple[ForeignRecord, ...]:
    """Return CloudEvents in binary mode with JSON data."""
    head, sender = _ce(content=JSON), "Node, CloudEvents SDK"

    def row(what: str, verdict: Verdict = "handled", reason: str = "", /, family: str = sender, **fields: Any) -> ForeignRecord:
        return ForeignRecord(family, what, _json(**fields), head, verdict, reason)

    return (
        row("as it is"),
        ForeignRecord(sender, "another content type of JSON", _json(), _ce(content="application/vnd.shop+json")),
        ForeignRecord(sender, "text/json", _json(), _ce(content="text/json; charset=UTF-8")),
        ForeignRecord(sender, "a byte order mark", b"\xef\xbb\xbf" + _json(), head),
        ForeignRecord("Python, json", "in UTF-16", _json().decode().encode("utf-16"), head, "refused", "not UTF-8"),
        row("no note", note=...),
        row("nine digits of a second", at="2026-11-21T14:06:40.123456789Z", family="Java, Jackson"),
        row("microseconds", at="2026-11-21T14:06:40.123456Z", family="Python, json"),
        row("seven digits of a second", at="2026-11-21T14:06:40.1230000Z", family=".NET"),
        row("+0100", at="2026-11-21T15:06:40.123+0100", family="Java, Jackson"),
        row("+01", at="2026-11-21T15:06:40.123+01", family="PostgreSQL, outbox"),
        row("a blank between day and time", at="2026-11-21 14:06:40.123Z", family="PostgreSQL, outbox"),
        row("no zone", "refused", "at: must be a time", at="2026-11-21T14:06:40.123", family=".NET"),
        row("milliseconds since 1970", "refused", "at: must be a time", at=1795270000123, family="Node, CloudEvents SDK"),
        row("a day alone", "refused", "at: must be a time", at="2026-11-21", family="Go, encoding/json"),
        row("a day that there is not", "refused", "at: must be a time", at="2026-02-30T14:06:40Z"),
        row("a long as text", quantity="3", family="Java, Protobuf"),
        row("a long as 3.0", quantity=3.0, family="Java, Gson"),
        row("a long as 3.5", "refused", "quantity", quantity=3.5),
        row("a long as text that is none", "refused", "quantity", quantity="3 pieces"),
        row("a long beyond 64 bits", "refused", "quantity", quantity=str(2**70)),
        row("true for a number", "refused", "quantity", quantity=True),
        row("9.8E+0", total="9.8E+0", family="Java, Jackson"),
        row("98E-1", total="98E-1", family="Java, Jackson"),
        row("+9.80", total="+9.80", family=".NET"),
        row("more digits than there are places", "refused", "total", total="9.801"),
        row("a decimal as a number", "refused", "total: must be a decimal as text", total=9.8, family=".NET"),
        row("a decimal with a comma", "refused", "total", total="9,80", family=".NET"),
        row("an exponent without end", "refused", "total", total="1E+99999999"),
        row("NaN", "refused", "total", total="NaN"),
        row("null where there must be something", "refused", "quantity", quantity=None),
        row("a field that is missing", "refused", "total: is missing", total=...),
        row("a field more: a newer version may have it", "waits", "coupon: OrderPlaced has no such field", coupon="x"),
        row("a field more, and one that is wrong", "refused", "coupon", coupon="x", total=1),
        row("a field more, and one that is missing", "refused", "total: is missing", coupon="x", total=...),
        ForeignRecord(sender, "a field twice", _json()[:-1] + b', "quantity": 4}', head, "refused", "comes twice"),
        ForeignRecord(sender, "a list", b"[]", head, "refused", "must be an object"),
        ForeignRecord(sender, "two lines", _json() + b"\n" + _json(), head, "refused", "cannot be read"),
        ForeignRecord(sender, "cut off", _json()[:-3], head, "refused", "cannot be read"),
        ForeignRecord(sender, "text of JSON", json.dumps(_json().decode()).encode(), head, "refused", "must be an object"),
        ForeignRecord(sender, "our version by ce_dataschema", _json(), _ce(content=JSON, dataschema="https://s.example/orders/OrderPlaced.v1")),
        ForeignRecord(sender, "a version that is not here", _json(coupon="x"), _ce(content=JSON, dataschema="https://s.example/orders/OrderPlaced.v2"), "waits", "OrderPlaced.v2"),
        ForeignRecord(sender, "a schema of theirs", _json(), _ce(content=JSON, dataschema="https://s.example/schemas/17")),
        ForeignRecord("Debezium", "schema and payload in JSON", json.dumps({"schema": {}, "payload": _FIELDS}).encode(), head, "refused", "is missing"),
        ForeignRecord("Debezium", "before and after in JSON", json.dumps({"before": None, "after": _FIELDS, "op": "c"}).encode(), head, "refused", "is missing"),
        ForeignRecord("Node, kafkajs", "our bytes called JSON", _single(), head),
        ForeignRecord("Node, kafkajs", "JSON called Avro", _json(), _ce(content="application/avro"), "refused", "it looks like JSON"),
        ForeignRecord("Go, Protobuf", "Protobuf", b"\x0a\x03o-1\x10\x03", _ce(content="application/protobuf"), "refused", "no Avro single object"),
        ForeignRecord("Python, msgpack", "MessagePack", b"\x85\xa8order_id\xa3o-1", _ce(content="application/msgpack"), "refused", "no Avro single object"),
        ForeignRecord(".NET", "XML", b"<order/>", _ce(content="application/xml"), "refused", "no Avro single object"),
    )


def _structured_records() -> tuple[ForeignRecord, ...]:
    """Return CloudEvents in structured mode."""
    sender = "Knative"

    def row(what: str, verdict: Verdict = "handled", reason: str = "", /, family: str = sender, **more: Any) -> ForeignRecord:
        return ForeignRecord(family, what, _event(**more), STRUCTURED, verdict, reason)

    packed = base64.b64encode(_single()).decode()
    return (
        row("as it is"),
        row("our bytes in data_base64", data=..., data_base64=packed, datacontenttype="application/avro"),
        row("a registry's bytes in data_base64", data=..., data_base64=base64.b64encode(b"\0\0\0\0\1" + _body(_schema())).decode(), datacontenttype="application/avro", family="Confluent"),
        row("an extension with capitals", traceParent="x", family="Azure"),
        row("an extension with hyphens", **{"trace-id": "x"}, family="Azure"),
        row("an extension with underscores", **{"trace_id": "x"}, family="Azure"),
        row("an extension of more than 20 characters", knativekafkapartitionnumber="x"),
        row("an extension that is null", region=None),
        row("an extension that is an object", context={"a": [1, {"b": None}]}, family="Azure"),
        row("an extension that is a list", tags=["a", "b"], family="Azure"),
        row("an extension that is a fraction", weight=0.5, family="Go, CloudEvents SDK"),
        row("an extension with a name of ours", ce_id="x", dead_reason="x"),
        row("an extension whose name is no text for people", **{"\x1b[2J": "x"}),
        ForeignRecord("Azure", "an extension twice", _event()[:-1] + b', "region": "a", "region": "b"}', STRUCTURED),
        ForeignRecord("Azure", "a name twice in an extension", _event()[:-1] + b', "region": {"a": 1, "a": 2}}', STRUCTURED),
        ForeignRecord("Azure", "its id twice", _event()[:-1] + b', "id": "8"}', STRUCTURED, "letter", "the name 'id' comes twice"),
        ForeignRecord("Azure", "a name twice in its data", _event()[:-2] + b', "note": null}}', STRUCTURED, "letter", "the name 'note' comes twice"),
        row("a version behind the type", "letter", "com.shop.OrderPlaced", type="com.shop.OrderPlaced.v1"),
        row("a type that nobody has", "passed", "BasketEmptied", type="com.shop.BasketEmptied"),
        row("no type", "letter", '"type" is missing', type=...),
        row("version 0.3", "letter", '"specversion" is not "1.0"', specversion="0.3"),
        row("an id that is an object", "letter", '"id" is neither text', id={}),
        row("an id that is a number", id=7),
        row("no id and no source", id=..., source=...),
        row("no data", "letter", "empty", data=...),
        row("data and data_base64", "letter", "may have one of them", data_base64=packed),
        row("data_base64 that is none", "letter", "no base64", data=..., data_base64="%"),
        row("a field more in its data", "waits", "coupon", data=_FIELDS | {"coupon": "x"}),
        row("nine digits of a second in its data", data=_FIELDS | {"at": "2026-11-21T14:06:40.123456789Z"}, family="Java, Jackson"),
        row("nine digits of a second in its time", time="2026-11-21T14:06:40.123456789Z"),
        row("a time that is none", "letter", "no RFC 3339 time", time="yesterday"),
        ForeignRecord(sender, "a batch", b"[]", (("content-type", b"application/cloudevents-batch+json"),), "letter", "one event a record"),
        ForeignRecord(sender, "as Avro", b"\0", (("content-type", b"application/cloudevents+avro"),), "letter", "which is not read"),
        ForeignRecord(sender, "the header's name in capitals", _event(), (("Content-Type", b"application/cloudevents+json"),)),
        ForeignRecord(sender, "its content type missing", _event(), NONE, "letter", "it looks like JSON"),
    )


def _registry_records() -> tuple[ForeignRecord, ...]:
    """Return records that refer to a schema in a registry, by an id before the value or in a header."""
    body = _body(_schema())
    elsewhere = "which is not read"
    debezium = [("MicroTimestamp", LONG), ("Timestamp", LONG), ("NanoTimestamp", LONG)]
    return (
        ForeignRecord("Confluent", "an id before the value", _frame(), _ce()),
        ForeignRecord("Confluent", "the same without headers", _frame(), NONE),
        ForeignRecord("Confluent", "an id that the registry does not have", b"\0\0\0\x27\x0f" + body, _ce(), "refused", "has none of that id"),
        ForeignRecord("Confluent", "the same without headers", b"\0\0\0\x27\x0f" + body, NONE, "letter", "has none of that id"),
        ForeignRecord("Confluent", "a GUID in a header", body, (*_ce(), ("__value_schema_id", b"\1" + bytes(16))), "refused", elsewhere),
        ForeignRecord("Confluent", "the same without a type", body, (("__value_schema_id", b"\1" + bytes(16)),), "letter", elsewhere),
        ForeignRecord("Confluent", "the id of the key in a header, too", _frame(), (*_ce(), ("__key_schema_id", b"\1" + bytes(16)))),
        ForeignRecord("Confluent", "JSON Schema with an id", b"\0\0\0\x27\x0e" + _json(), _ce(), "refused", "has none of that id"),
        ForeignRecord("Apicurio", "an id of 8 bytes", b"\0" + (7).to_bytes(8, "big") + body, _ce(), "refused", "an id of 8 bytes"),
        ForeignRecord("Apicurio", "the same without a type", b"\0" + (7).to_bytes(8, "big") + body, NONE, "letter", "an id of 8 bytes"),
        ForeignRecord("Apicurio", "an id in a header", body, (*_ce(), ("apicurio.value.globalId", (7).to_bytes(8, "big"))), "refused", elsewhere),
        ForeignRecord("Apicurio", "another one", body, (("apicurio.value.contentId", (7).to_bytes(8, "big")),), "letter", elsewhere),
        ForeignRecord("Azure", "an id in the content type", body, _ce(content=f"avro/binary+{'0' * 32}"), "refused", "no Avro single object"),
        ForeignRecord("Debezium", "a change of a table", _frame(ENVELOPE, before=None, after=None, op="c"), NONE, "passed", "Envelope"),
        ForeignRecord("Debezium", "an enum as text, an integer with connect's name", _frame(_schema(order_id=_connect(STRING, "io.debezium.data.Enum"))), _ce()),
        ForeignRecord("Debezium", "connect.version on a number", _frame(_schema(quantity={"type": LONG, "connect.version": 1, "connect.type": "int64"})), _ce()),
        *(
            ForeignRecord("Debezium", f"a time as {name}", _frame(_schema(at=_connect(kind, f"io.debezium.time.{name}"))), _ce(), "refused", f"io.debezium.time.{name}")
            for name, kind in debezium
        ),
        ForeignRecord("Debezium", "a ZonedTimestamp", _frame(_schema(at=_connect(STRING, "io.debezium.time.ZonedTimestamp")), at="x"), _ce(), "refused", "io.debezium.time.ZonedTimestamp"),
        ForeignRecord("Debezium", "a VariableScaleDecimal", _frame(_schema(total=VARIABLE), total={"scale": 2, "value": b"\x03\xd4"}), _ce(), "waits", "has the fingerprint"),
        ForeignRecord("Debezium", "a time as connect's Timestamp", _frame(_schema(at={**AT, "connect.name": "org.apache.kafka.connect.data.Timestamp"})), _ce()),
        ForeignRecord("Debezium, outbox", "an id header, no envelope", _single("OrderRelayed"), (("id", b"uuid-1"), ("eventType", b"OrderRelayed"))),
        ForeignRecord("Debezium, outbox", "the same, as JSON with a type", _json(), (("id", b"uuid-1"), *_ce("OrderRelayed", id=None, source=None, content=JSON))),
        ForeignRecord("Debezium, outbox", "an id that is binary", _single("OrderRelayed"), (("id", b"\xff" * 16),)),
    )


ENVELOPE: Final = {
    "type": "record",
    "name": "Envelope",
    "namespace": "server.public.orders",
    "fields": [{"name": name, "type": ["null", "string"]} for name in ("before", "after", "op")],
}
VARIABLE: Final = {
    "type": "record",
    "name": "VariableScaleDecimal",
    "namespace": "io.debezium.data",
    "fields": [{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}],
}


def _connect(type_: str, name: str) -> dict[str, Any]:
    return {"type": type_, "connect.version": 1, "connect.name": name}


def _records_with_headers() -> tuple[ForeignRecord, ...]:
    """Return records with headers that the service needs, and with additional ones."""
    sender, ours = "librdkafka, C", _single()
    return (
        ForeignRecord(sender, "a header without a value", ours, (*_ce(), ("x-none", None))),
        ForeignRecord(sender, "a type without a value", ours, (("ce_type", None),)),
        ForeignRecord(sender, "a header that is no text", ours, (*_ce(), ("x-signature", bytes(range(256))))),
        ForeignRecord(sender, "a header without a name", ours, (*_ce(), ("", b"x"))),
        ForeignRecord(sender, "a name of 5,000 characters", ours, (*_ce(), ("n" * 5000, b"x"))),
        ForeignRecord(sender, "headers of 40,000 bytes", ours, (*_ce(), *((f"x-{n}", b"x" * 1000) for n in range(40)))),
        ForeignRecord(sender, "a header of 100,000 bytes", ours, (*_ce(), ("x-large", b"x" * 100_000))),
        ForeignRecord(sender, "its id twice", ours, (*_ce(), ("ce_id", b"8"))),
        ForeignRecord(sender, "a name of a dead letter's", ours, (*_ce(), ("dead_reason", b"x"), ("foreign_x", b"x"))),
        ForeignRecord("Go, OpenTelemetry", "a trace that is none", ours, (*_ce(), ("traceparent", b"x"))),
        ForeignRecord("Go, OpenTelemetry", "a trace and its state", ours, (*_ce(), ("traceparent", b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01"), ("tracestate", b"x=1"))),
        ForeignRecord("Spring", "its own headers", ours, (*_ce(), ("spring_json_header_types", b"{}"), ("b3", b"0"))),
        ForeignRecord("Kafka Connect", "the headers of a dead letter of Connect", ours, (*_ce(), ("__connect.errors.topic", b"x"))),
        ForeignRecord("Python, cloudevents", "an id that is empty", ours, _ce(id="")),
        ForeignRecord("Python, cloudevents", "a source that is empty", ours, _ce(source="")),
        ForeignRecord("Python, cloudevents", "an id of 600 bytes", ours, _ce(id="x" * 600), "letter", "at most 512"),
        ForeignRecord("Python, cloudevents", "an id that is no text", ours, _ce(id=b"\xff"), "letter", "not UTF-8"),
        ForeignRecord("Python, cloudevents", "a time with microseconds", ours, _ce(time="2026-11-21T14:06:40.123456+00:00")),
        ForeignRecord("Python, cloudevents", "a time without a zone", ours, _ce(time="2026-11-21T14:06:40"), "letter", "no RFC 3339 time"),
        ForeignRecord("Python, cloudevents", "a time that is empty", ours, _ce(time="")),
        ForeignRecord(".NET", "a time with seven digits", ours, _ce(time="2026-11-21T14:06:40.1234567Z")),
        ForeignRecord(".NET", "specversion 0.3 in binary mode", ours, _ce(specversion="0.3")),
        ForeignRecord("MassTransit", "an envelope of its own in JSON", b'{"messageType": ["urn:message:OrderPlaced"], "message": {}}', _ce(content="application/vnd.masstransit+json"), "refused", "is missing"),
        ForeignRecord("Dapr", "structured without a content type of CloudEvents", _event(), _ce(content=JSON), "refused", "specversion: OrderPlaced has no such field"),
        ForeignRecord("Rust, rdkafka", "a content type without CloudEvents", ours, (("content-type", b"avro/binary"),)),
        ForeignRecord("Ruby, karafka", "a key of 2,000 bytes", ours, _ce(), "letter", "at most 1024", b"k" * 2000),
        ForeignRecord("Ruby, karafka", "a key that is no text", ours, _ce(), "letter", "not UTF-8", b"\xff\xff"),
        ForeignRecord("PHP, rdkafka", "serialized by PHP", b'O:11:"OrderPlaced":0:{}', _ce(), "refused", "no Avro single object"),
        ForeignRecord("Java, serialization", "serialized by Java", b"\xac\xed\x00\x05sr", _ce(), "refused", "no Avro single object"),
        ForeignRecord("Flink", "an Avro file", b"Obj\x01\x04\x16avro.schema", _ce(), "refused", "no Avro single object"),
    )


# fmt: on
CORPUS: Final = (
    *_java_records(),
    *_records_of_odd_types(),
    *_json_records(),
    *_structured_records(),
    *_registry_records(),
    *_records_with_headers(),
)


def _writer(id_: int) -> Writer:
    return Writer(id_, SCHEMAS.get(id_, ""), "http://registry")


class ConsumingService:
    """A service that consumes orders, used to find out how it treats a record."""

    def __init__(self, folder: Path) -> None:
        for contract in CONTRACTS:
            place = folder / "contracts" / "orders" / f"{contract['name']}.v1.avsc"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(json.dumps(contract))
        library = Library.load(folder / "contracts")
        service, self.orders = Service("payment"), dict[str, Event]()
        for name in ("OrderPlaced", "OrderRelayed"):
            service.handler(self._make_handler(make_event_class(library.contracts[name], library)))
        self.prepared: PreparedService = prepare(service.declared)

    def _make_handler(self, event: type[Event]) -> Any:
        async def take(order) -> None:  # type: ignore[no-untyped-def]  # its class is made here
            """Take an order."""

        take.__name__, take.__annotations__ = f"take_{event.__name__}", {"order": event, "return": None}
        at = datetime(2026, 11, 21, 14, 6, 40, 123_000, tzinfo=UTC)
        order: Any = event
        self.orders[event.__name__] = order(order_id="o-1", total=Decimal("9.80"), quantity=3, at=at)
        return take

    def judge(self, record: Record) -> tuple[Verdict, str]:
        """Return the service's verdict on a record that a broker delivered, and the reason."""
        id_ = schema_id_of(record)
        if id_ is not None:
            record = record._replace(writer=_writer(id_))
        taken = route_record(record, self.prepared)
        if isinstance(taken, BadRecord):
            return "letter", taken.reason
        if not isinstance(taken, Message):
            return "passed", taken.reason
        try:
            event = self._decode(taken)
        except UnknownSchema as why:
            return "waits", str(why)
        except BadInput as why:
            return "refused", str(why)
        return ("handled", "") if event == self.orders[taken.type] else ("refused", f"it became {event}")

    def _decode(self, message: Message) -> Event:
        """Decode the event in a message. Ask the registry for the schema if the service does not have it yet."""
        handler = f"take_{message.type}"
        try:
            return self.prepared.decode(handler, message)
        except SchemaUnasked as why:
            self.prepared.schemas.writers[why.id] = _writer(why.id)
            return self.prepared.decode(handler, message)


class ForeignConformance:
    """Test that the broker delivers records of other producers unchanged, so that the service reaches the right verdict
    on each.
    """

    async def test_each_record_of_other_producers_gets_its_verdict(
        self, broker: Broker, topic: str, tmp_path: Path
    ) -> None:
        """Publish all records under one key, so that they stay in order. Judge each record as if it had the key of its
        row.
        """
        seen, wrong = ConsumingService(tmp_path), list[str]()
        await broker.publish([Outgoing(topic, KEY, row.value, row.headers) for row in CORPUS])
        records = [record async for record in broker.scan(topic)]
        for row, record in zip(CORPUS, records, strict=True):
            verdict, reason = seen.judge(record._replace(key=row.key))
            if verdict != row.verdict or row.reason not in reason:
                wrong.append(f"{row.family}: {row.what}: {verdict} ({reason}), not {row.verdict} ({row.reason})")
        assert not wrong, "\n".join(wrong)
