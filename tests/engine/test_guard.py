"""The guard against poison messages: a message that runs alone delays the others for a moment only."""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from saga import Service
from saga.engine.consumer import partition_listener, poison_guard
from saga.engine.consumer.committer import Committer
from saga.engine.consumer.flow_control import FlowLimits
from saga.engine.consumer.keyed_executor import WorkItem
from saga.engine.consumer.poison_guard import DeathCount, PoisonGuard
from saga.messages import Partition
from saga.messaging.names import ARCHIVES
from saga.progress.document import progress_key
from saga.telemetry.events import Handled, Stuck
from services.payment.events import OrderPlaced
from tests.engine.real_worker import Workplace, an_order, at_work, workplace

STUCK = "order-9"


@pytest.fixture
async def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Workplace]:
    """With partitions that a process has left by its death."""
    begin = Committer.open_partitions

    async def left(self: Committer, offsets: Mapping[Partition, int], is_current: Any) -> Collection[Partition]:
        await begin(self, offsets, is_current)
        return set(offsets)

    monkeypatch.setattr(Committer, "open_partitions", left)
    async with workplace(tmp_path) as place:
        yield place


async def record_death_while_running(place: Workplace, *sagas: str) -> None:
    """Count the messages of these sagas as a process did that died while they were running."""
    async for record in place.broker.scan("orders"):
        if (record.key or b"").decode() in sagas:
            key = f"guard::payment::{record.topic}/{record.partition}/{record.offset}@{record.log_id}"
            await place.store.insert(ARCHIVES, key, msgspec.json.encode(DeathCount(1)))


@pytest.mark.parametrize("counted", [("order-1", STUCK), ("order-1",), (STUCK,)], ids=", ".join)
async def test_a_saga_that_cannot_decide_does_not_block_others_that_were_running_at_a_crash(
    place: Workplace, counted: tuple[str, ...]
) -> None:
    payment, handled = Service("payment"), list[str]()

    @payment.handler
    async def note(order: OrderPlaced) -> None:
        handled.append(order.order_id)

    async with at_work(place, payment):  # which makes the topics
        await place.at_rest(payment)
    await place.store.insert("saga", progress_key("payment", STUCK), b"{damaged")
    for saga in (STUCK, "order-1", "order-2"):
        await place.publish(an_order(saga))
    await record_death_while_running(place, *counted)
    async with at_work(place, payment):
        await place.until(lambda: {"order-1", "order-2"} <= {*handled})
        await place.until(lambda: {moment.saga for moment in place.reported(Stuck)} == {STUCK})


async def test_a_handler_that_takes_its_time_goes_alone_for_a_moment_only(
    place: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poison_guard, "ALONE_S_MAX", 0.3)
    payment, handled, may_end = Service("payment"), list[str](), asyncio.Event()

    @payment.handler
    async def note(order: OrderPlaced) -> None:
        if order.order_id == STUCK:
            await may_end.wait()
        handled.append(order.order_id)

    async with at_work(place, payment):
        await place.at_rest(payment)
    for saga in (STUCK, "order-1", "order-2"):
        await place.publish(an_order(saga))
    await record_death_while_running(place, STUCK, "order-1")
    async with at_work(place, payment):
        await place.until(lambda: {"order-1", "order-2"} <= {*handled})
        may_end.set()
        await place.until(lambda: STUCK in handled)
    counts = [key async for key, _ in place.store.scan(ARCHIVES, "guard::")]
    assert counts == [], "no worker died of any of them"


async def test_messages_that_come_again_use_up_no_guard_but_are_not_guarded_for_ever(
    place: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    payment, counted, count = Service("payment"), list[int](), PoisonGuard._count_first_delivery

    @payment.handler
    async def note(order: OrderPlaced) -> None: ...

    async def counts(self: PoisonGuard, item: WorkItem) -> int | None:
        counted.append(item.position.offset)
        return await count(self, item)

    monkeypatch.setattr(PoisonGuard, "_count_first_delivery", counts)
    monkeypatch.setattr(partition_listener, "WINDOW", 1)
    monkeypatch.setattr(partition_listener, "POLL_MAX", 3)
    for _ in range(20):
        await place.publish(an_order(), id="the same")
    async with at_work(place, payment, limits=FlowLimits(inflight_max=4)):
        await place.until(lambda: len(place.reported(Handled)) == 20)
    assert counted == list(range(4 + 4 + 3)), "4 may have been in progress, and 7 finished"
