"""Parked runs that a person wants tried at once: in their place, with what they had, and nothing else is hurried."""

from datetime import timedelta
from pathlib import Path

from msgspec.structs import replace

from saga import Later, Retry, Saga, Service
from saga.engine.execution.message_processor import MessageProcessor
from saga.messages import Position, Record
from saga.messaging.operator_commands import CommandValue, OperatorCommand, command_to_record, parse_command
from saga.progress.failed_attempts import find_parked_runs
from services.order.events import OrderCancelled, OrderConfirmed
from services.payment.events import OrderPlaced, PaymentDeclined, PaymentReserved
from tests.engine.driven_workers import At, Workers, place
from tests.engine.real_worker import SAGA, an_order
from tests.engine.test_parking import Bank, failing, only, process_timer, published_timers

CONFIRMED, CANCELLED = OrderConfirmed(order_id=SAGA), OrderCancelled(order_id=SAGA, reason="-")
PARKS = Retry(in_place_s=0, attempts_max=3)


async def a_wish(at: Workers, worker: At, about: str | None = None) -> OperatorCommand:
    """A person's wish about what is parked now, as it comes out of the log."""
    p = await worker.progress()
    dead = about or next(run.id for run in find_parked_runs(p))
    out = command_to_record(
        "payment", SAGA, "release", CommandValue(dead=dead, who="ada", why="it is back"), at.clock.now_ms()
    )
    return parse_command(Record(out.topic, 0, 0, out.key, out.value, out.headers, 0))


async def executes(worker: At, wish: OperatorCommand) -> None:
    """Let the worker execute a command to its end."""
    await MessageProcessor(worker.participant).process(
        MessageProcessor(worker.participant).begin(wish, Position("payment.commands", 0, 0), None)
    )


async def test_a_released_run_is_tried_at_once_in_its_place_and_later_ones_follow(tmp_path: Path) -> None:
    bank = Bank()
    async with place(tmp_path) as at:
        worker = await at.worker(failing(bank))
        await worker.takes(an_order())
        await worker.takes(CONFIRMED)
        bank.mended = True
        await executes(worker, await a_wish(at, worker))
        p = await worker.progress()
        assert (p.queue, p.intents, bank.noted, len(bank.asked)) == ((), (), [SAGA], 5)
        history = await worker.history()
        assert [(entry.handler, entry.outcome) for entry in history] == [
            ("reserve", "retrying"), ("note", "queued"), ("reserve", "released"), ("reserve", "handled"),
            ("note", "handled"),
        ]  # fmt: skip
        assert (history[2].reason, history[2].attempt) == ("ada wants it: it is back", 4)
        assert [call.name for call in history[3].calls] == ["prepare", "charge"]


async def test_a_released_run_that_fails_is_parked_with_one_more_attempt(tmp_path: Path) -> None:
    bank = Bank()
    async with place(tmp_path) as at:
        worker = await at.worker(failing(bank, PARKS))
        await worker.takes(an_order())
        await executes(worker, await a_wish(at, worker))
        kept = only((await worker.progress()).queue)
        assert (kept.attempts, kept.dead, kept.due_ms > at.clock.now_ms()) == (2, None, True)
        await executes(worker, await a_wish(at, worker))
        assert only((await worker.progress()).queue).dead, "the attempts are those that it was given"


async def test_a_wish_that_comes_twice_or_late_is_no_other_attempt(tmp_path: Path) -> None:
    bank = Bank()
    async with place(tmp_path) as at:
        worker = await at.worker(failing(bank, PARKS))
        await worker.takes(an_order())
        wish = await a_wish(at, worker)
        await executes(worker, wish)
        await executes(worker, wish)
        assert len(bank.asked) == 2
        await executes(worker, replace(wish, id="another wish about the same wait"))
        last = (await worker.history())[-1]
        assert (last.outcome, last.reason, len(bank.asked)) == (
            "ignored",
            "not released: what was parked has been tried, or has ended, since (ada wants it: it is back)",
            2,
        )


async def test_if_a_worker_dies_after_the_command_was_written_the_next_worker_carries_it_out(tmp_path: Path) -> None:
    bank = Bank()
    async with place(tmp_path) as at:
        worker, successor = await at.worker(failing(bank)), await at.worker(failing(bank))
        await worker.takes(an_order())
        bank.mended = True
        wish = await a_wish(at, worker)
        turn = MessageProcessor(worker.participant).begin(wish, Position("payment.commands", 0, 0), None)
        while (await worker.history())[-1].outcome != "released":
            turn = await MessageProcessor(worker.participant).advance(turn)
        await executes(successor, wish)
        assert (await worker.outcomes())[-1] == ("reserve", "handled")


async def test_a_wake_goes_with_it_for_the_wish_may_have_come_to_its_end_elsewhere(tmp_path: Path) -> None:
    async with place(tmp_path) as at:
        worker = await at.worker(failing(Bank()))
        await worker.takes(an_order())
        before = len(published_timers(worker))
        await executes(worker, await a_wish(at, worker))
        assert len(published_timers(worker)) > before
        await process_timer(worker, published_timers(worker)[before])
        assert (await worker.outcomes())[-1][1] == "retrying"


async def test_a_compensation_that_is_parked_is_released_under_its_own_name(tmp_path: Path) -> None:
    payment, released = Service("payment", retry=PARKS), [0]

    @payment.handler
    async def reserve(order: OrderPlaced) -> PaymentReserved:
        return PaymentReserved(order_id=order.order_id, charge_id="c", amount=order.total)

    @payment.compensation(reserve)
    async def release(cancelled: OrderCancelled, reserved: PaymentReserved) -> None:
        released[0] += 1
        if released[0] == 1:
            raise ConnectionError("away")

    async with place(tmp_path) as at:
        worker = await at.worker(payment)
        await worker.takes(an_order())
        await worker.takes(CANCELLED)
        assert [run.undoes for run in find_parked_runs(await worker.progress())] == [True]
        await executes(worker, await a_wish(at, worker))
        assert (await worker.outcomes())[-2:] == [("release", "released"), ("release", "compensated")]


async def test_a_deadline_and_a_turn_that_failed_are_released_and_those_that_wait_by_themselves_are_not(
    tmp_path: Path,
) -> None:
    payment, away = Service("payment", retry=PARKS), [True]

    @payment.handler
    async def look(order: OrderPlaced, saga: Saga) -> PaymentReserved | Later:
        if not saga.elapsed:
            return Later(after=timedelta(hours=1))
        if away[0]:
            raise ConnectionError("away")
        return PaymentReserved(order_id=order.order_id, charge_id="c", amount=order.total)

    @payment.deadline(within=timedelta(hours=2))
    async def expire(order: OrderPlaced) -> PaymentDeclined:
        if away[0]:
            raise ConnectionError("away, too")
        return PaymentDeclined(order_id=order.order_id, reason="too late")

    async with place(tmp_path) as at:
        worker = await at.worker(payment)
        await worker.takes(an_order())
        assert list(find_parked_runs(await worker.progress())) == [], "it has failed in nothing"
        await at.clock.sleep(3600.1)
        await process_timer(worker, published_timers(worker)[-1])
        assert [run.handler for run in find_parked_runs(await worker.progress())] == ["look"]
        away[0] = False
        await executes(worker, await a_wish(at, worker))
        assert (await worker.outcomes())[-2:] == [("look", "released"), ("look", "handled")]
        away[0] = True
        assert list(find_parked_runs(await worker.progress())) == [], "the deadline waits for its time"
        await at.clock.sleep(3600)
        await process_timer(worker, published_timers(worker)[-1])
        assert [run.handler for run in find_parked_runs(await worker.progress())] == ["expire"]
        away[0] = False
        await executes(worker, await a_wish(at, worker))
        assert (await worker.outcomes())[-2:] == [("expire", "released"), ("expire", "handled")]


async def test_a_finished_run_is_not_released(tmp_path: Path) -> None:
    bank = Bank()
    async with place(tmp_path) as at:
        worker = await at.worker(failing(bank))
        await worker.takes(an_order())
        wish = await a_wish(at, worker)
        bank.mended = True
        await at.clock.sleep(60)
        await process_timer(worker, published_timers(worker)[-1])
        assert (await worker.outcomes())[-1] == ("reserve", "handled")
        await executes(worker, wish)
        assert ((await worker.outcomes())[-1], len(bank.asked)) == (("a command", "ignored"), 5)
