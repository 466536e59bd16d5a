"""Suspended runs: which handlers may return `Later`, which are refused, and what a service does with them."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from saga import DeclarationError, Event, Later, Saga, Service
from saga.engine.prepared_service import prepare
from saga.errors import SagaError
from saga.testing import Trial, a_saga, check_idempotent, trial
from services.payment.events import (
    OrderCancelled,
    OrderConfirmed,
    OrderPlaced,
    PaymentCaptured,
    PaymentDeclined,
    PaymentReleased,
    PaymentReserved,
)
from tests.service import waiting_payment

DAY = timedelta(days=1)
PATIENCE = 2 * DAY
PLACED = OrderPlaced(
    order_id="o-1", customer_id="c", sku="tea", quantity=3, total=Decimal(9), card="4242", address="here"
)
CONFIRMED = OrderConfirmed(order_id="o-1")
CANCELLED = OrderCancelled(order_id="o-1", reason="no")
RESERVED = PaymentReserved(order_id="o-1", charge_id="ch", amount=Decimal(9))
CAPTURED = PaymentCaptured(order_id="o-1", amount=Decimal(9))


def declined(reason: str) -> PaymentDeclined:
    return PaymentDeclined(order_id="o-1", reason=reason)


@dataclass(frozen=True)
class Cursor:
    row: int = 0
    looks: tuple[str, ...] = ()


@dataclass
class Bank:
    rows: int = 0
    posted: list[str] = field(default_factory=list)

    async def post(self, key: str, row: int) -> str:
        self.posted.append(f"{row} {key}")
        return f"posted {row}"


async def bank() -> AsyncIterator[Bank]:
    """Opened by no test: each hands over its own."""
    yield Bank()


# ------------------------------------------------------------------------------- what is declared


def refusal(
    function: Callable[..., Awaitable[Any]], declare: Callable[[Service[Any]], Any] = lambda s: s.handler
) -> str:
    payment = Service("payment", state=Cursor)
    with pytest.raises(DeclarationError) as refused:
        declare(payment)(function)
    return str(refused.value)


def test_optional_events_are_those_that_a_suspended_run_awaits() -> None:
    async def never(order: OrderPlaced, confirmed: OrderConfirmed | None) -> PaymentReserved:
        raise NotImplementedError

    async def unseen(order: OrderPlaced) -> PaymentReserved | Later[OrderConfirmed]:
        raise NotImplementedError

    async def other(order: OrderPlaced, cancelled: OrderCancelled | None) -> Later[OrderConfirmed]:
        raise NotImplementedError

    message = refusal(never)
    assert "payment.never takes OrderConfirmed | None and never waits for it" in message
    assert "let it return Later[OrderConfirmed]" in message
    assert "payment.unseen returns Later[OrderConfirmed] and could not be shown it" in refusal(unseen)
    assert "payment.other takes OrderCancelled | None" in refusal(other)


def test_later_may_await_only_events() -> None:
    async def number(order: OrderPlaced) -> Later[int]:  # type: ignore[type-var]
        raise NotImplementedError

    async def anything(order: OrderPlaced) -> Later[Event]:
        raise NotImplementedError

    assert "payment.number returns Later[int]: name the events that end the wait" in refusal(number)
    assert "payment.anything returns Later[Event]: name the events" in refusal(anything)


def test_an_event_that_is_needed_is_needed() -> None:
    async def idle(order: OrderPlaced | None) -> Later[OrderPlaced]:
        raise NotImplementedError

    assert "payment.idle reacts to nothing" in refusal(idle)
    assert "one that may be `None` is not waited for" in refusal(idle)


def test_runs_that_cannot_be_distinguished_are_refused() -> None:
    async def several(order: OrderPlaced, confirmed: OrderConfirmed | None) -> Later[OrderConfirmed]:
        raise NotImplementedError

    message = refusal(several, lambda s: s.handler(repeats=OrderPlaced))
    assert "payment.several has repeats= and takes OrderConfirmed | None" in message


def test_deadlines_and_compensations_come_to_their_end_in_one_run() -> None:
    async def remind(order: OrderPlaced) -> PaymentReserved | Later:
        raise NotImplementedError

    async def look(order: OrderPlaced, confirmed: OrderConfirmed | None) -> Later[OrderConfirmed]:
        raise NotImplementedError

    deadline: Callable[[Service[Any]], Any] = lambda s: s.deadline(within=DAY)  # noqa: E731
    assert "payment.remind returns Later: only a handler of events may continue later" in refusal(remind, deadline)
    assert "payment.look takes OrderConfirmed | None: only a handler" in refusal(look, deadline)

    payment = Service("payment")

    @payment.handler
    async def reserve(order: OrderPlaced) -> PaymentReserved:
        raise NotImplementedError

    async def release(cancelled: OrderCancelled, reserved: PaymentReserved) -> PaymentReleased | Later:
        raise NotImplementedError

    with pytest.raises(DeclarationError, match="a compensation has to finish in one run"):
        payment.compensation(reserve)(release)  # type: ignore[type-var]


@pytest.mark.parametrize(
    "given",
    [
        {"after": timedelta(seconds=-1)},
        {"after": 7},
        {"until": OrderConfirmed},
        {"within": DAY},
        {"until": OrderConfirmed, "within": timedelta(seconds=-1)},
        {"until": OrderConfirmed, "within": DAY, "after": DAY},
        {"until": "OrderConfirmed", "within": DAY},
    ],
)
def test_a_wait_that_is_none_is_refused_where_it_is_made(given: Any) -> None:
    with pytest.raises(ValueError, match=r"Later\("):
        Later(**given)


def test_waits_are_compared_by_what_they_wait_for() -> None:
    assert Later(after=DAY) == Later(after=DAY) != Later()
    assert Later(until=OrderConfirmed, within=DAY) != Later(after=DAY)
    assert len({Later(), Later(), Later(until=OrderConfirmed, within=DAY)}) == 2
    assert (
        repr(Later(until=OrderConfirmed, within=DAY))
        == "Later(until=OrderConfirmed, within=datetime.timedelta(days=1))"
    )


def test_events_that_a_suspended_run_awaits_are_consumed_and_known_to_decisions() -> None:
    prepared = prepare(reminding().declared)
    assert {"OrderPlaced", "OrderConfirmed"} <= prepared.consumed
    role = prepared.roles.handlers["remind"]
    assert (role.takes, role.optional) == ((frozenset({"OrderPlaced"}),), (frozenset({"OrderConfirmed"}),))


# ------------------------------------------------------------------------------- what a service does


async def test_the_payment_of_the_readme_waits_for_two_days() -> None:
    assert (await trial(waiting_payment.payment, PLACED, DAY, CONFIRMED)).emitted == [CAPTURED]
    late = await trial(waiting_payment.payment, PLACED, PATIENCE, CONFIRMED)
    assert late.emitted == [declined("nobody confirmed it in time")]
    saga = a_saga(elapsed=PATIENCE)
    assert await waiting_payment.collect(PLACED, None, saga) == declined("nobody confirmed it in time")


def reminding() -> Service[Cursor]:
    """Reports each day that no confirmation has come, three times at most."""
    payment = Service("payment", state=Cursor)

    @payment.handler
    async def remind(
        order: OrderPlaced, confirmed: OrderConfirmed | None, saga: Saga[Cursor]
    ) -> PaymentCaptured | Later[OrderConfirmed] | tuple[PaymentDeclined, Later[OrderConfirmed]] | None:
        seen = "confirmed" if confirmed else "nothing"
        saga.state = replace(saga.state, looks=(*saga.state.looks, f"{saga.elapsed.total_seconds():g} {seen}"))
        if confirmed is not None:
            return CAPTURED
        days = saga.elapsed // DAY
        if days == 0:
            return Later(until=OrderConfirmed, within=DAY)
        if days == 3:
            return None
        return declined(f"day {days}"), Later(until=OrderConfirmed, within=(days + 1) * DAY - saga.elapsed)

    return payment


async def test_a_suspended_run_resumes_at_its_time_until_it_ends() -> None:
    done = await trial(reminding(), PLACED, 10 * DAY)
    assert done.emitted == [declined("day 1"), declined("day 2")]
    assert done.state.looks == ("0 nothing", "86400 nothing", "172800 nothing", "259200 nothing")
    assert [t.outcome for t in done.progress.transitions] == ["later", "later", "later", "handled"]
    assert done.progress.transitions[0].reason == "it goes on at 2026-01-02T00:00:00.000Z, or with OrderConfirmed"


async def test_a_suspended_run_resumes_at_once_when_its_event_comes() -> None:
    done = await trial(reminding(), PLACED, DAY * 1.5, CONFIRMED, 10 * DAY)
    assert done.emitted == [declined("day 1"), CAPTURED]
    assert done.state.looks == ("0 nothing", "86400 nothing", "129600 confirmed")
    assert [t.outcome for t in done.progress.transitions] == ["later", "later", "waiting", "handled"]


async def test_an_event_that_came_before_is_there_at_the_first_look() -> None:
    done = await trial(reminding(), CONFIRMED, PLACED, DAY)
    assert (done.emitted, done.state.looks) == ([CAPTURED], ("0 confirmed",))


async def test_an_event_that_comes_after_the_end_is_ignored_with_that_reason() -> None:
    done = await trial(reminding(), PLACED, 10 * DAY, CONFIRMED)
    last = done.progress.transitions[-1]
    assert (last.outcome, last.reason) == ("ignored", "remind has run in this saga already")
    assert len(done.emitted) == 2


async def test_a_repetition_of_the_event_on_which_it_resumes_is_none_of_its_own() -> None:
    done = await trial(reminding(), PLACED, PLACED, DAY / 2, PLACED)
    assert done.state.looks == ("0 nothing",)
    other = replace(PLACED, quantity=4)
    done = await trial(reminding(), PLACED, other)
    assert [t.outcome for t in done.progress.transitions] == ["later", "dead"]
    assert "already handled with other content" in str(done.progress.transitions[-1].reason)


def cancelled(reason: str) -> OrderCancelled:
    return OrderCancelled(order_id="o-1", reason=reason)


def collecting() -> Service[Cursor]:
    """Takes two refusals, one after the other, and captures then."""
    payment = Service("payment", state=Cursor)

    @payment.handler
    async def collect(
        order: OrderPlaced, why: OrderCancelled | None, saga: Saga[Cursor]
    ) -> PaymentCaptured | Later[OrderCancelled]:
        saga.state = replace(saga.state, looks=(*saga.state.looks, why.reason if why else "nothing"))
        if len([look for look in saga.state.looks if look != "nothing"]) < 2:
            return Later(until=OrderCancelled, within=DAY)
        return CAPTURED

    return payment


async def test_a_turn_waits_for_what_no_turn_before_it_was_shown() -> None:
    done = await trial(collecting(), PLACED, cancelled("one"), DAY, cancelled("two"))
    assert done.state.looks == ("nothing", "one", "nothing", "two")
    assert done.emitted == [CAPTURED]


async def test_each_turn_is_shown_one_event_in_the_order_in_which_they_came() -> None:
    done = await trial(collecting(), cancelled("one"), cancelled("two"), cancelled("three"), PLACED)
    assert done.state.looks == ("one", "two")
    assert done.emitted == [CAPTURED]
    assert (done.progress.transitions[-1].outcome, done.progress.transitions[-1].handler) == ("ignored", "collect")


def posting(rows: int, a_turn: int) -> Service[Cursor]:
    """A long job: so many rows, some of them in each turn."""
    payment = Service("payment", state=Cursor)

    payment.resource(bank)

    @payment.handler
    async def post(order: OrderPlaced, bank: Bank, saga: Saga[Cursor]) -> PaymentCaptured | Later:
        for row in range(saga.state.row, min(saga.state.row + a_turn, rows)):
            await saga.step(bank.post, saga.idempotency_key("row"), row)
        saga.state = replace(saga.state, row=saga.state.row + a_turn)
        return CAPTURED if saga.state.row >= rows else Later()

    return payment


async def test_a_long_job_resumes_by_itself_and_each_turn_has_keys_of_its_own() -> None:
    there = Bank()
    done = await trial(posting(30, 10), PLACED, use=[there])
    assert done.emitted == [CAPTURED]
    assert [posted.split()[0] for posted in there.posted] == list(map(str, range(30)))
    assert len({posted.split()[1] for posted in there.posted}) == 3
    assert [t.outcome for t in done.progress.transitions] == ["later", "later", "handled"]


async def test_a_job_without_end_is_reported() -> None:
    payment = Service("payment")

    @payment.handler
    async def spin(order: OrderPlaced) -> Later:
        return Later()

    with pytest.raises(SagaError, match=r"does not come to an end: 2000 turns within .*, the last of spin"):
        await trial(payment, PLACED)


async def test_a_wait_beyond_the_retention_is_a_dead_letter() -> None:
    payment = Service("payment", retention=timedelta(days=5))

    @payment.handler
    async def wait(order: OrderPlaced, saga: Saga) -> Later | None:
        return Later(after=PATIENCE)

    done = await trial(payment, PLACED, 20 * DAY)
    assert [t.outcome for t in done.progress.transitions] == ["later", "later", "dead"]
    assert "would have waited for 6 days, 0:00:00 then" in str(done.progress.transitions[-1].reason)
    assert "longer retention=" in str(done.progress.transitions[-1].reason)


async def test_a_wait_for_ever_is_a_dead_letter_with_the_same_reason() -> None:
    payment = Service("payment")

    @payment.handler
    async def wait(order: OrderPlaced, saga: Saga) -> Later | None:
        return Later(after=timedelta.max if saga.elapsed else DAY)

    done = await trial(payment, PLACED, 20 * DAY)
    assert [t.outcome for t in done.progress.transitions] == ["later", "dead"]
    assert "would have waited for 999999999 days" in str(done.progress.transitions[-1].reason)


async def test_two_waits_at_once_are_none() -> None:
    payment = Service("payment")

    @payment.handler
    async def wait(order: OrderPlaced) -> tuple[Later, Later]:
        return Later(), Later()

    done = await trial(payment, PLACED)
    assert "returned 2 times Later" in str(done.progress.transitions[-1].reason)


async def test_a_failed_turn_is_tried_again_with_the_same_events() -> None:
    payment = Service("payment", state=Cursor)
    failures = iter([True, True, False, False, False])

    @payment.handler
    async def look(
        order: OrderPlaced, confirmed: OrderConfirmed | None, saga: Saga[Cursor]
    ) -> PaymentCaptured | Later[OrderConfirmed]:
        if confirmed is None:
            return Later(until=OrderConfirmed, within=DAY)
        if next(failures):
            raise ConnectionError
        return CAPTURED

    done = await trial(payment, PLACED, CONFIRMED)
    assert done.emitted == [CAPTURED]
    assert [t.outcome for t in done.progress.transitions] == ["later", "waiting", "handled"]


def list_outcomes(done: Trial[Any]) -> list[tuple[str, str]]:
    return [(t.handler, t.outcome) for t in done.progress.transitions]


def undoing(covers: bool) -> Service[Cursor]:
    """Reserves in two turns; the first says what it did if `covers`."""
    payment = Service("payment", state=Cursor)

    payment.resource(bank)

    @payment.handler
    async def reserve(
        order: OrderPlaced, bank: Bank, saga: Saga[Cursor]
    ) -> tuple[PaymentReserved, Later] | Later | None:
        if saga.elapsed:
            return None
        await saga.step(bank.post, saga.idempotency_key("row"), 1)
        return (RESERVED, Later(after=DAY)) if covers else Later(after=DAY)

    @payment.compensation(reserve)
    async def release(cancelled: OrderCancelled, reserved: PaymentReserved) -> PaymentReleased:
        return PaymentReleased(order_id=cancelled.order_id, charge_id=reserved.charge_id)

    return payment


async def test_a_failure_outcome_ends_the_wait_and_undoes_what_a_turn_has_emitted() -> None:
    done = await trial(undoing(covers=True), PLACED, CANCELLED, 10 * DAY, use=[Bank()])
    assert done.emitted == [RESERVED, PaymentReleased(order_id="o-1", charge_id="ch")]
    assert [(t.handler, t.outcome) for t in done.progress.transitions] == [
        ("reserve", "later"),
        ("release", "compensated"),
    ]


async def test_calls_without_a_result_are_escalated_when_a_suspended_run_is_closed() -> None:
    done = await trial(undoing(covers=False), PLACED, CANCELLED, 10 * DAY, use=[Bank()])
    last = done.progress.transitions[-1]
    assert (last.handler, last.outcome) == ("release", "compensated")
    assert (
        last.reason
        == "reserve can never finish: it never continues; its effects remain and have to be corrected by hand"
    )


async def test_a_rerun_of_each_turn_makes_the_same() -> None:
    await check_idempotent(posting(3, 1), PLACED, use=[Bank()])
    await check_idempotent(reminding(), PLACED, CONFIRMED)


async def test_a_plain_call_is_given_how_long_it_has_waited() -> None:
    assert a_saga().elapsed == timedelta(0)
    assert a_saga(elapsed=PATIENCE).elapsed == PATIENCE
