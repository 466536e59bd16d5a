"""Publishing by an application: its result or error, and what is in the log then."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from saga import Client, SagaError
from saga.broker.embedded.broker import EmbeddedBroker
from saga.clients.events import to_record
from saga.contracts.library import contract_of
from saga.errors import BrokerUnavailable
from saga.messages import Outgoing, Record
from saga.support.clock import SystemClock
from services.payment.events import OrderPlaced, PaymentReserved
from tests.engine.real_worker import an_order

TOPIC = contract_of(OrderPlaced).topic
ORDERS = [an_order(quantity=n) for n in (3, 1, 2)]
"""Of one saga, and so of one partition."""


async def in_the_log(file: Path) -> list[Record]:
    async with EmbeddedBroker(file, clock=SystemClock()) as broker:
        return [record async for record in broker.scan(TOPIC) if isinstance(record, Record)]


def ids_of(records: Sequence[Record | Outgoing]) -> list[bytes | None]:
    return [dict(record.headers)["ce_id"] for record in records]


IDS = ids_of([to_record(order, now_ms=0) for order in ORDERS])


async def test_published_events_are_in_order_and_equal_events_have_one_id(tmp_path: Path) -> None:
    file = tmp_path / "broker.db"
    async with Client(f"embedded:///{file}") as client:
        await client.publish(*ORDERS)
        assert len(await in_the_log(file)) == 3
    async with Client(f"embedded:///{file}") as another:
        await another.publish(*ORDERS)
    assert ids_of(await in_the_log(file)) == IDS + IDS
    assert len(set(IDS)) == 3


async def test_a_broker_that_acknowledges_nothing_is_reported_in_time_and_publishing_again_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[bool] = []
    publish = EmbeddedBroker.publish

    async def published_unheard(broker: EmbeddedBroker, records: Sequence[Outgoing]) -> None:
        await publish(broker, records)
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    monkeypatch.setattr("saga.clients.client.ACKNOWLEDGED_S_MAX", 1.0)
    async with Client(f"embedded:///{tmp_path / 'broker.db'}") as client:
        monkeypatch.setattr(EmbeddedBroker, "publish", published_unheard)
        with pytest.raises(SagaError) as raised:
            async with asyncio.timeout(20):
                await client.publish(*ORDERS)
        assert ended == [True]
        assert str(raised.value) == (
            "the broker did not acknowledge within 1 s: any of the 3 events may have been published; publish them "
            "again, an equal event is the same event"
        )
        monkeypatch.undo()
        await client.publish(*ORDERS)
    assert ids_of(await in_the_log(tmp_path / "broker.db")) == IDS + IDS


async def test_an_outage_is_reported_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(broker: EmbeddedBroker, records: Sequence[Outgoing]) -> None:
        raise BrokerUnavailable("the disk is full")

    async with Client(f"embedded:///{tmp_path / 'broker.db'}") as client:
        monkeypatch.setattr(EmbeddedBroker, "publish", refused)
        with pytest.raises(SagaError, match=r"did not acknowledge \(the disk is full\): any of the 1 events may have"):
            await client.publish(ORDERS[0])


@pytest.mark.parametrize(
    ("saga", "reason"),
    [("", "its order_id is empty"), ("ä" * 513, "its order_id has 1026 bytes, and a saga id has at most 1024")],
)
async def test_if_one_event_cannot_be_published_none_is(tmp_path: Path, saga: str, reason: str) -> None:
    file = tmp_path / "broker.db"
    async with Client(f"embedded:///{file}") as client:
        with pytest.raises(SagaError, match=f"OrderPlaced was not published: {reason}"):
            await client.publish(ORDERS[0], an_order(saga))
        await client.publish(ORDERS[1])
    assert ids_of(await in_the_log(file)) == [IDS[1]]


async def test_an_event_of_a_service_is_refused_with_the_name_of_its_owner(tmp_path: Path) -> None:
    file = tmp_path / "broker.db"
    async with Client(f"embedded:///{file}") as client:
        with pytest.raises(SagaError, match="only 'payment' may say PaymentReserved"):
            await client.publish(ORDERS[0], PaymentReserved(order_id="order-1", charge_id="1", amount=ORDERS[0].total))
        await client.publish(ORDERS[1])
    assert ids_of(await in_the_log(file)) == [IDS[1]]


async def test_the_principal_is_published_with_start_events_and_the_nearest_setting_wins(tmp_path: Path) -> None:
    file = tmp_path / "broker.db"
    async with Client(f"embedded:///{file}", principal="user:4711") as client:
        await client.publish(ORDERS[0])
        await client.publish(ORDERS[1], principal="user:4712")
    async with Client(f"embedded:///{file}") as anonymous:
        await anonymous.publish(*ORDERS[:1])
    principals = [dict(record.headers).get("ce_sagaprincipal") for record in await in_the_log(file)]
    assert principals == [b"user:4711", b"user:4712", None]
    assert ids_of(await in_the_log(file)) == [IDS[0], IDS[1], IDS[0]], "it is no part of an event"


@pytest.mark.parametrize("who", ["", "  ", "x" * 257, "ada\nroot", "ü" * 129, "\ud800"])
async def test_an_unreadable_principal_is_refused(tmp_path: Path, who: str) -> None:
    refused = "nothing was published: the principal .* has to be printable text of at most 256 bytes"
    with pytest.raises(SagaError, match=refused):
        Client(principal=who)
    async with Client(f"embedded:///{tmp_path}/broker.db") as client:
        with pytest.raises(SagaError, match=refused):
            await client.publish(*ORDERS, principal=who)
