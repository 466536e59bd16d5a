"""Runs that fail for long: in place for two seconds, then parked: in the saga's order, and in no other saga's way."""

from collections.abc import Sequence
from math import ceil
from pathlib import Path

import pytest

from saga import Retry, Saga, Service
from saga.engine.consumer.record_router import route_record
from saga.engine.errors import Draining
from saga.engine.execution.message_processor import MessageProcessor
from saga.errors import StoreUnavailable
from saga.messages import Message, Outgoing, Partition, Position, Record
from saga.messaging import operator_commands
from saga.messaging.timers import SagaTimer
from saga.progress.document import PendingMessage, SagaProgress
from saga.support.clock import iso
from saga.telemetry.events import DeadLettered, Handled, Parked, Retrying
from services.order.events import OrderCancelled, OrderConfirmed
from services.payment.events import OrderPlaced, PaymentReserved
from tests.engine.driven_workers import At, Workers, place
from tests.engine.real_worker import SAGA, Workplace, an_order, at_work, workplace

CONFIRMED, CANCELLED = OrderConfirmed(order_id=SAGA), OrderCancelled(order_id=SAGA, reason="-")


class Bank:
    """Fails until it is mended."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.released: list[str] = []
        self.noted: list[str] = []
        self.mended = False

    async def prepare(self) -> str:
        return "prepared"

    async def charge(self, order: str) -> str:
        self.asked.append(order)
        if not self.mended:
            raise ConnectionError(f"away for the {len(self.asked)}. time")
        return "c"


def failing(bank: Bank, retry: Retry | None = None) -> Service:
    payment = Service("payment")

    @payment.handler(retry=retry or Retry())
    async def reserve(order: OrderPlaced, saga: Saga[None]) -> PaymentReserved:
        await saga.step(bank.prepare)
        charge = await saga.step(bank.charge, order.order_id)
        return PaymentReserved(order_id=order.order_id, charge_id=charge, amount=order.total)

    @payment.handler(repeats=OrderConfirmed)
    async def note(confirmed: OrderConfirmed, saga: Saga[None]) -> None:
        bank.noted.append(confirmed.order_id)

    @payment.compensation(reserve)
    async def release(cancelled: OrderCancelled, reserved: PaymentReserved) -> None:
        bank.released.append(cancelled.order_id)

    return payment


def only(kept: tuple[PendingMessage, ...]) -> PendingMessage:
    (one,) = kept
    return one


def published_timers(worker: At) -> list[SagaTimer]:
    """Wakes that it has published, in order."""
    found = []
    for offset, out in enumerate(worker.log.messages):
        if out.topic in worker.participant.wakes:
            taken = route_record(Record(out.topic, 0, offset, out.key, out.value, out.headers, 0), worker.participant)
            assert isinstance(taken, SagaTimer)
            found.append(taken)
    return found


async def process_timer(worker: At, wake: SagaTimer) -> None:
    """The worker handles a timer to its end."""
    await MessageProcessor(worker.participant).process(
        MessageProcessor(worker.participant).begin(wake, Position("payment.wake.now", 0, 0), None)
    )


async def process_when_due(at: Workers, worker: At, wake: SagaTimer) -> None:
    """As before, once it is due."""
    await at.clock.sleep(max(0, wake.due_ms - at.clock.now_ms()) / 1000)
    await process_timer(worker, wake)


async def parked_at(worker: At) -> SagaProgress:
    """Progress after the attempts in place."""
    await worker.takes(an_order())
    return await worker.progress()


# -------------------------------------------------------------------- parked, and tried again


async def test_a_run_that_fails_is_tried_in_place_for_two_seconds_and_then_parked(tmp_path: Path) -> None:
    bank = Bank()
    async with place(tmp_path) as at:
        worker = await at.worker(failing(bank))
        began = at.clock.now_ms()
        p = await parked_at(worker)
        assert len(bank.asked) == 4
        assert at.clock.now_ms() - began < 2000
        kept, retrying = only(p.queue), [moment for moment in worker.moments if isinstance(moment, Retrying)]
        assert (kept.handler, kept.attempts, kept.message.type) == ("reserve", 4, "OrderPlaced")
        assert kept.due_ms - at.clock.now_ms() == ceil(retrying[-1].delay_s * 1000)
        assert [(type(moment), moment.attempt) for moment in retrying] == [
            *((Retrying, attempt) for attempt in (1, 2, 3)),
            (Parked, 4),
        ]
        assert retrying[-1].delay_s == pytest.approx(1.2), "1.6 seconds, spread"


async def test_its_transition_records_when_why_and_for_how_long_each_attempt_failed(tmp_path: Path) -> None:
    async with place(tmp_path) as at:
        worker = await at.worker(failing(Bank()), name="payment-7")
        await parked_at(worker)
        (entry,) = await worker.history()
        assert (entry.outcome, entry.handler, entry.attempt) == ("retrying", "reserve", 4)
        assert entry.reason == "ConnectionError: away for the 4. time"
        assert [failure.reason for failure in entry.failures] == [
            f"ConnectionError: away for the {n}. time" for n in (1, 2, 3, 4)
        ]
        assert {failure.worker for failure in entry.failures} == {"payment-7"}
        times = [failure.time for failure in entry.failures]
        assert times == sorted(set(times))
        assert times[-1] == entry.time == iso(at.clock.now_ms())


async def test_parking_publishes_only_one_timer_for_the_next_attempt(tmp_path: Path) -> None:
    async with place(tmp_path) as at:
        worker = await at.worker(failing(Bank()))
        p = await parked_at(worker)
        (wake,) = published_timers(worker)
        assert len(worker.log.messages) == 1
        assert p.timer is not None
        assert (wake.id, wake.due_ms, wake.saga) == (p.timer.id, only(p.queue).due_ms, SAGA)


async def test_each_timer_makes_one_attempt_and_publishes_the_next_whichever_worker_handles_it(tmp_path: Path) -> None:
    bank = Bank()
    async with place(tmp_path) as at:
        workers = [await at.worker(failing(bank), name=f"payment-{number}") for number in range(3)]
        await parked_at(workers[0])
        publishes = workers[0]
        for attempt in range(5, 9):
            (*_, wake) = published_timers(publishes)
            publishes = workers[attempt % 3]
            await process_when_due(at, publishes, wake)
            assert len(bank.asked) == attempt
            entry = (await publishes.history())[-1]
            assert (entry.outcome, entry.attempt) == ("retrying", attempt)
            assert [failure.worker for failure in entry.failures] == [f"payment-{attempt % 3}"]
        bank.mended = True
        await process_when_due(at, workers[0], published_timers(publishes)[-1])
        p = await workers[0].progress()
        assert (p.queue, p.intents, p.timer) == ((), (), None)
        entry = (await workers[0].history())[-1]
        assert (entry.outcome, entry.attempt, entry.failures) == ("handled", 9, ())
        assert {wake.id for worker in workers for wake in published_timers(worker)} == {f"wake-{n}" for n in range(5)}
        assert sum(len(published_timers(worker)) for worker in workers) == 5, "they do not multiply"


async def test_a_step_that_was_answered_is_not_made_again_after_parking(tmp_path: Path) -> None:
    bank, prepared = Bank(), list[str]()

    async def prepare() -> str:
        prepared.append("once")
        return "prepared"

    bank.prepare = prepare  # type: ignore[method-assign] # one that counts
    async with place(tmp_path) as at:
        worker, other = [await at.worker(failing(bank)) for _ in range(2)]
        await parked_at(worker)
        await process_when_due(at, other, published_timers(worker)[-1])
        assert (len(bank.asked), prepared) == (5, ["once"])


async def test_a_wake_that_comes_early_is_sent_on_and_an_old_one_ends(tmp_path: Path) -> None:
    bank = Bank()
    async with place(tmp_path) as at:
        worker = await at.worker(failing(bank))
        await parked_at(worker)
        (first,) = published_timers(worker)
        await process_timer(worker, first)
        assert [(wake.id, wake.due_ms) for wake in published_timers(worker)] == [(first.id, first.due_ms)] * 2
        assert len(bank.asked) == 4
        await process_when_due(at, worker, first)
        second = published_timers(worker)[-1]
        assert second.id != first.id
        await process_timer(worker, first)
        assert len(bank.asked) == 5
        assert published_timers(worker)[-1] is not second or published_timers(worker)[2:] == [second], (
            "it brings no other"
        )


# -------------------------------------------------------------------- the saga's order


async def test_messages_that_come_meanwhile_queue_behind_it_and_run_after_it_in_order(tmp_path: Path) -> None:
    bank = Bank()
    async with place(tmp_path) as at:
        worker = await at.worker(failing(bank))
        await parked_at(worker)
        for name in ("one", "other", "third"):
            await worker.takes(CONFIRMED, id=name)
        assert bank.noted == []
        (_, *behind) = (await worker.progress()).queue
        assert [(kept.handler, kept.message.id) for kept in behind] == [
            ("note", name) for name in ("one", "other", "third")
        ]
        assert {e.reason for e in await worker.history() if e.outcome == "queued"} == {
            "reserve has failed and is tried again"
        }
        assert {wake.id for wake in published_timers(worker)} == {"wake-0"}
        await process_when_due(at, worker, published_timers(worker)[-1])
        assert [kept.message.id for kept in (await worker.progress()).queue[1:]] == ["one", "other", "third"]
        bank.mended = True
        await process_when_due(at, worker, published_timers(worker)[-1])
        handled = [entry.message for entry in await worker.history() if entry.outcome == "handled"]
        assert handled[1:] == ["one", "other", "third"]
        assert len(bank.noted) == 3


async def test_any_message_of_the_saga_settles_what_is_overdue(tmp_path: Path) -> None:
    bank = Bank()
    async with place(tmp_path) as at:
        worker = await at.worker(failing(bank))
        p = await parked_at(worker)
        await at.clock.sleep((only(p.queue).due_ms - at.clock.now_ms()) / 1000)
        bank.mended = True
        await worker.takes(CONFIRMED)
        assert await worker.outcomes() == [
            ("reserve", "retrying"),
            ("note", "queued"),
            ("reserve", "handled"),
            ("note", "handled"),
        ]


# -------------------------------------------------------------------- crashes


async def test_if_a_worker_dies_between_the_write_and_the_timer_the_next_reader_publishes_the_timer(
    tmp_path: Path,
) -> None:
    bank = Bank()
    async with place(tmp_path) as at:
        worker, other = [await at.worker(failing(bank)) for _ in range(2)]

        async def dies(messages: Sequence[Outgoing]) -> None:
            raise Draining

        worker.log.publish = dies  # type: ignore[method-assign] # at this moment
        with pytest.raises(Draining):
            await worker.takes(an_order())
        assert (await worker.outcomes(), published_timers(worker)) == ([("reserve", "retrying")], [])
        await other.takes(an_order())
        (wake,) = published_timers(other)
        assert len(bank.asked) == 4, "the message that comes again makes no attempt"
        bank.mended = True
        await process_when_due(at, other, wake)
        assert await other.outcomes() == [("reserve", "retrying"), ("reserve", "handled")]


async def test_a_worker_that_dies_in_the_turn_of_a_wake_loses_nothing(tmp_path: Path) -> None:
    bank = Bank()
    async with place(tmp_path) as at:
        worker, other = [await at.worker(failing(bank)) for _ in range(2)]
        await parked_at(worker)
        (first,) = published_timers(worker)

        async def dies(messages: Sequence[Outgoing]) -> None:
            raise Draining

        worker.log.publish = dies  # type: ignore[method-assign] # at this moment
        with pytest.raises(Draining):
            await process_when_due(at, worker, first)
        await process_timer(other, first)
        assert [wake.id for wake in published_timers(other)] == ["wake-1"]
        assert len(bank.asked) == 5


# -------------------------------------------------------------------- the end of attempts


async def test_a_run_is_a_dead_letter_after_its_last_attempt_on_any_worker(tmp_path: Path) -> None:
    bank = Bank()
    async with place(tmp_path) as at:
        workers = [await at.worker(failing(bank, Retry(attempts_max=7))) for _ in range(2)]
        await parked_at(workers[0])
        for attempt in (5, 6, 7):
            await process_when_due(at, workers[attempt % 2], published_timers(workers[(attempt - 1) % 2])[-1])
        (letter,) = workers[1].dead
        assert (letter["dead_attempts"], letter["dead_reason"]) == ("7", "ConnectionError: away for the 7. time")
        p = await workers[0].progress()
        kept = only(p.queue)
        assert (kept.dead, kept.attempts, kept.due_ms, p.timer) == (letter["dead_id"], 0, 0, None)
        assert [e.attempt for e in await workers[0].history()] == [4, 5, 6, 7]
        assert len(bank.asked) == 7
        brought = published_timers(workers[0])
        for wake in published_timers(workers[1]):
            await process_timer(workers[0], wake)
        assert published_timers(workers[0]) == brought, "wakes of before bring none"


async def test_a_replayed_message_has_all_attempts_again(tmp_path: Path) -> None:
    bank = Bank()
    async with place(tmp_path) as at:
        worker = await at.worker(failing(bank, Retry(attempts_max=5)))
        await parked_at(worker)
        await process_when_due(at, worker, published_timers(worker)[-1])
        dead = only((await worker.progress()).queue).dead
        assert dead is not None
        record = operator_commands.command_to_record(
            "payment",
            SAGA,
            "replay",
            operator_commands.CommandValue(dead=dead, who="ada", why="mended"),
            at.clock.now_ms(),
        )
        taken = route_record(Record(record.topic, 0, 0, *record[1:4], 0), worker.participant)
        assert isinstance(taken, Message)
        await MessageProcessor(worker.participant).process(
            MessageProcessor(worker.participant).begin(taken, Position(record.topic, 0, 0), None)
        )
        assert len(bank.asked) == 9
        assert (await worker.history())[-1].attempt == 4
        assert only((await worker.progress()).queue).attempts == 4


async def test_a_compensation_is_parked_and_another_outcome_passes_it(tmp_path: Path) -> None:
    released: list[str] = []
    payment = Service("payment")

    @payment.handler
    async def reserve(order: OrderPlaced) -> PaymentReserved:
        return PaymentReserved(order_id=order.order_id, charge_id="c", amount=order.total)

    @payment.compensation(reserve)
    async def release(cancelled: OrderCancelled, reserved: PaymentReserved) -> None:
        released.append("tried")
        if len(released) < 7:
            raise ConnectionError("away")

    async with place(tmp_path) as at:
        worker = await at.worker(payment)
        await worker.takes(an_order())
        await worker.takes(CANCELLED)
        p = await worker.progress()
        assert (only(p.compensating).attempts, p.queue) == (4, ())
        assert only(p.compensating).due_ms > at.clock.now_ms()
        await worker.takes(CANCELLED)
        assert len(released) == 4, "a redelivery makes no attempt"
        while (await worker.progress()).compensating:
            await process_when_due(at, worker, published_timers(worker)[-1])
        history = await worker.history()
        assert [(e.outcome, e.attempt) for e in history[1:]] == [
            *(("retrying", attempt) for attempt in (4, 5, 6)),
            ("compensated", 7),
        ]
        assert (await worker.progress()).timer is None


# -------------------------------------------------------------------- at a real worker


async def test_other_sagas_continue_at_once_and_the_offset_moves_past_what_is_parked(tmp_path: Path) -> None:
    bank = Bank()
    async with workplace(tmp_path) as here:
        here.leaps = False
        payment = failing(bank)
        async with at_work(here, payment):
            await here.publish(an_order())
            await here.until(lambda: bool(here.reported(Parked)))
            bank.mended = True
            await here.publish(*(an_order(f"order-{number}") for number in range(2, 8)))
            await here.until(lambda: len(done(here)) >= 6)
            assert SAGA not in done(here)
            (order,) = [r for r in await here.records("orders") if r.key == SAGA.encode()]
            await here.until(lambda: here.committed(payment, Partition(*order[:2])) > order.offset)
            here.leaps = True
            await here.at_rest(payment)
        assert SAGA in done(here)
        assert not here.reported(DeadLettered)


async def test_an_outage_of_an_hour_passes_and_no_operator_has_to_do_anything(tmp_path: Path) -> None:
    bank = Bank()
    async with workplace(tmp_path) as here:
        payment, began = failing(bank), here.clock.monotonic_s()
        async with at_work(here, payment):
            await here.publish(an_order())
            await here.until(lambda: here.clock.monotonic_s() - began > 3600)
            assert not here.reported(DeadLettered)
            bank.mended = True
            await here.at_rest(payment)
        assert [e.outcome for e in await here.history(payment)][-1] == "handled"
        topics = {m.topic for m in here.reported(Handled) if m.type == "saga.wake"}
        assert topics >= {f"payment.wake.{tier}" for tier in ("now", "1m", "4m", "16m")}


async def test_while_the_store_is_away_no_attempt_is_counted(tmp_path: Path) -> None:
    bank, away = Bank(), iter(range(5))
    async with workplace(tmp_path) as here:
        replace_, parking = here.store.replace, list[str]()

        async def replaced(collection: str, key: str, content: bytes, **how: object) -> int:
            if len(bank.asked) >= 4 and next(away, None) is not None:
                parking.append(key)
                raise StoreUnavailable("away")
            return await replace_(collection, key, content, **how)  # type: ignore[arg-type] # as it was asked

        here.store.replace = replaced  # type: ignore[method-assign] # a store with an outage
        payment = failing(bank)
        async with at_work(here, payment):
            await here.publish(an_order())
            await here.until(lambda: bool(here.reported(Parked)))
            bank.mended = True
            await here.at_rest(payment)
        assert len(parking) == 5
        assert len(bank.asked) == 5
        assert [e.attempt for e in await here.history(payment)] == [4, 5]


def done(here: Workplace) -> set[str | None]:
    """Sagas whose order was handled."""
    return {m.saga for m in here.reported(Handled) if ("reserve", "handled", None) in m.outcomes}


async def test_the_first_worker_that_reads_a_progress_publishes_the_timer_of_one_that_died(
    tmp_path: Path,
) -> None:
    payment = Service("payment")

    @payment.handler
    async def reserve(order: OrderPlaced) -> PaymentReserved:
        return PaymentReserved(order_id=order.order_id, charge_id="c", amount=order.total)

    @payment.handler
    async def tell(reserved: PaymentReserved) -> None:
        raise ConnectionError("away")

    @payment.handler
    async def note(confirmed: OrderConfirmed) -> None: ...

    async with place(tmp_path) as at:
        worker, other = [await at.worker(payment) for _ in range(2)]
        order, position, publish = worker.message(an_order()), Position("orders", 0, 7), worker.log.publish

        async def dies(messages: Sequence[Outgoing]) -> None:
            if ".wake." in messages[0].topic:
                raise Draining
            await publish(messages)

        worker.log.publish = dies  # type: ignore[method-assign] # at this moment
        with pytest.raises(Draining):
            await MessageProcessor(worker.participant).process(
                MessageProcessor(worker.participant).begin(order, position, None)
            )
        after = await other.takes(CONFIRMED)  # another worker continues, and marks all before as published
        assert await other.outcomes() == [("reserve", "handled"), ("tell", "retrying"), ("note", "queued")]
        assert [wake.id for wake in published_timers(other)] == ["wake-1"], "the first worker to read it publishes it"
        assert after.progress is not None
        cached = (after.progress, after.cas)
        await MessageProcessor(other.participant).process(
            MessageProcessor(other.participant).begin(order, position, cached)
        )
        assert len(published_timers(other)) == 1, "and it is not published again"
