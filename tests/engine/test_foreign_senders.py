"""Senders that know nothing of the toolkit: what they may leave out, which message is which, and what is given back."""

from datetime import timedelta
from pathlib import Path

import pytest

from saga import Saga, Service
from saga.contracts import codec
from saga.messages import Headers, Outgoing, Record, texts_of
from saga.ops.histories import SagaHistory, build_timeline
from saga.support.clock import iso
from services.order.events import OrderCancelled
from services.payment.events import OrderPlaced, PaymentReserved
from tests.engine.real_worker import SAGA, Workplace, an_order, at_work, workplace

payment = Service("payment")
"""Each event starts a saga, and is handled once."""


@payment.handler
async def reserve(order: OrderPlaced) -> PaymentReserved:
    return PaymentReserved(order_id=order.order_id, charge_id="c", amount=order.total)


counting = Service("payment")
"""Each event counts."""


@counting.handler(repeats=OrderPlaced)
async def count(order: OrderPlaced, saga: Saga) -> PaymentReserved:
    return PaymentReserved(order_id=order.order_id, charge_id=saga.idempotency_key("charge"), amount=order.total)


def a_cloud_event(key: str = SAGA, *, id: str = "a7f3-1", source: str = "/shops/kiel", **more: str | None) -> Outgoing:
    """An order as any SDK for CloudEvents says it. `more`: other attributes, or `None` for those to leave out."""
    attributes: dict[str, str | None] = {
        "specversion": "1.0",
        "id": id,
        "source": source,
        "type": "org.example.shop.OrderPlaced",
        "time": "2026-11-21T15:06:40.5+01:00",
        "partitionkey": key,
    }
    attributes |= more
    headers = [(f"ce_{name}", text.encode()) for name, text in attributes.items() if text is not None]
    return Outgoing(
        "orders", key.encode(), codec.encode(an_order(key)), (*headers, ("content-type", b"application/avro"))
    )


async def outcomes(place: Workplace, service: Service) -> list[tuple[str, str, str]]:
    return [(e.handler, e.outcome, e.message) for e in await place.history(service)]


# -------------------------------------------------------------------- an event that starts a saga


@pytest.mark.parametrize("time", ["2026-11-21T15:06:40.5+01:00", None])
async def test_a_foreign_event_that_starts_a_saga_is_handled_at_once(tmp_path: Path, time: str | None) -> None:
    async with workplace(tmp_path) as place, at_work(place, payment):
        await place.broker.publish([a_cloud_event(time=time)])
        await place.at_rest(payment)
        assert await outcomes(place, payment) == [("reserve", "handled", "/shops/kiel|a7f3-1")]
        (order,) = await place.records("orders")
        (record,) = await place.records("payments")
        started = texts_of(record.headers)["ce_sagastart"]
        assert started == ("2026-11-21T14:06:40.500Z" if time else iso(order.time_ms))
        assert not place.reported_dead_letters()
        p = await place.progress(payment)
        assert p is not None
        assert p.started == started


async def test_a_sender_without_headers_is_understood_by_its_bytes(tmp_path: Path) -> None:
    async with workplace(tmp_path) as place, at_work(place, payment):
        await place.broker.publish([a_cloud_event()._replace(headers=())])
        await place.at_rest(payment)
        (record,) = await place.records("orders")
        where = f"|orders/{record.partition}/{record.offset}@{record.log_id}"
        assert await outcomes(place, payment) == [("reserve", "handled", where)]


async def test_a_foreign_event_that_starts_nothing_waits_until_the_saga_is_known(tmp_path: Path) -> None:
    service = Service("payment")

    @service.handler
    async def let_go(cancelled: OrderCancelled) -> None: ...

    async with workplace(tmp_path) as place, at_work(place, service):
        await place.publish(OrderCancelled(order_id=SAGA, reason="-"), started=None)
        await place.at_rest(service)
        assert [(e.outcome, e.reason) for e in await place.history(service)] == [
            ("waiting", "no message with the start of this saga has come yet")
        ]


async def test_a_foreign_start_of_a_time_that_is_forgotten_is_a_dead_letter(tmp_path: Path) -> None:
    service = Service("payment", retention=timedelta(days=30))

    @service.handler
    async def reserve(order: OrderPlaced) -> None: ...

    async with workplace(tmp_path) as place, at_work(place, service):
        await place.broker.publish([a_cloud_event(time="0001-01-01T00:00:00Z")])
        await place.at_rest(service)
        ((record, headers),) = await place.dead(service)
        assert headers["dead_reason"].startswith("older than the retention: its saga began 0001-01-01T00:00:00.000Z, ")
        assert headers["dead_whole"] == f"orders/{(await place.records('orders'))[0].partition}/0"
        assert record.value == codec.encode(an_order())


# -------------------------------------------------------------------- which message is which


async def test_two_senders_may_use_one_id(tmp_path: Path) -> None:
    async with workplace(tmp_path) as place, at_work(place, counting):
        for source in ("/shops/kiel", "/shops/bonn", "/shops/kiel", "client", "order", "payments"):
            await place.broker.publish([a_cloud_event(source=source)])
        await place.at_rest(counting)
        assert await outcomes(place, counting) == [
            ("count", "handled", "/shops/kiel|a7f3-1"),
            ("count", "handled", "/shops/bonn|a7f3-1"),
            ("count", "handled", "client|a7f3-1"),
            ("count", "handled", "order|a7f3-1"),
            ("count", "handled", "payments|a7f3-1"),
        ]
        assert len({record.value for record in await place.records("payments")}) == 5, "a key of its own for each"


async def test_the_same_id_and_content_from_another_sender_is_ignored_visibly(tmp_path: Path) -> None:
    async with workplace(tmp_path) as place, at_work(place, payment):
        await place.broker.publish([a_cloud_event(), a_cloud_event(source="/shops/bonn")])
        await place.at_rest(payment)
        assert await outcomes(place, payment) == [
            ("reserve", "handled", "/shops/kiel|a7f3-1"),
            ("reserve", "ignored", "/shops/bonn|a7f3-1"),
        ]


async def test_the_same_id_with_other_content_from_another_sender_is_a_dead_letter(tmp_path: Path) -> None:
    async with workplace(tmp_path) as place, at_work(place, payment):
        other = a_cloud_event(source="/shops/bonn")._replace(value=codec.encode(an_order(quantity=2)))
        await place.broker.publish([a_cloud_event(), other])
        await place.at_rest(payment)
        ((record, headers),) = await place.dead(payment)
        assert headers["dead_reason"].startswith("already handled with other content")
        assert (headers["ce_id"], headers["ce_source"]) == ("a7f3-1", "/shops/bonn"), "as their sender wrote them"
        assert headers["dead_message"] == "/shops/bonn|a7f3-1"
        assert record.value == other.value


async def test_what_a_client_publishes_twice_is_one_event(tmp_path: Path) -> None:
    async with workplace(tmp_path) as place, at_work(place, counting):
        for _ in range(2):
            await place.broker.publish([place.to_client_record(an_order())])
        await place.at_rest(counting)
        (only,) = await outcomes(place, counting)
        assert only[:2] == ("count", "handled")
        assert only[2].startswith("client|OrderPlaced-")


async def test_an_event_of_a_service_that_does_not_own_its_contract_has_one_id_everywhere(tmp_path: Path) -> None:
    shop = Service("shop")

    @shop.handler
    async def order_again(cancelled: OrderCancelled) -> OrderPlaced:
        return an_order(cancelled.order_id)

    async with workplace(tmp_path) as place:
        async with at_work(place, shop):
            await place.publish(OrderCancelled(order_id=SAGA, reason="-"))
            await place.at_rest(shop)
        (entry,) = await place.history(shop)
        (event,) = entry.events
        headers = texts_of((await place.records("orders"))[-1].headers)
        assert event.id == f"shop|{headers['ce_id']}", "the owner may use that id for something else"
        assert headers["ce_source"] == "shop"
        async with at_work(place, payment):
            await place.at_rest(payment)
        assert await outcomes(place, payment) == [("reserve", "handled", event.id)]
        parts = [SagaHistory(p, p.transitions) for s in (shop, payment) if (p := await place.progress(s)) is not None]
        assert [line.service for line in build_timeline(parts)] == ["shop", "payment"]


async def test_messages_without_an_id_are_as_many_as_their_places(tmp_path: Path) -> None:
    async with workplace(tmp_path) as place, at_work(place, counting):
        nameless = a_cloud_event(id=None)  # type: ignore[arg-type] # leaves it out
        await place.broker.publish([nameless])
        (record,) = await place.records("orders")
        where = f"orders/{record.partition}/{record.offset}@{record.log_id}"
        await place.broker.publish([nameless, a_cloud_event(id=where, source="unknown")])
        await place.at_rest(counting)
        assert [message for _, _, message in await outcomes(place, counting)] == [
            f"|{where}",
            f"|orders/{record.partition}/{record.offset + 1}@{record.log_id}",
            f"unknown|{where}",
        ]


# -------------------------------------------------------------------- what is given back

OPAQUE: Headers = (("x-signature", b"\xff\x00\xfe"), ("x-none", None), ("dead_reason", b"-"), ("x-signature", b"2"))


def headers_without_ours(record: Record) -> Headers:
    return tuple(h for h in record.headers if h[0].startswith(("x-", "foreign_")))


GIVEN_BACK: Headers = (*OPAQUE[:2], ("foreign_dead_reason", b"-"), OPAQUE[3])


async def test_a_dead_letter_of_a_message_that_was_kept_has_all_that_its_sender_wrote(tmp_path: Path) -> None:
    service = Service("payment")

    @service.handler
    async def refuse(order: OrderPlaced) -> None:
        raise LookupError("no such card")

    event = a_cloud_event()
    async with workplace(tmp_path) as place, at_work(place, service):
        place.clock.faster = 5000
        await place.broker.publish([event._replace(headers=(*event.headers, *OPAQUE))])
        await place.until(lambda: bool(place.reported_dead_letters()))
        await place.at_rest(service)
        ((record, headers),) = await place.dead(service)
        assert (record.key, record.value) == (event.key, event.value)
        assert headers_without_ours(record) == GIVEN_BACK
        assert headers["ce_partitionkey"] == SAGA
        assert headers["dead_reason"] == "LookupError: no such card"
        assert (headers["ce_id"], headers["ce_source"]) == ("a7f3-1", "/shops/kiel")


async def test_a_dead_letter_of_a_record_that_cannot_be_read_has_all_that_its_sender_wrote(tmp_path: Path) -> None:
    event = a_cloud_event(subject="another")
    async with workplace(tmp_path) as place, at_work(place, payment):
        await place.broker.publish([event._replace(headers=(*event.headers, *OPAQUE))])
        await place.at_rest(payment)
        ((record, headers),) = await place.dead(payment)
        assert (record.key, record.value) == (event.key, event.value)
        assert record.headers[: len(event.headers)] == event.headers
        assert headers_without_ours(record) == GIVEN_BACK
        assert headers["dead_reason"].startswith("the message's key 'order-1' is not its subject 'another'")


async def test_events_that_a_message_causes_do_not_carry_foreign_headers(tmp_path: Path) -> None:
    event = a_cloud_event()
    async with workplace(tmp_path) as place, at_work(place, payment):
        await place.broker.publish([event._replace(headers=(*event.headers[::-1], *OPAQUE))])
        await place.at_rest(payment)
        (record,) = await place.records("payments")
        assert not headers_without_ours(record)
        assert await outcomes(place, payment) == [("reserve", "handled", "/shops/kiel|a7f3-1")]
