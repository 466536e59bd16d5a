"""Events that are too large: found before anything is written, with room left for what one day may be a dead letter."""

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from saga import Service
from saga.broker.port import BESIDE_BYTES, record_size, value_bytes_max
from saga.clients.events import to_record
from saga.configuration.adapters import broker_at
from saga.configuration.settings import Settings
from saga.contracts import codec
from saga.errors import Permanent, SagaError
from saga.messages import Event, Outgoing
from saga.messaging.envelope import SAGA_BYTES_MAX
from saga.messaging.names import dead_letter_topic
from saga.progress.document import progress_key
from saga.support.clock import SystemClock
from services.inventory.events import InventoryRejected, InventoryReserved
from services.payment.events import OrderPlaced
from tests.engine.real_worker import Workplace, an_order, at_work, workplace

E = TypeVar("E", bound=Event)
SMALL = 120_000
"""Bytes that one record may hold here."""


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Workplace]:
    async with workplace(tmp_path, record_bytes_max=SMALL) as place:
        yield place


def padded(make: Callable[[str], E], size: int) -> E:
    """The event with so many bytes, by a longer text."""
    made = make("x" * (SMALL + size - len(codec.encode(make("x" * SMALL)))))
    assert len(codec.encode(made)) == size
    return made


def order(size: int, saga: str = "order-1") -> OrderPlaced:
    return padded(lambda address: replace(an_order(saga), address=address), size)


ROOM = value_bytes_max(SMALL)


async def test_an_event_may_be_as_large_as_leaves_room_and_no_larger(place: Workplace) -> None:
    inventory, seen = Service("inventory"), []

    @inventory.handler
    async def set_aside(order: OrderPlaced) -> InventoryRejected:
        seen.append(order.order_id)
        more = 0 if order.order_id == "order-1" else 1
        return padded(lambda reason: InventoryRejected(order_id=order.order_id, reason=reason), ROOM + more)

    async with at_work(place, inventory):
        await place.publish(an_order("order-1"), an_order("order-2"))
        await place.at_rest(inventory)
        (emitted,) = await place.records("inventory")
        assert (emitted.key, len(emitted.value or b"")) == (b"order-1", ROOM)
        ((record, letter),) = await place.dead(inventory)
    assert record.key == b"order-2"
    assert f"InventoryRejected has {ROOM + 1} bytes, and may have {ROOM}: emit a reference" in letter["dead_reason"]
    assert "SAGA_RECORD_BYTES_MAX" in letter["dead_reason"]
    p = await place.store.get("saga", progress_key("inventory", "order-2"))
    assert p is not None
    assert len(p.content) < BESIDE_BYTES  # nothing of what is too large was written


async def test_the_largest_event_still_fits_as_a_dead_letter_with_all_its_bytes(place: Workplace) -> None:
    inventory = Service("inventory")

    @inventory.handler
    async def set_aside(order: OrderPlaced) -> InventoryReserved:
        raise Permanent("it cannot be: " + "why " * 1000)

    largest = order(ROOM, "o" * SAGA_BYTES_MAX)
    async with at_work(place, inventory):
        await place.broker.publish([to_record(largest, place.clock.now_ms(), SMALL)])
        await place.at_rest(inventory)
        ((record, _),) = await place.dead(inventory)
    assert record.value == codec.encode(largest)
    letter = Outgoing(dead_letter_topic("inventory"), record.key or b"", record.value, record.headers)
    assert record_size(letter) <= SMALL


def test_events_that_a_client_may_not_publish_are_refused_before_sending() -> None:
    largest = order(ROOM)
    assert record_size(to_record(largest, 0, SMALL)) <= SMALL - BESIDE_BYTES + 1000
    with pytest.raises(SagaError) as refused:
        to_record(order(ROOM + 1), 0, SMALL)
    assert str(refused.value) == (
        f"OrderPlaced was not published: it has {ROOM + 1} bytes, and may have {ROOM}: publish a reference to what "
        "is large, or raise SAGA_RECORD_BYTES_MAX and what its topic takes"
    )


def test_the_setting_reaches_every_broker() -> None:
    kafka = Settings(broker="kafka://127.0.0.1:9092", record_bytes_max=SMALL)
    embedded = Settings(record_bytes_max=SMALL)
    assert [broker_at(settings, SystemClock()).record_bytes_max for settings in (kafka, embedded)] == [SMALL, SMALL]
