"""Messages as records: headers that every CloudEvents reader accepts, and whatever a sender may write."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as replace_in

from saga.clients.events import to_record
from saga.contracts.library import Library, contract_of, find_library
from saga.errors import BadInput, DeclarationError
from saga.messages import Headers, Message, Outgoing, Record
from saga.messaging import envelope
from saga.messaging.message_ids import id_in, identity, identity_of_place
from saga.support.clock import iso
from services.payment.events import OrderPlaced, PaymentReserved
from tests.engine.real_worker import SAGA, an_order, message_of

ROOT = Path(__file__).parents[2]
NOW_MS = 1_795_270_000_123
NOW = iso(NOW_MS)
ORDER = contract_of(OrderPlaced)


def check_cloud_event(headers: Headers) -> dict[str, str]:
    """The attributes, by the rules of CloudEvents 1.0.2 and its binding for Kafka, which SDKs check to differing
    degrees."""
    named = {name: (value or b"").decode() for name, value in headers if name.startswith("ce_")}
    attributes = {name.removeprefix("ce_"): text for name, text in named.items()}
    assert len(named) == sum(name.startswith("ce_") for name, _ in headers), "no attribute twice"
    assert all(re.fullmatch(r"[a-z0-9]{1,20}", name) for name in attributes)
    assert all(attributes.values()), "no attribute is empty"
    assert attributes.keys() >= {"id", "source", "type", "specversion"}
    assert attributes["specversion"] == "1.0"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", attributes["time"])
    schema = urlsplit(attributes["dataschema"])
    assert schema.scheme, "an absolute URI"
    assert schema.path
    assert not re.search(r"\s", attributes["source"]), "a URI-reference"
    assert dict(headers)["content-type"] == b"application/avro"
    return attributes


def received(out: Outgoing, time_ms: int = NOW_MS) -> Record:
    return Record(out.topic, 3, 17, out.key, out.value, out.headers, time_ms)


def read(record: Record) -> Message:
    return envelope.to_message(record, type_="OrderPlaced", schema="", contract=ORDER)


def without(record: Record, *names: str) -> Record:
    return record._replace(headers=tuple(header for header in record.headers if header[0] not in names))


def with_headers(record: Record, **values: bytes | None) -> Record:
    return record._replace(headers=(*without(record, *values).headers, *values.items()))


# -------------------------------------------------------------------- what is written


def test_what_a_client_publishes_is_a_cloud_event() -> None:
    attributes = check_cloud_event(to_record(an_order(), NOW_MS).headers)
    assert attributes["type"] == "OrderPlaced"
    assert attributes["dataschema"] == "urn:saga:orders/OrderPlaced.v1"
    assert (attributes["source"], attributes["subject"]) == ("client", SAGA)
    assert (attributes["time"], attributes["sagastart"]) == (NOW, NOW)


def test_a_type_with_a_namespace_is_written_in_full() -> None:
    contract = replace(ORDER, namespace="shop.orders", schemas="https://schemas.example.org/contracts/")
    attributes = check_cloud_event(envelope.headers_of(message_of(an_order(), started=NOW), contract))
    assert attributes["type"] == "shop.orders.OrderPlaced"
    assert attributes["dataschema"] == "https://schemas.example.org/contracts/orders/OrderPlaced.v1"


def test_the_base_of_schema_uris_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAGA_SCHEMA_BASE", "https://schemas.example.org/")
    assert find_library(ROOT).contracts["OrderPlaced"].schemas == "https://schemas.example.org/"
    monkeypatch.setenv("SAGA_SCHEMA_BASE", "")
    assert find_library(ROOT).contracts["OrderPlaced"].schemas == "urn:saga:"


@pytest.mark.parametrize("base", ["schemas/", "https://schemas.example.org", "https://a b/", "/contracts/"])
def test_a_base_that_gives_no_absolute_uris_is_refused(monkeypatch: pytest.MonkeyPatch, base: str) -> None:
    monkeypatch.setenv("SAGA_SCHEMA_BASE", base)
    with pytest.raises(DeclarationError, match=r"SAGA_SCHEMA_BASE is .*; it is an absolute URI that ends in / or :"):
        find_library(ROOT)


def test_a_contract_knows_the_namespace_of_its_schema(tmp_path: Path) -> None:
    (tmp_path / "orders").mkdir()
    schema = (ROOT / "contracts" / "orders" / "OrderPlaced.v1.avsc").read_text()
    named = schema.replace('"name": "OrderPlaced"', '"namespace": "shop.orders", "name": "OrderPlaced"', 1)
    (tmp_path / "orders" / "OrderPlaced.v1.avsc").write_text(named)
    assert Library.load(tmp_path).contracts["OrderPlaced"].full_name == "shop.orders.OrderPlaced"


# -------------------------------------------------------------------- what is read


@pytest.mark.parametrize(
    "uri",
    [
        "orders/OrderPlaced.v1",
        "urn:saga:orders/OrderPlaced.v1",
        "https://schemas.example.org/contracts/orders/OrderPlaced.v1",
    ],
)
def test_a_schema_is_known_by_every_uri_that_ends_in_its_path(uri: str) -> None:
    record = with_headers(received(to_record(an_order(), NOW_MS)), ce_dataschema=uri.encode())
    assert read(record).schema == "orders/OrderPlaced.v1"


def test_a_foreign_schema_is_kept_as_it_is() -> None:
    uri = "https://registry.example.org/schemas/17"
    message = read(with_headers(received(to_record(an_order(), NOW_MS)), ce_dataschema=uri.encode()))
    assert message.schema == uri
    assert dict(envelope.headers_of(message, ORDER))["ce_dataschema"] == uri.encode()


@pytest.mark.parametrize("name", [b"OrderPlaced", b"shop.orders.OrderPlaced"])
def test_a_type_is_known_with_and_without_its_namespace(name: bytes) -> None:
    assert envelope.type_of(with_headers(received(to_record(an_order(), NOW_MS)), ce_type=name)) == "OrderPlaced"


@pytest.mark.parametrize("name", [None, b""])
def test_a_missing_or_undecodable_type_header_gives_no_type(name: bytes | None) -> None:
    assert envelope.type_of(with_headers(received(to_record(an_order(), NOW_MS)), ce_type=name)) is None


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2026-11-21T14:06:40.123Z", "2026-11-21T14:06:40.123Z"),
        ("2026-11-21T15:06:40.123456789+01:00", "2026-11-21T14:06:40.123Z"),
        ("2026-11-21t14:06:40z", "2026-11-21T14:06:40.000Z"),
        ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00.000Z"),
    ],
)
def test_times_have_one_form_that_sorts(text: str, time: str) -> None:
    assert read(with_headers(received(to_record(an_order(), NOW_MS)), ce_time=text.encode())).time == time


def test_the_start_of_a_saga_comes_from_its_header_not_from_the_message_time() -> None:
    record = received(to_record(an_order(), NOW_MS))
    later = read(with_headers(record, ce_sagastart=b"2026-11-21T09:00:00.000Z"))
    assert (later.time, later.started) == (NOW, "2026-11-21T09:00:00.000Z")
    first = read(with_headers(record, ce_time=b"2026-11-21T10:00:00+01:00", ce_sagastart=b"2026-11-21T10:00:00+01:00"))
    assert first.time == first.started == "2026-11-21T09:00:00.000Z"


def test_the_start_of_a_saga_is_the_time_of_a_foreign_event_that_starts_one() -> None:
    record = without(received(to_record(an_order(), NOW_MS)), "ce_sagastart")
    early = with_headers(record, ce_time=b"2026-11-21T10:00:00+01:00")
    assert read(early).started == "2026-11-21T09:00:00.000Z"
    assert read(without(record, "ce_time")).started == NOW, "the log's time"
    other = envelope.to_message(record, type_="PaymentReserved", schema="", contract=contract_of(PaymentReserved))
    assert other.started is None


def test_null_and_empty_headers_count_as_absent() -> None:
    record = received(to_record(an_order(), NOW_MS))
    names = [name for name, _ in record.headers]
    bare = read(without(record, *names))
    assert bare.id == "|orders/3/17"
    assert (bare.source, bare.time, bare.started) == ("unknown", NOW, NOW)
    for value in (None, b""):
        message = read(record._replace(headers=tuple((name, value) for name in names)))
        assert replace_foreign(message) == bare
    headers = dict(envelope.headers_of(bare, ORDER))
    assert (headers["ce_id"], headers["ce_source"]) == (b"orders/3/17", b"unknown")
    assert "ce_dataschema" not in headers


def replace_foreign(message: Message) -> Message:
    return Message(**{f: getattr(message, f) for f in message.__struct_fields__ if f != "foreign"})


@pytest.mark.parametrize("time_ms", [-1, 1_795_270_000_123_456, 1 << 63, -(1 << 63)])
def test_a_missing_record_time_is_bad_input_only_where_it_is_needed(time_ms: int) -> None:
    record = received(to_record(an_order(), NOW_MS), time_ms)
    assert read(record).time == NOW
    with pytest.raises(BadInput, match=f"its time in the log cannot be one: {time_ms} milliseconds since 1970"):
        read(without(record, "ce_time"))


BAD: Mapping[str, tuple[Mapping[str, bytes], str]] = {
    "no time": ({"ce_time": b"9" * 400}, "the header ce_time is no RFC 3339 time: '9999999"),
    "beyond all time": (
        {"ce_time": b"9999-12-31T23:59:59-23:59"},
        "the header ce_time is no RFC 3339 time: '9999-12-31T23:59:59-23:59'",
    ),
    "no text": ({"ce_id": b"a\xed\xa0\x80"}, "the message's header ce_id is not UTF-8: its byte 2 is ed"),
    "a huge id": (
        {"ce_id": b"x" * 600},
        f"the message's header ce_id has 600 bytes, at most 512 may be: it begins with '{'x' * 40}'",
    ),
    "another subject": (
        {"ce_subject": b"\x1b[2Jorder-2"},
        r"the message's key 'order-1' is not its subject '\x1b[2Jorder-2': both must be the saga id",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_an_unreadable_record_raises_a_bounded_printable_error(case: str) -> None:
    headers, reason = BAD[case]
    with pytest.raises(BadInput) as why:
        read(with_headers(received(to_record(an_order(), NOW_MS)), **headers))
    message = str(why.value)
    assert message.startswith(reason)
    assert message.isprintable()
    assert len(message) < 400


def test_a_huge_key_is_quoted_once_and_shortened() -> None:
    record = received(to_record(an_order(), NOW_MS))._replace(key=b"k" * 200_000)
    with pytest.raises(BadInput) as why:
        read(record)
    assert str(why.value) == (f"the message's key has 200000 bytes, at most 1024 may be: it begins with '{'k' * 40}'")


# -------------------------------------------------------------------- headers of others


def test_our_own_messages_keep_no_headers() -> None:
    assert read(received(to_record(an_order(), NOW_MS))).foreign == ()


def test_unknown_headers_are_kept_unchanged() -> None:
    theirs: Headers = (("x-shop", b"\xff\x00"), ("x-none", None), ("x-shop", b"twice"), ("", b"nameless"))
    record = received(to_record(an_order(), NOW_MS))
    message = read(record._replace(headers=(*theirs[:2], *record.headers[::-1], *theirs[2:])))
    assert message.foreign == theirs
    assert replace_foreign(message) == read(record)


def test_kept_headers_with_our_names_are_renamed() -> None:
    record = received(to_record(an_order(), NOW_MS))
    more: Headers = (("dead_reason", b"-"), ("foreign_x", b"-"), ("ce_id", b"second"), ("ce_source", None))
    message = read(record._replace(headers=(*record.headers, *more)))
    assert [name for name, _ in message.foreign] == [
        "foreign_dead_reason",
        "foreign_foreign_x",
        "foreign_ce_id",
        "foreign_ce_source",
    ]
    assert replace_foreign(message) == read(record), "the first of each name counts"


@pytest.mark.parametrize(
    "header",
    [("ce_id", b"second"), ("ce_source", None), ("content-type", b"text/plain"), ("ce_specversion", b"0.3")],
    ids=["twice", "null", "another type of content", "another version"],
)
def test_a_single_header_with_our_name_but_no_field_is_kept(
    header: tuple[str, bytes | None],
) -> None:
    name, value = header
    record = received(to_record(an_order(), NOW_MS))
    others = record.headers if value == b"second" else tuple(h for h in record.headers if h[0] != name)
    assert read(record._replace(headers=(*others, header))).foreign == ((f"foreign_{name}", value),)


@pytest.mark.parametrize("trace", [b"", b"\xff" * 55, b"00-" + b"x" * 60, b"0" * 5000])
def test_an_invalid_trace_header_is_ignored(trace: bytes) -> None:
    message = read(with_headers(received(to_record(an_order(), NOW_MS)), traceparent=trace))
    assert message.trace is None
    assert message.foreign == ((("foreign_traceparent", trace),) if trace else ())


def test_headers_beyond_the_limit_are_counted() -> None:
    record = received(to_record(an_order(), NOW_MS))
    many: Headers = tuple((f"x-{n}", b"y" * 1000) for n in range(100))
    message = read(record._replace(headers=(*record.headers, *many)))
    *kept, (name, summary) = message.foreign
    assert tuple(kept) == many[: len(kept)]
    assert 10 < len(kept) < 20
    assert name == "foreign_left_out"
    assert re.fullmatch(
        rb"\d\d headers of \d+ bytes \(sha256 of their text [0-9a-f]{64}\) lie at orders/3/17", summary or b""
    )
    assert envelope.size_of(message.foreign) < envelope.FOREIGN_BYTES_MAX + 300


WRITTEN = received(to_record(an_order(), NOW_MS))
HEADER_VALUES = [
    st.sampled_from([value, None, b"", b"1", b"\xff", NOW.encode(), SAGA.encode()]) for _, value in WRITTEN.headers
]


@given(st.tuples(*HEADER_VALUES))
def test_the_order_of_headers_does_not_matter(values: tuple[bytes | None, ...]) -> None:
    headers = tuple((name, value) for (name, _), value in zip(WRITTEN.headers, values, strict=True))
    as_written, turned = WRITTEN._replace(headers=headers), WRITTEN._replace(headers=headers[::-1])
    assert read_or_error(as_written) == read_or_error(turned)


def read_or_error(record: Record) -> tuple[Message, set[tuple[str, bytes | None]]] | str:
    """The message, whatever the order of headers that are kept; or what is wrong with the record."""
    try:
        message = read(record)
    except BadInput as why:
        return str(why)
    return replace_in(message, foreign=()), set(message.foreign)


# -------------------------------------------------------------------- which message it is

names = st.text(st.sampled_from("ab|%+/-\x1b ä\u202e"), min_size=1, max_size=6)
types = st.sampled_from(["A", "B"])
OWNERS = {"A": "a", "B": "b"}


@given(st.lists(st.tuples(names, st.one_of(names, st.sampled_from(["A-1", "B-1", "A-1|", "A-1/3/4"])), types)))
def test_messages_of_two_senders_or_with_two_ids_are_different(messages: list[tuple[str, str, str]]) -> None:
    sources = {identity(source, id_, type_, OWNERS[type_]): (source, id_) for source, id_, type_ in messages}
    for source, id_, type_ in messages:
        name = identity(source, id_, type_, OWNERS[type_])
        assert sources[name] == (source, id_)
        assert id_in(name) == id_
        assert "+" not in name, "the ids of parts are joined by it"
        assert name.isprintable()


def test_a_message_without_an_id_is_identified_by_its_offset() -> None:
    assert identity_of_place("orders", 3, 17) == "|orders/3/17"
    assert identity("unknown", "orders/3/17", "OrderPlaced", "order") == "unknown|orders/3/17"
    assert id_in("|orders/3/17") == "orders/3/17"


# -------------------------------------------------------------------- who began the saga

SIGNED = replace(ORDER, versions=(replace(ORDER.newest, schema={**ORDER.newest.schema, "principal": "x-user"}),))
"""The contract, where a header of its senders says who begins the saga."""


def signed(record: Record) -> Message:
    return envelope.to_message(record, type_="OrderPlaced", schema="", contract=SIGNED)


def test_the_principal_is_written_and_read_as_an_extension_attribute() -> None:
    out = to_record(an_order(), NOW_MS, principal="user:4711 Grüße")
    assert check_cloud_event(out.headers)["sagaprincipal"] == "user:4711 Grüße"
    assert read(received(out)).principal == "user:4711 Grüße"
    assert envelope.headers_of(read(received(out)), ORDER) == out.headers


def test_without_a_principal_no_header_is_written_and_none_is_read() -> None:
    out = to_record(an_order(), NOW_MS)
    assert "sagaprincipal" not in check_cloud_event(out.headers)
    assert read(received(out)).principal is None
    assert read(with_headers(received(out), ce_sagaprincipal=b"")).principal is None
    assert read(with_headers(received(out), ce_sagaprincipal=None)).principal is None


@pytest.mark.parametrize(
    ("who", "says"),
    [
        (b"x" * 257, "header ce_sagaprincipal, which says who began the saga, has 257 bytes, at most 256 may be"),
        (b"user:\xff", "header ce_sagaprincipal, which says who began the saga, is not UTF-8: its byte 6 is ff"),
    ],
)
@pytest.mark.parametrize("header", ["ce_sagaprincipal", "x-user"])
def test_a_principal_that_cannot_be_kept_is_bad_input(who: bytes, says: str, header: str) -> None:
    with pytest.raises(BadInput, match=re.escape(says)):
        signed(with_headers(received(to_record(an_order(), NOW_MS)), **{header: who}))


def test_the_principal_of_other_senders_is_read_from_the_header_named_in_the_contract() -> None:
    order = received(to_record(an_order(), NOW_MS))
    theirs = with_headers(order, **{"x-user": b"ada"})
    assert signed(theirs).principal == "ada"
    assert signed(theirs).foreign == (("x-user", b"ada"),), "it stays as it came"
    assert read(theirs).principal is None, "a contract without a principal trusts no sender's"
    assert signed(order).principal is None
    assert signed(with_headers(theirs, ce_sagaprincipal=b"bea")).principal == "bea", "what we say ourselves comes first"
    twice = theirs._replace(headers=(*theirs.headers, ("x-user", b"eve")))
    assert signed(twice).principal == "ada"
    quoted = with_headers(order, **{"x-user": b'"ada"'})
    assert signed(quoted).principal == "ada", "Spring writes quotes around a header, as in the toolkit's own one"
    assert signed(quoted).foreign == (("x-user", b'"ada"'),)
