"""Bounds of a message: checked before anything is made of it, alike for writers and readers."""

import json
import re
import sys
import time
import tracemalloc
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from saga.contracts import codec
from saga.contracts.codec import VALUES_MAX, check_values
from saga.contracts.conversion import InvalidValue
from saga.contracts.library import Library, binding_of
from saga.contracts.schema_parser import DEPTH_MAX, PARTS_MAX
from saga.errors import BadInput, ContractError
from tests.contracts.folders import event, field, put, schema, write

COLOR = {"type": "enum", "name": "Color", "symbols": ["RED", "GREEN"]}
PART = {"type": "record", "name": "Part", "fields": [field("yes", "boolean"), field("color", COLOR)]}
PARTS = {"type": "map", "values": {"type": "array", "items": PART}}
BOX = {"type": "record", "name": "Box", "fields": [field("parts", PARTS)]}
FIELDS = (
    field("note", ["null", "string"], default=None),
    field("numbers", {"type": "array", "items": "long"}, default=[]),
    field("ratios", {"type": "array", "items": "double"}, default=[]),
    field("boxes", {"type": "array", "items": BOX}, default=[]),
    field("other", ["null", "Color"], default=None),
)
FULL = f"one message holds at most {VALUES_MAX} values"


@pytest.fixture(scope="module")
def event_class(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return event(tmp_path_factory.mktemp("bounds"), *FIELDS)


def library_of(cls: Any) -> Library:
    return binding_of(cls).library


def long(number: int) -> bytes:
    """A `long` as Avro writes it."""
    number, made = (number << 1) ^ (number >> 63), b""
    while number >= 0x80:
        number, made = number >> 7, made + bytes([number & 0x7F | 0x80])
    return made + bytes([number])


def with_numbers(event_class: Any, count: int, block: bytes | None = None) -> bytes:
    """A valid message with so many numbers, each a byte, from any writer."""
    beginning = codec.encode(event_class(order_id="o-1"))
    assert beginning.endswith(b"\x06o-1" + b"\0" * 5)  # no note, nothing in three arrays, no other
    return beginning[:-4] + (long(count) if block is None else block) + b"\x02" * count + b"\0" * 4


def test_what_is_full_is_read_and_written_and_one_value_more_is_neither(event_class: Any) -> None:
    library = library_of(event_class)
    most = VALUES_MAX - 7  # beside them: the event, its id, no note, three lists, no other
    full = event_class(order_id="o-1", numbers=(1,) * most)
    assert codec.decode(codec.encode(full), event_class, library) == full
    for more, path in ((1, ""), (10, "numbers: ")):
        with pytest.raises(BadInput, match=rf"^Said: {path}{FULL}"):
            codec.encode(event_class(order_id="o-1", numbers=(1,) * (most + more)))
        with pytest.raises(BadInput, match=rf"read as Said: {path}{FULL}"):
            codec.decode(with_numbers(event_class, most + more), event_class, library)


def test_a_message_of_16_mb_that_is_all_values_costs_neither_time_nor_memory(event_class: Any) -> None:
    library, value = library_of(event_class), with_numbers(event_class, 16_000_000)
    negative = with_numbers(event_class, 16_000_000, block=long(-16_000_000) + long(0))
    blocks = with_numbers(event_class, 16_000_000, block=b"")  # one number after each count of one
    tracemalloc.start()
    began = time.process_time()
    for each in (value, negative, blocks):
        with pytest.raises(BadInput, match=re.escape(FULL)):
            codec.decode(each, event_class, library)
    seconds, (_, peak) = time.process_time() - began, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert seconds < 2  # 11 s and 1.4 GB for the first one alone, before this bound
    assert peak < 2_000_000


def test_the_path_leads_to_where_it_is_too_much(event_class: Any) -> None:
    module = sys.modules[event_class.__module__]
    many = (module.Part(yes=True, color=module.Color.RED),) * (VALUES_MAX // 6)
    boxes = tuple(module.Box(parts={"a": many}) for _ in range(3))
    with pytest.raises(BadInput, match=rf"^Said: boxes\[1\]\.parts\[0\]: {FULL}"):
        codec.encode(event_class(order_id="o-1", boxes=boxes))


def test_a_long_text_is_one_value(event_class: Any) -> None:
    long_one = event_class(order_id="o-1", note="x" * 1_000_000)
    assert codec.decode(codec.encode(long_one), event_class, library_of(event_class)) == long_one


def test_a_line_of_json_is_bounded_before_it_is_looked_at(event_class: Any) -> None:
    lines: tuple[object, ...] = ([{}] * (VALUES_MAX + 1), {"order_id": "o", "numbers": [1] * VALUES_MAX})
    for wrong in lines:
        with pytest.raises(BadInput, match=rf"Said: {FULL}"):
            codec.from_json(json.loads(json.dumps(wrong)), event_class)


@pytest.mark.slow
@settings(max_examples=60, derandomize=True)
@given(data=st.data())
def test_counting_goes_over_the_very_bytes_that_are_read(data: st.DataObject) -> None:
    """Over anything that fastavro writes it comes to the very end, and what it refuses fastavro does not read."""
    whole = fastavro.parse_schema(schema("Said", *FIELDS))
    text = st.text(max_size=5)
    parts = st.fixed_dictionaries({"yes": st.booleans(), "color": st.sampled_from(["RED", "GREEN"])})
    record = data.draw(
        st.fixed_dictionaries(
            {
                "order_id": text,
                "note": st.none() | text,
                "numbers": st.lists(st.integers(-(2**63), 2**63 - 1)),
                "ratios": st.lists(st.floats()),
                "boxes": st.lists(st.fixed_dictionaries({"parts": st.dictionaries(text, st.lists(parts))})),
                "other": st.sampled_from([None, "RED"]),
            }
        )
    )
    out = BytesIO()
    fastavro.schemaless_writer(out, whole, record)
    check = check_values(whole)
    check(b"before" + out.getvalue(), 6)
    for cut in range(len(out.getvalue())):
        with pytest.raises(InvalidValue, match="end in the middle"):
            check(out.getvalue()[:cut], 0)


def test_types_nest_no_deeper_and_grow_no_wider_than_a_person_could_read(tmp_path: Path) -> None:
    deep: Any = "int"
    for _ in range(DEPTH_MAX):
        deep = {"type": "array", "items": deep}
    write(tmp_path, schema("Said", field("f", deep)))
    with pytest.raises(ContractError, match=rf"nests {DEPTH_MAX + 1} levels deep; types may nest {DEPTH_MAX}"):
        Library.load(tmp_path / "contracts")
    write(tmp_path, schema("Said", field("f", deep["items"])))
    Library.load(tmp_path / "contracts")


def test_types_that_are_used_twice_in_each_other_do_not_explode(tmp_path: Path) -> None:
    inner: Any = "int"
    for number in range(25):
        fields = [field("a", inner), field("b", inner if inner == "int" else inner["name"])]
        inner = {"type": "record", "name": f"R{number}", "fields": fields}
    write(tmp_path, schema("Said", field("f", inner)))
    with pytest.raises(ContractError, match=rf"fields with those of all its parts; at most {PARTS_MAX}"):
        Library.load(tmp_path / "contracts")


def test_a_file_that_nests_without_end_is_reported_like_any_other(tmp_path: Path) -> None:
    write(tmp_path, schema("Heard"))
    put(tmp_path / "contracts/orders/Deep.v1.avsc", "[" * 100_000)
    deep = '{"type": "array", "items": ' * 200 + '"int"' + "}" * 200
    put(
        tmp_path / "contracts/orders/Said.v1.avsc",
        json.dumps(schema("Said", field("f", "DEEP"))).replace('"DEEP"', deep),
    )
    with pytest.raises(ContractError) as refused:
        Library.load(tmp_path / "contracts")
    message = str(refused.value)
    assert "Deep.v1.avsc: is no JSON" in message
    assert f"Said.v1.avsc: field f{'[]' * (2 * DEPTH_MAX)}: types may nest {DEPTH_MAX} levels deep" in message
