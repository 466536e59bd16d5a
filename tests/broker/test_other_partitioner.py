"""Records that another program put into other partitions than our partitioner: reported once, and found by tools that
read one saga."""

import zlib
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from saga import Client, Service
from saga.broker.port import partition_of
from saga.configuration.settings import Settings
from saga.ops.sources import open_administration
from saga.ops.tail import TailTarget, tail
from saga.telemetry.events import OtherPartitioner
from services.payment.events import OrderPlaced
from tests.clients.test_outcomes import CLOCK, Shop
from tests.engine.real_worker import an_order, at_work, workplace

SOON = timedelta(0)


def crc32(key: bytes, partitions: int) -> int:
    """The default of librdkafka, which is another one than that of Kafka's own clients."""
    return zlib.crc32(key) % partitions


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.setenv("SAGA_BROKER", f"embedded:///{tmp_path / 'broker.db'}")
    return Shop(tmp_path)


async def publish_with_another_partitioner(shop: Shop, monkeypatch: pytest.MonkeyPatch, *events: Any) -> None:
    with monkeypatch.context() as others:
        others.setattr("saga.broker.embedded.log.partition_of", crc32)
        await shop.publish(*events)


def moved(count: int, partitions: int, by: Any = crc32) -> list[str]:
    """Sagas whose records the other partitioner puts elsewhere."""
    names = (f"o-{n}".encode() for n in range(1000))
    return [name.decode() for name in names if by(name, partitions) != partition_of(name, partitions)][:count]


async def test_a_worker_reports_once_that_a_key_lies_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    payment, handled = Service("payment"), set[str]()

    @payment.handler
    async def reserve(order: OrderPlaced) -> None:
        handled.add(order.order_id)

    async with workplace(tmp_path) as place:
        async with at_work(place, payment):
            await place.at_rest(payment)
            await place.publish(*(an_order(f"ours-{n}") for n in range(20)))
            await place.at_rest(payment)
            assert not place.reported(OtherPartitioner)
            sagas = moved(5, 12)
            with monkeypatch.context() as others:
                others.setattr("saga.broker.embedded.log.partition_of", crc32)
                await place.publish(*map(an_order, sagas))
            await place.at_rest(payment)
        assert handled >= {*sagas}, "they are handled all the same"
        [moment] = place.reported(OtherPartitioner)
        keys = {(r.partition, r.offset): r.key or b"" for r in await place.records("orders")}
        assert (moment.topic, moment.expected) == ("orders", partition_of(keys[moment.partition, moment.offset], 12))


async def test_an_outcome_is_found_wherever_another_partitioner_put_it(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    both, sagas = (shop.confirmed, shop.cancelled), moved(8, 3)
    await publish_with_another_partitioner(shop, monkeypatch, *(shop.confirmed(order_id=saga) for saga in sagas))
    async with Client() as client:
        for saga in sagas:
            assert await client.outcome(saga, *both, within=SOON) == shop.confirmed(order_id=saga)
        assert await client.outcome("o-none", *both, within=SOON) is None


async def test_an_outcome_from_before_partitions_were_raised_is_found(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def two_thirds(key: bytes, partitions: int) -> int:
        return partition_of(key, 2)

    both, sagas = (shop.confirmed, shop.cancelled), moved(20, 3, two_thirds)
    with monkeypatch.context() as before:
        before.setattr("saga.broker.embedded.log.partition_of", two_thirds)
        await shop.publish(*(shop.confirmed(order_id=saga) for saga in sagas))
    async with Client() as client:
        last = next(saga for saga in sagas if partition_of(saga.encode(), 3) == 2)
        assert await client.outcome(last, *both, within=SOON) == shop.confirmed(order_id=last)


async def test_a_saga_is_shown_wherever_its_records_lie(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    [saga] = moved(1, 3)
    await publish_with_another_partitioner(shop, monkeypatch, shop.confirmed(order_id=saga))
    async with open_administration(Settings.from_environment(), CLOCK) as broker:
        what = TailTarget(topics=(shop.topic,), saga=saga)
        seen = [each async for each in tail(what, broker, None, print, since_ms=0, follow=False)]
    assert len(seen) == 1
