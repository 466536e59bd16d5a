"""Calls that are refused and have a fallback: answered with what was given last, or by another function, on record."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from saga import Breaker, BreakerOpen, DeclarationError, LastGood, Retry, Saga, Service, limited
from saga.progress.document import FORMAT, decode_progress
from saga.telemetry.events import FellBack
from services.payment.events import OrderPlaced, PaymentReserved
from tests.docs.markdown import ROOT, blocks
from tests.engine.driven_workers import At, place
from tests.engine.real_worker import SAGA, an_order
from tests.engine.test_breaker import turned
from tests.engine.test_parking import only, process_when_due, published_timers

PARKS = Retry(in_place_s=0)
RULES = Breaker(failures=1, within_s=60, part=0, open_s=20)


@dataclass
class Bank:
    """A bank that is away, or not; and a branch that takes its place."""

    is_away: bool = False
    branch_is_away: bool = False
    asked: list[str] = field(default_factory=list)

    async def at_the_branch(self, key: str) -> str:
        self.asked.append(f"branch {key[:6]}")
        if self.branch_is_away:
            raise ConnectionError("nobody there")
        return "b"

    @limited(fallback=at_the_branch)
    async def charge(self, key: str) -> str:
        self.asked.append(f"bank {key[:6]}")
        if self.is_away:
            raise ConnectionError("away")
        return "c"

    @limited(fallback=LastGood(for_s=600, results_max=2))
    async def rate(self, currency: str) -> str:
        self.asked.append(f"rate {currency}")
        if self.is_away:
            raise ConnectionError("away")
        return f"1.{len(self.asked)}"


def charging(bank: Bank, *, answers: tuple[type[Exception], ...] = ()) -> Service:
    payment = Service("payment", retry=PARKS)

    @payment.resource(breaker=RULES, expected_errors=answers)
    async def the_bank() -> AsyncIterator[Bank]:
        yield bank

    @payment.handler
    async def reserve(order: OrderPlaced, bank: Bank, saga: Saga) -> PaymentReserved:
        charge = await saga.step(bank.charge, saga.idempotency_key("charge"))
        return PaymentReserved(order_id=order.order_id, charge_id=charge, amount=order.total)

    return payment


def asking(bank: Bank, *, answers: tuple[type[Exception], ...] = ()) -> Service:
    payment = Service("payment", retry=PARKS)

    @payment.resource(breaker=RULES, expected_errors=answers)
    async def the_bank() -> AsyncIterator[Bank]:
        yield bank

    @payment.handler
    async def reserve(order: OrderPlaced, bank: Bank, saga: Saga) -> PaymentReserved:
        try:
            rate = await saga.step(bank.rate, "EUR" if order.order_id != "order-usd" else "USD")
        except BreakerOpen:
            rate = "unknown"
        return PaymentReserved(order_id=order.order_id, charge_id=rate, amount=order.total)

    return payment


async def opened(worker: At, bank: Bank) -> None:
    """A saga has failed, so the breaker is open."""
    bank.is_away = True
    await worker.takes(an_order("order-00"))
    assert turned(worker)[-1] == "open"
    bank.asked.clear()


async def test_the_last_good_result_answers_a_refused_call_and_is_recorded(tmp_path: Path) -> None:
    bank = Bank()
    async with place(tmp_path) as at:
        worker = await at.worker(asking(bank))
        await worker.takes(an_order("order-01"))
        await opened(worker, bank)
        await worker.takes(an_order())
        [entry] = await worker.history()
        [call] = entry.calls
        assert (entry.outcome, call.name, bytes(call.value), call.instead) == (
            "handled",
            "rate",
            b'"1.1"',
            "remembered",
        )
        assert bank.asked == []
        [reported] = [moment for moment in worker.moments if isinstance(moment, FellBack)]
        assert (reported.saga, reported.handler, reported.step, reported.instead) == (
            SAGA,
            "reserve",
            "rate",
            "remembered",
        )


async def test_another_question_has_no_answer_yet_and_an_old_one_none_any_more(tmp_path: Path) -> None:
    bank = Bank()
    async with place(tmp_path) as at:
        worker = await at.worker(asking(bank))
        await worker.takes(an_order("order-01"))
        await opened(worker, bank)
        await worker.takes(an_order("order-usd"))
        assert only((await worker.progress("order-usd")).queue).attempts == 0, "put off, as without a fallback"
        await at.clock.sleep(600)
        await worker.takes(an_order("order-03"))  # the one that is let through fails, and it opens again
        await worker.takes(an_order("order-04"))
        assert only((await worker.progress("order-04")).queue).attempts == 0


async def test_without_a_result_the_handler_gets_the_error_if_it_is_a_declared_answer(tmp_path: Path) -> None:
    bank = Bank()
    async with place(tmp_path) as at:
        worker = await at.worker(asking(bank, answers=(BreakerOpen,)))
        await opened(worker, bank)
        await worker.takes(an_order())
        [entry] = await worker.history()
        assert [(call.answer, call.instead) for call in entry.calls] == [("BreakerOpen", "")]


async def test_another_function_is_called_in_its_place_with_its_key_under_an_intent_that_names_it(
    tmp_path: Path,
) -> None:
    bank = Bank()
    async with place(tmp_path) as at:
        worker = await at.worker(charging(bank))
        await opened(worker, bank)
        bank.branch_is_away = True
        await worker.takes(an_order())
        p = await worker.progress()
        [intent] = p.intents
        assert intent.begins
        assert (intent.begins.name, intent.begins.instead, p.format) == ("charge", "at_the_branch", FORMAT)
        assert bank.asked == ["branch charge"]


async def test_a_rerun_goes_the_way_on_which_the_run_began_although_the_first_is_open_again(tmp_path: Path) -> None:
    bank = Bank(branch_is_away=True)
    async with place(tmp_path) as at:
        worker = await at.worker(charging(bank))
        await opened(worker, bank)
        await worker.takes(an_order())
        bank.is_away = bank.branch_is_away = False
        await at.clock.sleep(30)
        await worker.takes(an_order("order-05"))
        assert turned(worker)[-1] == "closed"
        bank.asked.clear()
        await process_when_due(at, worker, published_timers(worker)[-1])
        entry = (await worker.history())[-1]
        assert (entry.outcome, [(c.name, c.instead) for c in entry.calls]) == ("handled", [("charge", "at_the_branch")])
        assert bank.asked == ["branch charge"], "the bank is not asked beside the branch, which may have charged"
        document = await at.store.get("saga", f"payment::{SAGA}")
        assert document is not None
        assert decode_progress(document.content).format < FORMAT, "an older release may go on from here"


async def test_a_call_that_has_begun_is_never_given_another_way(tmp_path: Path) -> None:
    bank = Bank(is_away=True)
    async with place(tmp_path) as at:
        worker = await at.worker(charging(bank))
        await worker.takes(an_order())
        assert turned(worker)[-1] == "open"
        await at.clock.sleep(1)
        await process_when_due(at, worker, published_timers(worker)[0])
        assert bank.asked == ["bank charge"], "it may have happened, so it waits until the bank can be asked again"
        bank.is_away = False
        await at.clock.sleep(30)
        await process_when_due(at, worker, published_timers(worker)[-1])
        assert [(c.name, c.instead) for c in (await worker.history())[-1].calls] == [("charge", "")]


class WithoutLimits(Bank):
    async def charge(self, key: str) -> str:
        return await super().charge(key)


class WithoutFallback(Bank):
    @limited(timeout_s=5)
    async def charge(self, key: str) -> str:
        return await super().charge(key)


class WithLastGood(Bank):
    @limited(fallback=LastGood(for_s=600))
    async def charge(self, key: str) -> str:
        return await super().charge(key)


@pytest.mark.parametrize("kind", [WithoutLimits, WithoutFallback, WithLastGood])
async def test_code_that_lost_the_way_on_which_a_run_began_does_not_call_the_other_one(
    tmp_path: Path, kind: type[Bank]
) -> None:
    bank, without = Bank(branch_is_away=True), kind()
    async with place(tmp_path) as at:
        worker = await at.worker(charging(bank))
        await opened(worker, bank)
        await worker.takes(an_order())
        successor = await at.worker(charging(bank), use=[without])
        await process_when_due(at, successor, published_timers(worker)[-1])
        entry = (await successor.history())[-1]
        assert entry.outcome == "dead"
        assert entry.reason == (
            "NotDeterministic: not deterministic: reserve has begun 'at_the_branch' for step 'charge' (number 1), and "
            "this code has no such way: put its fallback back"
        )
        assert without.asked == []


async def test_a_function_alone_without_a_turn_in_time_has_a_fallback_too(tmp_path: Path) -> None:
    async def cheap(text: str) -> str:
        return f"cheap {text}"

    @limited(rate_per_s=0.001, fallback=cheap)
    async def dear(text: str) -> str:
        return f"dear {text}"

    payment = Service("payment", retry=PARKS)

    @payment.handler
    async def reserve(order: OrderPlaced, saga: Saga) -> PaymentReserved:
        charge = await saga.step(dear, order.order_id)
        return PaymentReserved(order_id=order.order_id, charge_id=charge, amount=order.total)

    async with place(tmp_path) as at:
        worker = await at.worker(payment)
        await worker.takes(an_order("order-01"))
        await worker.takes(an_order())
        [entry] = await worker.history()
        assert [(bytes(c.value), c.instead) for c in entry.calls] == [(f'"cheap {SAGA}"'.encode(), "cheap")]


def test_a_fallback_that_can_never_be_or_is_none_is_refused_where_it_is_declared() -> None:
    async def other(key: int) -> str:
        return ""

    async def call(key: str) -> str:
        return ""

    class Quick:
        @limited(fallback=LastGood(for_s=1))
        async def look(self) -> str:
            return ""

    with pytest.raises(DeclarationError, match=r"call, limited: its fallback other is called with the same arguments"):
        limited(at_once_max=1, fallback=other)(call)
    with pytest.raises(DeclarationError, match="nothing ever refuses a function alone"):

        @limited(fallback=LastGood(for_s=1))
        async def alone(key: str) -> str:
            return ""

    with pytest.raises(DeclarationError, match=r"fallback='x': give LastGood\(for_s=...\), or an `async def`"):
        limited(at_once_max=1, fallback="x")(call)  # type: ignore[arg-type]  # that is what is refused
    with pytest.raises(DeclarationError, match=r"LastGood\(for_s=0\): give seconds, more than 0"):
        LastGood(for_s=0)
    with pytest.raises(DeclarationError, match=r"LastGood\(results_max=0.5\): give a whole number from 1 on"):
        LastGood(for_s=1, results_max=0.5)  # type: ignore[arg-type]  # as above
    payment = Service("payment")
    with pytest.raises(DeclarationError, match="look has a fallback, and nothing ever refuses it: give the resource"):

        @payment.resource
        async def quick() -> AsyncIterator[Quick]:
            yield Quick()


async def test_the_newest_of_several_results_counts(tmp_path: Path) -> None:
    bank = Bank()
    async with place(tmp_path) as at:
        worker = await at.worker(asking(bank))
        await worker.takes(an_order("order-01"))
        await worker.takes(an_order("order-02"))
        await opened(worker, bank)
        await worker.takes(an_order())
        assert bytes((await worker.history())[-1].calls[0].value) == b'"1.2"'


async def test_the_module_in_the_operator_guide_answers_with_the_last_known_answer(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "operating" / "limits.md").read_text("utf-8")
    [body] = [block.body for block in blocks(page) if block.title == "fallbacks.py"]
    names: dict[str, Any] = {"__name__": "shown"}
    exec(compile(body, "fallbacks.py", "exec"), names)

    bureau_class = names["Bureau"]

    class Bureau(bureau_class):  # type: ignore[misc, valid-type] # of the page
        fails = False

        @limited(fallback=LastGood(for_s=3600))
        async def score(self, customer_id: str) -> int:
            if self.fails:
                raise ConnectionError("away")
            return 80

    bureau = Bureau()
    async with place(tmp_path) as at:
        worker = await at.worker(names["payment"], use=[bureau])
        await worker.takes(an_order("order-01"))
        bureau.fails = True
        for number in range(2, 7):
            await worker.takes(an_order(f"order-0{number}"))
        assert turned(worker) == ["open"]
        await worker.takes(an_order())
        [entry] = await worker.history()
        assert [(call.name, bytes(call.value), call.instead) for call in entry.calls] == [
            ("score", b"80", "remembered")
        ]
        assert [event.type for event in entry.events] == ["PaymentReserved"]
