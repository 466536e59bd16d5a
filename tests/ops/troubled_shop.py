"""A shop of four services at real workers, on the embedded broker and SQLite, to which a test gives its trouble."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TypeAlias

from saga import Event, Retry, Service
from saga.choreography.manifest import make_manifest
from saga.choreography.overview import Overview
from saga.clients.events import to_record
from saga.configuration import wiring
from saga.configuration.settings import Settings
from saga.contracts.library import find_library
from saga.declarations.values import Declared
from saga.messages import Outgoing, Topic
from saga.messaging.controls import Switch
from saga.ops import operator_commands
from saga.ops.explanation import SagaExplanation, explain
from saga.ops.offsets import read_service_offsets
from saga.ops.saga_facts import read_facts
from saga.ops.selection import Deployment, Operator
from saga.ops.sources import missing_broker_file, open_administration
from saga.support.clock import SystemClock
from services.inventory.events import InventoryPutBack, InventoryRejected, InventoryReserved
from services.order.events import OrderCancelled, OrderConfirmed, OrderPlaced, PaymentDeclined, ShipmentBooked
from services.payment.events import PaymentReleased, PaymentReserved
from tests.cli.example_runs import an_order

CLOCK = SystemClock()
WITHIN_S = 30.0
SAGA = "order-1"
PARKS_AT_ONCE = Retry(attempts_max=9, delay_s_first=600, delay_s_max=600, in_place_s=0)
Pay: TypeAlias = Callable[[OrderPlaced], Awaitable[PaymentReserved | PaymentDeclined]]
Release: TypeAlias = Callable[[OrderCancelled], Awaitable[None]]


async def pay(placed: OrderPlaced) -> PaymentReserved | PaymentDeclined:
    if placed.card.startswith("declined"):
        return PaymentDeclined(order_id=placed.order_id, reason="no money")
    return PaymentReserved(order_id=placed.order_id, charge_id="charge-1", amount=placed.total)


async def nothing(cancelled: OrderCancelled) -> None:
    return None


def a_payment(pay: Pay = pay, *, retry: Retry | None = None) -> Service:
    payment = Service("payment")

    @payment.handler(retry=retry)
    async def reserve(placed: OrderPlaced) -> PaymentReserved | PaymentDeclined:
        return await pay(placed)

    @payment.compensation(reserve)
    async def release(cancelled: OrderCancelled, reserved: PaymentReserved) -> PaymentReleased:
        return PaymentReleased(order_id=cancelled.order_id, charge_id=reserved.charge_id)

    return payment


def an_inventory(undo: Release = nothing, *, in_stock: bool = True) -> Service:
    inventory = Service("inventory", retry=PARKS_AT_ONCE)

    @inventory.handler
    async def set_aside(placed: OrderPlaced) -> InventoryReserved | InventoryRejected:
        if not in_stock:
            return InventoryRejected(order_id=placed.order_id, reason="sold out")
        return InventoryReserved(order_id=placed.order_id, sku=placed.sku, quantity=placed.quantity)

    @inventory.compensation(set_aside)
    async def put_back(cancelled: OrderCancelled, reserved: InventoryReserved) -> InventoryPutBack:
        await undo(cancelled)
        return InventoryPutBack(order_id=cancelled.order_id, sku=reserved.sku, quantity=reserved.quantity)

    return inventory


def a_shipping() -> Service:
    shipping = Service("shipping")

    @shipping.handler
    async def book(placed: OrderPlaced, paid: PaymentReserved, goods: InventoryReserved) -> ShipmentBooked:
        return ShipmentBooked(order_id=paid.order_id, booking_id="booking-1")

    return shipping


def an_order_service(patience: timedelta | None = None) -> Service:
    order = Service("order")

    @order.handler
    async def confirm(booked: ShipmentBooked) -> OrderConfirmed:
        return OrderConfirmed(order_id=booked.order_id)

    @order.handler
    async def cancel(why: PaymentDeclined | InventoryRejected) -> OrderCancelled:
        return OrderCancelled(order_id=why.order_id, reason=why.reason)

    if patience is not None:

        @order.deadline(within=patience)
        async def expire(placed: OrderPlaced) -> OrderCancelled:
            return OrderCancelled(order_id=placed.order_id, reason="nobody answered in time")

    return order


@dataclass(kw_only=True)
class TroubledShop:
    """The services that run, and the commands of an operator."""

    settings: Settings
    tasks: asyncio.TaskGroup
    declared: dict[str, Declared] = field(default_factory=dict)
    """Services of which there is a manifest, by name."""
    _stops: dict[str, tuple[asyncio.Event, "asyncio.Task[None]"]] = field(default_factory=dict)

    def declare(self, *services: Service) -> None:
        """Write the manifests of services."""
        self.declared |= {service.declared.name: service.declared for service in services}

    async def start(self, *services: Service) -> None:
        """Start a worker of each service."""
        self.declare(*services)
        for service in services:
            stop, declared = asyncio.Event(), service.declared
            run = wiring.run([declared], self.settings, lambda _: None, stop)
            self._stops[declared.name] = stop, self.tasks.create_task(run)
        for service in services:
            while not await self._is_running(service.declared.name):
                await CLOCK.sleep(0.02)

    async def _is_running(self, name: str) -> bool:
        """Return whether a worker of the service reads, and the service takes commands."""
        if missing_broker_file(self.settings) is not None:
            return False
        async with open_administration(self.settings, CLOCK) as broker:
            return bool((await read_service_offsets(name, broker)).members)

    async def stop(self, *names: str) -> None:
        """Stop the workers of these services, or all."""
        for name in names or tuple(self._stops):
            stop, task = self._stops.pop(name)
            stop.set()
            await task

    async def publish(self, *events: Event, ago_s: int = 0) -> None:
        """Publish events as a client does, or did so many seconds ago."""
        await self.send([to_record(event, CLOCK.now_ms() - ago_s * 1000) for event in events])

    async def send(self, records: Sequence[Outgoing]) -> None:
        async with wiring.open_broker(None, CLOCK, self.settings) as broker:
            await broker.ensure_topics([Topic(each.topic) for each in find_library().contracts.values()])
            await broker.publish(records)

    async def place(self, saga: str = SAGA, *, card: str = "visa-1") -> None:
        await self.publish(an_order(saga, card=card))

    async def control(self, service: str, switch: Switch) -> None:
        """Set a control, and wait until the service has applied it."""
        operator = Operator("ada", "the bank is moving")
        sent = await operator_commands.send_switch(service, switch, operator, self.deployment)
        entry = await operator_commands.wait_for_entry(service, sent, self.deployment, WITHIN_S)
        assert entry is not None
        assert entry.refused is None, entry.refused

    @property
    def deployment(self) -> Deployment:
        return Deployment(settings=self.settings, stores=(self.settings.store,), clock=CLOCK, warn=lambda _: None)

    @property
    def overview(self) -> Overview:
        return Overview(find_library(), {name: make_manifest(each) for name, each in self.declared.items()})

    async def explain(self, saga: str = SAGA) -> SagaExplanation:
        return explain(await read_facts(saga, self.deployment, self.overview))

    async def until(self, kind: str, service: str, saga: str = SAGA) -> SagaExplanation:
        """Return the explanation once its first obstacle is of this kind, in this service."""

        def holds(found: SagaExplanation) -> bool:
            first = found.obstacles[0] if found.obstacles else None
            return first is not None and (first.kind, first.service) == (kind, service)

        return await self.until_it(holds, saga)

    async def until_only(self, *obstacles: tuple[str, str], saga: str = SAGA) -> SagaExplanation:
        """Return the explanation once these are all obstacles, each with its kind and service."""
        return await self.until_it(lambda found: tuple((o.kind, o.service) for o in found.obstacles) == obstacles, saga)

    async def until_finished(self, saga: str = SAGA) -> SagaExplanation:
        return await self.until_it(lambda found: found.state == "finished" and found.outcome is not None, saga)

    async def until_it(self, holds: Callable[[SagaExplanation], bool], saga: str = SAGA) -> SagaExplanation:
        end_s = CLOCK.monotonic_s() + WITHIN_S
        while not holds(found := await self.explain(saga)):
            assert CLOCK.monotonic_s() < end_s, found
            await CLOCK.sleep(0.1)
        return found


@asynccontextmanager
async def open_troubled_shop(folder: Path) -> AsyncIterator[TroubledShop]:
    """A shop whose files are in the folder. Its workers stop at the end."""
    settings = Settings(
        broker=f"embedded:///{folder}/broker.db", store=f"sqlite:///{folder}/{{service}}.db", drain_s=0.2
    )
    async with asyncio.TaskGroup() as tasks:
        shop = TroubledShop(settings=settings, tasks=tasks)
        try:
            yield shop
        finally:
            await shop.stop()
