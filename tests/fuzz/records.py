"""Records as anybody may write them: whole ones of several senders, and what was done to them."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from random import Random  # noqa: TID251 - drawn from a seed

from saga.clients import events
from saga.contracts import codec
from saga.contracts.foreign_values import frame, to_registered_schema
from saga.contracts.library import contract_of
from saga.messages import Headers, Message
from saga.messaging.envelope import headers_of
from saga.support.clock import iso
from services.order.events import OrderCancelled, OrderConfirmed
from services.payment.events import OrderPlaced

NOW_MS = 1_795_270_000_123
TOPIC = "orders"


@dataclass(frozen=True)
class Written:
    """Record that goes into the log."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    time_ms: int = NOW_MS
    codec: int = 0
    """Number of the codec that compresses its batch, where the log does that."""

    @property
    def size(self) -> int:
        """Bytes in the log, at most."""
        headers = sum(len(name.encode()) + len(value or b"") + 10 for name, value in self.headers)
        return len(self.key or b"") + len(self.value or b"") + headers + 100


TIMES = (
    *("", " ", "now", "2026", "2026-11-21", "2026-11-21T14:06", "2026-11-21T14:06:40", "2026-11-21 14:06:40Z"),
    *("2026-11-21T14:06:40Z", "2026-11-21T14:06:40.123456789Z", "2026-11-21t14:06:40z", "2026-11-21T14:06:60Z"),
    *("2026-13-01T00:00:00Z", "2026-02-30T00:00:00.000Z", "0000-01-01T00:00:00.000Z", "0001-01-01T00:00:00Z"),
    *("0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59.999Z", "9999-12-31T23:59:59-23:59", "99999-01-01T00:00:00Z"),
    *("2026-W47-6T14:06:40Z", "20261121T140640Z", "2026-11-21T14:06:40+99:99", "2026-11-21T14:06:40.Z"),
    *("1795270000123", "1795270000123456", "-1", "1e400", "\u0662\u0660\u0662\u0666-11-21T14:06:40.123Z", "NaN"),
)
LOG_TIMES_MS = (-1, 0, 1, NOW_MS * 1000, NOW_MS * 1_000_000, 253_402_300_800_000, 1 << 62, NOW_MS // 1000)
TEXTS = (
    *(b"", b" ", b"-", b"\x00", b"\xff", b"\xed\xa0\x80", b"\xc3", b"\xf0\x9f\x98\x80", b"\x1b[2J\x1b[31m", b"a\nb"),
    *(
        b"null",
        b"a|x",
        b"a+b",
        b"%7C",
        "\u202e\u200b\u2028".encode(),
        b"../../etc",
        b"' OR 1",
        b"{}",
        b"x" * 300,
    ),
    *(b"x" * 511, b"x" * 512, b"x" * 513, b"\xc3\xa4" * 256, b"x" * 1023, b"x" * 1024, b"x" * 1025, b"y" * 5000),
)
NAMES = (
    *("", " ", "x", "x-shop", "dead_reason", "dead_id", "dead_position", "foreign_x", "ce_", "CE_ID", "ce_other"),
    *("content-type", "ce_specversion", "\x00", "\n", "\u202e", "\U0001f600", "n" * 300, "tracestate", "ce_type"),
)
ENVELOPE = ("ce_type", "ce_id", "ce_source", "ce_time", "ce_subject", "ce_dataschema", "ce_sagastart", "traceparent")


def records(seed: int, count: int, *, bytes_max: int, sagas: int | None = None) -> Iterator[Written]:
    """So many, the same for a seed. `bytes_max`: what the topic takes as one record."""
    random = Random(seed)
    for _ in range(count):
        saga = f"order-{random.randrange(sagas or max(1, count // 5))}"
        written = random.choice(SENDERS)(random, saga)
        for _ in range(random.choice((0, 1, 1, 1, 2, 3))):
            written = random.choice(SPOILERS)(random, written)
        if random.random() < 0.01:
            written = _about(random, written, bytes_max)
        if written.size > bytes_max:
            written = replace(written, value=None, headers=())
        yield written


DUES = (
    *(b'{"due_ms":0}', b'{"due_ms":-1}', b'{"due_ms":%d}' % -(1 << 63), b'{"due_ms":%d}' % (1 << 63)),
    *(b'{"due_ms":%d}' % (1 << 70), b'{"due_ms":1%s}' % (b"0" * 400), b'{"due_ms":1%s}' % (b"0" * 5000)),
    *(
        b'{"due_ms":1.5}',
        b'{"due_ms":1e308}',
        b'{"due_ms":NaN}',
        b'{"due_ms":null}',
        b'{"due_ms":"1"}',
        b'{"due_ms":[1]}',
    ),
    *(b"{}", b"[]", b"null", b"", b"{", b"\xff", b"[" * 5000, b'{"due_ms":1,"due_ms":2}', b'{"due_ms":1,"more":{}}'),
    *(b'{"due_ms":%d}' % NOW_MS, b'{"due_ms":253402300799999}', b'{"due_ms":253402300800000}', None),
)


def wakes(seed: int, count: int) -> Iterator[Written]:
    """Records such as may lie among wakes; of every other one only the value and the time are wrong, if anything."""
    random = Random(seed)
    for number, written in enumerate(records(seed, count, bytes_max=100_000)):
        headers = tuple((name, b"saga.wake" if name == "ce_type" else text) for name, text in written.headers)
        if number % 2:
            headers = (("ce_type", b"saga.wake"), ("ce_id", b"wake-1"), ("ce_source", b"payment"))
            headers = (*headers, ("ce_time", iso(NOW_MS).encode()))
        value = random.choice((*DUES, written.value)) if number % 3 else b'{"due_ms":%d}' % (NOW_MS - number)
        yield Written(written.key, value, headers, random.choice((NOW_MS, *LOG_TIMES_MS)), written.codec)


# -------------------------------------------------------------------- senders


def _an_order(saga: str, quantity: int = 1) -> OrderPlaced:
    return OrderPlaced(
        order_id=saga, customer_id="c", sku="tea", quantity=quantity, total=Decimal("9.80"), card="4", address="Kiel"
    )


def _client(random: Random, saga: str) -> Written:
    record = events.to_record(_an_order(saga, random.choice((1, 1, 2))), NOW_MS)
    return Written(record.key, record.value, record.headers, codec=random.randrange(12))


def _service(random: Random, saga: str) -> Written:
    event = random.choice((OrderConfirmed(order_id=saga), OrderCancelled(order_id=saga, reason="-")))
    contract = contract_of(type(event))
    message = Message(
        id=f"{contract.name}-{random.randrange(1 << 20):032x}",
        type=contract.name,
        schema=type(event).__contract__,
        saga=saga,
        source=random.choice(("order", "order", "payment", "shop", "client")),
        time=iso(NOW_MS + random.randrange(1000)),
        value=codec.encode(event),
        started=random.choice((None, iso(NOW_MS), iso(NOW_MS), "2001-01-01T00:00:00.000Z")),
    )
    return Written(saga.encode(), message.value, headers_of(message, contract), codec=random.randrange(12))


def _cloud_event(random: Random, saga: str) -> Written:
    headers: Headers = (
        ("ce_specversion", b"1.0"),
        ("ce_id", b"%d" % random.randrange(50)),
        ("ce_source", random.choice((b"/shops/kiel", b"/shops/bonn", b"urn:uuid:1"))),
        ("ce_type", b"org.example.OrderPlaced"),
        ("ce_time", b"2026-11-21T15:06:40.5+01:00"),
        ("content-type", b"application/avro"),
    )
    return Written(saga.encode(), codec.encode(_an_order(saga)), headers, codec=random.randrange(12))


def _bare(random: Random, saga: str) -> Written:
    return Written(saga.encode(), codec.encode(_an_order(saga)), (), codec=random.randrange(12))


def _json(random: Random, saga: str) -> Written:
    """An order as JSON, in binary or structured mode, with a little that may be wrong."""
    fields = codec.to_json(_an_order(saga, random.choice((1, 2))))
    for _ in range(random.choice((0, 0, 1))):
        fields[random.choice((*fields, "more"))] = random.choice((None, 1, -1.5, True, "", "x" * 300, [], {"a": [{}]}))
    event: dict[str, object] = {
        "specversion": random.choice(("1.0", "1.0", "1.0", "0.3")),
        "id": str(random.randrange(50)),
        "source": "/shops/kiel",
        "type": random.choice(("org.example.OrderPlaced", "OrderPlaced", "Other")),
        "dataschema": random.choice(("urn:saga:orders/OrderPlaced.v1", "orders/OrderPlaced.v9", "about:blank")),
    }
    content_type = random.choice((b"application/json", b"application/json; charset=utf-8", b"application/x+json"))
    value, headers = json.dumps(fields).encode(), tuple((f"ce_{name}", str(v).encode()) for name, v in event.items())
    if random.random() < 0.5:
        content_type, headers = random.choice(STRUCTURED), ()
        event |= random.choice(({"data": fields}, {"data": fields}, {"data_base64": "e30="}, {"data": "x", "": 1}))
        value = json.dumps(event).encode()
    if random.random() < 0.1:
        value = value[: random.randrange(len(value))]
    return Written(saga.encode(), value, (("content-type", content_type), *headers), codec=random.randrange(12))


STRUCTURED = (
    *(b"application/cloudevents+json", b"application/cloudevents+json", b"Application/CloudEvents+JSON;charset=utf-8"),
    *(b"application/cloudevents-batch+json", b"application/cloudevents+avro"),
)


def _framed(random: Random, saga: str) -> Written:
    """An order in the wire format of a registry, by an id of `SCHEMAS`, or by none."""
    written = random.choice((_client, _bare, _cloud_event))(random, saga)
    value = frame(random.randrange(len(SCHEMAS) + 2), written.value or b"")
    return replace(written, value=value)


def _schemas() -> Iterator[object]:
    """Registered schemas: ours, one that fits, and some that do not."""
    ours = to_registered_schema(contract_of(OrderPlaced).newest.schema)
    yield ours
    yield {**ours, "fields": [field for field in ours["fields"] if field["name"] != "address"]}
    yield {**ours, "fields": [{**ours["fields"][0], "type": "bytes"}, *ours["fields"][1:]]}
    yield {**ours, "name": "Other"}
    yield {**ours, "fields": [*ours["fields"], {"name": "x", "type": ["int", "string", "null"]}]}
    yield "nothing"


SCHEMAS = tuple(_schemas())
"""Schemas of a registry; each has its place as its id, and 0 is no id."""
SENDERS: tuple[Callable[[Random, str], Written], ...] = (
    *(_client, _client, _service, _service, _cloud_event, _bare),
    *(_json, _framed),
)


# -------------------------------------------------------------------- what is done to them


def _a_header_spoilt(random: Random, written: Written) -> Written:
    name = random.choice(ENVELOPE)
    text = random.choice((*TEXTS, None, random.randbytes(20), random.choice(TIMES).encode()))
    rest = tuple(header for header in written.headers if header[0] != name)
    return replace(written, headers=(*rest, (name, text)))


def _a_time(random: Random, written: Written) -> Written:
    name, text = random.choice(("ce_time", "ce_time", "ce_sagastart")), random.choice(TIMES).encode()
    return replace(written, headers=(*(h for h in written.headers if h[0] != name), (name, text)))


def _a_log_time(random: Random, written: Written) -> Written:
    headers = random.choice((written.headers, tuple(h for h in written.headers if h[0] != "ce_time")))
    return replace(written, headers=headers, time_ms=random.choice(LOG_TIMES_MS))


def _headers_left_out(random: Random, written: Written) -> Written:
    return replace(written, headers=tuple(h for h in written.headers if random.random() < 0.7))


def _headers_shuffled(random: Random, written: Written) -> Written:
    return replace(written, headers=tuple(random.sample(written.headers, len(written.headers))))


def _more_headers(random: Random, written: Written) -> Written:
    more = [
        (random.choice((*NAMES, *ENVELOPE)), random.choice((*TEXTS, None))) for _ in range(random.choice((1, 2, 5, 60)))
    ]
    return replace(written, headers=(*written.headers, *more))


def _a_key(random: Random, written: Written) -> Written:
    return replace(
        written, key=random.choice((None, *TEXTS, random.randbytes(16), b"k" * random.choice((9_000, 200_000))))
    )


def _a_value(random: Random, written: Written) -> Written:
    value = written.value or b""
    at = random.randrange(len(value) + 1)
    flipped = bytearray(value or b"\x00")
    flipped[at % len(flipped)] ^= 1 << random.randrange(8)
    return replace(
        written,
        value=random.choice(
            (
                *(
                    None,
                    b"",
                    b"{}",
                    b"\xc3",
                    b"\xc3\x01",
                    bytes(5) + value,
                    b"\xc3\x01" + bytes(8) + value,
                ),
                *(value[:at], value + b"\x00", bytes(flipped), bytes(flipped), random.randbytes(random.randrange(200))),
                value[:10] + random.choice((b"\xff" * 9 + b"\x01", b"\xfe\xff\xff\xff\x0f", b"\x01", b"\x80" * 20)),
                value[:10] + random.randbytes(random.randrange(60)),
            )
        ),
    )


SPOILERS: tuple[Callable[[Random, Written], Written], ...] = (
    *(_a_header_spoilt, _a_header_spoilt, _a_time, _a_log_time, _headers_left_out, _headers_shuffled),
    *(_more_headers, _a_key, _a_value, _a_value),
)


def _about(random: Random, written: Written, bytes_max: int) -> Written:
    """About as large as may be, or as a bound of ours; what makes it so is its value, its headers, or one of them."""
    wanted = random.choice((bytes_max, bytes_max, bytes_max - 1, bytes_max - 20_000, bytes_max // 2, 1 << 16, 1 << 14))
    room = wanted - written.size - 20
    if room < 100:
        return written
    match random.choice(("value", "value", "header", "headers", "key")):
        case "value":
            return replace(written, value=(written.value or b"") + b"v" * room)
        case "header":
            return replace(written, headers=(*written.headers, ("x-large", b"h" * room)))
        case "headers":
            return replace(written, headers=(*written.headers, *((f"x-{n}", b"h" * 80) for n in range(room // 100))))
        case _:
            return replace(written, key=(written.key or b"") + b"k" * room)
