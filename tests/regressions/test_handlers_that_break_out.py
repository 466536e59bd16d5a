"""Handlers that end in unexpected ways at a real worker: the process continues, and no unfinished run counts as
finished."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from saga import Retry, Saga, Service
from saga.broker.embedded.broker import EmbeddedBroker
from saga.engine.consumer.flow_control import FlowLimits
from saga.engine.consumer.keyed_executor import KeyedExecutor, WorkItem
from saga.engine.consumer.offset_tracker import OffsetTracker
from saga.errors import BrokerUnavailable, StoreUnavailable
from saga.messages import Outgoing, Partition, Position
from saga.store.port import Document
from saga.store.sqlite.store import SqliteStore
from saga.support.clock import SystemClock
from saga.telemetry.events import DeadLettered, Recovered, Stopped, Stuck, Unavailable
from services.inventory.events import InventoryRejected, InventoryReserved
from services.payment.events import OrderPlaced
from tests.engine.real_worker import SAGA, Workplace, an_order, at_work, message_of, workplace


class Odd(BaseException):
    """No `Exception`, as the ends of tests and of other event loops are."""


class No(Exception):
    """An answer."""


@dataclass(frozen=True)
class Count:
    n: int = 0

    @staticmethod
    def counted(count: "Count | None") -> "Count":
        return Count(count.n + 1 if count else 1)


@dataclass(frozen=True)
class Names:
    of: dict[str, int] = field(default_factory=dict)

    @staticmethod
    def noted(names: "Names | None", name: str, welcome: bool) -> "Names":
        """In place, which it should not do."""
        names = names or Names()
        names.of[name] = 1
        if not welcome:
            raise No("not welcome")
        return names


def reserved(order: OrderPlaced) -> InventoryReserved:
    return InventoryReserved(order_id=order.order_id, sku=order.sku, quantity=order.quantity)


def rejected(order: OrderPlaced, reason: str) -> InventoryRejected:
    return InventoryRejected(order_id=order.order_id, reason=reason)


@dataclass(frozen=True)
class Shelf:
    """Says that it is looked at, and never what is on it."""

    begun: asyncio.Event
    forever: asyncio.Event

    async def look(self) -> int:
        self.begun.set()
        await self.forever.wait()
        return 1


class Away(SqliteStore):
    """A store that cannot be reached for a collection as long as the test wants, or answers its first write late."""

    def __init__(self, place: Workplace) -> None:
        super().__init__(place.folder / "store.db", clock=place.clock)
        self.away = False
        self.asked = asyncio.Event()
        self.late: asyncio.Event | None = None
        """Event that the next insert waits for."""

    async def get(self, collection: str, key: str) -> Document | None:
        if collection == "counts" and self.away:
            self.asked.set()
            raise StoreUnavailable("away")
        return await super().get(collection, key)

    async def insert(self, collection: str, key: str, content: bytes, *, expiry_s: float | None = None) -> int:
        if collection == "counts" and self.late is not None:
            late, self.late = self.late, None
            await late.wait()
        return await super().insert(collection, key, content, expiry_s=expiry_s)


class Full(EmbeddedBroker):
    """A log that can be read, and takes nothing until the test has made room."""

    full = False

    async def publish(self, messages: Sequence[Outgoing]) -> None:
        if self.full:
            raise BrokerUnavailable("full")
        await super().publish(messages)


@pytest.mark.parametrize("end", [Odd, SystemExit, lambda: BaseExceptionGroup("several", [Odd()])])
async def test_a_handler_that_raises_a_base_exception_fails_and_other_sagas_continue(
    tmp_path: Path, end: Callable[[], BaseException]
) -> None:
    inventory = Service("inventory")

    @inventory.handler(retry=Retry(attempts_max=2))
    async def set_aside(order: OrderPlaced) -> InventoryReserved:
        if order.order_id == SAGA:
            raise end()
        return reserved(order)

    async with workplace(tmp_path) as place, at_work(place, inventory):
        await place.publish(an_order(), an_order("order-2"))
        await place.at_rest(inventory)
        ((_, letter),) = await place.dead(inventory)
        assert "which is no Exception" in letter["dead_reason"]
        assert letter["dead_attempts"] == "2"
        assert [entry.outcome for entry in await place.history(inventory, "order-2")] == ["handled"]


async def test_a_shutdown_during_updates_in_a_task_group_cancels_them(tmp_path: Path) -> None:
    inventory, begun, going = Service("inventory"), asyncio.Event(), asyncio.Event()
    inventory.document(Count, "counts")

    @inventory.handler
    async def set_aside(order: OrderPlaced, saga: Saga) -> InventoryReserved:
        begun.set()
        await going.wait()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(saga.update(Count, "a", Count.counted))
            tasks.create_task(saga.update(Count, "b", Count.counted))
        return reserved(order)

    async with workplace(tmp_path) as place:
        async with at_work(place, inventory) as stop:
            await place.publish(an_order())
            await begun.wait()
            stop.set()
            for _ in range(5):  # the worker sees it before the handler goes on
                await place.clock.sleep(0)
            going.set()
        assert len(place.reported(Stopped)) == 1
        assert await place.history(inventory) == []
        async with at_work(place, inventory):
            await place.at_rest(inventory)
        assert [entry.outcome for entry in await place.history(inventory)] == ["handled"]


async def test_an_update_abandoned_by_a_timeout_fails_the_attempt_and_the_next_one_finds_it(
    tmp_path: Path,
) -> None:
    inventory, given_up = Service("inventory"), asyncio.Event()
    inventory.document(Count, "counts")

    @inventory.handler
    async def set_aside(order: OrderPlaced, saga: Saga) -> InventoryReserved | InventoryRejected:
        try:
            async with asyncio.timeout(None if given_up.is_set() else 0.05):
                await saga.update(Count, "a", Count.counted)
        except TimeoutError:
            given_up.set()
            return rejected(order, "nothing was counted")
        return reserved(order)

    async with workplace(tmp_path) as place, Away(place) as store:
        place.store, store.late = store, given_up
        async with at_work(place, inventory):
            await place.publish(an_order())
            await place.at_rest(inventory)
            (entry,) = await place.history(inventory)
            assert [event.type for event in entry.events] == ["InventoryReserved"]
            assert (len(entry.calls), entry.attempt) == (1, 2)
            document = await store.get("counts", "a")
            assert document is not None
            assert b'"n":1' in document.content


@pytest.mark.parametrize("reads", [True, False])
async def test_a_handler_timeout_during_an_outage_of_the_store_is_no_failure(tmp_path: Path, reads: bool) -> None:
    inventory, begun = Service("inventory"), list[str]()
    inventory.document(Count, "counts")

    @inventory.handler(timeout_s=0.1, retry=Retry(attempts_max=1))
    async def set_aside(order: OrderPlaced, saga: Saga) -> InventoryReserved:
        begun.append(order.order_id)
        if reads:
            await saga.read(Count, "a")
        else:
            await saga.update(Count, "a", Count.counted)
        return reserved(order)

    async with workplace(tmp_path) as place, Away(place) as store:
        place.store, store.away = store, True
        async with at_work(place, inventory):
            await place.publish(an_order())
            await store.asked.wait()
            await place.clock.sleep(0.3)  # longer than the handler may take
            await place.until(lambda: not reads or len(begun) > 2 or bool(place.reported(DeadLettered)))
            store.away = False
            await place.at_rest(inventory)
            assert await place.dead(inventory) == []
            (entry,) = await place.history(inventory)
            assert (entry.outcome, entry.attempt) == ("handled", 1)


async def test_a_handler_cannot_swallow_the_shutdown(tmp_path: Path) -> None:
    inventory = Service("inventory")
    inventory.document(Count, "counts")

    @inventory.handler
    async def set_aside(order: OrderPlaced, saga: Saga) -> InventoryReserved | InventoryRejected:
        try:
            await saga.read(Count, "a")
        except BaseException:  # noqa: BLE001 - what people write
            return rejected(order, "could not be read")
        return reserved(order)

    async with workplace(tmp_path) as place, Away(place) as store:
        place.store, store.away, place.clock.faster = store, True, 1
        async with at_work(place, inventory):
            await place.publish(an_order())
            await store.asked.wait()
        assert await place.history(inventory) == []


async def test_a_refused_update_leaves_no_change_in_other_updates_of_its_batch(
    tmp_path: Path,
) -> None:
    inventory = Service("inventory")
    inventory.document(Names, "names", expected_errors=(No,))

    @inventory.handler
    async def set_aside(order: OrderPlaced, saga: Saga) -> InventoryReserved | InventoryRejected:
        try:
            await saga.update(Names, "all", Names.noted, order.order_id, order.quantity == 1)
        except No as why:
            return rejected(order, str(why))
        return reserved(order)

    async with workplace(tmp_path) as place:
        await place.publish(*(an_order(f"order-{n}", quantity=1 + n % 2) for n in range(40)))
        async with at_work(place, inventory):
            await place.at_rest(inventory)
        document = await place.store.get("names", "all")
        assert document is not None
        assert document.content.count(b'":1') == 20


async def test_an_event_too_large_for_the_log_is_a_dead_letter_before_it_is_written(tmp_path: Path) -> None:
    inventory = Service("inventory")

    @inventory.handler
    async def set_aside(order: OrderPlaced) -> InventoryRejected:
        return rejected(order, "x" * (1 << 24))

    async with workplace(tmp_path) as place, at_work(place, inventory):
        await place.publish(an_order())
        await place.at_rest(inventory)
        ((record, letter),) = await place.dead(inventory)
        assert "emit a reference" in letter["dead_reason"]
        assert not place.reported(Stuck)
        (order,) = await place.records("orders")
        assert place.committed(inventory, Partition("orders", order.partition)) == order.offset + 1
        assert record.key == SAGA.encode()


async def test_reads_from_a_full_log_do_not_report_a_recovery(tmp_path: Path) -> None:
    inventory = Service("inventory")

    @inventory.handler
    async def set_aside(order: OrderPlaced) -> InventoryReserved:
        return reserved(order)

    async with workplace(tmp_path) as place, Full(tmp_path / "broker.db", clock=SystemClock()) as broker:
        place.broker = broker
        await place.publish(an_order())
        broker.full = True
        async with at_work(place, inventory):
            await place.until(lambda: bool(place.reported(Unavailable)))
            await place.clock.sleep(0.5)  # two polls
            assert not place.reported(Recovered)
            broker.full = False
            await place.at_rest(inventory)
            assert [moment.what for moment in place.reported(Recovered)] == ["broker"]


async def test_a_step_that_is_not_awaited_does_not_delay_the_shutdown(tmp_path: Path) -> None:
    inventory, begun, forever = Service("inventory"), asyncio.Event(), asyncio.Event()

    @inventory.resource(timeout_s=30)
    async def opened() -> AsyncIterator[Shelf]:
        yield Shelf(begun, forever)

    @inventory.handler
    async def set_aside(order: OrderPlaced, shelf: Shelf, saga: Saga) -> InventoryReserved:
        looking = asyncio.get_running_loop().create_task(saga.step(shelf.look))
        await forever.wait()
        await looking
        return reserved(order)

    async with workplace(tmp_path) as place:
        async with at_work(place, inventory, limits=FlowLimits(drain_s=0.05)):
            await place.publish(an_order())
            await begun.wait()
        (stopped,) = place.reported(Stopped)
        assert stopped.drained_s < 2
        assert await place.history(inventory) == []


async def test_a_lane_continues_after_a_handler_that_resisted_cancellation() -> None:
    begun, seen = asyncio.Event(), list[int]()

    async def handle(item: WorkItem) -> bool:
        if not begun.is_set():
            begun.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return True
        task = asyncio.current_task()
        assert task is not None
        seen.append(task.cancelling())
        return True

    async with asyncio.TaskGroup() as tasks, KeyedExecutor(tasks, handle, handle) as lanes:
        for topic in ("a", "b"):
            prefix = OffsetTracker(0)
            prefix.begin(0)
            lanes.add(WorkItem(message_of(an_order(), started=None), Position(topic, 0, 0), prefix, 0.0))
        await begun.wait()
        await lanes.drain(0.01)
    assert seen == [0]
    assert lanes.inflight == 0
