"""Arguments of steps and updates, as people read them in a saga's history: what is recorded, and what is kept back."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import date, timedelta
from decimal import Decimal
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Annotated, NamedTuple, TypeAlias
from uuid import UUID

import pytest

from saga import Later, Retry, Saga, Service, sensitive
from saga.engine import recorded_values
from saga.progress.document import StepRecord
from saga.telemetry.events import Escalated
from services.payment.events import OrderCancelled, OrderPlaced, PaymentReserved
from tests.engine.real_worker import Workplace, an_order, at_work, workplace


@dataclass(frozen=True)
class Account:
    balance: int = 0


@dataclass(frozen=True)
class Card:
    holder: str
    number: Annotated[str, sensitive]


class Pair(NamedTuple):
    number: Annotated[str, sensitive]


@dataclass(frozen=True)
class Wallet:
    card: Annotated[str, sensitive] = ""


def draw(account: Account | None, cents: int, *, note: str) -> Account:
    return Account((account or Account()).balance - cents)


def spend(account: Account | None, card: Annotated[str, sensitive], cents: int) -> Account:
    return Account(-cents)


class Bank:
    fails: tuple[Exception, ...] = ()

    async def charge(self, order: str, amount: Decimal, *, note: str = "") -> Annotated[str, sensitive]:
        if self.fails:
            raise self.fails[0]
        return f"charge of {order}"

    async def pay(self, card: Card, pin: Annotated[str, sensitive], order: str) -> str:
        return "paid"

    async def plain(self, what: object) -> str:
        return "done"

    async def ping(self) -> str:
        return "here"

    async def tested(self) -> Annotated[bool, sensitive]:
        return False


Body: TypeAlias = Callable[[OrderPlaced, Bank, Saga[Wallet]], Awaitable[Later | None]]


def payment_with(body: Body) -> tuple[Service[Wallet], Bank]:
    payment = Service("payment", state=Wallet, retry=Retry(attempts_max=1))
    payment.document(Account, "accounts")
    bank = Bank()

    @payment.resource()
    async def opened() -> AsyncIterator[Bank]:
        yield bank

    @payment.handler()
    async def reserve(order: OrderPlaced, bank: Bank, saga: Saga[Wallet]) -> PaymentReserved | Later:
        if (later := await body(order, bank, saga)) is not None:
            return later
        return PaymentReserved(order_id=order.order_id, charge_id="c", amount=order.total)

    @payment.compensation(reserve)
    async def release(why: OrderCancelled, was: PaymentReserved, bank: Bank, saga: Saga[Wallet]) -> None:
        await saga.step(bank.plain, was.order_id)
        raise ConnectionError("no answer")

    return payment, bank


async def calls_of(place: Workplace, payment: Service[Wallet], *, card: str = "") -> list[StepRecord]:
    await place.publish(replace(an_order(card=card), address=""))
    await place.at_rest(payment)
    return [call for entry in await place.history(payment) for call in entry.calls]


async def test_the_arguments_of_steps_and_updates_are_recorded_as_people_read_them(tmp_path: Path) -> None:
    async def body(order: OrderPlaced, bank: Bank, saga: Saga[Wallet]) -> None:
        await saga.read(Account, "a-1")
        await saga.update(Account, "a-1", draw, 420, note="tea & \u202eeat")
        await saga.step(bank.ping)
        await saga.step(bank.plain, ["a", {"b": None}])
        await saga.step(bank.charge, order.order_id, Decimal("4.20"), note="tea")

    payment, _ = payment_with(body)
    async with workplace(tmp_path) as place, at_work(place, payment):
        assert [call.description for call in await calls_of(place, payment)] == [
            "read accounts",
            'update draw(420, note="tea & \u202eeat")',
            "step ping",
            'step plain(["a",{"b":null}])',
            'step charge("order-1", "4.20", note="tea")',
        ]


async def test_arguments_of_a_run_with_a_sensitive_boolean_are_redacted(tmp_path: Path) -> None:
    async def body(order: OrderPlaced, bank: Bank, saga: Saga[Wallet]) -> None:
        await saga.step(bank.plain, "before")
        positive = await saga.step(bank.tested)
        await saga.step(bank.plain, positive)
        await saga.step(bank.plain, "a medicine" if positive else "nothing")

    payment, _ = payment_with(body)
    async with workplace(tmp_path) as place, at_work(place, payment):
        words = [call.description for call in await calls_of(place, payment)]
    assert words == ['step plain("before")', "step tested", "step plain", "step plain"]


async def test_arguments_are_in_the_intent_before_the_call_and_in_escalations(tmp_path: Path) -> None:
    async def body(order: OrderPlaced, bank: Bank, saga: Saga[Wallet]) -> None:
        await saga.step(bank.charge, order.order_id, Decimal(7))

    payment, bank = payment_with(body)
    bank.fails = (ConnectionError("no answer"),)
    async with workplace(tmp_path) as place, at_work(place, payment):
        await place.publish(replace(an_order(card=""), address=""))
        await place.until(lambda: bool(place.reported_dead_letters()))
        p = await place.progress(payment)
        assert p is not None
        (intent,) = p.intents
        assert intent.begins is not None
        assert intent.begins.description == 'step charge("order-1", "7")'
        await place.publish(OrderCancelled(order_id="order-1", reason="late"))
        await place.until(lambda: bool(place.reported(Escalated)))
        (escalated,) = place.reported(Escalated)
        assert escalated.steps == ('step charge("order-1", "7") may have happened',)


async def test_arguments_are_in_the_escalation_of_a_failing_compensation(tmp_path: Path) -> None:
    async def body(order: OrderPlaced, bank: Bank, saga: Saga[Wallet]) -> None: ...

    payment, _ = payment_with(body)
    async with workplace(tmp_path) as place, at_work(place, payment):
        await calls_of(place, payment)
        await place.publish(OrderCancelled(order_id="order-1", reason="late"))
        await place.until(lambda: bool(place.reported(Escalated)))
        while not (dead := await place.dead(payment)):
            await place.clock.sleep(0.01)
        assert dead[0][1]["dead_call"] == 'step plain("order-1") ran'


async def test_long_ones_are_not(tmp_path: Path) -> None:
    async def body(order: OrderPlaced, bank: Bank, saga: Saga[Wallet]) -> None:
        await saga.step(bank.plain, "x" * (recorded_values.ARGUMENT_BYTES_MAX - len('[[""],{}]')))
        await saga.step(bank.plain, "x" * (recorded_values.ARGUMENT_BYTES_MAX - len('[[""],{}]') + 1))

    payment, _ = payment_with(body)
    async with workplace(tmp_path) as place, at_work(place, payment):
        assert [bool(call.arguments) for call in await calls_of(place, payment)] == [True, False]


@pytest.mark.parametrize("where", ["event", "state"])
async def test_a_run_that_was_given_something_sensitive_keeps_all_to_itself(tmp_path: Path, where: str) -> None:
    async def body(order: OrderPlaced, bank: Bank, saga: Saga[Wallet]) -> None:
        if where == "state":
            saga.state = Wallet("4111 1111")
        await saga.step(bank.plain, "41111111")
        await saga.update(Account, "a-1", draw, 1, note="41111111")

    payment, _ = payment_with(body)
    async with workplace(tmp_path) as place, at_work(place, payment):
        calls = await calls_of(place, payment, card="4111 1111" if where == "event" else "")
        assert [(call.name, call.arguments) for call in calls] == [("plain", ""), ("draw", "")]


async def test_so_does_one_from_the_answer_on_that_is_sensitive(tmp_path: Path) -> None:
    async def body(order: OrderPlaced, bank: Bank, saga: Saga[Wallet]) -> None:
        await saga.step(bank.plain, 1)
        token = await saga.step(bank.charge, order.order_id, Decimal(7))
        await saga.step(bank.plain, token[::-1])

    payment, _ = payment_with(body)
    async with workplace(tmp_path) as place, at_work(place, payment):
        assert [call.arguments for call in await calls_of(place, payment)] == ["1", '"order-1", "7"', ""]


async def test_arguments_of_sensitive_types_are_redacted(tmp_path: Path) -> None:
    async def body(order: OrderPlaced, bank: Bank, saga: Saga[Wallet]) -> None:
        card = Card("Ada", "4111")
        await saga.step(bank.pay, card, "1234", order="o")
        await saga.step(bank.pay, card, pin="1234", order="o")
        await saga.step(bank.plain, [card, {"at": card}, ((Pair("4111"),),), "***"])
        await saga.update(Account, "a-1", spend, "4111", 7)

    payment, _ = payment_with(body)
    async with workplace(tmp_path) as place, at_work(place, payment):
        assert [call.arguments for call in await calls_of(place, payment)] == [
            '"***", "***", order="o"',
            '"***", pin="***", order="o"',
            '["<Card>",{"at":"<Card>"},[["<Pair>"]],"***"]',
            '"***", 7',
        ]


async def test_calls_that_are_kept_for_a_later_turn_are_without_as_older_toolkits_know_none(tmp_path: Path) -> None:
    async with workplace(tmp_path) as place:
        kept: list[StepRecord] = []

        async def body(order: OrderPlaced, bank: Bank, saga: Saga[Wallet]) -> Later | None:
            if saga.elapsed:
                p = await place.progress(payment)
                assert p is not None
                kept.extend(p.suspended_runs[0].calls)
                return None
            await saga.step(bank.plain, 7)
            return Later(after=timedelta(days=1))

        payment, _ = payment_with(body)
        async with at_work(place, payment):
            (call,) = await calls_of(place, payment)
        assert call.arguments == "7"
        assert [(each.name, each.arguments) for each in kept] == [("plain", "")]


def test_sensitive_star_arguments_are_redacted() -> None:
    def pay(order: str, /, *cards: Annotated[str, sensitive], note: str, **pins: Annotated[str, sensitive]) -> None: ...

    shown = recorded_values.describe_arguments(
        pay, ("o", "4111", "4222"), {"note": "n", "order": "4333", "pin": "1234"}
    )
    assert shown == '"o", "***", "***", note="n", order="***", pin="***"'


class Colour(Enum):
    RED = "red"


def unread(card: "Nowhere") -> None: ...  # type: ignore[name-defined] # noqa: F821 - the mistake


@dataclass
class Odd:
    card: "str of" = ""  # type: ignore[valid-type] # noqa: F722 - the mistake


@pytest.mark.parametrize("call", [unread, partial(draw, Account()), min])
def test_arguments_are_redacted_when_annotations_cannot_be_read(call: Callable[..., object]) -> None:
    assert recorded_values.describe_arguments(call, ("4111",), {}) == ""


def test_an_object_argument_is_recorded_by_its_class_name() -> None:
    def pay(card: Odd) -> None: ...

    assert recorded_values.describe_arguments(pay, (Odd("4111"),), {}) == '"<Odd>"'
    assert recorded_values.describe_arguments(draw, (), {"note": Odd("4111")}) == 'note="<Odd>"'


def test_values_without_fields_are_shown_as_they_are() -> None:
    values = [None, True, 7, 0.5, Decimal("4.20"), UUID(int=7), date(2026, 1, 1), timedelta(1), Colour.RED, {"1": "x"}]
    assert recorded_values.describe_arguments(Bank.plain, ("", values), {}).endswith(
        '[null,true,7,0.5,"4.20","00000000-0000-0000-0000-000000000007","2026-01-01","P1D","red",{"1":"x"}]'
    )
