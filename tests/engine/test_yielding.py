"""Handlers that may wait: their messages yield while there is much to do, keep their saga's order, and come at last."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from saga import Event, Service
from saga.engine.consumer import flow_control
from saga.engine.consumer.flow_control import FlowLimits, LowPriorityBuffer
from saga.engine.consumer.keyed_executor import KeyedExecutor, WorkItem
from saga.engine.consumer.offset_tracker import OffsetTracker
from saga.engine.prepared_service import find_low_priority_types, prepare
from saga.messages import Partition, Position
from saga.policies.concurrency import YIELDS_S_MAX
from saga.support.clock import SystemClock
from saga.telemetry.events import Handled
from services.order.events import OrderPlaced, PaymentDeclined, ShipmentBooked, ShipmentRefused
from tests.engine.real_worker import an_order, at_work, message_of, topic_of, workplace

CLOCK = SystemClock()
MANY = 300


def booked(saga: str) -> ShipmentBooked:
    return ShipmentBooked(order_id=saga, booking_id="b")


class Yields:
    """Messages that yield, in front of lanes that handle nothing until they are let."""

    def __init__(self, tasks: asyncio.TaskGroup, most: int = 10) -> None:
        self.begun: list[str] = []
        self.busy, self.reported = True, 0
        self.gate = asyncio.Event()
        self.prefixes = {topic: OffsetTracker(0) for topic in ("orders", "shipments")}
        self.lanes = KeyedExecutor(tasks, self._handle, self._handle)
        types = ("OrderPlaced",)
        self.yielding = LowPriorityBuffer(CLOCK, self.lanes, types, ("orders",), lambda: self.busy, most, self._roomier)
        self.offset = 0

    def add(self, event: Event) -> None:
        message = message_of(event, started=None, id=f"m-{self.offset}")
        topic = topic_of(event)
        self.prefixes[topic].begin(self.offset)
        self.yielding.add(WorkItem(message, Position(topic, 0, self.offset), self.prefixes[topic], 0.0))
        self.offset += 1

    async def _handle(self, item: WorkItem) -> bool:
        self.begun.append(f"{item.message.saga} {item.message.type}")
        await self.gate.wait()
        return True

    def _roomier(self) -> None:
        self.reported += 1


@asynccontextmanager
async def yields(most: int = 10, *, runs: bool = False) -> AsyncIterator[Yields]:
    async with asyncio.TaskGroup() as tasks:
        here = Yields(tasks, most)
        running = tasks.create_task(here.yielding.run()) if runs else None
        async with here.lanes:
            yield here
            here.gate.set()
        if running is not None:
            running.cancel()


async def a_moment() -> None:
    for _ in range(8):
        await CLOCK.sleep(0)


async def until(holds: Callable[[], bool]) -> None:
    end_s = CLOCK.monotonic_s() + 10
    while not holds():
        assert CLOCK.monotonic_s() < end_s
        await CLOCK.sleep(0.002)


async def test_only_deferrable_messages_wait_under_load() -> None:
    async with yields() as here:
        here.add(an_order("a"))
        here.add(booked("b"))
        await a_moment()
        assert (here.begun, here.yielding.count, here.lanes.inflight) == (["b ShipmentBooked"], 1, 1)


async def test_without_much_to_do_nothing_yields() -> None:
    async with yields() as here:
        here.busy = False
        here.add(an_order("a"))
        await a_moment()
        assert (here.begun, here.yielding.count) == (["a OrderPlaced"], 0)


async def test_a_later_message_of_a_saga_releases_its_deferred_ones_first() -> None:
    async with yields() as here:
        here.gate.set()
        here.add(an_order("a"))
        here.add(an_order("a", quantity=2))
        here.add(booked("a"))
        await a_moment()
        assert (here.begun, here.yielding.count) == (["a OrderPlaced", "a OrderPlaced", "a ShipmentBooked"], 0)


async def test_a_message_of_a_saga_in_flight_does_not_yield() -> None:
    async with yields() as here:
        here.add(booked("a"))
        here.add(an_order("a"))
        here.gate.set()
        await a_moment()
        assert here.begun == ["a ShipmentBooked", "a OrderPlaced"]


async def test_deferred_messages_continue_in_order_when_the_load_falls() -> None:
    async with yields(runs=True) as here:
        for saga in "abc":
            here.add(an_order(saga))
        await a_moment()
        assert here.begun == []
        here.busy = False
        here.lanes.freed.set()
        await until(lambda: len(here.begun) == 3)
        assert here.begun == ["a OrderPlaced", "b OrderPlaced", "c OrderPlaced"]
        assert here.yielding.count == 0


async def test_none_yields_for_longer_than_half_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    assert YIELDS_S_MAX == 30
    monkeypatch.setattr(flow_control, "YIELDS_S_MAX", 1.0)
    async with yields(runs=True) as here:
        here.add(an_order("a"))
        here.add(an_order("b"))
        await a_moment()
        assert here.begun == []
        await until(lambda: len(here.begun) == 2)
        assert here.busy


async def test_not_more_yield_than_may_and_their_topics_are_not_read_meanwhile() -> None:
    async with yields(most=3, runs=True) as here:
        for saga in "abc":
            assert not here.yielding.is_full
            here.add(an_order(saga))
        assert (here.yielding.is_full, here.begun) == (True, [])
        here.add(an_order("d"))
        await a_moment()
        assert (here.begun, here.yielding.count, here.reported) == (["a OrderPlaced"], 3, 0)
        here.busy = False
        here.lanes.freed.set()
        await until(lambda: not here.yielding.count)
        assert here.reported == 1


async def test_deferred_messages_of_a_lost_partition_are_dropped_unfinished() -> None:
    async with yields() as here:
        here.add(an_order("a"))
        here.add(an_order("b"))
        here.yielding.forget([Partition("orders", 1)])
        assert here.yielding.count == 2
        here.yielding.forget([Partition("orders", 0)])
        assert here.yielding.count == 0
        here.add(booked("a"))
        await a_moment()
        assert here.begun == ["a ShipmentBooked"]
        assert here.prefixes["orders"].offset_to_commit() is None


# -------------------------------------------------------------------- in a worker


def served(order_of: list[str], *, low_priority: bool = True) -> Service:
    """A service that tidies up after orders, and that books at once."""
    service = Service("tidy")

    @service.handler(low_priority=low_priority)
    async def tidy(order: OrderPlaced) -> None:
        order_of.append("tidy")

    @service.handler
    async def book(booked: ShipmentBooked) -> None:
        order_of.append("book")

    return service


def test_types_that_other_handlers_want_too_do_not_yield() -> None:
    service = Service("tidy")

    @service.handler(low_priority=True)
    async def tidy(order: OrderPlaced) -> None: ...

    @service.handler(low_priority=True)
    async def both(booked: ShipmentBooked, refused: ShipmentRefused) -> None: ...

    @service.handler
    async def other(booked: ShipmentBooked, declined: PaymentDeclined) -> None: ...

    assert [reaction.low_priority for reaction in service.declared.reactions] == [True, True, False]
    types, topics = find_low_priority_types(prepare(service.declared))
    assert types == {"OrderPlaced", "ShipmentRefused"}
    assert topics == {topic_of(an_order())}, "the topic of shipments brings what does not yield"


async def first_half(folder: Path, *, low_priority: bool) -> int:
    """How many of those that may wait are among the first half of all, which were there when the worker came."""
    handled = list[str]()
    service = served(handled, low_priority=low_priority)
    async with workplace(folder) as place:
        for number in range(MANY):
            await place.publish(an_order(f"a-{number}"), booked(f"b-{number}"))
        async with at_work(place, service, limits=FlowLimits(inflight_max=40, inflight_min=40)):
            await place.until(lambda: len(place.reported(Handled)) >= 2 * MANY)
        assert handled.count("tidy") == handled.count("book") == MANY
        return handled[:MANY].count("tidy")


async def test_a_worker_that_catches_up_does_first_what_may_not_wait_and_all_in_the_end(tmp_path: Path) -> None:
    waits, does_not = (
        await first_half(tmp_path / "1", low_priority=True),
        await first_half(tmp_path / "2", low_priority=False),
    )
    assert waits <= 100 < does_not, f"{waits} of {MANY} that may wait came in the first half, else {does_not} did"
