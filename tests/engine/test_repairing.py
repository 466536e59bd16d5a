"""Sagas that wait for a time, or were left in the middle, go on by a repair, should nothing else set them off."""

from datetime import timedelta
from pathlib import Path

import pytest

from saga import Later, Saga, Service
from saga.engine.errors import Draining
from saga.engine.repair import republish_saga, republish_timer
from saga.progress.document import SagaProgress, decode_transition
from saga.progress.stranded_work import StrandedWork, find_stranded_work
from saga.progress.timers import find_earliest_ms
from services.order.events import OrderCancelled, OrderConfirmed
from services.payment.events import OrderPlaced, PaymentCaptured, PaymentReserved
from tests.engine.driven_workers import At, Before, Workers, place
from tests.engine.real_worker import SAGA, an_order
from tests.engine.test_parking import Bank, failing, parked_at, process_when_due, published_timers

CONFIRMED, CANCELLED = OrderConfirmed(order_id=SAGA), OrderCancelled(order_id=SAGA, reason="-")
QUIET_S = 120


def work(at: Workers, worker: At, p: SagaProgress) -> StrandedWork:
    return find_stranded_work(p, worker.participant.roles, at.clock.now_ms(), QUIET_S * 1000)


async def lost(worker: At) -> None:
    """Forget all timers, have those of the saga published again, and nothing else."""
    worker.log.messages.clear()
    before = await worker.progress()
    await republish_timer(worker.participant, SAGA)
    assert await worker.progress() == before, "nothing was written"
    assert before.timer is not None
    assert {w.id for w in published_timers(worker)} == {before.timer.id}
    assert published_timers(worker)[-1].due_ms == find_earliest_ms(before)
    assert len(worker.log.messages) <= 2, "a worker that reads the progress publishes it as well"


@pytest.mark.parametrize("late_s", [0, 3, 86_400 * 3])
async def test_the_wake_of_a_parked_run_is_sent_again_and_nothing_runs_in_the_repair(
    tmp_path: Path, late_s: int
) -> None:
    bank = Bank()
    async with place(tmp_path) as at:
        worker = await at.worker(failing(bank))
        p = await parked_at(worker)
        await at.clock.sleep(late_s)
        found = work(at, worker, p)
        assert (found.is_wake_alone, found.wakes_at is not None) == (True, True)
        await lost(worker)
        assert len(bank.asked) == 4, "a worker that lives may be about to make the attempt"
        bank.mended = True
        await process_when_due(at, worker, published_timers(worker)[-1])
        assert (await worker.outcomes())[-1] == ("reserve", "handled")
        assert not work(at, worker, await worker.progress()).is_any


async def test_the_wake_of_a_parked_compensation_is_sent_again(tmp_path: Path) -> None:
    away, payment = [True], Service("payment")

    @payment.handler
    async def reserve(order: OrderPlaced) -> PaymentReserved:
        return PaymentReserved(order_id=order.order_id, charge_id="c", amount=order.total)

    @payment.compensation(reserve)
    async def release(cancelled: OrderCancelled, reserved: PaymentReserved) -> None:
        if away:
            raise ConnectionError("away")

    async with place(tmp_path) as at:
        worker = await at.worker(payment)
        await worker.takes(an_order())
        await worker.takes(CANCELLED)
        assert work(at, worker, await worker.progress()).is_wake_alone
        await lost(worker)
        away.clear()
        await process_when_due(at, worker, published_timers(worker)[-1])
        assert (await worker.outcomes())[-1] == ("release", "compensated")


async def test_the_timers_of_deadlines_and_of_suspended_runs_are_published_again(tmp_path: Path) -> None:
    payment = Service("payment")

    @payment.handler
    async def look(order: OrderPlaced, saga: Saga[None]) -> Later | None:
        return Later(after=timedelta(hours=2)) if saga.elapsed < timedelta(hours=2) else None

    @payment.deadline(within=timedelta(hours=1))
    async def remind(order: OrderPlaced) -> None: ...

    async with place(tmp_path) as at:
        worker = await at.worker(payment)
        await worker.takes(an_order())
        for handler in ("remind", "look"):
            assert work(at, worker, await worker.progress()).is_wake_alone
            await lost(worker)
            await process_when_due(at, worker, published_timers(worker)[-1])
            assert (await worker.outcomes())[-1] == (handler, "handled")


async def test_a_wake_that_a_clock_ahead_has_named_gets_one_that_is_in_time(tmp_path: Path) -> None:
    async with place(tmp_path) as at:
        worker = await at.worker(failing(Bank()))
        await parked_at(worker)
        at.clock._now_ms -= 3_600_000
        before = (await worker.progress()).timer
        worker.log.messages.clear()
        await republish_timer(worker.participant, SAGA)
        now = (await worker.progress()).timer
        assert before is not None
        assert now is not None
        assert now.due_ms <= before.due_ms
        assert now.id in {w.id for w in published_timers(worker)}


async def begun(at: Workers, bank: Bank) -> At:
    """A worker that died in its step; the message that it was handling does not come again."""
    worker = await at.worker(failing(bank))
    at.watched.before = dying_at(2)
    with pytest.raises(Draining):
        await worker.takes(an_order())
    at.watched.before = None
    return worker


async def test_a_begun_run_whose_message_never_comes_again_resumes_from_its_stored_bytes(
    tmp_path: Path,
) -> None:
    bank = Bank()
    bank.mended = True
    async with place(tmp_path) as at:
        worker = await begun(at, bank)
        p = await worker.progress()
        assert not work(at, worker, p).is_any, "a worker is under way with it, or is to have it again"
        await at.clock.sleep(QUIET_S + 1)
        found = work(at, worker, p)
        assert [(i.handler, i.kind) for i in found.begun] == [("reserve", "do")]
        assert await republish_saga(worker.participant, SAGA, found.triggers) == [("reserve", "handled", None)]
        p = await worker.progress()
        assert (p.intents, work(at, worker, p).is_any) == ((), False)
        entry = decode_transition(p.transitions[-1])
        assert entry.position is None, "it is no position of the log"


async def test_a_begun_compensation_whose_message_never_comes_again_resumes(tmp_path: Path) -> None:
    ran: list[str] = []
    payment = Service("payment")

    async def give_back(charge: str) -> str:
        ran.append(charge)
        return "given"

    @payment.handler
    async def reserve(order: OrderPlaced) -> PaymentReserved:
        return PaymentReserved(order_id=order.order_id, charge_id="c", amount=order.total)

    @payment.compensation(reserve)
    async def release(cancelled: OrderCancelled, reserved: PaymentReserved, saga: Saga[None]) -> None:
        await saga.step(give_back, reserved.charge_id)

    async with place(tmp_path) as at:
        worker = await at.worker(payment)
        await worker.takes(an_order())
        at.watched.before = dying_at(2)
        with pytest.raises(Draining):
            await worker.takes(CANCELLED)
        at.watched.before = None
        await at.clock.sleep(QUIET_S + 1)
        found = work(at, worker, await worker.progress())
        assert [(i.handler, i.kind) for i in found.begun] == [("reserve", "undo")]
        did = await republish_saga(worker.participant, SAGA, found.triggers)
        assert ("release", "compensated", None) in did
        assert not (await worker.progress()).is_open


def dying_at(write: int) -> Before:
    """The worker dies before this write, counted from one."""
    left = [write]

    async def before(collection: str, key: str) -> None:
        left[0] -= 1
        if not left[0]:
            raise Draining

    return before


async def test_a_repair_continues_ready_runs_that_nothing_resumes(tmp_path: Path) -> None:
    payment = Service("payment")

    @payment.handler
    async def reserve(order: OrderPlaced) -> PaymentReserved:
        return PaymentReserved(order_id=order.order_id, charge_id="c", amount=order.total)

    @payment.handler
    async def capture(reserved: PaymentReserved) -> PaymentCaptured:
        return PaymentCaptured(order_id=reserved.order_id, amount=reserved.amount)

    async with place(tmp_path) as at:
        worker = await at.worker(payment)
        at.watched.before = dying_at(2)
        with pytest.raises(Draining):
            await worker.takes(an_order())
        at.watched.before = None
        p = await worker.progress()
        assert not work(at, worker, p).is_any
        await at.clock.sleep(QUIET_S + 1)
        found = work(at, worker, p)
        assert (found.ready, found.begun, found.wakes_at) == ("capture", (), None)
        assert await republish_saga(worker.participant, SAGA, found.triggers) == [("capture", "handled", None)]


async def test_a_saga_with_nothing_open_or_of_which_a_part_is_missing_has_nothing_to_do(tmp_path: Path) -> None:
    payment = Service("payment")

    @payment.handler
    async def note(confirmed: OrderConfirmed, order: OrderPlaced) -> None: ...

    async with place(tmp_path) as at:
        worker = await at.worker(payment)
        await worker.takes(an_order())
        await at.clock.sleep(QUIET_S + 1)
        assert not work(at, worker, await worker.progress()).is_any
