"""Dead letters that people have replayed, discarded or resolved, at a real worker."""

import json
from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from saga import Retry, Saga, Service
from saga.errors import BadInput, Permanent
from saga.messages import Outgoing, Record
from saga.messaging import operator_commands
from saga.messaging.operator_commands import StepAnswer, Wanted
from saga.ops.dead_letters import decode_dead_letter
from saga.progress import history
from saga.progress.document import SagaProgress
from saga.telemetry.events import ReplayEnded
from services.order.events import OrderCancelled, OrderConfirmed
from services.payment.events import OrderPlaced, PaymentCaptured, PaymentReserved
from tests.engine.real_worker import SAGA, Workplace, an_order, at_work, message_of, workplace


class Outside:
    """A bank that is asked, and fails until it is mended."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.mended = False

    async def first(self, key: str) -> str:
        self.asked.append(("first", key))
        return "one"

    async def second(self, key: str, given: str) -> str:
        self.asked.append(("second", key))
        if not self.mended:
            raise Permanent("the bank is down")
        return given


@pytest.fixture
def outside() -> Outside:
    return Outside()


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Workplace]:
    async with workplace(tmp_path) as place:
        yield place


def service_of(outside: Outside) -> Service[Any]:
    """Payment: two calls for an order, then what is confirmed; undone when it is cancelled."""
    payment = Service("payment")

    @payment.resource()
    async def bank() -> AsyncIterator[Outside]:
        yield outside

    @payment.handler
    async def reserve(order: OrderPlaced, bank: Outside, saga: Saga) -> PaymentReserved:
        one = await saga.step(bank.first, saga.idempotency_key("first"))
        charge = await saga.step(bank.second, saga.idempotency_key("second"), one)
        return PaymentReserved(order_id=order.order_id, charge_id=charge, amount=order.total)

    @payment.handler
    async def capture(confirmed: OrderConfirmed) -> PaymentCaptured:
        return PaymentCaptured(order_id=confirmed.order_id, amount=Decimal("9.80"))

    @payment.compensation(reserve)
    async def release(cancelled: OrderCancelled, reserved: PaymentReserved) -> None: ...

    return payment


def blocking(p: SagaProgress | None) -> str:
    """Id of the dead letter that blocks the saga."""
    assert p is not None
    (dead,) = [k.dead for k in (*p.queue, *p.compensating) if k.dead]
    return dead


def a_command(
    place: Workplace,
    wanted: Wanted,
    dead: str,
    *,
    saga: str = SAGA,
    who: str = "ada",
    answered: StepAnswer | None = None,
) -> Outgoing:
    now_ms = place.clock.now_ms()
    return operator_commands.command_to_record(
        "payment",
        saga,
        wanted,
        operator_commands.CommandValue(dead=dead, who=who, why="mended", answered=answered),
        now_ms,
    )


async def outcomes(place: Workplace, service: Service[Any]) -> list[tuple[str, str]]:
    return [(entry.handler, entry.outcome) for entry in await place.history(service)]


async def test_a_replayed_run_resumes_where_it_was_and_the_others_follow(place: Workplace, outside: Outside) -> None:
    service = service_of(outside)
    async with at_work(place, service):
        await place.publish(an_order(), OrderConfirmed(order_id=SAGA))
        await place.at_rest(service)
        assert await outcomes(place, service) == [("reserve", "dead"), ("capture", "queued")]
        outside.mended = True
        dead = blocking(await place.progress(service))
        await place.broker.publish([a_command(place, "replay", dead)])
        await place.at_rest(service)
        assert (await outcomes(place, service))[2:] == [
            ("reserve", "replayed"), ("reserve", "handled"), ("capture", "handled")
        ]  # fmt: skip
        p = await place.progress(service)
        assert p is not None
        assert (p.queue, p.intents, p.replays) == ((), (), 1)
        assert history.verify_history(p.transitions, p) is None
        letters = [headers["dead_what"] for _, headers in await place.dead(service)]
        assert letters == ["dead letter", "replayed"]
    assert [name for name, _ in outside.asked] == ["first", "second", "second"], "what has answered is not asked again"
    assert len({key for _, key in outside.asked}) == 2, "the keys are what they were"


async def test_a_replay_that_fails_is_another_dead_letter_that_can_be_replayed(
    place: Workplace, outside: Outside
) -> None:
    service = service_of(outside)
    async with at_work(place, service):
        await place.publish(an_order())
        await place.at_rest(service)
        first = blocking(await place.progress(service))
        await place.broker.publish([a_command(place, "replay", first)])
        await place.at_rest(service)
        second = blocking(await place.progress(service))
        assert second != first
        outside.mended = True
        await place.broker.publish([a_command(place, "replay", first, who="bob"), a_command(place, "replay", second)])
        await place.at_rest(service)
        entries = await place.history(service)
        assert [entry.outcome for entry in entries] == ["dead", "replayed", "dead", "ignored", "replayed", "handled"]
        assert "bob wants it: mended" in (entries[3].reason or "")
        assert "it may have gone before" in (entries[3].reason or "")


async def test_the_end_of_each_replay_is_reported_once_however_long_it_took(place: Workplace, outside: Outside) -> None:
    payment, attempts = Service("payment"), list[str]()

    @payment.handler(retry=Retry(attempts_max=3, in_place_s=0, delay_s_first=70, delay_s_max=70))
    async def reserve(order: OrderPlaced) -> PaymentReserved:
        attempts.append("reserve")
        if len(attempts) < 8:
            raise RuntimeError("not yet")
        return PaymentReserved(order_id=order.order_id, charge_id="ch", amount=order.total)

    @payment.handler
    async def capture(confirmed: OrderConfirmed) -> PaymentCaptured:
        return PaymentCaptured(order_id=confirmed.order_id, amount=Decimal("9.80"))

    @payment.compensation(reserve)
    async def release(cancelled: OrderCancelled, reserved: PaymentReserved) -> None:
        attempts.append("release")

    def ends() -> list[tuple[str, str]]:
        return [(moment.handler, moment.result) for moment in place.reported(ReplayEnded)]

    place.leaps = True
    async with at_work(place, payment):
        await place.publish(an_order(), OrderConfirmed(order_id=SAGA))
        await place.until(lambda: len(place.reported_dead_letters()) == 1)
        assert ends() == []
        for number in (1, 2):
            await place.broker.publish([a_command(place, "replay", blocking(await place.progress(payment)))])
            await place.until(lambda number=number: len(ends()) == number)  # type: ignore[misc]
        await place.publish(OrderCancelled(order_id=SAGA, reason="changed his mind"))
        await place.until(lambda: attempts[-1] == "release")
        await place.at_rest(payment)
    assert ends() == [("reserve", "died"), ("reserve", "succeeded")]


async def test_a_compensation_that_is_replayed_ends_under_its_own_name(place: Workplace, outside: Outside) -> None:
    payment, mended = Service("payment"), list[str]()

    @payment.handler
    async def reserve(order: OrderPlaced) -> PaymentReserved:
        return PaymentReserved(order_id=order.order_id, charge_id="ch", amount=order.total)

    @payment.compensation(reserve)
    async def release(cancelled: OrderCancelled, reserved: PaymentReserved) -> None:
        if not mended:
            raise BadInput("it has no sense")

    async with at_work(place, payment):
        await place.publish(an_order(), OrderCancelled(order_id=SAGA, reason="changed his mind"))
        await place.at_rest(payment)
        mended.append("yes")
        await place.broker.publish([a_command(place, "replay", blocking(await place.progress(payment)))])
        await place.at_rest(payment)
    assert [(moment.handler, moment.result) for moment in place.reported(ReplayEnded)] == [("release", "succeeded")]


@pytest.mark.parametrize("forged", [{"principal": "x" * 1000}, {"source": "payment"}], ids=str)
async def test_a_message_in_a_command_that_could_not_have_come_by_itself_is_a_dead_letter(
    place: Workplace, outside: Outside, forged: dict[str, str]
) -> None:
    service = service_of(outside)
    outside.mended = True
    genuine = message_of(an_order(), started="2026-01-01T00:00:00.000Z")
    record = operator_commands.command_to_record(
        "payment",
        SAGA,
        "replay",
        operator_commands.CommandValue(dead="dead-1", who="eve", why="x", original=genuine),
        0,
    )
    assert record.value is not None
    command = json.loads(record.value)
    command["original"] |= forged
    async with at_work(place, service):
        await place.broker.publish([record._replace(value=json.dumps(command).encode())])
        await place.until(lambda: bool(place.reported_dead_letters()))
        await place.at_rest(service)
    assert await place.progress(service) is None, "nothing was begun by it"
    assert outside.asked == []


async def test_a_discarded_message_is_reported_and_what_is_queued_behind_it_runs(
    place: Workplace, outside: Outside
) -> None:
    service = service_of(outside)
    async with at_work(place, service):
        await place.publish(an_order(), OrderConfirmed(order_id=SAGA))
        await place.at_rest(service)
        await place.broker.publish([a_command(place, "discard", blocking(await place.progress(service)))])
        await place.at_rest(service)
        assert (await outcomes(place, service))[2:] == [("reserve", "discarded"), ("capture", "handled")]
        letters = {headers["dead_what"]: headers for _, headers in await place.dead(service)}
        assert letters["discarded"]["dead_reason"] == "it is never handled: ada wants it: mended"
        calls = [
            value.decode()
            for record, headers in await place.dead(service)
            if headers["dead_what"] == "escalation"
            for name, value in record.headers
            if name == "dead_call" and value
        ]
        assert calls == ["step second may have happened", "step first ran"]
        await place.publish(an_order(), id="again")  # the same order, from another sender
        await place.at_rest(service)
        await place.publish(OrderCancelled(order_id=SAGA, reason="late"))
        await place.at_rest(service)
        p = await place.progress(service)
        assert p is not None
        assert history.verify_history(p.transitions, p) is None


async def test_a_handler_triggered_by_an_outcome_is_not_discarded(place: Workplace) -> None:
    payment, mended = Service("payment"), list[bool]()

    @payment.handler
    async def capture(confirmed: OrderConfirmed) -> PaymentCaptured:
        if not mended:
            raise Permanent("not today")
        return PaymentCaptured(order_id=confirmed.order_id, amount=Decimal("9.80"))

    async with at_work(place, payment):
        await place.publish(OrderConfirmed(order_id=SAGA))
        await place.at_rest(payment)
        dead = blocking(await place.progress(payment))
        await place.broker.publish([a_command(place, "discard", dead)])
        await place.at_rest(payment)
        refused = (await place.history(payment))[-1]
        assert refused.outcome == "ignored"
        assert "an outcome sets capture off" in (refused.reason or "")
        mended.append(True)
        await place.broker.publish([a_command(place, "replay", dead)])
        await place.at_rest(payment)
        assert (await outcomes(place, payment))[-2:] == [("capture", "replayed"), ("capture", "handled")]


async def test_a_command_for_an_unknown_saga_writes_nothing(place: Workplace, outside: Outside) -> None:
    service = service_of(outside)
    async with at_work(place, service):
        await place.broker.publish([a_command(place, "replay", "dead-1", saga="order-9")])
        await place.at_rest(service)
        assert await place.progress(service, "order-9") is None
        assert await place.dead(service) == []


async def test_escalations_of_a_forgotten_saga_are_closed_and_it_stays_forgotten(
    place: Workplace, outside: Outside
) -> None:
    """Nobody could close them otherwise: the calls that they name were corrected after the retention."""
    service = service_of(outside)
    async with at_work(place, service):
        for escalation in ("dead-1", "dead-2"):
            await place.broker.publish([a_command(place, "resolve", escalation, saga="order-9")])
            await place.at_rest(service)
        p = await place.progress(service, "order-9")
        assert p is not None
        assert (p.started, p.is_open) == (None, False), "what comes late is too old as before, and the progress expires"
        assert history.verify_history(p.transitions, p) is None
        assert [(headers["dead_id"], headers["dead_what"]) for _, headers in await place.dead(service)] == [
            ("dead-1-resolved", "resolved"), ("dead-2-resolved", "resolved")
        ]  # fmt: skip


async def test_an_invalid_command_is_a_dead_letter_and_stops_no_worker(place: Workplace, outside: Outside) -> None:
    service, good = service_of(outside), a_command(place, "replay", "dead-1")
    headers = tuple((n, v) for n, v in good.headers if n != "ce_type")
    hostile = [
        good._replace(value=b"{"),
        good._replace(value=None),
        good._replace(key=b""),
        good._replace(headers=()),
        good._replace(headers=(*headers, ("ce_type", b"saga.destroy"))),
        good._replace(headers=(*headers, ("ce_type", None))),
        good._replace(value=b"[" * 100_000),
        good._replace(headers=tuple((n, b"yesterday" if n == "ce_time" else v) for n, v in good.headers)),
    ]
    async with at_work(place, service):
        await place.broker.publish(hostile)
        await place.publish(an_order())
        await place.at_rest(service)
        await place.until(lambda: len(place.reported_dead_letters()) == len(hostile) + 1)
        dead = [headers.get("dead_position", "") for _, headers in await place.dead(service)]
        assert sorted(at for at in dead if at) == [f"payment.commands/0/{offset}" for offset in range(len(hostile))]
        assert await outcomes(place, service) == [("reserve", "dead")]


async def test_a_run_that_failed_after_its_last_step_resumes_when_it_is_replayed(
    place: Workplace, outside: Outside
) -> None:
    payment, failing = Service("payment"), [True]

    @payment.handler(retry=Retry(attempts_max=1))
    async def reserve(order: OrderPlaced, saga: Saga[None]) -> PaymentReserved:
        one = await saga.step(outside.first, saga.idempotency_key("first"))
        if failing:
            raise RuntimeError("it does not add up")
        return PaymentReserved(order_id=order.order_id, charge_id=one, amount=order.total)

    async with at_work(place, payment):
        await place.publish(an_order())
        await place.at_rest(payment)
        failing.clear()
        await place.broker.publish([a_command(place, "replay", blocking(await place.progress(payment)))])
        await place.at_rest(payment)
        assert await outcomes(place, payment) == [("reserve", "dead"), ("reserve", "replayed"), ("reserve", "handled")]
    assert [name for name, _ in outside.asked] == ["first"]


class Declined(Exception):
    """Refusal of the bank."""


def changing(outside: Outside, version: list[int]) -> Service[Any]:
    """Payment, of which a later version asks with other arguments, in another order, and for one step less."""
    payment = Service("payment")

    @payment.resource(expected_errors=(Declined,))
    async def bank() -> AsyncIterator[Outside]:
        yield outside

    @payment.handler(retry=Retry(attempts_max=1))
    async def reserve(order: OrderPlaced, bank: Outside, saga: Saga) -> PaymentReserved:
        if version == [1]:
            one = await saga.step(bank.first, saga.idempotency_key("first"))
            charge = await saga.step(bank.second, saga.idempotency_key("second"), one)
        else:
            try:
                charge = await saga.step(bank.second, saga.idempotency_key("second"), "in euros")
            except Declined as why:
                charge = f"declined: {why}"
        return PaymentReserved(order_id=order.order_id, charge_id=charge, amount=order.total)

    return payment


@pytest.mark.parametrize("raises", [False, True])
async def test_a_run_whose_code_has_changed_resumes_with_the_answer_that_an_operator_enters(
    place: Workplace, outside: Outside, *, raises: bool
) -> None:
    version = [1]
    service = changing(outside, version)

    async def say(answered: StepAnswer) -> None:
        dead = blocking(await place.progress(service))
        await place.broker.publish([a_command(place, "resolve", dead, answered=answered)])
        await place.at_rest(service)

    async with at_work(place, service):
        await place.publish(an_order())
        await place.at_rest(service)
        version[0] = 2
        await place.broker.publish([a_command(place, "replay", blocking(await place.progress(service)))])
        await place.at_rest(service)
        entries = await place.history(service)
        assert (entries[-1].outcome, (entries[-1].reason or "")[:16]) == ("dead", "NotDeterministic")
        await say(
            StepAnswer(step="second", value='["no money"]', raised="Declined")
            if raises
            else StepAnswer(step="second", value='"ch-1"')
        )
        assert (await place.history(service))[-1].outcome == "dead", "what it asks for no more is in its way"
        await say(StepAnswer(step="first"))
        entries = await place.history(service)
        assert [entry.outcome for entry in entries] == [
            "dead", "replayed", "dead", "resolved", "dead", "resolved", "handled"
        ]  # fmt: skip
        (record,) = await place.records("payments")
        assert (b"declined: no money" if raises else b"ch-1") in (record.value or b"")
        assert {(call.name, call.by) for call in entries[-1].calls} == {("first", "ada"), ("second", "ada")}
        p = await place.progress(service)
        assert p is not None
        assert (p.queue, p.intents, p.replays) == ((), (), 3)
        assert history.verify_history(p.transitions, p) is None
    assert [name for name, _ in outside.asked] == ["first", "second"], "nothing is asked for again"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (StepAnswer(step="secnod", value='"two"'), "reserve has not asked for step 'secnod' (number 1)"),
        (StepAnswer(step="bank.second", value='"two"'), "reserve has not asked for step 'bank.second' (number 1)"),
        (StepAnswer(step="second", number=2, value='"two"'), "reserve has not asked for step 'second' (number 2)"),
        (
            StepAnswer(step="first", value='"two"'),
            "step 'first' (number 1) of reserve is answered already",
        ),
        (
            StepAnswer(step="second", value="[]", raised="Declined"),
            "reserve has no declared exception 'Declined'; its resources declare none",
        ),
    ],
)
async def test_an_answer_to_anything_but_the_open_call_is_refused_and_nothing_is_called_again(
    place: Workplace, outside: Outside, answer: StepAnswer, why: str
) -> None:
    service = service_of(outside)
    async with at_work(place, service):
        await place.publish(an_order())
        await place.at_rest(service)
        before, asked = await place.progress(service), list(outside.asked)
        assert before is not None
        outside.mended = True
        await place.broker.publish([a_command(place, "resolve", blocking(before), answered=answer)])
        await place.at_rest(service)
        entry = (await place.history(service))[-1]
        assert entry.outcome == "ignored"
        assert str(entry.reason).startswith(f"not resolved: {why}")
        p = await place.progress(service)
        assert p is not None
        assert (p.queue, p.intents) == (before.queue, before.intents), "all is as it was"
    assert outside.asked == asked


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (StepAnswer(step="second", value="17"), "what 'second' gave, as ada says, is no str: "),
        (
            StepAnswer(step="second", value='["no", "money"]', raised="Refused"),
            "the recorded answer Refused of 'second', as ada says, cannot be created from its arguments: TypeError: ",
        ),
    ],
)
async def test_an_answer_of_another_type_is_a_dead_letter_that_can_be_answered_again(
    place: Workplace, outside: Outside, answer: StepAnswer, why: str
) -> None:
    payment = Service("payment")

    @payment.resource(expected_errors=(Refused,))
    async def bank() -> AsyncIterator[Outside]:
        yield outside

    @payment.handler(retry=Retry(attempts_max=1))
    async def reserve(order: OrderPlaced, bank: Outside, saga: Saga) -> PaymentReserved:
        charge = await saga.step(bank.second, saga.idempotency_key("second"), "two")
        return PaymentReserved(order_id=order.order_id, charge_id=charge, amount=order.total)

    async with at_work(place, payment):
        await place.publish(an_order())
        await place.at_rest(payment)
        for given in (answer, StepAnswer(step="second", value='"ch-1"')):
            dead = blocking(await place.progress(payment))
            await place.broker.publish([a_command(place, "resolve", dead, answered=given)])
            await place.at_rest(payment)
        entries = await place.history(payment)
    assert [entry.outcome for entry in entries] == ["dead", "resolved", "dead", "resolved", "handled"]
    assert str(entries[2].reason).startswith(f"Permanent: {why}")
    assert [name for name, _ in outside.asked] == ["second"]


class Refused(Exception):
    """Refusal of the bank, for one reason."""

    def __init__(self, why: str) -> None:
        super().__init__(why)


async def test_the_answer_that_an_operator_entered_is_reported_when_the_run_is_discarded(
    place: Workplace, outside: Outside
) -> None:
    service = service_of(outside)
    async with at_work(place, service):
        await place.publish(an_order())
        await place.at_rest(service)
        dead = blocking(await place.progress(service))
        answer = StepAnswer(step="second", value="2")  # no text, so it is a dead letter again
        await place.broker.publish([a_command(place, "resolve", dead, answered=answer)])
        await place.at_rest(service)
        again = blocking(await place.progress(service))
        assert again != dead
        await place.broker.publish([a_command(place, "discard", again)])
        await place.at_rest(service)
        (calls,) = [
            decode_dead_letter("payment", Record(*r))
            for r, h in await place.dead(service)
            if h["dead_what"] == "escalation"
        ]
        assert calls is not None
        assert sorted(calls.calls) == ["step first ran", "step second ran, as ada says"]
        await place.broker.publish([a_command(place, "resolve", calls.id, who="bob")])
        await place.at_rest(service)
        assert (await outcomes(place, service))[-2:] == [("reserve", "discarded"), ("reserve", "resolved")]
        found = [decode_dead_letter("payment", Record(*r)) for r, _ in await place.dead(service)]
        assert [letter.ends for letter in found if letter is not None][-1] == calls.id


class Hotel:
    """Holds a room without an answer, and refuses the deposit."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def look(self) -> str:
        self.asked.append("look")
        return "12"

    async def hold(self, room: str) -> str:
        self.asked.append("hold")
        raise TimeoutError

    async def deposit(self) -> str:
        self.asked.append("deposit")
        raise Permanent("the card is blocked")

    async def free(self, room: str) -> None:
        self.asked.append("free")


def booking(there: Hotel, *, pauses: list[str] | None = None) -> Service[Any]:
    """Payment, which looks for a room, holds it, says how to free it, and pays a deposit."""
    payment = Service("payment")

    @payment.resource()
    async def hotel() -> AsyncIterator[Hotel]:
        yield there

    @payment.handler(retry=Retry(attempts_max=1))
    async def reserve(order: OrderPlaced, hotel: Hotel, saga: Saga) -> PaymentReserved:
        room = await saga.step(hotel.look)
        held = await saga.step(hotel.hold, room)
        saga.on_abort(hotel.free, held)
        if pauses:
            raise RuntimeError(pauses.pop())
        await saga.step(hotel.look)
        charge = await saga.step(hotel.deposit)
        return PaymentReserved(order_id=order.order_id, charge_id=charge, amount=order.total)

    @payment.compensation(reserve)
    async def release(cancelled: OrderCancelled, reserved: PaymentReserved) -> None: ...

    return payment


@pytest.mark.parametrize("pauses", [[], ["later"]], ids=["at once", "replayed"])
async def test_a_step_that_an_operator_answered_does_not_remain_if_on_abort_undoes_it(
    place: Workplace, pauses: list[str]
) -> None:
    there = Hotel()
    service = booking(there, pauses=pauses)
    async with at_work(place, service):
        await place.publish(an_order())
        await place.at_rest(service)
        dead = blocking(await place.progress(service))
        answer = StepAnswer(step="hold", value='"room 12"')
        await place.broker.publish([a_command(place, "resolve", dead, answered=answer)])
        await place.at_rest(service)
        if there.asked[-1] == "hold":
            await place.broker.publish([a_command(place, "replay", blocking(await place.progress(service)))])
            await place.at_rest(service)
        await place.publish(OrderCancelled(order_id=SAGA, reason="no"))
        await place.at_rest(service)
        letters = [decode_dead_letter("payment", Record(*r)) for r, _ in await place.dead(service)]
        (escalation,) = [letter for letter in letters if letter is not None and letter.what == "escalation"]
        assert escalation.calls == ("step deposit may have happened", "step look ran")
    assert there.asked == ["look", "hold", "look", "deposit", "free"]


async def test_an_abort_for_an_operator_is_retried_in_place_and_at_least_twice_a_minute(place: Workplace) -> None:
    """A person waits: it is not parked, for no outcome could be kept for it, nor left for an hour."""
    payment, freed = Service("payment"), list[str]()

    @payment.resource()
    async def bank() -> AsyncIterator[Bookings]:
        yield Bookings(freed)

    @payment.handler
    async def reserve(order: OrderPlaced, bank: Bookings, saga: Saga) -> PaymentReserved:
        await saga.step(bank.book, order.order_id)
        saga.on_abort(bank.free, order.order_id)
        raise Permanent("and then nothing")

    @payment.compensation(reserve)
    async def release(cancelled: OrderCancelled, reserved: PaymentReserved) -> None: ...

    async with at_work(place, payment):
        await place.publish(an_order())
        await place.at_rest(payment)
        place.clock.pauses.clear()
        await place.broker.publish([a_command(place, "discard", blocking(await place.progress(payment)))])
        await place.at_rest(payment)
        assert await outcomes(place, payment) == [("reserve", "dead"), ("reserve", "discarded")]
        assert len(freed) == 15
        assert place.clock.pauses == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30, 30, 30, 30, 30, 30]
        p = await place.progress(payment)
        assert p is not None
        assert (p.queue, p.intents, p.compensating) == ((), (), ())


class Bookings:
    """Frees what was booked when it is asked for the fifteenth time."""

    def __init__(self, freed: list[str]) -> None:
        self.freed = freed

    async def book(self, order: str) -> str:
        return order

    async def free(self, order: str) -> None:
        self.freed.append(order)
        if len(self.freed) < 15:
            raise ConnectionError("no answer")
