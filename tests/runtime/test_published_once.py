"""What was acknowledged is known as published: a timer that has nothing to do, and a repair, publish nothing again."""

from pathlib import Path

from saga import Service
from saga.messages import Partition, Position
from saga.observe.moments import Moment
from saga.runtime.beginning import begin
from saga.runtime.repairing import may_act
from saga.runtime.turn import take_turn
from saga.runtime.watching import Watching
from saga.runtime.worker_ports import WorkerAssignment
from saga.testing.trials import TrialClock
from saga.wakes import TYPE, Wake
from services.payment.events import OrderPlaced, PaymentReserved
from tests.runtime.driven_workers import place
from tests.runtime.real_worker import SAGA, an_order

payment = Service("payment")


@payment.handler
async def reserve(placed: OrderPlaced) -> PaymentReserved:
    return PaymentReserved(order_id=placed.order_id, charge_id="c", amount=placed.total)


def a_timer(number: int) -> Wake:
    """A timer of which the saga knows nothing any more."""
    return Wake(id=f"wake-{number}", type=TYPE, schema="", saga=SAGA, source="payment", time="", value=b"", due_ms=0)


async def test_timers_that_have_nothing_to_do_publish_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    async with place(tmp_path) as workers:
        worker = await workers.worker(payment)
        turn = await worker.takes(an_order())
        (published,) = worker.log.messages
        for number in range(32):
            cached = turn.known, turn.cas
            turn = begin(worker.participant, a_timer(number), Position("payment.wake.now", 0, number), cached)
            turn = await take_turn(worker.participant, turn)
        assert worker.log.messages == [published]


async def test_who_remembers_nothing_of_it_publishes_it_for_its_worker_may_have_died(tmp_path: Path) -> None:
    async with place(tmp_path) as workers:
        worker, other = await workers.worker(payment), await workers.worker(payment)
        turn = await worker.takes(an_order())
        (published,) = worker.log.messages
        turn = begin(other.participant, a_timer(0), Position("payment.wake.now", 0, 0), None)
        await take_turn(other.participant, turn)
        assert other.log.messages[-1] == published, "the same bytes"


def test_a_repair_knows_as_published_what_the_group_has_committed() -> None:
    moments: list[Moment] = []
    assignment = WorkerAssignment(Watching("payment", TrialClock(), moments.append))
    may_act(assignment, {Partition("orders", 3): 7}, {"orders": "a log"})
    assert assignment.is_committed(Position("orders", 3, 6, "a log"))
    assert not assignment.is_committed(Position("orders", 3, 6, "the log before")), "its topic was created again"
    assert not assignment.is_committed(Position("orders", 3, 7, "a log"))
    assert not assignment.is_committed(Position("orders", 4, 0, "a log"))
