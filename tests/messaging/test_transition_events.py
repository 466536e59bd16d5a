"""Transitions as records: what comes out is what went in, and what is no transition is refused by name."""

from typing import Any

import msgspec
import pytest

from saga.errors import BadInput
from saga.messages import Outgoing, Record
from saga.messaging.names import TRANSITIONS
from saga.messaging.transition_events import (
    KEYS,
    RECORD_BYTES,
    VALUE_BYTES_MAX,
    EmittedMessage,
    TransitionCause,
    TransitionEvent,
    WaitingMessage,
    make_line,
    parse_transitions,
    transitions_to_records,
)
from saga.support.clock import from_iso
from tests.monitor.transition_events import make_transition, record_of

TIME = "2026-11-21T14:06:40.123Z"
WHOLE = TransitionEvent(
    service="shipping",
    saga="order-17",
    number=3,
    time=TIME,
    handler="book",
    outcome="retrying",
    error="ConnectionError",
    message=TransitionCause(
        id="payment-1", type="PaymentReserved", source="payment", topic="payments", partition=4, offset=17
    ),
    attempt=2,
    worker="host:1",
    emitted=(EmittedMessage(id="shipping-1", type="ShipmentBooked"),),
    steps=("book", "print_label"),
    queued_ms=3,
    handler_ms=12,
    open=True,
    kept_s=2_592_000,
    awaits=(
        WaitingMessage(handler="dispatch", types=("OrderConfirmed",)),
        WaitingMessage(handler="remind", until="2026-11-22T14:06:40.123Z"),
    ),
    parked_until="2026-11-21T14:07:40.123Z",
    due="2026-11-21T14:21:40.123Z",
    result="failure",
    hash="cd",
    previous="ab",
    rebuilt_at="2026-11-23T14:06:40.123Z",
)


def appended(**changes: Any) -> Record:
    """The transition as it lies in the log."""
    out = record_of(WHOLE)
    return Record(out.topic, 3, 17, out.key, out.value, out.headers, from_iso(TIME))._replace(**changes)


def in_the_log(record: Outgoing) -> Record:
    return Record(record.topic, 3, 17, record.key, record.value, record.headers, 0)


def with_field(name: str, value: object) -> bytes:
    return msgspec.json.encode(msgspec.json.decode(appended().value or b"") | {name: value})


def test_a_transition_event_is_decoded_as_it_was_encoded() -> None:
    assert parse_transitions(appended()) == [WHOLE]


def test_fields_with_default_values_are_omitted() -> None:
    usual = TransitionEvent(
        service="payment",
        saga="order-17",
        number=0,
        time=TIME,
        handler="reserve",
        outcome="handled",
        message=TransitionCause(id="1", type="OrderPlaced", source="client"),
        hash="ab",
        previous="payment|order-17",
    )
    out = record_of(usual)
    assert (out.topic, out.key, out.headers) == (TRANSITIONS, b"4", ())
    assert out.value == (
        b'{"v":1,"service":"payment","saga":"order-17","number":0,"time":"2026-11-21T14:06:40.123Z",'
        b'"handler":"reserve","outcome":"handled","message":{"id":"1","type":"OrderPlaced","source":"client"},'
        b'"hash":"ab","previous":"payment|order-17"}'
    )
    assert parse_transitions(appended(value=out.value)) == [usual]


def test_fields_of_a_later_release_are_ignored() -> None:
    assert parse_transitions(appended(value=with_field("mood", "good"))) == [WHOLE]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"value": None}, "it has no value"),
        ({"value": b" " * (VALUE_BYTES_MAX + 1)}, "it has 1048577 bytes, and may have 1048576"),
        ({"value": b"\x00"}, "that this version reads"),
        ({"value": b'{"v":1,"service":"' + b"\xff" + b'"}'}, "that this version reads"),
        ({"value": b"[" * 100_000}, "that this version reads"),
        ({"value": with_field("v", 2)}, "that this version reads"),
        ({"value": with_field("number", -1)}, r"\$\.number"),
        ({"value": with_field("message", None)}, r"\$\.message"),
        ({"value": with_field("time", "yesterday")}, "its time is no time"),
        ({"value": with_field("anew", "once")}, "its anew is no time"),
        ({"value": with_field("due", "2026-11-21T14:06:40")}, "its due is no time"),
        ({"value": with_field("parked_until", "9999-99-99")}, "its parked_until is no time"),
        ({"value": with_field("awaits", [{"handler": "remind", "until": "soon"}])}, "its until is no time"),
        ({"key": b"order-17"}, "its key is not that of its saga, 4"),
        ({"key": b"3"}, "its key is not that of its saga, 4"),
        ({"key": None}, "its key is not that of its saga, 4"),
        ({"value": (appended().value or b"") + b"\n"}, "that this version reads"),
    ],
)
def test_an_invalid_transition_event_is_refused_with_the_reason(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(BadInput, match=why):
        parse_transitions(appended(**changes))


def test_transitions_of_many_sagas_share_records_and_stay_in_order_for_each() -> None:
    several = [make_transition("order", number, 0, saga=f"order-{n}") for number in range(10) for n in range(200)]
    out = transitions_to_records(map(make_line, several))
    sizes = [len(record.value or b"") for record in out]
    assert KEYS <= len(out) < len(several) / 10
    assert RECORD_BYTES - 500 < max(sizes) <= RECORD_BYTES
    found = [each for record in out for each in parse_transitions(in_the_log(record))]
    assert len(found) == len(several)
    for n in range(200):
        assert [each for each in found if each.saga == f"order-{n}"] == several[n::200]


def test_a_line_longer_than_the_target_size_is_a_record_of_its_own() -> None:
    long = make_transition("order", 1, 0, emitted=tuple(f"E{n}" for n in range(2000)))
    out = transitions_to_records(map(make_line, [make_transition("order", 0, 0), long, make_transition("order", 2, 0)]))
    assert [len(parse_transitions(in_the_log(record))) for record in out] == [1, 1, 1]
