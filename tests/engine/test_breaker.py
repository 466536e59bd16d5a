"""A breaker in a run: what it refuses is no attempt, is not begun, and comes back within a minute."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from saga import Breaker, BreakerOpen, Retry, Saga, Service
from saga.engine.repair import republish_saga
from saga.errors import Permanent
from saga.progress.document import PendingMessage
from saga.telemetry.events import BreakerTurned, Parked, PutOff, Retrying
from services.inventory.stock import Stock
from services.order.events import OrderCancelled
from services.payment.events import OrderPlaced, PaymentDeclined, PaymentReserved
from tests.engine.driven_workers import At, Workers, place
from tests.engine.real_worker import SAGA, an_order, at_work, workplace
from tests.engine.test_parking import only, process_timer, process_when_due, published_timers

CANCELLED = OrderCancelled(order_id=SAGA, reason="-")
RULES = Breaker(failures=3, within_s=60, open_s=20)
PARKS = Retry(in_place_s=0)


class Blocked(Exception): ...


class BadCard(Exception): ...


class Bank:
    def __init__(self) -> None:
        self.asked = 0
        self.fails: Exception | None = ConnectionError("away")

    async def prepare(self) -> str:
        return "prepared"

    async def charge(self) -> str:
        self.asked += 1
        if self.fails is not None:
            raise self.fails
        return "c"


class Other:
    """Something else outside."""

    fails = False

    async def look(self) -> str:
        if self.fails:
            raise ConnectionError("away, too")
        return "seen"


def served(
    bank: Bank,
    *,
    rules: Breaker = RULES,
    retry: Retry = PARKS,
    answers: tuple[type[Exception], ...] = (Blocked,),
    catches: bool = False,
    looks: bool = False,
    other: Other | None = None,
    in_group: bool = False,
) -> Service:
    payment = Service("payment", retry=retry)

    @payment.resource(breaker=rules, expected_errors=answers)
    async def the_bank() -> AsyncIterator[Bank]:
        yield bank

    @payment.resource
    async def the_other() -> AsyncIterator[Other]:
        yield other or Other()

    @payment.handler
    async def reserve(order: OrderPlaced, bank: Bank, other: Other, saga: Saga) -> PaymentReserved | PaymentDeclined:
        try:
            if in_group:
                async with asyncio.TaskGroup() as tasks:
                    charged = tasks.create_task(saga.step(bank.charge))
            charge = charged.result() if in_group else await saga.step(bank.charge)
        except Blocked:
            return PaymentDeclined(order_id=order.order_id, reason="blocked")
        except BreakerOpen:
            if looks:
                await saga.step(other.look)
            if not catches:
                raise
            return PaymentDeclined(order_id=order.order_id, reason="nobody answers")
        return PaymentReserved(order_id=order.order_id, charge_id=charge, amount=order.total)

    @payment.compensation(reserve)
    async def release(cancelled: OrderCancelled, reserved: PaymentReserved, bank: Bank, saga: Saga) -> None:
        await saga.step(bank.charge)

    return payment


def turned(worker: At) -> list[str]:
    return [moment.state for moment in worker.moments if isinstance(moment, BreakerTurned)]


def head(worker_queue: tuple[PendingMessage, ...]) -> tuple[int, bool]:
    kept = only(worker_queue)
    return kept.attempts, kept.dead is not None


async def failed_until_open(at: Workers, worker: At) -> None:
    """Sagas have failed, three in all, so it is open; all are parked."""
    for number in range(3):
        if not turned(worker):
            await worker.takes(an_order(f"order-0{number}"))
    assert turned(worker) == ["open"]


async def test_an_attempt_that_meets_an_open_breaker_does_not_count_and_is_parked_for_a_minute_at_most(
    tmp_path: Path,
) -> None:
    bank = Bank()
    async with place(tmp_path) as at:
        worker = await at.worker(served(bank))
        await failed_until_open(at, worker)
        await worker.takes(an_order())
        p = await worker.progress()
        assert head(p.queue) == (0, False)
        assert 20_000 <= only(p.queue).due_ms - at.clock.now_ms() <= 40_000
        assert bank.asked == 3, "no more calls"
        [entry] = await worker.history()
        assert (entry.outcome, entry.attempt, entry.failures, entry.calls) == ("retrying", 0, (), ())
        assert entry.reason == "BreakerOpen: the breaker of the_bank is open: calls to it failed"
        [reported] = [moment for moment in worker.moments if isinstance(moment, PutOff)]
        assert (reported.handler, reported.is_parked, reported.error) == ("reserve", True, entry.reason)
        assert not [m for m in worker.moments if isinstance(m, Parked | Retrying) and m.saga == SAGA]
        assert p.intents == (), "nothing has begun"
        assert p.timer is not None
        assert p.timer.due_ms == only(p.queue).due_ms


async def test_a_half_open_breaker_admits_one_call_whose_failure_counts(tmp_path: Path) -> None:
    bank = Bank()
    async with place(tmp_path) as at:
        worker = await at.worker(served(bank))
        await failed_until_open(at, worker)
        await worker.takes(an_order())
        await process_when_due(at, worker, published_timers(worker)[-1])
        assert (bank.asked, turned(worker)) == (4, ["open", "half-open", "open"])
        assert head((await worker.progress()).queue) == (1, False)
        bank.fails = None
        await at.clock.sleep(25)
        await process_when_due(at, worker, published_timers(worker)[-1])
        assert turned(worker)[3:] == ["half-open", "closed"]
        assert [(e.outcome, e.attempt) for e in await worker.history()] == [
            ("retrying", 0),
            ("retrying", 1),
            ("handled", 2),
        ]


async def test_a_parked_run_refused_by_a_breaker_keeps_its_attempts(
    tmp_path: Path,
) -> None:
    bank, parks = Bank(), Retry(attempts_max=3, in_place_s=0, by={ConnectionError: PARKS})
    async with place(tmp_path) as at:
        worker = await at.worker(served(bank, retry=parks))
        await worker.takes(an_order())
        first = published_timers(worker)[-1]
        await failed_until_open(at, worker)
        await process_when_due(at, worker, first)
        kept = only((await worker.progress()).queue)
        assert (kept.attempts, kept.under, bank.asked) == (1, {"/ConnectionError": 1}, 3)
        assert [e.attempt for e in await worker.history()] == [1, 1]


async def test_however_long_it_is_open_nothing_is_a_dead_letter_and_a_wake_is_at_most_a_minute_away(
    tmp_path: Path,
) -> None:
    bank = Bank()
    async with place(tmp_path) as at:
        worker = await at.worker(
            served(bank, rules=Breaker(failures=3, open_s=3600), retry=Retry(attempts_max=2, in_place_s=0))
        )
        await failed_until_open(at, worker)
        await worker.takes(an_order())
        for _ in range(40):
            wake = published_timers(worker)[-1]
            assert 30_000 <= wake.due_ms - at.clock.now_ms() <= 60_000
            await process_when_due(at, worker, wake)
        assert (bank.asked, worker.dead) == (3, [])
        assert {(e.outcome, e.attempt) for e in await worker.history()} == {("retrying", 0)}


async def test_an_answer_of_the_resource_and_what_is_never_tried_again_are_no_failures_for_its_breaker(
    tmp_path: Path,
) -> None:
    bank = Bank()
    async with place(tmp_path) as at:
        worker = await at.worker(served(bank, retry=Retry(never=(BadCard,))))
        for number, bank.fails in enumerate([Blocked()] * 4 + [BadCard()] * 4):
            await worker.takes(an_order(f"order-1{number}"))
        assert (bank.asked, turned(worker)) == (8, [])
        bank.fails = ConnectionError()
        await worker.takes(an_order())
        assert turned(worker) == [], "one failure among nine calls"


async def test_a_compensation_that_meets_an_open_breaker_is_put_off_as_well(tmp_path: Path) -> None:
    bank = Bank()
    bank.fails = None
    async with place(tmp_path) as at:
        worker = await at.worker(served(bank, rules=Breaker(failures=3, part=0.1, open_s=20)))
        await worker.takes(an_order())
        bank.fails = ConnectionError()
        await failed_until_open(at, worker)
        await worker.takes(CANCELLED)
        kept = only((await worker.progress()).compensating)
        assert (kept.attempts, kept.due_ms > at.clock.now_ms()) == (0, True)
        bank.fails = None
        await process_when_due(at, worker, published_timers(worker)[-1])
        assert await worker.outcomes() == [("reserve", "handled"), ("release", "retrying"), ("release", "compensated")]


async def test_after_an_undo_that_was_put_off_the_next_one_waits_for_nothing(tmp_path: Path) -> None:
    payment, bank = Service("payment"), Bank()
    bank.fails = None

    @payment.resource(breaker=Breaker(failures=3, part=0.1, open_s=20), retry=Retry(in_place_s=0))
    async def the_bank() -> AsyncIterator[Bank]:
        yield bank

    @payment.handler
    async def reserve(order: OrderPlaced, bank: Bank, saga: Saga) -> tuple[PaymentReserved, PaymentReserved]:
        charge = await saga.step(bank.charge)
        reserved = PaymentReserved(order_id=order.order_id, charge_id=charge, amount=order.total)
        return reserved, reserved

    @payment.compensation(reserve)
    async def release(cancelled: OrderCancelled, reserved: PaymentReserved, bank: Bank, saga: Saga) -> None:
        await saga.step(bank.charge)

    async with place(tmp_path) as at:
        worker = await at.worker(payment)
        await worker.takes(an_order())
        bank.fails = ConnectionError()
        await failed_until_open(at, worker)
        await worker.takes(CANCELLED)
        bank.fails = None
        wake = published_timers(worker)[-1]
        await at.clock.sleep((wake.due_ms - at.clock.now_ms()) / 1000)
        await worker.takes(CANCELLED, id="any", writes_max=2)
        kept = (await worker.progress()).compensating
        assert [(k.attempts, k.due_ms) for k in kept] == [(0, 0)]
        await process_timer(worker, wake)
        assert (await worker.outcomes())[-2:] == [("release", "compensated")] * 2


class Carrier:
    """Books a shipment, and frees it."""

    fails: Exception | None = None

    async def book(self) -> str:
        if self.fails is not None:
            raise self.fails
        return "shipment"

    async def free(self) -> None:
        await self.book()


class Register:
    """Charges, and counts how often it is asked to release a charge."""

    released = 0

    async def charge(self) -> str:
        return "c"

    async def release(self) -> None:
        self.released += 1


async def test_an_abort_that_a_breaker_holds_up_repeats_no_answered_call_and_writes_once(tmp_path: Path) -> None:
    payment, carrier, register = Service("payment", retry=PARKS), Carrier(), Register()

    @payment.resource(breaker=Breaker(failures=3, part=0.1, open_s=3600))
    async def the_carrier() -> AsyncIterator[Carrier]:
        yield carrier

    @payment.resource
    async def the_register() -> AsyncIterator[Register]:
        yield register

    @payment.handler
    async def reserve(order: OrderPlaced, carrier: Carrier, register: Register, saga: Saga) -> PaymentReserved:
        await saga.step(carrier.book)
        saga.on_abort(carrier.free)
        await saga.step(register.charge)
        saga.on_abort(register.release)
        raise Permanent("and then nothing")

    @payment.compensation(reserve)
    async def release(cancelled: OrderCancelled, reserved: PaymentReserved) -> None: ...

    async with place(tmp_path) as at:
        worker = await at.worker(payment)
        await worker.takes(an_order())
        carrier.fails = ConnectionError("away")
        await failed_until_open(at, worker)
        await worker.takes(CANCELLED)
        for _ in range(5):
            await process_when_due(at, worker, published_timers(worker)[-1])
        assert register.released == 1
        assert await worker.outcomes() == [("reserve", "dead"), ("release", "retrying")]
        carrier.fails = None
        await at.clock.sleep(3600)
        await process_timer(worker, published_timers(worker)[-1])
        assert register.released == 1
        assert (await worker.outcomes())[-1] == ("release", "compensated")


async def test_a_deadline_that_is_put_off_blocks_no_other_saga(tmp_path: Path) -> None:
    order, bank = Service("order"), Bank()

    @order.resource(breaker=RULES, retry=Retry(in_place_s=1e9))
    async def the_bank() -> AsyncIterator[Bank]:
        yield bank

    @order.deadline(within=timedelta(minutes=1))
    async def expire(placed: OrderPlaced, bank: Bank, saga: Saga) -> None:
        await saga.step(bank.charge)

    async with place(tmp_path) as at:
        worker = await at.worker(order)
        await worker.takes(an_order())
        await process_when_due(at, worker, published_timers(worker)[-1])
        [kept] = (await worker.progress()).deadlines
        assert (kept.attempts, kept.due_ms > at.clock.now_ms(), bank.asked) == (3, True, 3)
        bank.fails = None
        await process_when_due(at, worker, published_timers(worker)[-1])
        assert (await worker.outcomes())[-1] == ("expire", "handled")


async def test_a_repair_of_what_a_breaker_holds_back_sends_its_wake_on(tmp_path: Path) -> None:
    bank = Bank()
    async with place(tmp_path) as at:
        payment = served(bank)
        worker = await at.worker(payment)
        await failed_until_open(at, worker)
        await worker.takes(an_order())
        await at.clock.sleep(60)
        await worker.takes(an_order("order-00"))  # the bank is tried, in vain, and it is open again
        assert await republish_saga(worker.participant, SAGA) == []
        assert published_timers(worker)[-1].saga == SAGA
        assert published_timers(worker)[-1].due_ms > at.clock.now_ms()


async def test_sagas_that_wait_an_hour_behind_an_open_breaker_write_once_and_are_looked_at_each_minute(
    tmp_path: Path,
) -> None:
    bank, sagas = Bank(), [f"order-{number}" for number in range(20, 25)]
    async with place(tmp_path) as at:
        worker = await at.worker(served(bank, rules=Breaker(failures=3, within_s=60, open_s=3700)))
        await failed_until_open(at, worker)
        for saga in sagas:
            await worker.takes(an_order(saga))
        began_ms, pauses = at.clock.now_ms(), dict[str, list[int]]()
        while True:
            latest = {wake.saga: wake for wake in published_timers(worker)}
            wake = min((latest[saga] for saga in sagas), key=lambda wake: wake.due_ms)
            if wake.due_ms > began_ms + 3_600_000:
                break
            await process_when_due(at, worker, wake)
            due_ms = published_timers(worker)[-1].due_ms
            pauses.setdefault(wake.saga, []).append(due_ms - at.clock.now_ms())
        for saga in sagas:
            assert (await worker.progress(saga)).n == 1
            assert 55 <= len(pauses[saga]) <= 80
            assert all(45_000 <= pause <= 60_000 for pause in pauses[saga])
        assert len({tuple(each[:3]) for each in pauses.values()}) == len(sagas), "spread"
        bank.fails = None
        await at.clock.sleep(120)
        for saga in sagas:
            await process_when_due(at, worker, [wake for wake in published_timers(worker) if wake.saga == saga][-1])
            progress = await worker.progress(saga)
            assert (progress.n, progress.queue, progress.timer) == (2, (), None)


def looks_first(bank: Bank, rules: Breaker, answers: tuple[type[Exception], ...] = ()) -> Service[Any]:
    """Service whose handler takes a step elsewhere before it asks the bank."""
    payment = Service("payment", retry=PARKS)

    @payment.resource(breaker=rules, expected_errors=answers)
    async def the_bank() -> AsyncIterator[Bank]:
        yield bank

    @payment.resource
    async def the_other() -> AsyncIterator[Other]:
        yield Other()

    @payment.handler
    async def reserve(order: OrderPlaced, bank: Bank, other: Other, saga: Saga) -> None:
        await saga.step(other.look)
        await saga.step(bank.charge)

    return payment


async def test_pauses_grow_with_the_wait_and_what_a_step_answered_before_is_written_once(tmp_path: Path) -> None:
    bank = Bank()
    payment = looks_first(bank, Breaker(failures=3, within_s=60, open_s=5))
    async with place(tmp_path) as at:
        worker = await at.worker(payment)
        await failed_until_open(at, worker)
        await worker.takes(an_order())
        pauses = []
        for number in range(5):
            wake = published_timers(worker)[-1]
            pauses.append(wake.due_ms - at.clock.now_ms())
            await at.clock.sleep(max(0, wake.due_ms - at.clock.now_ms()) / 1000 - 0.1)
            await worker.takes(an_order(f"order-3{number}"))  # the bank is tried, in vain, and it is open again
            await process_when_due(at, worker, wake)
        assert pauses == sorted(pauses)
        assert pauses[0] <= 10_000
        assert pauses[-1] >= 45_000
        assert len(await worker.history()) == 1
        [intent] = (await worker.progress()).intents
        assert [call.name for call in intent.calls] == ["look"]


async def test_two_breakers_that_block_a_run_in_turn_are_each_reported_once(tmp_path: Path) -> None:
    payment, bank, away, runs = Service("payment", retry=PARKS), Bank(), Other(), count()
    away.fails = True

    @payment.resource(breaker=Breaker(failures=3, within_s=60, open_s=3600))
    async def the_bank() -> AsyncIterator[Bank]:
        yield bank

    @payment.resource(breaker=Breaker(failures=3, within_s=60, open_s=3600))
    async def the_other() -> AsyncIterator[Other]:
        yield away

    @payment.handler
    async def reserve(order: OrderPlaced, bank: Bank, other: Other, saga: Saga) -> None:
        await saga.step(other.look if next(runs) % 2 else bank.charge)

    async with place(tmp_path) as at:
        worker = await at.worker(payment)
        for number in range(6):
            await worker.takes(an_order(f"order-0{number}"))
        assert turned(worker) == ["open", "open"]
        await worker.takes(an_order())
        for _ in range(6):
            await process_when_due(at, worker, published_timers(worker)[-1])
        assert [(e.attempt, e.reason) for e in await worker.history()] == [
            (0, f"BreakerOpen: the breaker of {name} is open: calls to it failed") for name in ("the_bank", "the_other")
        ]


async def test_failures_before_a_postponement_are_recorded_with_it(tmp_path: Path) -> None:
    bank = Bank()
    async with place(tmp_path) as at:
        worker = await at.worker(served(bank, retry=Retry(in_place_s=1e9)))
        await worker.takes(an_order())
        assert (bank.asked, turned(worker)) == (3, ["open"])
        assert head((await worker.progress()).queue) == (3, False)
        [entry] = await worker.history()
        assert (entry.attempt, [f.reason for f in entry.failures]) == (3, ["ConnectionError: away"] * 3)


async def test_a_lane_waits_in_memory_for_what_is_back_soon(tmp_path: Path) -> None:
    bank = Bank()
    # Open for long enough that a busy machine takes the second order while it is, and short enough to wait in memory.
    payment = served(bank, rules=Breaker(failures=1, open_s=0.9), retry=Retry(in_place_s=1e9, delay_s_first=1))
    async with workplace(tmp_path) as work, at_work(work, payment):
        work.clock.faster = 1
        await work.publish(an_order("order-2"))
        await work.until(lambda: bool(work.reported(BreakerTurned)))
        bank.fails = None
        await work.publish(an_order())
        await work.at_rest(payment)
        moments = work.reported(PutOff)
        assert moments
        assert all(not each.is_parked and 0.2 <= each.delay_s <= 2 for each in moments)
        assert [(e.outcome, e.attempt) for e in await work.history(payment)] == [("handled", 1)]
        assert work.reported(BreakerTurned)[-1].state == "closed"


# -------------------------------------------------------------------- another way


@pytest.mark.parametrize("looks", [False, True])
async def test_a_handler_that_catches_an_open_breaker_may_go_another_way_which_is_recorded(
    tmp_path: Path, looks: bool
) -> None:
    bank = Bank()
    async with place(tmp_path) as at:
        payment = served(bank, answers=(Blocked, BreakerOpen), catches=True, looks=looks)
        worker = await at.worker(payment)
        await failed_until_open(at, worker)
        await worker.takes(an_order())
        [entry] = await worker.history()
        assert (entry.outcome, [e.type for e in entry.events]) == ("handled", ["PaymentDeclined"])
        asked = [(call.name, call.answer) for call in entry.calls]
        assert asked == [("charge", "BreakerOpen"), *([("look", None)] if looks else [])]
        assert bank.asked == 3


async def test_a_rerun_sees_the_same_as_the_run_that_went_another_way(tmp_path: Path) -> None:
    bank, other = Bank(), Other()
    async with place(tmp_path) as at:
        payment = served(bank, answers=(Blocked, BreakerOpen), catches=True, looks=True, other=other)
        worker, successor = await at.worker(payment), await at.worker(payment)
        await failed_until_open(at, worker)
        other.fails = True
        await worker.takes(an_order())
        [intent] = (await worker.progress()).intents
        assert [call.answer for call in intent.calls] == ["BreakerOpen"]
        assert head((await worker.progress()).queue) == (1, False), "what failed is a call that was made"
        bank.fails, other.fails = None, False
        await process_when_due(at, successor, published_timers(worker)[-1])
        entry = (await worker.history())[-1]
        assert ([e.type for e in entry.events], bank.asked) == (["PaymentDeclined"], 3)


async def test_a_call_that_may_have_happened_is_waited_for_and_no_other_way_is_taken(tmp_path: Path) -> None:
    bank = Bank()
    async with place(tmp_path) as at:
        worker = await at.worker(served(bank, answers=(Blocked, BreakerOpen), catches=True))
        await worker.takes(an_order())
        [intent] = (await worker.progress()).intents
        assert (intent.begins and intent.begins.name, bank.asked) == ("charge", 1), "perhaps the money is set aside"
        await worker.takes(an_order("order-01"))
        await worker.takes(an_order("order-02"))
        assert turned(worker) == ["open"]
        wake = published_timers(worker)[0]
        await process_when_due(at, worker, wake)
        p = await worker.progress()
        assert (head(p.queue), [intent.calls for intent in p.intents]) == ((1, False), [()]), "it got no answer"
        bank.fails = None
        await process_when_due(at, worker, published_timers(worker)[-1])
        entry = (await worker.history())[-1]
        assert [e.type for e in entry.events] == ["PaymentReserved"]


@pytest.mark.parametrize("in_group", [False, True])
async def test_a_handler_that_lets_an_open_breaker_pass_is_put_off_as_if_it_had_not_declared_it(
    tmp_path: Path, in_group: bool
) -> None:
    bank = Bank()
    async with place(tmp_path) as at:
        worker = await at.worker(served(bank, answers=(Blocked, BreakerOpen), in_group=in_group))
        await failed_until_open(at, worker)
        await worker.takes(an_order())
        assert head((await worker.progress()).queue) == (0, False)
        bank.fails = None
        await process_when_due(at, worker, published_timers(worker)[-1])
        assert (await worker.outcomes())[-1] == ("reserve", "handled")
        assert bank.asked == 4


async def test_one_that_lets_it_pass_after_another_step_has_failed_for_the_answer_is_written(tmp_path: Path) -> None:
    bank = Bank()
    async with place(tmp_path) as at:
        worker = await at.worker(served(bank, answers=(Blocked, BreakerOpen), looks=True))
        await failed_until_open(at, worker)
        await worker.takes(an_order())
        assert head((await worker.progress()).queue) == (1, False)


async def test_reads_before_a_postponement_are_dropped(tmp_path: Path) -> None:
    payment, bank = Service("payment", retry=PARKS), Bank()
    payment.document(Stock, "stock")

    @payment.resource(breaker=RULES, expected_errors=(BreakerOpen,))
    async def the_bank() -> AsyncIterator[Bank]:
        yield bank

    @payment.handler
    async def reserve(order: OrderPlaced, bank: Bank, saga: Saga) -> None:
        try:
            await saga.step(bank.charge)
        except BreakerOpen:
            await saga.read(Stock, "tea")
            raise

    async with place(tmp_path) as at:
        worker = await at.worker(payment)
        await failed_until_open(at, worker)
        await worker.takes(an_order())
        assert head((await worker.progress()).queue) == (0, False)
        bank.fails = None
        await process_when_due(at, worker, published_timers(worker)[-1])
        entry = (await worker.history())[-1]
        assert (entry.outcome, [call.name for call in entry.calls]) == ("handled", ["charge"])


async def test_a_breaker_refusal_that_the_handler_does_not_catch_is_not_recorded(tmp_path: Path) -> None:
    bank = Bank()
    payment = looks_first(bank, RULES, answers=(BreakerOpen,))
    async with place(tmp_path) as at:
        worker = await at.worker(payment)
        await failed_until_open(at, worker)
        await worker.takes(an_order())
        [intent] = (await worker.progress()).intents
        assert [call.name for call in intent.calls] == ["look"]
        bank.fails = None
        await process_when_due(at, worker, published_timers(worker)[-1])
        entry = (await worker.history())[-1]
        assert (entry.outcome, [(c.name, c.answer) for c in entry.calls]) == (
            "handled",
            [("look", None), ("charge", None)],
        )


async def test_calls_that_take_all_of_the_handlers_time_are_failures_for_the_breaker(tmp_path: Path) -> None:
    class Slow(Bank):
        async def charge(self) -> str:
            await asyncio.get_running_loop().create_future()
            return "never"

    payment = Service("payment", retry=Retry(delay_s_first=0.01, in_place_s=1e9))

    @payment.resource(timeout_s=30, breaker=Breaker(failures=3, open_s=60))
    async def the_bank() -> AsyncIterator[Slow]:
        yield Slow()

    @payment.handler(timeout_s=0.05)
    async def reserve(order: OrderPlaced, bank: Slow, saga: Saga) -> None:
        await saga.step(bank.charge)

    async with workplace(tmp_path) as work, at_work(work, payment):
        await work.publish(an_order())
        await work.until(lambda: bool(work.reported(BreakerTurned)))
        assert work.reported(BreakerTurned)[0].state == "open"


async def test_an_open_breaker_is_an_answer_of_its_own_resource_alone(tmp_path: Path) -> None:
    class Broker(Other): ...

    payment, bank = Service("payment", retry=PARKS), Bank()

    @payment.resource(breaker=RULES)
    async def the_bank() -> AsyncIterator[Bank]:
        yield bank

    @payment.resource(breaker=RULES, expected_errors=(BreakerOpen,))
    async def the_other() -> AsyncIterator[Other]:
        yield Other()

    @payment.handler
    async def reserve(order: OrderPlaced, bank: Bank, other: Other, saga: Saga) -> None:
        try:
            await saga.step(bank.charge)
        except BreakerOpen:
            return

    async with place(tmp_path) as at:
        worker = await at.worker(payment)
        await failed_until_open(at, worker)
        await worker.takes(an_order())
        assert head((await worker.progress()).queue) == (0, False), "it was caught, and failed all the same"


async def test_a_call_that_has_no_turn_for_an_hour_is_reported_once_as_well(tmp_path: Path) -> None:
    payment, bank = Service("payment"), Bank()
    bank.fails = None

    @payment.resource(rate_per_s=0.0001)
    async def the_bank() -> AsyncIterator[Bank]:
        yield bank

    @payment.handler
    async def reserve(order: OrderPlaced, bank: Bank, saga: Saga) -> None:
        await saga.step(bank.charge)

    async with place(tmp_path) as at:
        worker = await at.worker(payment)
        await worker.takes(an_order("order-00"))
        await worker.takes(an_order())
        for _ in range(60):
            await process_when_due(at, worker, published_timers(worker)[-1])
        [entry] = await worker.history()
        assert (entry.outcome, entry.reason) == (
            "retrying",
            "TooManyCalls: the_bank has no turn in time: other calls come first",
        )


async def test_answers_of_steps_since_the_report_that_a_run_waits_are_kept(tmp_path: Path) -> None:
    payment, bank = Service("payment", retry=PARKS), Bank()

    @payment.resource(breaker=RULES)
    async def the_bank() -> AsyncIterator[Bank]:
        yield bank

    @payment.handler
    async def reserve(order: OrderPlaced, bank: Bank, saga: Saga) -> None:
        await saga.step(bank.prepare)
        if order.order_id == SAGA:
            for number in range(3):
                await worker.takes(an_order(f"order-4{number}"))
        await saga.step(bank.charge)

    async with place(tmp_path) as at:
        worker = await at.worker(payment)
        await failed_until_open(at, worker)
        await worker.takes(an_order())
        wake = [wake for wake in published_timers(worker) if wake.saga == SAGA][-1]
        assert (await worker.progress()).intents == ()
        await at.clock.sleep(RULES.open_s)
        await process_when_due(at, worker, wake)
        assert turned(worker) == ["open", "half-open", "closed", "open"]
        [intent] = (await worker.progress()).intents
        assert [call.name for call in intent.calls] == ["prepare"]
        assert {(e.outcome, e.attempt, e.reason) for e in await worker.history()} == {
            ("retrying", 0, "BreakerOpen: the breaker of the_bank is open: calls to it failed")
        }
