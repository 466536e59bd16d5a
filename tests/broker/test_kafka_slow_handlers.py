"""Slow handlers on Kafka while members come and go: no member waits for them, and they end.

`SAGA_TEST_SLOW_HANDLERS_S=60` has them take so long, and prints the longest time without a handled message.
"""

import asyncio
import itertools
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from saga import Event, Saga, Service
from saga.broker.kafka.adapter import KafkaSettings
from saga.broker.kafka.broker import KafkaBroker
from saga.contracts.library import contract_of, find_library
from saga.engine.consumer.flow_control import FlowLimits
from saga.engine.lifecycle import ServiceOptions, serve
from saga.engine.prepared_service import prepare, topics_of
from saga.engine.worker import Worker
from saga.messages import Outgoing, Topic
from saga.messaging import envelope
from saga.progress.document import decode_progress, decode_transition, progress_key
from saga.store.sqlite.store import SqliteStore
from saga.support.clock import iso
from saga.telemetry.events import Handled, TelemetryEvent
from saga.testing.servers.kafka import KafkaServer
from services.order.events import OrderConfirmed
from services.payment.events import OrderPlaced, PaymentReserved
from tests.broker.waiting import CLOCK, until
from tests.engine.real_worker import ROOT, an_order, message_of, watched

SLOW_S = float(os.environ.get("SAGA_TEST_SLOW_HANDLERS_S", "0"))
"""Seconds that a slow handler takes; 0: until the test lets it go on."""
STAYS_S = SLOW_S / 8
"""Seconds between two changes of the members."""
SLOW = [f"slow-{n}" for n in range(3)]
PARTITIONS = 12


@dataclass
class Desk:
    """Calls of one member."""

    begun: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    opened: asyncio.Event = field(default_factory=asyncio.Event)

    async def call(self, key: str) -> str:
        self.begun.append(key)
        await (CLOCK.sleep(SLOW_S) if SLOW_S else self.opened.wait())
        self.ended.append(key)
        return key


payment = Service("payment")


@payment.resource(timeout_s=300)
async def a_desk() -> AsyncIterator[Desk]:
    yield Desk()


@payment.handler(timeout_s=300)
async def reserve(order: OrderPlaced, desk: Desk, saga: Saga) -> PaymentReserved:
    charge = await saga.step(desk.call, saga.idempotency_key("charge"))
    return PaymentReserved(order_id=order.order_id, charge_id=charge, amount=order.total)


@payment.handler
async def note(confirmed: OrderConfirmed) -> None:
    return None


def record_of(event: Event) -> Outgoing:
    now = iso(CLOCK.now_ms())
    return envelope.to_record(message_of(event, time=now, started=now), contract_of(type(event)))


@dataclass
class Group:
    """Members on one store, and a client that publishes without a pause."""

    store: SqliteStore
    settings: KafkaSettings
    published: dict[str, float] = field(default_factory=dict)
    handled: dict[str, float] = field(default_factory=dict)
    """Time of the monotonic clock by quick order."""

    def report(self, moment: TelemetryEvent) -> None:
        if isinstance(moment, Handled) and moment.type == "OrderConfirmed":
            self.handled.setdefault(moment.saga, CLOCK.monotonic_s())

    @asynccontextmanager
    async def member(self, desk: Desk) -> AsyncIterator[Worker]:
        """One more inside the block; it leaves at its end without waiting for its slow handlers."""
        stop, workers = asyncio.Event(), list[Worker]()
        options = ServiceOptions(
            clock=CLOCK,
            report=self.report,
            limits=FlowLimits(drain_s=20 if SLOW_S else 0.05),
            stop=stop,
            watch=watched(workers),
        )
        async with KafkaBroker(self.settings, clock=CLOCK) as broker, asyncio.TaskGroup() as tasks:
            prepared = prepare(payment.declared)
            tasks.create_task(serve(prepared, store=self.store, broker=broker, options=options, use=[desk]))
            await until(lambda: workers and workers[0].partitions)
            try:
                yield workers[0]
            finally:
                stop.set()

    async def publish(self, broker: KafkaBroker, prefix: str, number: int) -> None:
        order = f"{prefix}-{number}"
        self.published[order] = CLOCK.monotonic_s()
        await broker.publish([record_of(OrderConfirmed(order_id=order))])

    async def goes_on(self, broker: KafkaBroker, prefix: str) -> None:
        """Return when messages of all partitions were handled that were published just now."""
        for number in range(4 * PARTITIONS):
            await self.publish(broker, prefix, number)
        await until(lambda: self.published.keys() == self.handled.keys())

    async def outcomes(self, order: str) -> list[str]:
        document = await self.store.get("saga", progress_key("payment", order))
        return (
            []
            if document is None
            else [decode_transition(t).outcome for t in decode_progress(document.content).transitions]
        )


@pytest.mark.slow
async def test_slow_handlers_block_no_member_while_members_come_and_go_and_end(
    server_jars: Path, tmp_path: Path
) -> None:
    kafka = KafkaServer.start(tmp_path / "kafka")
    settings = KafkaSettings(servers=(kafka.address,), replication_factor=1, min_insync_replicas=1)
    desks = [Desk() for _ in range(4)]
    async with AsyncExitStack() as stack:
        stack.callback(kafka.stop)
        group = Group(await stack.enter_async_context(SqliteStore(tmp_path / "store.db", clock=CLOCK)), settings)
        broker = await stack.enter_async_context(KafkaBroker(settings, clock=CLOCK))
        topics = {topic.name for topic in (*find_library(ROOT).topics.values(), *topics_of(payment.declared))}
        await broker.ensure_topics([Topic(topic, PARTITIONS) for topic in topics])
        first, *others = desks
        async with group.member(first):
            await broker.publish([record_of(an_order(order)) for order in SLOW])
            await until(lambda: len(first.begun) == len(SLOW))
            publishing = asyncio.get_running_loop().create_task(_publish_on(group, broker))
            async with AsyncExitStack() as staying:
                for number, desk in enumerate(others):
                    await staying.enter_async_context(group.member(desk))
                    await group.goes_on(broker, f"joined-{number}")
                    await CLOCK.sleep(STAYS_S)
                assert not first.ended, "the rebalance has not waited for them"
            await group.goes_on(broker, "left")
            publishing.cancel()
            first.opened.set()
            while any([await group.outcomes(order) != ["handled"] for order in SLOW]):
                await CLOCK.sleep(0.05)
        for desk in desks:
            assert len(desk.begun) == len(set(desk.begun)), "each member begins each call once"
        assert sorted(first.ended) == sorted(first.begun)
        records = [record async for record in broker.scan("payments")]
        assert {record.key or b"" for record in records} == {order.encode() for order in SLOW}
        _tell(group, desks)


async def _publish_on(group: Group, broker: KafkaBroker) -> None:
    """Publish all the time, so that a pause shows."""
    number = 0
    while SLOW_S:
        await group.publish(broker, "on", number)
        await CLOCK.sleep(0.02)
        number += 1


def _tell(group: Group, desks: list[Desk]) -> None:
    if not SLOW_S:
        return
    times = sorted(group.handled.values())
    pause_s = max(b - a for a, b in itertools.pairwise(times))
    latest_s = max(group.handled[order] - at for order, at in group.published.items() if order in group.handled)
    begun, ended = [len(desk.begun) for desk in desks], [len(desk.ended) for desk in desks]
    sys.stdout.write(
        f"\n{len(times)} handled beside 3 handlers of {SLOW_S:g} s, 1 -> 4 -> 1 members: longest pause {pause_s:.2f} s,"
        f" latest message {latest_s:.2f} s after it was published; calls begun {begun}, ended {ended}\n"
    )
