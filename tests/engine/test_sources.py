"""A worker takes from several sources, each by itself."""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from saga import Service
from saga.broker.port import Listener, Membership, Subscription
from saga.engine.consumer.flow_control import FlowLimits
from saga.engine.consumer.sources import EventTopics, TopicSource, WorkerSources
from saga.engine.consumer.worker_ports import WorkerAssignment, make_worker_ports
from saga.engine.lifecycle import run_worker
from saga.engine.outage_watch import OutageWatch
from saga.engine.prepared_service import prepare
from saga.engine.service_runtime import make_service_runtime
from saga.engine.worker import Worker
from saga.errors import BrokerUnavailable
from saga.messages import Partition, Record, StalledPartition
from saga.telemetry.events import Handled, Unavailable
from services.payment.events import OrderPlaced, PaymentReserved
from tests.engine.real_worker import SAGA, Workplace, an_order, workplace

RESERVED = PaymentReserved(order_id=SAGA, charge_id="c", amount=an_order().total)
billing = Service("billing")


@billing.handler
async def note(order: OrderPlaced) -> None: ...


@billing.handler
async def bill(reserved: PaymentReserved) -> None: ...


@asynccontextmanager
async def at_work(place: Workplace, sources: Sequence[TopicSource]) -> AsyncIterator[Worker]:
    """A worker of these sources takes from them inside the block."""
    assignment = WorkerAssignment(OutageWatch("billing", place.clock, place.moments.append))
    service = make_service_runtime(
        prepare(billing.declared), {}, make_worker_ports(place.store, place.broker, assignment)
    )
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        worker = Worker(service, assignment, FlowLimits(), tasks, WorkerSources(sources))
        tasks.create_task(run_worker(worker, stop))
        try:
            yield worker
        finally:
            stop.set()


def two(place: Workplace) -> list[EventTopics]:
    """Sources that nothing connects: not even their groups are one."""
    return [
        EventTopics(place.broker, Subscription("billing", ["orders"])),
        EventTopics(place.broker, Subscription("bills", ["payments"])),
    ]


def handled(place: Workplace) -> set[str]:
    return {moment.type for moment in place.reported(Handled)}


def is_behind(place: Workplace, group: str) -> bool:
    sql = "SELECT 1 FROM positions JOIN logs ON id = log WHERE grp = ? AND offset < next LIMIT 1"
    return place.broker.connection.execute(sql, (group,)).fetchone() is not None


async def test_messages_of_each_source_are_handled_and_committed_there(tmp_path: Path) -> None:
    async with workplace(tmp_path) as place:
        async with at_work(place, two(place)) as worker:
            await place.until(lambda: worker.lag() is not None)
            await place.publish(an_order(), RESERVED)
            await place.until(lambda: handled(place) == {"OrderPlaced", "PaymentReserved"})
            assert {topic for topic, _ in worker.lag() or ()} == {"orders", "payments"}
        assert not is_behind(place, "billing")
        assert not is_behind(place, "bills")


async def test_how_far_it_is_behind_is_known_once_all_sources_know(tmp_path: Path) -> None:
    async with workplace(tmp_path) as place, at_work(place, two(place)) as worker:
        await place.until(lambda: worker.lag() is not None)
        joined = worker.sources.joined
        assert len(joined) == 2
        assert WorkerSources(worker.sources.sources, joined[:1]).lag() is None


class Deaf(EventTopics):
    """A source that cannot be polled."""

    def join(self, listener: Listener) -> AbstractAsyncContextManager[Membership]:
        return self._deaf(super().join(listener))

    @asynccontextmanager
    async def _deaf(self, joining: AbstractAsyncContextManager[Membership]) -> AsyncIterator[Membership]:
        async with joining as membership:

            async def poll(partitions: Collection[Partition], **how: Any) -> Sequence[Record]:
                raise BrokerUnavailable("nobody is there")

            membership.poll = poll  # type: ignore[method-assign]
            yield membership


async def test_a_source_that_cannot_be_read_holds_up_no_other(tmp_path: Path) -> None:
    async with workplace(tmp_path) as place:
        orders, payments = two(place)
        async with at_work(place, [Deaf(*orders), payments]):
            await place.until(lambda: bool(place.reported(Unavailable)))
            await place.publish(an_order(), RESERVED)
            await place.until(lambda: not is_behind(place, "bills"))
        assert handled(place) == {"PaymentReserved"}


async def test_a_source_that_cannot_be_joined_ends_the_worker_and_leaves_the_others(tmp_path: Path) -> None:
    class Closed(EventTopics):
        def join(self, listener: Listener) -> AbstractAsyncContextManager[Membership]:
            raise RuntimeError("closed")

    async with workplace(tmp_path) as place:
        orders, payments = two(place)
        with pytest.raises(ExceptionGroup):
            async with at_work(place, [orders, Closed(*payments)]):
                await place.until(lambda: False)
        assert not place.broker.connection.execute("SELECT 1 FROM members").fetchall()


def test_a_stalled_partition_of_any_source_is_reported() -> None:
    class Still:
        def __init__(self, topic: str) -> None:
            self.topic = topic

        def stalled_partitions(self) -> Sequence[StalledPartition]:
            return [StalledPartition(self.topic, 0, 7, "why")]

    joined: Any = [(None, Still(topic)) for topic in ("orders", "payments")]
    assert [each.topic for each in WorkerSources([], joined).stalled_partitions()] == ["orders", "payments"]
