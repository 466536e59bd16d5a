"""The order choreography, unchanged, on Kafka: of two replicas one leaves, and the broker is killed once."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from decimal import Decimal
from pathlib import Path

import msgspec
import pytest

from saga.broker.kafka.adapter import KafkaSettings
from saga.broker.kafka.broker import KafkaBroker
from saga.broker.port import Broker
from saga.clients.events import to_record
from saga.configuration import wiring
from saga.configuration.settings import Settings
from saga.engine.lifecycle import ServiceOptions
from saga.engine.prepared_service import topics_of
from saga.errors import BrokerUnavailable
from saga.messages import Outgoing
from saga.messaging import envelope
from saga.store.sqlite.store import SqliteStore
from saga.support.clock import SystemClock
from saga.telemetry.events import DeadLettered, Escalated, TelemetryEvent
from saga.testing.servers.kafka import KafkaServer
from services.inventory import inventory
from services.inventory.stock import Stock
from services.order import order
from services.order.events import OrderPlaced
from services.payment import payment
from services.payment.bank import Bank
from services.shipping import shipping
from services.shipping.carrier import Carrier

SERVICES = tuple(service.declared for service in (order, payment, inventory, shipping))
ORDERS, LEFT = 60, 100
CLOCK = SystemClock()
WITHIN_S = 60.0


class Outside:
    """Stores, bank and carrier, which all replicas share."""

    def __init__(self, stores: Mapping[str, SqliteStore]) -> None:
        self.stores, self.bank, self.carrier = stores, Bank(), Carrier()
        self.bad: list[TelemetryEvent] = []

    def report(self, moment: TelemetryEvent) -> None:
        if isinstance(moment, DeadLettered | Escalated):
            self.bad.append(moment)

    @asynccontextmanager
    async def replica(self, settings: KafkaSettings) -> AsyncIterator[asyncio.Event]:
        """All four services, until the event is set or the block ends."""
        stop = asyncio.Event()
        async with KafkaBroker(settings, clock=CLOCK) as broker, asyncio.TaskGroup() as tasks:
            serving = wiring.serve_all(
                SERVICES,
                broker,
                self.stores,
                ServiceOptions(clock=CLOCK, report=self.report, limits=wiring.limits_of(Settings()), stop=stop),
                use={"payment": [self.bank], "shipping": [self.carrier]},
            )
            tasks.create_task(serving)
            try:
                yield stop
            finally:
                stop.set()


def an_order(number: int) -> Outgoing:
    """A third goes well, a third has a declined card, a third lives where no carrier delivers."""
    placed = OrderPlaced(
        order_id=f"o-{number:04}",
        customer_id="c-1",
        sku="tea",
        quantity=1,
        total=Decimal("9.80"),
        card="declined-1" if number % 3 == 1 else "4242",
        address="Atlantis" if number % 3 == 2 else "Kiel",
    )
    return to_record(placed, CLOCK.now_ms())


async def place(broker: Broker, numbers: range) -> None:
    for number in numbers:
        while True:
            try:
                await broker.publish([an_order(number)])
                break
            except BrokerUnavailable:
                await CLOCK.sleep(0.1)
        await CLOCK.sleep(0.005)


async def outcomes(broker: Broker) -> dict[str, set[str]]:
    """Outcome of each order that has ended. As a tool reads it, so also when a service published it twice."""
    found: dict[str, set[str]] = {}
    async for record in broker.scan("orders"):
        type_ = envelope.type_of(record)
        if type_ in ("OrderConfirmed", "OrderCancelled"):
            found.setdefault((record.key or b"").decode(), set()).add(type_)
    return found


async def stock_left(outside: Outside) -> int:
    document = await outside.stores["inventory"].get("stock", "tea")
    assert document is not None
    return msgspec.json.decode(document.content, type=Stock).left


async def settled(outside: Outside, broker: Broker, count: int) -> dict[str, set[str]]:
    """Wait until so many orders have ended, nothing is held or booked for any of them any more, and the goods of those
    that were cancelled are put back."""
    while True:
        found = await outcomes(broker)
        if len(found) == count and not outside.bank.held and not outside.carrier.booked:
            confirmed = sum(kinds == {"OrderConfirmed"} for kinds in found.values())
            if await stock_left(outside) == LEFT - confirmed:
                return found
        await CLOCK.sleep(0.3)


@pytest.mark.slow
async def test_orders_end_once_and_the_books_balance(server_jars: Path, tmp_path: Path) -> None:
    kafka = KafkaServer.start(tmp_path / "kafka")
    settings = KafkaSettings(
        servers=(kafka.address,),
        replication_factor=1,
        min_insync_replicas=1,
        heartbeat_s=0.2,
        rebalance_s=20,
        session_s=3,
    )
    async with AsyncExitStack() as stack:
        stack.callback(kafka.stop)
        stores = {
            declared.name: await stack.enter_async_context(SqliteStore(tmp_path / f"{declared.name}.db", clock=CLOCK))
            for declared in SERVICES
        }
        await stores["inventory"].insert("stock", "tea", msgspec.json.encode(Stock(left=LEFT)))
        outside = Outside(stores)
        outsider = await stack.enter_async_context(KafkaBroker(settings, clock=CLOCK))
        for declared in SERVICES:
            await outsider.ensure_topics(topics_of(declared))
        async with outside.replica(settings):
            async with outside.replica(settings) as leaving:
                await place(outsider, range(ORDERS // 3))
                leaving.set()
            placing = asyncio.gather(place(outsider, range(ORDERS // 3, ORDERS)))
            await CLOCK.sleep(0.1)
            await asyncio.to_thread(kafka.kill)
            await asyncio.to_thread(kafka.restart)
            await CLOCK.within(WITHIN_S, placing)
            found = await CLOCK.within(WITHIN_S, settled(outside, outsider, ORDERS))
        assert all(len(kinds) == 1 for kinds in found.values())
        confirmed = {id_ for id_, kinds in found.items() if kinds == {"OrderConfirmed"}}
        assert confirmed == {f"o-{number:04}" for number in range(0, ORDERS, 3)}
        assert len(outside.bank.taken) == len(outside.carrier.dispatched) == len(confirmed)
        assert await stock_left(outside) == LEFT - len(confirmed)
        assert not outside.bad
