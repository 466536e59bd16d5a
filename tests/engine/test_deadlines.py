"""Deadlines at a worker: one whose time comes while a handler runs is kept in the same turn."""

from datetime import timedelta
from pathlib import Path

from saga import Retry, Service
from saga.engine.consumer.record_router import route_record
from saga.engine.execution.message_processor import MessageProcessor
from saga.messages import Message, Position, Record
from saga.messaging import operator_commands
from saga.testing.trials import TrialClock
from services.order.events import InventoryRejected, OrderCancelled, OrderPlaced, ShipmentBooked
from tests.engine.driven_workers import At, Workers, place
from tests.engine.real_worker import SAGA, an_order
from tests.engine.test_parking import process_when_due, published_timers

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


async def test_a_deadline_due_during_a_handler_runs_when_it_ends(tmp_path: Path) -> None:
    """Else it would wait for its timer, which may be a minute late, though its saga is being handled."""
    async with place(tmp_path) as at:
        worker = await at.worker(slow_order(at.clock, takes=WITHIN))
        await worker.takes(an_order())
        assert [k.handler for k in (await worker.progress()).deadlines] == ["expire"]
        await worker.takes(ShipmentBooked(order_id=SAGA, booking_id="b-1"))
        assert (await worker.outcomes())[1:] == [("note", "handled"), ("expire", "handled")]
        assert (await worker.progress()).deadlines == ()


async def test_a_deadline_not_due_when_a_handler_ends_keeps_waiting(tmp_path: Path) -> None:
    async with place(tmp_path) as at:
        worker = await at.worker(slow_order(at.clock, takes=WITHIN - timedelta(seconds=1)))
        await worker.takes(an_order())
        await worker.takes(ShipmentBooked(order_id=SAGA, booking_id="b-1"))
        assert (await worker.outcomes())[1:] == [("note", "handled")]
        assert [k.handler for k in (await worker.progress()).deadlines] == ["expire"]


async def replays(at: Workers, worker: At, actions_max: int = 100) -> None:
    """A person has its dead letter tried again. Fails if the turn has no end."""
    dead = (await worker.progress()).queue[0].dead
    assert dead is not None
    record = operator_commands.command_to_record(
        "order", SAGA, "replay", operator_commands.CommandValue(dead=dead, who="ada", why="-"), at.clock.now_ms()
    )
    taken = route_record(Record(record.topic, 0, 0, *record[1:4], 0), worker.participant)
    assert isinstance(taken, Message)
    turn = MessageProcessor(worker.participant).begin(taken, Position(record.topic, 0, 0), None)
    for _ in range(actions_max):
        if not turn.is_complete:
            turn = await MessageProcessor(worker.participant).advance(turn)
    assert turn.is_complete


async def test_a_replayed_deadline_that_fails_is_parked_until_its_attempts_are_used_up(
    tmp_path: Path,
) -> None:
    order, asked = Service("order", retry=Retry(attempts_max=6)), list[str]()

    @order.deadline(within=WITHIN)
    async def expire(placed: OrderPlaced) -> OrderCancelled:
        asked.append(placed.order_id)
        raise ConnectionError("away")

    async with place(tmp_path) as at:
        worker = await at.worker(order)
        await worker.takes(an_order())
        while not (await worker.progress()).queue:
            await process_when_due(at, worker, published_timers(worker)[-1])
        assert len(asked) == 6
        await replays(at, worker)
        (kept,) = (await worker.progress()).queue
        assert (len(asked), kept.dead, kept.attempts) == (10, None, 4)
        assert published_timers(worker)[-1].due_ms == kept.due_ms > at.clock.now_ms()
        for _ in range(2):
            await process_when_due(at, worker, published_timers(worker)[-1])
        assert [letter["dead_attempts"] for letter in worker.dead if letter["dead_what"] == "dead letter"] == ["6", "6"]
        assert len(asked) == 12
