"""Records of changes as a service takes them: each is a message, nothing for it, or a dead letter."""

import re
from base64 import b64encode
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from saga import Delete, Expiry, Insert, Update
from saga.change import DocumentChange, from_record, to_record
from saga.engine.consumer.record_router import UNTOUCHED, BadRecord, RoutedRecord, make_change_message, route_record
from saga.engine.prepared_service import prepare
from saga.errors import BadInput
from saga.messages import Message, Record
from saga.messaging.names import PROBE, change_topic
from tests.service.documents import OrderDocument, intake

SERVICE = prepare(intake.declared)
TOPIC = change_topic("intake", "orders")
DOCUMENT: dict[str, Any] = {"customer_id": "c-1", "sku": "tea", "total": "9"}
APPENDED_MS = 1_767_225_600_000
CAS = 1_767_000_000_123_456_789
MUTATION: dict[str, Any] = {
    "event": "mutation",
    "bucket": "shop",
    "partition": 17,
    "vBucketUuid": 77_000,
    "key": "order-17",
    "cas": CAS,
    "bySeqno": 41,
    "revSeqno": 1,
    "expiration": 0,
    "flags": 33_554_432,
    "lockTime": 0,
    "content": DOCUMENT,
}
"""A record as the connector's raw handler with metadata writes it."""


def record(value: object, key: bytes = b"order-17") -> Record:
    data = value if isinstance(value, bytes) or value is None else msgspec.json.encode(value)
    return Record(TOPIC, 3, 41, key, data, (), APPENDED_MS)


def without(fields: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in names}


def read_message(value: object) -> Message:
    found = route_record(record(value), SERVICE)
    assert isinstance(found, Message), found
    return found


def refused(value: object) -> str:
    found = route_record(record(value), SERVICE)
    assert isinstance(found, BadRecord), found
    return found.reason


def change(value: object) -> object:
    return SERVICE.given("place", read_message(value))


def test_a_record_of_the_raw_handler_is_a_message_of_the_documents_saga() -> None:
    message = read_message(MUTATION)
    assert (message.id, message.type, message.saga, message.source) == (
        f"documents/orders|order-17@{CAS}",
        "ChangeOf_orders",
        "order-17",
        "documents/orders",
    )
    assert message.time == "2025-12-29T09:20:00.123Z", "the mutation's, which Couchbase's CAS tells"
    assert message.started == "2026-01-01T00:00:00.000Z", "the message's time: documents may be older than any saga"
    given_change = change(MUTATION)
    assert given_change == Insert(key="order-17", document=msgspec.convert(DOCUMENT, OrderDocument, strict=False))


def test_the_default_handler_with_base64_is_read_the_same_with_and_without_an_envelope() -> None:
    default = {**MUTATION, "content": b64encode(msgspec.json.encode(DOCUMENT)).decode()}
    assert read_message(default) == read_message(MUTATION)
    assert read_message({"schema": {"type": "struct"}, "payload": default}) == read_message(MUTATION)
    assert change({**MUTATION, "content": {**DOCUMENT, "payload": 1, "schema": 2}}) == change(MUTATION)


def test_deletions_and_expirations_have_no_document() -> None:
    gone = without(MUTATION, "content", "expiration", "flags", "lockTime")
    assert change({**gone, "event": "deletion"}) == Delete(key="order-17")
    assert change({**gone, "event": "expiration", "content": None}) == Expiry(key="order-17")


def test_quick_writes_that_the_connector_merges_come_as_the_last() -> None:
    merged = {**MUTATION, "revSeqno": 4, "content": {**DOCUMENT, "quantity": 7}}
    seen = change(merged)
    assert isinstance(seen, Update)
    assert seen.before is None
    assert seen.document is not None
    assert seen.document.quantity == 7


def test_a_version_that_comes_twice_has_one_id_and_another_one_another() -> None:
    assert read_message(MUTATION).id == read_message({**MUTATION, "bySeqno": 99}).id
    assert read_message(MUTATION).id != read_message({**MUTATION, "cas": CAS + 1}).id


def test_a_removal_has_another_id_than_the_version_that_it_removes() -> None:
    event = SERVICE.changes[TOPIC]
    written = DocumentChange(kind="insert", key="k", version=7, time_ms=APPENDED_MS, after=b"{}")
    removed = DocumentChange(kind="delete", key="k", version=7, time_ms=APPENDED_MS, before=b"{}")
    ids = [make_change_message(each, event, APPENDED_MS).id for each in (written, removed, removed)]
    assert ids[0] != ids[1] == ids[2]


def test_a_change_record_is_decoded_as_it_was_encoded() -> None:
    for kind in ("insert", "update", "delete", "expiry"):
        before = None if kind == "insert" else b'{"a":1}'
        after = None if kind in ("delete", "expiry") else b'{"a":2}'
        changed = DocumentChange(kind=kind, key="k", version=7, time_ms=APPENDED_MS - 5, before=before, after=after)
        outgoing = to_record("t", changed)
        assert outgoing.key == b"k"
        assert from_record(Record("t", 0, 0, outgoing.key, outgoing.value, outgoing.headers, APPENDED_MS)) == changed


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (DOCUMENT, {**DOCUMENT, "_saga": {"updates": {}}}),
        ({**DOCUMENT, "_saga": 1}, {**DOCUMENT, "_saga": 2}),
        (None, {"_saga": {"absent": True}}),
    ],
)
def test_marks_of_the_toolkit_alone_are_no_change(before: object, after: object) -> None:
    mutation = {**without(MUTATION, "revSeqno"), "event": "update", "before": before, "content": after}
    assert route_record(record(mutation), SERVICE) is UNTOUCHED


def test_marks_alone_are_no_change_of_a_document_that_another_program_wrote_with_spaces() -> None:
    before, after = (
        b'{"sku": "tea", "sizes": {"a": [1, 2]}, "n": 1}',
        b'{"sku":"tea","sizes":{"a":[1,2]},"n":%b,"_saga":{}}',
    )
    told = b'{"event":"update","key":"order-17","cas":7,"before":%b,"content":%b}'
    assert route_record(record(told % (before, after % b"1")), SERVICE) is UNTOUCHED
    for number in (b"1.0", b"true", b"2"):
        assert isinstance(route_record(record(told % (before, after % number)), SERVICE), Message)


def test_documents_that_test_the_store_are_no_change() -> None:
    """Each start of a service on Couchbase writes one in each of its collections, and the connector publishes them."""
    probe = {**MUTATION, "key": f"{PROBE}1f", "content": {}}
    gone = without(probe, "content", "expiration", "flags", "lockTime")
    for value in (probe, {**probe, "revSeqno": 2}, {**gone, "event": "deletion"}, {**gone, "event": "expiration"}):
        assert route_record(record(value, probe["key"].encode()), SERVICE) is UNTOUCHED


def test_handlers_do_not_see_the_marks() -> None:
    marked = {**MUTATION, "content": {"_saga": {"x": 1}, **DOCUMENT}}
    assert change(marked) == change(MUTATION)
    assert b"_saga" not in read_message(marked).value


def test_a_document_that_nothing_but_marks_was_before_is_new() -> None:
    mutation = {**without(MUTATION, "revSeqno"), "event": "update", "before": {"_saga": 1}}
    assert isinstance(change(mutation), Update)
    assert isinstance(change({**mutation, "event": "insert"}), Insert)


def test_a_body_that_is_none_of_the_class_is_bad_input() -> None:
    with pytest.raises(BadInput, match=r"the document 'order-17' of 'orders' is no OrderDocument: .*customer_id"):
        change({**MUTATION, "content": {"sku": "tea"}})
    with pytest.raises(BadInput, match="is no OrderDocument"):
        change({**MUTATION, "content": [1]})


@pytest.mark.parametrize(
    ("value", "pattern"),
    [
        (None, "the change is empty: its version is unknown: have the connector use RawJsonWithMetadataSource"),
        (b"\x00\x01", "the record is no change of a document"),
        (DOCUMENT, "the record is no change of a document: .*event"),
        ({**MUTATION, "cas": "new"}, r"the record is no change of a document: .*cas"),
        ({**MUTATION, "event": "flood"}, "the record is no change of a document: .*event"),
        ({**MUTATION, "key": ""}, "the change's key has 0 bytes"),
        ({**MUTATION, "key": "k" * 1025}, "the change's key has 1025 bytes: from 1 to 1024 can be"),
        ({**MUTATION, "content": "***"}, "the document 'order-17' is no JSON object"),
        ({**MUTATION, "content": b64encode(b"\xff{").decode()}, "the document 'order-17' is no JSON object"),
    ],
)
def test_an_invalid_document_change_is_a_dead_letter_with_the_reason(value: object, pattern: str) -> None:
    assert re.search(pattern, refused(value))


def test_times_that_are_none_are_the_logs() -> None:
    assert read_message({**MUTATION, "cas": 7}).time == "2026-01-01T00:00:00.000Z"
    assert read_message({**MUTATION, "cas": -(2**62)}).time == "2026-01-01T00:00:00.000Z"
    assert read_message({**MUTATION, "time_ms": 5}).time == "1970-01-01T00:00:00.005Z"


@given(st.recursive(st.none() | st.integers() | st.text(), lambda t: st.lists(t) | st.dictionaries(st.text(), t)))
def test_nothing_that_a_record_holds_raises(value: object) -> None:
    outcome: RoutedRecord = route_record(record({**MUTATION, "content": value, "before": value}), SERVICE)
    assert outcome is not None
    assert isinstance(route_record(record(msgspec.json.encode(value)), SERVICE), BadRecord)
