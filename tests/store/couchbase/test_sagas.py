"""The example's services with all their documents on Couchbase, which freezes while they work."""

import asyncio
from contextlib import AsyncExitStack
from decimal import Decimal
from pathlib import Path

import msgspec

from saga.broker.embedded.broker import EmbeddedBroker
from saga.clients.events import to_record
from saga.configuration import wiring
from saga.configuration.settings import Settings
from saga.engine.lifecycle import ServiceOptions
from saga.engine.prepared_service import topics_of
from saga.store.couchbase.store import CouchbaseStore
from saga.support.clock import SystemClock
from saga.telemetry.events import DeadLettered, Stuck, TelemetryEvent
from saga.testing.servers.couchbase import CouchbaseMock
from services.inventory import inventory
from services.inventory.stock import Stock
from services.order import order
from services.order.events import OrderPlaced
from services.payment import payment
from services.payment.bank import Bank
from services.shipping import shipping
from services.shipping.carrier import Carrier
from tests.store.couchbase.conftest import Stores

ORDERS, DECLINED, LEFT = 120, 12, 1000
FROZEN_S = 3.0
ENDED_WITHIN_S = 60.0
SERVICES = [service.declared for service in (order, payment, inventory, shipping)]
clock = SystemClock()


def placed(number: int) -> OrderPlaced:
    return OrderPlaced(
        order_id=f"order-{number:03}",
        customer_id="c-1",
        sku="tea" if number % 2 else "coffee",
        quantity=2,
        total=Decimal("9.80"),
        card="declined-1" if number < DECLINED else "4242",
        address="Kiel",
    )


async def shelves(store: CouchbaseStore) -> dict[str, Stock]:
    found = {sku: await store.get("stock", sku) for sku in ("coffee", "tea")}
    return {sku: msgspec.json.decode(document.content, type=Stock) for sku, document in found.items() if document}


async def test_orders_end_once_and_the_books_balance_although_the_store_froze(
    mock: CouchbaseMock, stores: Stores, tmp_path: Path
) -> None:
    bank, carrier, moments = Bank(), Carrier(), list[TelemetryEvent]()
    confirmed = ORDERS - DECLINED
    after = {sku: Stock(left=LEFT - confirmed) for sku in ("coffee", "tea")}
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(EmbeddedBroker(tmp_path / "broker.db", clock=clock))
        opened = {service.name: await stack.enter_async_context(stores()) for service in SERVICES}
        for service in SERVICES:
            await broker.ensure_topics(topics_of(service))
        goods = opened["inventory"]
        for sku in after:
            await goods.insert("stock", sku, msgspec.json.encode(Stock(left=LEFT)))
        stop = asyncio.Event()
        async with asyncio.timeout(ENDED_WITHIN_S), asyncio.TaskGroup() as tasks:
            tasks.create_task(
                wiring.serve_all(
                    SERVICES,
                    broker,
                    opened,
                    ServiceOptions(clock=clock, report=moments.append, limits=wiring.limits_of(Settings()), stop=stop),
                    use={"payment": [bank], "shipping": [carrier]},
                )
            )
            orders = [to_record(placed(number), clock.now_ms()) for number in range(ORDERS)]
            await broker.publish(orders[: ORDERS // 2])
            while not bank.calls:
                await clock.sleep(0.01)
            mock.pause()
            await broker.publish(orders[ORDERS // 2 :])
            await clock.sleep(FROZEN_S)
            mock.resume()
            while len(bank.taken) < confirmed or len(carrier.dispatched) < confirmed or await shelves(goods) != after:
                await clock.sleep(0.05)
            stop.set()
        assert await shelves(goods) == after
        assert [key async for key, _ in goods.scan("saga", "order::")] == [
            f"order::order-{n:03}" for n in range(ORDERS)
        ]
    assert len(bank.taken) == len(carrier.dispatched) == confirmed
    assert not bank.held
    assert not carrier.booked
    assert not [moment for moment in moments if isinstance(moment, DeadLettered | Stuck)]
