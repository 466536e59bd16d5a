"""What was acknowledged is known as published: a timer that has nothing to do, and a repair, publish nothing again."""

from datetime import timedelta
from decimal import Decimal
from pathlib import Path

from saga import Service
from saga.engine.consumer.worker_ports import WorkerAssignment
from saga.engine.execution.message_processor import MessageProcessor
from saga.engine.outage_watch import OutageWatch
from saga.engine.repair import may_act, republish_saga
from saga.messages import Partition, Position
from saga.messaging.timers import TYPE, SagaTimer
from saga.telemetry.events import TelemetryEvent
from saga.testing.trials import TrialClock
from services.payment.events import OrderConfirmed, OrderPlaced, PaymentDeclined, PaymentReserved
from tests.engine.driven_workers import place
from tests.engine.real_worker import SAGA, an_order

payment = Service("payment")


@payment.handler
async def reserve(placed: OrderPlaced) -> PaymentReserved:
    return PaymentReserved(order_id=placed.order_id, charge_id="c", amount=placed.total)


without_orders = Service("payment")


@without_orders.handler
async def again(confirmed: OrderConfirmed) -> PaymentReserved:
    return PaymentReserved(order_id=confirmed.order_id, charge_id="c", amount=Decimal(1))


hasty = Service("payment")


@hasty.deadline(within=timedelta(seconds=60))
async def expire(placed: OrderPlaced) -> PaymentDeclined:
    return PaymentDeclined(order_id=placed.order_id, reason="nobody answered")


def a_timer(number: int) -> SagaTimer:
    """A timer of which the saga knows nothing any more."""
    return SagaTimer(
        id=f"wake-{number}", type=TYPE, schema="", saga=SAGA, source="payment", time="", value=b"", due_ms=0
    )


async def test_timers_that_have_nothing_to_do_publish_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    async with place(tmp_path) as workers:
        worker = await workers.worker(payment)
        turn = await worker.takes(an_order())
        (published,) = worker.log.messages
        for number in range(32):
            cached = turn.loaded_progress, turn.cas
            turn = MessageProcessor(worker.participant).begin(
                a_timer(number), Position("payment.wake.now", 0, number), cached
            )
            turn = await MessageProcessor(worker.participant).process(turn)
        assert worker.log.messages == [published]


async def test_a_worker_without_a_cache_leaves_events_to_the_redelivery_of_their_message(tmp_path: Path) -> None:
    async with place(tmp_path) as workers:
        worker, other = await workers.worker(payment), await workers.worker(payment)
        await worker.takes(an_order())
        (published,), (entry,) = worker.log.messages, await worker.history()
        order, there = worker.message(an_order()), Position(*(entry.position or ("", 0, 0)))
        elsewhere = Position("payment.wake.now", 0, 0), there._replace(offset=7), there._replace(partition=1)
        for message, at in zip((a_timer(0), order, order), elsewhere, strict=True):
            turn = await MessageProcessor(other.participant).process(
                MessageProcessor(other.participant).begin(message, at, None).drop_progress()
            )
            assert other.log.messages == []
            assert not turn.is_cacheable, "else it would count as published when the message comes"
        turn = await MessageProcessor(other.participant).process(
            MessageProcessor(other.participant).begin(order, there, None).drop_progress()
        )
        assert other.log.messages == [published], "its worker may have died: the same bytes"
        assert turn.is_cacheable


async def test_a_release_that_does_not_handle_the_message_publishes_what_no_other_worker_may(tmp_path: Path) -> None:
    async with place(tmp_path) as workers:
        worker, other = await workers.worker(payment), await workers.worker(without_orders)
        await worker.takes(an_order())
        turn = MessageProcessor(other.participant).begin(a_timer(0), Position("payment.wake.now", 0, 0), None)
        await MessageProcessor(other.participant).process(turn)
        assert other.log.messages == worker.log.messages


async def test_a_write_first_publishes_the_events_of_earlier_transitions(tmp_path: Path) -> None:
    async with place(tmp_path) as workers:
        worker, other = await workers.worker(payment), await workers.worker(payment)
        await worker.takes(an_order())
        (published,) = worker.log.messages
        other.offset = 7
        await other.takes(an_order(sku="rum"), id="another")
        assert other.log.messages[0] == published
        assert len(await other.history()) == 2


async def test_a_repair_publishes_what_a_message_may_never_bring(tmp_path: Path) -> None:
    async with place(tmp_path) as workers:
        worker, other = await workers.worker(payment), await workers.worker(payment)
        await worker.takes(an_order())
        assert await republish_saga(other.participant, SAGA) == []
        assert other.log.messages == worker.log.messages


async def test_transitions_not_shown_as_published_are_published_by_each_worker_without_a_cache_of_them(
    tmp_path: Path,
) -> None:
    async with place(tmp_path) as workers:
        worker, other = await workers.worker(hasty), await workers.worker(hasty)
        await worker.takes(an_order())
        workers.clock.pass_until(workers.clock.now_ms() + 60_000)
        turn = MessageProcessor(worker.participant).begin(a_timer(0), Position("payment.wake.now", 0, 0), None)
        await MessageProcessor(worker.participant).process(turn)
        assert [entry.position is None for entry in await worker.history()] == [False, True]
        turn = MessageProcessor(other.participant).begin(a_timer(1), Position("payment.wake.now", 0, 1), None)
        await MessageProcessor(other.participant).process(turn)
        assert other.log.messages == worker.log.messages[-1:]


def test_a_repair_knows_as_published_what_the_group_has_committed() -> None:
    moments: list[TelemetryEvent] = []
    assignment = WorkerAssignment(OutageWatch("payment", TrialClock(), moments.append))
    may_act(assignment, {Partition("orders", 3): 7}, {"orders": "a log"})
    assert assignment.is_committed(Position("orders", 3, 6, "a log"))
    assert not assignment.is_committed(Position("orders", 3, 6, "the log before")), "its topic was created again"
    assert not assignment.is_committed(Position("orders", 3, 7, "a log"))
    assert not assignment.is_committed(Position("orders", 4, 0, "a log"))
