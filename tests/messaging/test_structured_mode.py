"""CloudEvents in structured mode are converted to headers and data, and invalid ones are refused with the reason."""

import base64
import json
from typing import Any

import pytest

from saga.errors import BadInput
from saga.messages import Headers, Record
from saga.messaging.envelope import content_type_of, to_binary_mode

EVENT: dict[str, Any] = {
    "specversion": "1.0",
    "id": "a7f3-1",
    "source": "/shops/kiel",
    "type": "org.example.OrderPlaced",
    "sagastart": "2026-11-21T14:06:40.123Z",
    "partitionkey": "order-1",
    "attempt": 3,
    "urgent": True,
    "nothing": None,
    "data": {"order_id": "order-1"},
}


def recorded(value: bytes, content_type: str = "application/cloudevents+json", *more: tuple[str, bytes]) -> Record:
    headers: Headers = (*more, ("content-type", content_type.encode()))
    return Record("orders", 0, 7, b"order-1", value, headers, 0)


def structured(**changed: Any) -> Record:
    return recorded(json.dumps({**EVENT, **changed}).encode(), "application/cloudevents+json; charset=UTF-8")


def test_a_structured_event_becomes_headers_and_data() -> None:
    taken = to_binary_mode(structured())
    assert taken.value == b'{"order_id": "order-1"}'
    assert taken.headers == (
        ("content-type", b"application/json"),
        ("ce_specversion", b"1.0"),
        ("ce_id", b"a7f3-1"),
        ("ce_source", b"/shops/kiel"),
        ("ce_type", b"org.example.OrderPlaced"),
        ("ce_sagastart", b"2026-11-21T14:06:40.123Z"),
        ("ce_partitionkey", b"order-1"),
        ("ce_attempt", b"3"),
        ("ce_urgent", b"true"),
    )


def test_attributes_of_a_structured_event_precede_the_headers_of_its_record() -> None:
    headers = to_binary_mode(
        recorded(structured().value or b"", "application/cloudevents+json", ("ce_id", b"x"))
    ).headers
    assert [value for name, value in headers if name == "ce_id"] == [b"a7f3-1", b"x"]


@pytest.mark.parametrize(
    ("changed", "content_type", "value"),
    [
        ({"data": None}, b"application/json", None),
        ({"data": [1]}, b"application/json", b"[1]"),
        ({"data": "text"}, b"application/json", b'"text"'),
        ({"data": "<a/>", "datacontenttype": "text/xml"}, b"text/xml", b"<a/>"),
        ({"data": "x", "datacontenttype": "application/vnd.x+json"}, b"application/vnd.x+json", b'"x"'),
        (
            {
                "data": None,
                "data_base64": base64.b64encode(b"\xc3\x01").decode(),
                "datacontenttype": "application/avro",
            },
            b"application/avro",
            b"\xc3\x01",
        ),
    ],
)
def test_data_is_json_text_or_bytes(changed: dict[str, Any], content_type: bytes, value: bytes | None) -> None:
    taken = to_binary_mode(structured(**changed))
    assert (taken.headers[0], taken.value) == (("content-type", content_type), value)


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (recorded(b"{"), "it cannot be read as JSON: "),
        (recorded(b"[" * 100_000), "nested too deeply"),
        (recorded(b"\xff\xfe"), "it cannot be read as JSON: it is not UTF-8: its byte 1 is ff"),
        (recorded('{"id":"1"}'.encode("utf-16")), "it is not UTF-8: its byte 1 is ff"),
        (recorded(b'{"id":"1"'.ljust(20, b"\0")), "it cannot be read as JSON: "),
        (recorded(b"[]"), "it is no JSON object"),
        (recorded(b""), "it cannot be read as JSON: "),
        (recorded(b'{"id":"1","id":"2"}'), "the name 'id' comes twice"),
        (structured(specversion="0.3"), 'its "specversion" is not "1.0"'),
        (structured(type=None), 'its "type" is missing'),
        (structured(type=7), 'its "type" is missing'),
        (structured(data_base64="eA=="), 'has "data" and "data_base64"'),
        (structured(data=None, data_base64="%"), '"data_base64" is no base64 text'),
        (structured(data=None, data_base64=7), '"data_base64" is no base64 text'),
        (structured(datacontenttype="a\nb"), r"is no content type: 'a\nb'"),
        (structured(id=[1]), 'attribute "id" is neither text nor a whole number'),
        (structured(time=1.5), 'attribute "time" is neither text nor a whole number'),
        (recorded(b"[]", "application/cloudevents-batch+json"), "one event a record"),
        (recorded(b"x", "application/cloudevents+avro"), "one event a record"),
    ],
)
def test_an_invalid_structured_event_is_refused_with_the_reason(record: Record, reason: str) -> None:
    with pytest.raises(BadInput) as raised:
        to_binary_mode(record)
    assert reason in str(raised.value)


@pytest.mark.parametrize("content_type", ["application/avro", "application/json", "", "cloudevents"])
def test_records_in_other_modes_are_not_changed(content_type: str) -> None:
    record = recorded(b"{}", content_type)
    assert to_binary_mode(record) is record
    assert content_type_of(record) == content_type


def test_a_null_content_type_is_none() -> None:
    assert content_type_of(Record("orders", 0, 0, None, None, (("content-type", None),), 0)) == ""
