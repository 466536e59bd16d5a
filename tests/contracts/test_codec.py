"""Events to bytes and back: what lies on the wire, what is refused, and how versions read each other."""

import itertools
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any
from uuid import UUID

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from saga.contracts import codec
from saga.contracts.checks import find_incompatible
from saga.contracts.library import Library, binding_of, contract_of
from saga.contracts.schema import without_logical_types
from saga.contracts.sensitive_fields import collect_secrets
from saga.errors import BadInput
from saga.messages import Event
from tests.contracts.folders import decimal, event, field, generated, schema, write

LINE = {"type": "record", "name": "Line", "fields": [field("sku", "string"), field("price", decimal())]}
PART = {"type": "record", "name": "Part", "fields": [field("raw", "bytes"), field("n", "int", default=7)]}
COLOR = {"type": "enum", "name": "Color", "symbols": ["RED", "GREEN"]}
FIELDS = (
    field("lines", {"type": "array", "items": LINE}, default=[]),
    field("color", COLOR, default="RED"),
    field("prices", {"type": "map", "values": decimal(5, 1)}, default={}),
    field("note", ["null", "string"], default=None),
    field("count", "int", default=0),
    field("big", "long", default=0),
    field("ratio", "double", default=0),
    field("small", "float", default=0),
    field("raw", "bytes", default=""),
    field("yes", "boolean", default=False),
    field("day", ["null", {"type": "int", "logicalType": "date"}], default=None),
    field("millis", ["null", {"type": "long", "logicalType": "timestamp-millis"}], default=None),
    field("micros", ["null", {"type": "long", "logicalType": "timestamp-micros"}], default=None),
    field("ident", ["null", {"type": "string", "logicalType": "uuid"}], default=None),
    field("total", decimal(), default="\u0000"),
)


@pytest.fixture(scope="module")
def contracts(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A module with `Said`, which has every kind of field, and `Heard`."""
    folder = tmp_path_factory.mktemp("codec")
    write(folder, schema("Said", *FIELDS), schema("Heard"))
    return generated(folder, "Said", "Heard")


def library_of(cls: type[Event]) -> Library:
    return binding_of(cls).library


def test_the_value_is_marker_fingerprint_and_record(contracts: Any) -> None:
    heard = contracts.Heard(order_id="o-1")
    version = contract_of(contracts.Heard).versions[0]
    value = codec.encode(heard)
    assert value == b"\xc3\x01" + version.fingerprint + b"\x06o-1"
    assert codec.identify(value, library_of(contracts.Heard)) is version
    assert codec.decode(value, contracts.Heard, library_of(contracts.Heard)) == heard


def test_the_record_is_what_fastavro_writes_with_its_own_logical_types(contracts: Any) -> None:
    lines = [{"sku": "a", "price": Decimal("-1.28")}, {"sku": "b", "price": Decimal("327.68")}]
    values = {
        "order_id": "o-1",
        "prices": {"x": Decimal("12.5")},
        "note": "é",
        "count": -3,
        "big": 2**40,
        "ratio": 0.1,
        "small": 0.5,
        "raw": b"\x00\xff",
        "yes": True,
        "day": date(1969, 12, 31),
        "millis": datetime(2026, 11, 21, 14, 6, 40, 123000, tzinfo=UTC),
        "micros": datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        "ident": UUID(int=5),
        "total": Decimal("0.00"),
    }
    made = contracts.Said(**values, lines=tuple(contracts.Line(**line) for line in lines), color=contracts.Color.GREEN)
    body = BytesIO(codec.encode(made)[10:])
    theirs: Any = fastavro.schemaless_reader(body, contract_of(contracts.Said).versions[0].schema, None)
    assert theirs == {**values, "lines": lines, "color": "GREEN"}
    out = BytesIO()
    fastavro.schemaless_writer(out, contract_of(contracts.Said).versions[0].schema, theirs)
    header = codec.encode(made)[:10]
    assert codec.decode(header + out.getvalue(), contracts.Said, library_of(contracts.Said)) == made


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"order_id": 5}, "Said: order_id: is a whole number, not text"),
        ({"order_id": None}, "Said: order_id: is None, not text"),
        ({"count": "5"}, "Said: count: is text, not a whole number"),
        ({"count": True}, "Said: count: is true or false, not a whole number"),
        ({"count": 2**31}, "Said: count: must lie between -2147483648 and 2147483647"),
        ({"big": -(2**63) - 1}, "Said: big: must lie between"),
        ({"big": 1.0}, "Said: big: is a number, not a whole number"),
        ({"ratio": "1"}, "Said: ratio: is text, not a number"),
        ({"ratio": 2**53 + 1}, "Said: ratio: is a whole number with more digits than a float can hold"),
        ({"ratio": 10**400}, "Said: ratio: is a whole number with more digits than a float can hold"),
        ({"small": 1e39}, "Said: small: is too great for 32 bits"),
        ({"raw": "x"}, "Said: raw: is text, not bytes"),
        ({"yes": 1}, "Said: yes: is a whole number, not true or false"),
        ({"note": 5}, "Said: note: is a whole number, not text"),
        ({"color": "RED"}, "Said: color: is text, not Color"),
        ({"total": 5}, "Said: total: is a whole number, not a Decimal"),
        ({"total": 9.8}, "Said: total: is a number, not a Decimal"),
        ({"total": Decimal("0.001")}, "Said: total: has more than 2 digits after the point; round it before"),
        ({"total": Decimal("1e-999999")}, "Said: total: has more than 2 digits after the point"),
        ({"total": Decimal("0." + "1" * 500)}, "Said: total: has more than 2 digits after the point"),
        ({"total": Decimal("1e10")}, "Said: total: must be a number with at most 10 digits before the point"),
        ({"total": Decimal("-10000000000")}, "Said: total: must be a number with at most 10 digits before the point"),
        ({"total": Decimal("1e999999")}, "Said: total: must be a number with at most 10 digits before the point"),
        ({"total": Decimal("NaN")}, "Said: total: must be a number"),
        ({"total": Decimal("Infinity")}, "Said: total: must be a number"),
        ({"day": datetime(2026, 1, 1, tzinfo=UTC)}, "Said: day: is a datetime, not a date"),
        ({"millis": datetime(2026, 1, 1)}, "Said: millis: has no time zone"),  # noqa: DTZ001  that is the point
        ({"millis": datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=UTC)}, "Said: millis: has microseconds"),
        ({"micros": date(2026, 1, 1)}, "Said: micros: is a date, not a datetime"),
        ({"micros": datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=1)))}, "Said: micros: is, in UTC, a time before"),
        ({"ident": str(UUID(int=5))}, "Said: ident: is text, not a UUID"),
        ({"lines": "ab"}, "Said: lines: must be a tuple"),
        ({"prices": [1]}, "Said: prices: must be a mapping from text"),
        ({"prices": {5: Decimal(1)}}, "Said: prices: all keys must be text"),
        ({"prices": {"a": Decimal(1), "b c": Decimal("0.05")}}, "Said: prices['b c']: has more than 1 digits"),
        ({"order_id": "\ud800"}, "Said: order_id: half of a surrogate pair is no text"),
        ({"prices": {"\ud800": Decimal(1)}}, r"Said: prices.\ud800: half of a surrogate pair is no text"),
    ],
)
def test_a_field_that_its_contract_does_not_allow_is_named(
    contracts: Any, change: dict[str, Any], problem: str
) -> None:
    wrong = contracts.Said(**{"order_id": "o-1", **change})
    for refuses in (codec.encode, codec.to_json):
        with pytest.raises(BadInput) as caught:
            refuses(wrong)
        assert str(caught.value).startswith(problem)


@pytest.mark.parametrize("zero", ["0E+20", "-0", "0E-999999", "0E+999999"])
def test_zero_is_a_decimal_whatever_its_exponent(contracts: Any, zero: str) -> None:
    """Multiplying zero by a large number keeps the exponent, and Java writes such a zero as 0E+20."""
    said = contracts.Said(order_id="o-1", total=Decimal(zero))
    assert codec.encode(said) == codec.encode(contracts.Said(order_id="o-1", total=Decimal(0)))


def test_the_path_leads_into_nested_parts(contracts: Any) -> None:
    good, bad = contracts.Line(sku="a", price=Decimal(1)), contracts.Line(sku="b", price=Decimal("0.001"))
    with pytest.raises(BadInput, match=r"^Said: lines\[1\]\.price: has more than 2 digits"):
        codec.encode(contracts.Said(order_id="o-1", lines=(good, bad)))
    with pytest.raises(BadInput, match=r"^Said: lines\[0\]: is Heard, not Line"):
        codec.encode(contracts.Said(order_id="o-1", lines=(contracts.Heard(order_id="o"),)))
    with pytest.raises(BadInput, match=r"^Said: lines\[1\]\.sku: half of a surrogate pair"):
        codec.encode(contracts.Said(order_id="o-1", lines=(good, replace(bad, sku="\udfff", price=Decimal(1)))))


def test_no_value_is_in_an_error_for_it_may_be_sensitive(contracts: Any) -> None:
    with pytest.raises(BadInput) as caught:
        codec.encode(contracts.Said(order_id="o-1", count="4111111111111111"))
    assert "4111" not in str(caught.value)


def test_not_even_the_path_inside_of_a_sensitive_field_is_reported(tmp_path: Path) -> None:
    texts, words = {"type": "map", "values": "string"}, {"type": "enum", "name": "Word", "symbols": ["YES"]}
    part = {"type": "record", "name": "Part", "fields": [field("texts", texts, sensitive=True)]}
    marked = field("texts", texts, sensitive=True), field("part", part), field("word", words, sensitive=True)
    write(tmp_path, schema("Said", *marked))
    write(tmp_path, schema("Said", field("texts", texts), field("part", part), field("word", words)), version=2)
    module = generated(tmp_path, "Said")
    good = module.Said(order_id="o-1", texts={"a": "b"}, part=module.Part(texts={"4111": "c"}), word=module.Word.YES)
    assert collect_secrets(good) == ["a", "b", "4111", "c", "YES"]
    refused = (
        (replace(good, part=module.Part(texts={"4111": 1})), "Said: part.texts: is a whole number, not text"),
        (replace(good, part=module.Part(texts={"4111": "\udfff"})), "Said: part.texts: half of a surrogate"),
    )
    for wrong, problem in refused:
        with pytest.raises(BadInput, match=problem) as caught:
            codec.encode(wrong)
        assert "4111" not in str(caught.value)
    fields = {"order_id": "o", "texts": {}, "word": "YES", "part": {"texts": {"4111": 1}}}
    assert list(codec.find_json_problems(fields, module.Said)) == ["Said: part.texts: is a whole number, not text"]
    another = codec.encode(good).replace(b"4111", b"\xff\xff\xff\xff")
    with pytest.raises(BadInput, match="cannot be read as Said: a string in it is not UTF-8"):
        codec.decode(another, module.Said, library_of(module.Said))


def test_an_unknown_symbol_of_a_sensitive_field_is_not_reported(tmp_path: Path) -> None:
    words = {"type": "enum", "name": "Word", "symbols": ["YES", "SECRET"]}
    write(tmp_path, schema("Said", field("word", words, sensitive=True)))
    newer = {**words, "symbols": ["YES"]}
    write(tmp_path, schema("Said", field("word", newer, sensitive=True)), version=2)
    module = generated(tmp_path, "Said")
    old = next(iter(library_of(module.Said).contracts["Said"].versions))
    value = codec.MARKER + old.fingerprint + b"\x06o-1\x02"
    with pytest.raises(BadInput, match="a symbol of an enum that the reader does not know") as caught:
        codec.decode(value, module.Said, library_of(module.Said))
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda value: None, "the message is empty"),
        (lambda value: b"", "the message is empty"),
        (lambda value: b"\xc3", "the value is partial: 1 bytes, and the header alone has 10"),
        (lambda value: value[:9], "the value is partial: 9 bytes, and the header alone has 10"),
        (lambda value: value[:-1], "the value is partial: it ends in the middle of Said"),
        (lambda value: value + b"\0\0", "the value has 2 bytes behind the end of Said"),
        (lambda value: b'{"a"', "the value is no Avro single object: it begins with 7b 22, not c3 01"),
        (lambda value: b"\0\0\0\0\1x", "it looks like a schema registry's wire format"),
        (lambda value: b"\xc3\x01" + b"\x01" * 8 + value[10:], "has the fingerprint 0101010101010101; get the newest"),
        (lambda value: value[:10] + b"\x02\xff" + value[11:], "the value cannot be read as Said"),
    ],
)
def test_a_value_that_cannot_be_decoded_says_why(
    contracts: Any, change: Callable[[bytes], bytes | None], problem: str
) -> None:
    value = codec.encode(contracts.Said(order_id="o-1"))
    with pytest.raises(BadInput, match=re.escape(problem)):
        codec.decode(change(value), contracts.Said, library_of(contracts.Said))


def test_another_type_is_named(contracts: Any) -> None:
    value = codec.encode(contracts.Heard(order_id="o-1"))
    with pytest.raises(BadInput, match=r"it is a Heard \(orders/Heard.v1\), not a Said"):
        codec.decode(value, contracts.Said, library_of(contracts.Said))


def test_every_shorter_value_is_refused(contracts: Any) -> None:
    line = contracts.Line(sku="sku", price=Decimal("12.34"))
    value = codec.encode(contracts.Said(order_id="o-1", lines=(line, line), note="note", raw=b"raw", ident=UUID(int=1)))
    for length in range(len(value)):
        with pytest.raises(BadInput):
            codec.decode(value[:length], contracts.Said, library_of(contracts.Said))


@given(body=st.binary(max_size=80), cut=st.integers(0, 60))
def test_any_bytes_are_an_event_or_bad_input(contracts: Any, body: bytes, cut: int) -> None:
    value = codec.encode(contracts.Said(order_id="o-1", note="some text", count=5, total=Decimal("9.99")))
    try:
        found = codec.decode(value[: 10 + cut] + body, contracts.Said, library_of(contracts.Said))
    except BadInput:
        return
    assert type(found) is contracts.Said


@pytest.mark.parametrize(
    ("name", "raw", "problem"),
    [
        ("total", (10**12).to_bytes(6, "big"), "total: has more than 12 digits"),
        ("day", 10**9, "day: is a date before year 1 or after 9999"),
        ("micros", 2**62, "micros: is a time before year 1 or after 9999"),
        ("ident", "no uuid", "ident: is no UUID"),
        ("prices", {"a": (10**6).to_bytes(3, "big")}, "prices['a']: has more than 5 digits"),
        ("lines", [{"sku": "", "price": (10**12).to_bytes(6, "big")}], "lines[0].price: has more than 12 digits"),
    ],
)
def test_what_another_program_wrote_is_checked_too(contracts: Any, name: str, raw: object, problem: str) -> None:
    good = codec.encode(contracts.Said(order_id="o-1"))
    plain = without_logical_types(contract_of(contracts.Said).versions[0].schema)
    record: Any = fastavro.schemaless_reader(BytesIO(good[10:]), plain, None)
    out = BytesIO()
    fastavro.schemaless_writer(out, plain, {**record, name: raw})
    with pytest.raises(BadInput, match=re.escape(f"Said: {problem}")):
        codec.decode(good[:10] + out.getvalue(), contracts.Said, library_of(contracts.Said))


def test_versions_read_each_other_with_defaults_in_place(tmp_path: Path) -> None:
    part = {"type": "record", "name": "Part", "fields": [field("raw", "bytes"), field("n", "int", default=7)]}
    old_part = {"type": "record", "name": "Part", "fields": [field("raw", "bytes")]}
    write(tmp_path, schema("Said", field("part", old_part), field("parts", {"type": "array", "items": "Part"})))
    old = generated(tmp_path, "Said").Said
    added = (
        field("total", decimal(), default="\u0000\u0080"),
        field("limit", ["null", decimal()], default=None),
        field("more", {"type": "array", "items": "Part"}, default=[{"raw": "\u00ff"}]),
        field("one", "Part", default={"raw": "\u0001", "n": 3}),
        field("color", COLOR, default="GREEN"),
        field("day", {"type": "int", "logicalType": "date"}, default=1),
        field("by", {"type": "map", "values": "bytes"}, default={"a": "\u00fe"}),
    )
    write(
        tmp_path,
        schema("Said", field("part", part), field("parts", {"type": "array", "items": "Part"}), *added),
        version=2,
    )
    module = generated(tmp_path, "Said")
    assert module.Said.__contract__ == "orders/Said.v2"
    library = Library.load(tmp_path / "contracts")
    from_old = old(order_id="o", part=old.__annotations__["part"](raw=b"x"), parts=())
    value = codec.encode(from_old)
    assert codec.identify(value, library).number == 1
    read = codec.decode(value, module.Said, library)
    assert read == module.Said(order_id="o", part=module.Part(raw=b"x", n=7), parts=())
    assert repr(read) == repr(module.Said(order_id="o", part=module.Part(raw=b"x"), parts=()))
    read_more: Any = read
    assert read_more.total == Decimal("1.28")
    assert read_more.more == (module.Part(raw=b"\xff", n=7),)
    assert read_more.by == {"a": b"\xfe"}
    back = codec.decode(codec.encode(read), old, library)
    assert back == from_old


@pytest.mark.parametrize("type_", [COLOR, {"type": "map", "values": "int"}, {"type": "array", "items": "int"}, PART])
def test_null_as_an_object_is_the_same_type_in_an_older_message(type_: Any, tmp_path: Path) -> None:
    write(tmp_path, schema("Said"))
    old = generated(tmp_path, "Said").Said
    write(tmp_path, schema("Said", field("part", [{"type": "null"}, type_], default=None)), version=2)
    new = generated(tmp_path, "Said").Said
    read: Any = codec.decode(codec.encode(old(order_id="o")), new, Library.load(tmp_path / "contracts"))
    assert read.part is None


@pytest.mark.parametrize("type_", [COLOR, PART])
def test_a_field_may_become_optional_when_another_one_defines_its_type_now(type_: Any, tmp_path: Path) -> None:
    """fastavro fails where the reader's union only names a type that the writer defines there."""
    name, many = type_["name"], {"type": "array", "items": ["null", type_["name"]]}
    listed = {"type": "array", "items": name}
    write(tmp_path, schema("Said", field("part", type_), field("parts", listed)))
    first = field("first", ["null", type_], default=None)
    optional = schema("Said", first, field("part", ["null", name]), field("parts", many), compatible="backward")
    write(tmp_path, optional, version=2)
    module: Any = generated(tmp_path, "Said", "Said.v1")
    contracts = Library.load(tmp_path / "contracts")
    assert find_incompatible(contracts.contracts.values()) == []
    part = module.Color.RED if type_ is COLOR else module.Part(raw=b"x")
    old = module.SaidV1(order_id="o", part=part, parts=(part,))
    assert codec.decode(codec.encode(old), module.Said, contracts) == module.Said(
        order_id="o", part=part, parts=(part,)
    )


def test_the_default_of_a_map_is_not_shared_by_decoded_events(tmp_path: Path) -> None:
    names = {"type": "map", "values": "string"}
    write(tmp_path, schema("Said"))
    old = generated(tmp_path, "Said").Said
    nested = {"type": "record", "name": "Part", "fields": [field("names", names, default={})]}
    added = field("names", names, default={"a": "b"}), field("part", nested, default={})
    write(tmp_path, schema("Said", *added), version=2)
    new, contracts = generated(tmp_path, "Said").Said, Library.load(tmp_path / "contracts")
    value = codec.encode(old(order_id="o"))
    first: Any = codec.decode(value, new, contracts)
    first.names["a"] = first.part.names["a"] = "changed"
    second: Any = codec.decode(value, new, contracts)
    assert (second.names, second.part.names) == ({"a": "b"}, {})


def test_a_writer_that_cannot_be_read_is_bad_input(tmp_path: Path) -> None:
    write(tmp_path, schema("Said"))
    old = generated(tmp_path, "Said").Said
    write(tmp_path, schema("Said", field("count", "int")), version=2)
    new = generated(tmp_path, "Said").Said
    value = codec.encode(old(order_id="o"))
    with pytest.raises(BadInput, match="the value cannot be read as Said"):
        codec.decode(value, new, Library.load(tmp_path / "contracts"))


def content_of(event_: Any) -> bytes:
    return codec.content(type(event_), codec.encode(event_))


def test_equal_events_have_equal_content(contracts: Any, tmp_path: Path) -> None:
    one = contracts.Said(order_id="o-1", total=Decimal("9.8"), ratio=1, micros=datetime(2026, 1, 1, tzinfo=UTC))
    two = contracts.Said(
        order_id="o-1",
        total=Decimal("9.80"),
        ratio=1.0,
        prices={},
        micros=datetime(2026, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))),
    )
    assert content_of(one) == content_of(two)
    expected = b'Said\n{"micros":"2026-01-01T00:00:00.000000Z","order_id":"o-1","ratio":1.0,"total":"9.80"}'
    assert content_of(one) == expected
    assert codec.encode(one) == codec.encode(two)
    ordered, turned = {"a": Decimal(1), "b": Decimal(2)}, {"b": Decimal(2), "a": Decimal(1)}
    assert content_of(replace(one, prices=ordered)) == content_of(replace(one, prices=turned))


def test_zero_and_minus_zero_have_equal_content(tmp_path: Path) -> None:
    floats = [field("f", "float"), field("d", "double"), field("many", {"type": "array", "items": "double"})]
    write(tmp_path, schema("Said", *floats))
    cls = generated(tmp_path, "Said").Said
    one, two = (cls(order_id="o", f=zero, d=zero, many=(zero,)) for zero in (0.0, -0.0))
    assert one == two
    assert content_of(one) == content_of(two)


def test_every_field_is_part_of_the_content(contracts: Any) -> None:
    changes = {
        "order_id": "o-2",
        "lines": (contracts.Line(sku="", price=Decimal(0)),),
        "color": contracts.Color.GREEN,
        "prices": {"": Decimal(0)},
        "note": "",
        "count": 1,
        "yes": True,
        "raw": b"\0",
        "total": Decimal("0.01"),
        "day": date(1970, 1, 1),
    }
    event_ = contracts.Said(order_id="o-1")
    contents = [content_of(event_), *(content_of(replace(event_, **{n: v})) for n, v in changes.items())]
    assert all(one != other for one, other in itertools.combinations(contents, 2))


def test_a_field_added_with_a_default_does_not_change_the_content(tmp_path: Path) -> None:
    part = {"type": "record", "name": "Part", "fields": [field("n", "int")]}
    write(tmp_path, schema("Said", field("part", part)))
    old = generated(tmp_path, "Said")
    part = {"type": "record", "name": "Part", "fields": [field("n", "int"), field("m", "int", default=1)]}
    write(tmp_path, schema("Said", field("part", part), field("total", decimal(), default="\u0001")), version=2)
    new = generated(tmp_path, "Said")
    content = content_of(old.Said(order_id="o", part=old.Part(n=1)))
    assert content_of(new.Said(order_id="o", part=new.Part(n=1))) == content
    assert content_of(new.Said(order_id="o", part=new.Part(n=1, m=2))) != content
    assert content_of(new.Said(order_id="o", part=new.Part(n=1), total=Decimal(0))) != content


def test_the_key_may_be_a_uuid(tmp_path: Path) -> None:
    cls: Any = event(tmp_path, field("ident", {"type": "string", "logicalType": "uuid"}), key="ident")
    made = cls(order_id="", ident=UUID(int=7))
    assert codec.decode(codec.encode(made), cls, library_of(cls)) == made
