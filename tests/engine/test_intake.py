"""Intake: each record is skipped, becomes a dead letter, or is a message for a lane."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saga import Service
from saga.contracts import codec
from saga.contracts.library import contract_of
from saga.engine.consumer.record_router import FORGED, OWN, UNKNOWN, BadRecord, SkippedRecord, route_record
from saga.engine.prepared_service import prepare
from saga.messages import Message, Outgoing, Record
from saga.messaging import envelope
from saga.messaging.message_ids import could_be_own, own_identity
from saga.progress import ids
from services.order.events import OrderConfirmed
from services.payment.events import OrderPlaced
from tests.engine.real_worker import SAGA, an_order, message_of

payment = Service("payment")


@payment.handler
async def reserve(order: OrderPlaced) -> None: ...


SERVICE = prepare(payment.declared)
ORDER = message_of(an_order(), started=None)


def recorded(outgoing: Outgoing) -> Record:
    return Record("orders", 3, 41, outgoing.key, outgoing.value, outgoing.headers, 1_767_225_600_000)


def sent(message: Message, event: type = OrderPlaced) -> Record:
    return recorded(envelope.to_record(message, contract_of(event)))


GOOD = sent(ORDER)


def with_headers(**changed: bytes) -> Record:
    return GOOD._replace(headers=tuple((name, changed.get(name, value)) for name, value in GOOD.headers))


def test_a_message_that_a_handler_names_is_for_a_lane() -> None:
    taken = route_record(GOOD, SERVICE)
    assert isinstance(taken, Message)
    assert (taken.id, taken.type, taken.saga, taken.value) == (f"somebody|{ORDER.id}", "OrderPlaced", SAGA, ORDER.value)


def test_a_sender_without_headers_is_understood_by_its_bytes() -> None:
    taken = route_record(GOOD._replace(headers=()), SERVICE)
    assert isinstance(taken, Message)
    assert (taken.type, taken.schema, taken.source) == ("OrderPlaced", OrderPlaced.__contract__, "unknown")


def test_events_without_a_handler_are_skipped_whatever_their_content() -> None:
    confirmed = message_of(OrderConfirmed(order_id=SAGA), started=None)
    assert route_record(sent(confirmed, OrderConfirmed), SERVICE) is UNKNOWN
    other = with_headers(ce_type=b"Nobody", ce_time=b"never")._replace(key=b"", value=b"")
    assert route_record(other, SERVICE) == SkippedRecord("no contract here is called Nobody", "unknown type", "Nobody")


def test_the_copy_of_an_own_event_is_skipped() -> None:
    assert route_record(with_headers(ce_source=b"payment"), SERVICE) is OWN
    assert isinstance(route_record(with_headers(ce_source=b"payments"), SERVICE), Message)


@pytest.mark.parametrize("id_", [b"17", b"OrderPlaced", b"OrderPlaced-17", b"OrderPlaced-" + b"x" * 32, b"a|b", b"-"])
def test_a_record_that_only_claims_to_come_from_this_service_is_reported_and_not_skipped(id_: bytes) -> None:
    assert route_record(with_headers(ce_source=b"payment", ce_id=id_), SERVICE) is FORGED
    assert isinstance(route_record(with_headers(ce_source=b"order", ce_id=id_), SERVICE), Message)


def test_an_event_as_this_service_emits_it_is_a_copy_of_its_own_whichever_service_owns_the_contract() -> None:
    made = ids.event_id("OrderPlaced", "payment", SAGA, "reserve", "m-1", 0)
    assert route_record(with_headers(ce_source=b"payment", ce_id=made.encode()), SERVICE) is OWN
    assert could_be_own(own_identity("payment", made, "payment"), "OrderPlaced")
    assert could_be_own(own_identity("payment", made, "order"), "OrderPlaced")
    assert not could_be_own(made, "OrderConfirmed")


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (GOOD._replace(value=b""), "the message is empty: it has no value to decode"),
        (GOOD._replace(key=b""), "the message has no key: its key must be the saga id"),
        (with_headers(ce_time=b"never"), "the header ce_time is no RFC 3339 time: 'never'"),
        (with_headers(ce_time=b"never", ce_source=b"payment"), "the header ce_time is no RFC 3339 time: 'never'"),
    ],
)
def test_bad_input_is_a_letter_with_the_reason(record: Record, reason: str) -> None:
    assert route_record(record, SERVICE) == BadRecord(reason)


def test_unknown_bytes_become_a_dead_letter() -> None:
    assert isinstance(route_record(GOOD._replace(headers=(), value=b"\xc3\x01" + bytes(8)), SERVICE), BadRecord)


def test_a_reader_that_fails_is_a_letter_and_its_words_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: object, **kwargs: object) -> Message:
        raise RecursionError("deep " * 1000)

    monkeypatch.setattr(envelope, "to_message", fails)
    taken = route_record(GOOD, SERVICE)
    assert isinstance(taken, BadRecord)
    assert taken.reason.startswith("it cannot be read as a message: RecursionError: deep deep")
    assert len(taken.reason) < 2100


names = st.one_of(st.sampled_from([name for name, _ in GOOD.headers]), st.text(max_size=12))
values = st.one_of(st.none(), st.binary(max_size=40), st.sampled_from([value for _, value in GOOD.headers]))


@given(
    key=st.one_of(st.none(), st.binary(max_size=8), st.just(GOOD.key)),
    value=st.one_of(st.none(), st.binary(max_size=64), st.just(codec.encode(an_order()))),
    headers=st.lists(st.tuples(names, values), max_size=10),
    time_ms=st.integers(-(2**63), 2**63 - 1),
)
def test_every_record_is_one_of_the_three_and_always_the_same(
    key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]], time_ms: int
) -> None:
    record = Record("orders", 3, 41, key, value, (*headers,), time_ms)
    taken = route_record(record, SERVICE)
    assert taken == route_record(record, SERVICE)
    if isinstance(taken, Message):
        assert taken.type in SERVICE.consumed
        assert taken.source != "payment"
        assert taken.saga.encode() == key
    else:
        assert taken.reason
