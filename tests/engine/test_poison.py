"""Messages that can never be handled: each is a dead letter with the reason, and its partition continues."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from saga import Saga, Service
from saga.broker.embedded.membership import EmbeddedMember
from saga.contracts import codec
from saga.engine.consumer.flow_control import FlowLimits
from saga.errors import BadInput
from saga.messages import Message, Outgoing, Record
from saga.messaging import envelope
from saga.telemetry.events import DeadLettered, Handled, Stuck
from services.order.events import OrderCancelled, OrderConfirmed
from services.payment.events import OrderPlaced, PaymentReserved
from tests.engine.real_worker import SAGA, Workplace, an_order, at_work, workplace

payment = Service("payment")


@payment.handler
async def reserve(order: OrderPlaced) -> PaymentReserved:
    return PaymentReserved(order_id=order.order_id, charge_id="c", amount=order.total)


@payment.handler
async def note(confirmed: OrderConfirmed, reserved: PaymentReserved, saga: Saga) -> None: ...


@payment.compensation(reserve)
async def release(cancelled: OrderCancelled, reserved: PaymentReserved) -> None: ...


ORDER = an_order()
VALUE = codec.encode(ORDER)
UNKNOWN = b"\xc3\x01" + bytes(8)
"""The header of a value of a schema that is nowhere."""


def good(place: Workplace) -> Outgoing:
    return place.record_of(ORDER)


def with_header(record: Outgoing, name: str, value: bytes | None) -> Outgoing:
    return record._replace(headers=(*((n, v) for n, v in record.headers if n != name), (name, value)))


def bare(value: bytes | None, key: bytes = SAGA.encode()) -> Outgoing:
    """From a sender that knows nothing of the envelope."""
    return Outgoing("orders", key, value, ())


Cases = Mapping[str, tuple[Callable[[Outgoing], Outgoing], str]]

UNREADABLE: Cases = {
    "empty": (lambda r: r._replace(value=b""), "the message is empty: it has no value to decode"),
    "a day that there is not": (
        lambda r: with_header(r, "ce_time", b"2026-02-30T00:00:00.000Z"),
        "the header ce_time is no RFC 3339 time: '2026-02-30T00:00:00.000Z'",
    ),
    "without key": (lambda r: r._replace(key=b""), "the message has no key: its key must be the saga id"),
    "key not the subject": (
        lambda r: with_header(r, "ce_subject", b"order-2"),
        "the message's key 'order-1' is not its subject 'order-2': both must be the saga id",
    ),
    "a header that is no text": (
        lambda r: with_header(r, "ce_source", b"\xff"),
        "the message's header ce_source is not UTF-8: its byte 1 is ff",
    ),
    "a key that is no text": (lambda r: r._replace(key=b"a\xff"), "the message's key is not UTF-8: its byte 2 is ff"),
    "a time that is none": (
        lambda r: with_header(r, "ce_sagastart", b"yesterday"),
        "the header ce_sagastart is no RFC 3339 time: 'yesterday'",
    ),
    "a time that only looks like one": (
        lambda r: with_header(r, "ce_sagastart", b"yesterday-at-twelve.000Z"),
        "the header ce_sagastart is no RFC 3339 time: 'yesterday-at-twelve.000Z'",
    ),
    "no headers, no value": (lambda r: bare(b""), "the message is empty: it has no value to decode"),
    "no headers, not Avro": (lambda r: bare(b"{}"), "the value is no Avro single object: it begins with 7b 7d"),
    "no headers, cut off": (lambda r: bare(VALUE[:5]), "the value is partial: 5 bytes, and the header alone has 10"),
    "no headers, unknown schema": (lambda r: bare(UNKNOWN + b"abc"), "no schema in "),
}


@pytest.mark.parametrize("case", UNREADABLE)
async def test_a_record_whose_saga_is_unknown_is_a_dead_letter_and_quarantines_nothing(
    tmp_path: Path, case: str
) -> None:
    spoilt, reason = UNREADABLE[case]
    async with workplace(tmp_path) as place, at_work(place, payment):
        bad = spoilt(good(place))
        await place.broker.publish([bad])
        await place.publish(ORDER)
        await place.at_rest(payment)
        ((record, headers),) = await place.dead(payment)
        assert (record.key, record.value) == (bad.key, bad.value)
        assert record.headers[: len(bad.headers)] == bad.headers
        assert headers["dead_reason"].startswith(reason)
        assert headers["dead_remedy"] == "fix its sender; this dead letter has the original, or says where it is"
        assert headers["dead_position"].startswith("orders/")
        assert [entry.outcome for entry in await place.history(payment)] == ["handled"]
        (moment,) = place.reported(DeadLettered)
        assert moment.reason == headers["dead_reason"]


async def test_whatever_goes_wrong_while_a_record_is_read_is_a_dead_letter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = envelope.to_message

    def reads(record: Record, **given: Any) -> Message:
        if record.key == SAGA.encode():
            raise RecursionError("too deep")
        return read(record, **given)

    monkeypatch.setattr(envelope, "to_message", reads)
    async with workplace(tmp_path) as place, at_work(place, payment):
        await place.publish(ORDER, an_order("order-2"))
        await place.at_rest(payment)
        ((record, headers),) = await place.dead(payment)
        assert record.value == VALUE
        assert headers["dead_reason"] == "it cannot be read as a message: RecursionError: too deep"
        assert [entry.outcome for entry in await place.history(payment, "order-2")] == ["handled"]


async def test_whatever_goes_wrong_while_a_value_is_decoded_is_a_dead_letter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raises(*_: object) -> OrderPlaced:
        raise ArithmeticError("beyond all numbers")

    async with workplace(tmp_path) as place, at_work(place, payment):
        with monkeypatch.context() as patched:
            patched.setattr(codec._codec(OrderPlaced), "from_raw", raises)
            await place.publish(ORDER)
            await place.at_rest(payment)
        ((_, headers),) = await place.dead(payment)
        assert headers["dead_reason"] == (
            "BadInput: OrderPlaced: its fields cannot be taken for what they are to be: ArithmeticError"
        )
        assert not place.reported(Stuck)


async def test_more_unreadable_records_than_may_be_in_flight_block_no_saga(tmp_path: Path) -> None:
    async with workplace(tmp_path) as place, at_work(place, payment, limits=FlowLimits(inflight_max=5)):
        await place.broker.publish([bare(b"") for _ in range(30)])
        await place.publish(ORDER)
        await place.at_rest(payment)
        assert len(await place.dead(payment)) == 30
        assert [entry.outcome for entry in await place.history(payment)] == ["handled"]


async def test_a_dead_letter_under_way_is_acknowledged_before_the_worker_ends(tmp_path: Path) -> None:
    async with workplace(tmp_path) as place:
        publish, under_way = place.broker.publish, asyncio.Event()

        async def slowly(messages: Sequence[Outgoing]) -> None:
            if messages[0].topic == "payment.dead":
                under_way.set()
                await place.clock.sleep(0.3)
            await publish(messages)

        place.broker.publish = slowly  # type: ignore[method-assign] # a slow disk
        async with at_work(place, payment):
            await place.broker.publish([bare(b"")])
            await under_way.wait()
        assert len(await place.dead(payment)) == 1
        assert not place.is_behind(payment)


async def test_an_unreadable_record_dies_once_however_often_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with workplace(tmp_path) as place:
        await place.broker.publish([bare(b"")])
        with monkeypatch.context() as dying:
            dying.setattr(EmbeddedMember, "commit", never)
            dying.setattr(EmbeddedMember, "clear_in_progress", never)
            async with at_work(place, payment):
                await place.until(lambda: len(place.reported_dead_letters()) == 1)
        async with at_work(place, payment):
            await place.at_rest(payment)
        letters = await place.dead(payment)
        assert len(letters) == 2, "it was read twice"
        assert len({headers["dead_id"] for _, headers in letters}) == 1


async def never(member: EmbeddedMember, offsets: object) -> None:
    """Commit nothing, as by a death before it."""


async def test_a_record_that_cannot_be_read_is_reported_in_bounded_printable_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reads(record: Record, **given: Any) -> Message:
        raise BadInput("\x1b[2J\n" + "x" * 10_000)

    monkeypatch.setattr(envelope, "to_message", reads)
    async with workplace(tmp_path) as place, at_work(place, payment):
        await place.publish(ORDER)
        await place.at_rest(payment)
        ((_, headers),) = await place.dead(payment)
        (moment,) = place.reported_dead_letters()
    assert moment.reason == headers["dead_reason"]
    assert moment.reason.startswith(r"\x1b[2J\nxxx")
    assert len(moment.reason.encode()) <= 2000


QUARANTINING: Cases = {
    "key not the key field": (
        lambda r: r._replace(value=codec.encode(an_order("order-2"))),
        "BadInput: its order_id is 'order-2', its key 'order-1': both must be the saga id",
    ),
    "cut off": (
        lambda r: r._replace(value=VALUE[:-3]),
        "BadInput: the value is partial: it ends in the middle of OrderPlaced",
    ),
    "cut off in its header": (
        lambda r: r._replace(value=VALUE[:5]),
        "BadInput: the value is partial: 5 bytes, and the header alone has 10",
    ),
    "too long": (
        lambda r: r._replace(value=VALUE + b"x"),
        "BadInput: the value has 1 bytes behind the end of OrderPlaced",
    ),
    "of another type": (
        lambda r: r._replace(value=codec.encode(OrderConfirmed(order_id=SAGA))),
        "BadInput: it is a OrderConfirmed (orders/OrderConfirmed.v1), not a OrderPlaced",
    ),
    "not Avro": (lambda r: r._replace(value=b"{}"), "BadInput: the value is no Avro single object: "),
    "no headers, cut off": (
        lambda r: bare(VALUE[:-3]),
        "BadInput: the value is partial: it ends in the middle of OrderPlaced",
    ),
}


@pytest.mark.parametrize("case", QUARANTINING)
async def test_a_message_that_cannot_be_decoded_is_a_dead_letter_and_quarantines_its_saga(
    tmp_path: Path, case: str
) -> None:
    spoilt, reason = QUARANTINING[case]
    async with workplace(tmp_path) as place, at_work(place, payment):
        bad = spoilt(good(place))
        await place.broker.publish([bad])
        await place.publish(ORDER, id="behind it")
        await place.publish(an_order("order-2"))
        await place.at_rest(payment)
        ((record, headers),) = await place.dead(payment)
        assert (record.key, record.value) == (bad.key, bad.value)
        assert dict(record.headers).items() >= dict(bad.headers).items()
        assert headers["dead_reason"].startswith(reason)
        assert (headers["dead_handler"], headers["dead_attempts"]) == ("reserve", "1")
        assert [(e.handler, e.outcome) for e in await place.history(payment)] == [
            ("reserve", "dead"),
            ("reserve", "queued"),
        ]
        assert [entry.outcome for entry in await place.history(payment, "order-2")] == ["handled"]
        assert not place.reported(Stuck)


async def test_a_part_of_several_that_cannot_be_decoded_dies_without_waiting_for_the_others(tmp_path: Path) -> None:
    async with workplace(tmp_path) as place, at_work(place, payment):
        bad = place.record_of(OrderConfirmed(order_id=SAGA))
        await place.broker.publish([bad._replace(value=bad.value and bad.value[:-1])])
        await place.at_rest(payment)
        ((_, headers),) = await place.dead(payment)
        assert headers["dead_handler"] == "note"
        assert [entry.outcome for entry in await place.history(payment)] == ["dead"]


async def test_a_part_that_cannot_be_decoded_waits_for_nothing_after_it_was_queued_either(tmp_path: Path) -> None:
    async with workplace(tmp_path) as place, at_work(place, payment):
        await place.broker.publish([good(place)._replace(value=VALUE[:-1])])
        bad = place.record_of(OrderConfirmed(order_id=SAGA))
        await place.broker.publish([bad._replace(value=bad.value and bad.value[:-1])])
        await place.publish(OrderCancelled(order_id=SAGA, reason="-"))  # ends the quarantine
        await place.at_rest(payment)
        assert [(e.handler, e.outcome) for e in await place.history(payment)] == [
            ("reserve", "dead"),
            ("note", "queued"),
            ("release", "compensated"),
            ("note", "dead"),
        ]


async def test_an_outcome_that_cannot_be_decoded_is_one_dead_letter_however_often_it_comes(tmp_path: Path) -> None:
    async with workplace(tmp_path) as place, at_work(place, payment):
        await place.publish(ORDER)
        bad = place.record_of(OrderCancelled(order_id=SAGA, reason="-"))
        for _ in range(3):
            await place.broker.publish([bad._replace(value=bad.value and bad.value[:-1])])
            await place.at_rest(payment)
        ((_, headers),) = await place.dead(payment)
        assert headers["dead_handler"] == "release"
        assert headers["dead_reason"] == "BadInput: the value is partial: it ends in the middle of OrderCancelled"
        await place.publish(OrderConfirmed(order_id=SAGA))
        await place.at_rest(payment)
        assert [(e.handler, e.outcome) for e in await place.history(payment)] == [
            ("reserve", "handled"),
            ("release", "dead"),
            ("note", "queued"),
        ]


async def test_a_type_that_no_handler_names_is_not_looked_at(tmp_path: Path) -> None:
    async with workplace(tmp_path) as place, at_work(place, payment):
        await place.broker.publish(
            [with_header(with_header(good(place), "ce_type", b"Rumour"), "ce_subject", b"\xff")._replace(value=None)]
        )
        await place.at_rest(payment)
        assert not await place.dead(payment)
        assert await place.progress(payment) is None
        assert not place.reported(Handled)


async def test_a_message_older_than_memory_is_a_dead_letter_and_begins_no_progress(tmp_path: Path) -> None:
    async with workplace(tmp_path) as place, at_work(place, payment):
        await place.publish(ORDER, started="2001-01-01T00:00:00.000Z")
        await place.publish(an_order("order-2"))
        await place.at_rest(payment)
        ((record, headers),) = await place.dead(payment)
        assert (record.key, record.value) == (SAGA.encode(), VALUE)
        assert headers["dead_reason"] == (
            "older than the retention: its saga began 2001-01-01T00:00:00.000Z, and this service has no record of it "
            "any more"
        )
        (moment,) = place.reported(DeadLettered)
        assert (moment.saga, moment.reason) == (SAGA, headers["dead_reason"])
        assert await place.progress(payment) is None
        assert await place.progress(payment, "order-2") is not None
