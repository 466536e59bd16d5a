"""Deadlines at a worker: one whose time comes while a handler runs is kept in the same turn."""

from datetime import timedelta
from pathlib import Path

from saga import Service
from saga.testing.trials import TrialClock
from services.order.events import InventoryRejected, OrderCancelled, OrderPlaced, ShipmentBooked
from tests.runtime.driven_workers import place
from tests.runtime.real_worker import SAGA, an_order

WITHIN = timedelta(minutes=15)


def slow_order(clock: TrialClock, takes: timedelta) -> Service:
    """The order service, one of whose handlers takes its time and says nothing."""
    order = Service("order")

    @order.handler
    async def note(booked: ShipmentBooked) -> None:
        await clock.sleep(takes.total_seconds())

    @order.deadline(within=WITHIN)
    async def expire(placed: OrderPlaced) -> OrderCancelled:
        return OrderCancelled(order_id=placed.order_id, reason="nobody answered in time")

    @order.handler
    async def cancel(why: InventoryRejected) -> OrderCancelled:
        return OrderCancelled(order_id=why.order_id, reason=why.reason)

    return order


async def test_what_becomes_due_while_a_handler_runs_is_done_at_the_end_of_its_turn(tmp_path: Path) -> None:
    """Else it would wait for its wake, which may be a minute late, though its saga is in hand."""
    async with place(tmp_path) as at:
        worker = await at.worker(slow_order(at.clock, takes=WITHIN))
        await worker.takes(an_order())
        assert [k.handler for k in (await worker.progress()).deadlines] == ["expire"]
        await worker.takes(ShipmentBooked(order_id=SAGA, booking_id="b-1"))
        assert (await worker.told())[1:] == [("note", "handled"), ("expire", "handled")]
        assert (await worker.progress()).deadlines == ()


async def test_what_is_not_due_when_a_handler_ends_waits_on(tmp_path: Path) -> None:
    async with place(tmp_path) as at:
        worker = await at.worker(slow_order(at.clock, takes=WITHIN - timedelta(seconds=1)))
        await worker.takes(an_order())
        await worker.takes(ShipmentBooked(order_id=SAGA, booking_id="b-1"))
        assert (await worker.told())[1:] == [("note", "handled")]
        assert [k.handler for k in (await worker.progress()).deadlines] == ["expire"]
