"""Sensitive values: a saga goes through all that can happen to it, and none of them is in anything that people see."""

import asyncio
import io
import json
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pytest
from click.testing import CliRunner

from saga import Retry, Saga, Service, sensitive
from saga.cli.main import main
from saga.configuration.settings import Settings
from saga.contracts import codec
from saga.encryption.sensitive_fields import hide_marked
from saga.errors import BadInput
from saga.ops.dead_letters import DeadLetter, decode_dead_letter
from saga.ops.operator_commands import CommandRequest
from saga.ops.rehearsal import RehearsalSetup, rehearse
from saga.ops.selection import Operator
from saga.support.clock import SystemClock
from saga.telemetry.alert_hook import encode_body
from saga.telemetry.events import Escalated, TelemetryEvent
from saga.telemetry.logs import EventLog
from saga.telemetry.metrics import Metrics, MetricsPage
from services.payment.events import (
    OrderCancelled,
    OrderConfirmed,
    OrderPlaced,
    PaymentCaptured,
    PaymentReleased,
    PaymentReserved,
)
from tests.engine.real_worker import ROOT, Workplace, an_order, at_work, workplace

CARD, TOKEN, IBAN, PIN = "4111-SECRET-1111", "token-SECRET-2222", "DE-SECRET-'33\n33", "pin-SECRET"
OTHER, HANDED, LOST = "other-SECRET-4444", "handed-SECRET-5555", "lost-SECRET-6666"
"""Values of sensitive fields: none may be seen, not even in a part."""


@dataclass(frozen=True)
class Wallet:
    seen: int = 0
    card: Annotated[str, sensitive] = ""
    tokens: "tuple[Token, ...]" = ()


@dataclass(frozen=True)
class Token:
    kind: str
    text: Annotated[str, sensitive]


@dataclass(frozen=True)
class Customer:
    orders: int = 0
    iban: Annotated[str | None, sensitive] = None


class Declined(Exception):
    """The bank says no."""


class Bank:
    """Bank whose calls tell what they are handed when they fail."""

    async def tokenize(self, card: str) -> Token:
        if "declined" in card:
            raise Declined("no")
        if "away" in card:
            raise ConnectionError(f"no answer for {card}")
        return Token("visa", TOKEN)

    async def pin(self, card: str) -> Annotated[str, sensitive]:
        if "away" in card:
            raise ConnectionError(f"no pin for {card}")
        return PIN

    async def forget(self, card: Annotated[str, sensitive]) -> None:
        raise ConnectionError(f"{card} cannot be forgotten, nor {CARD}-away")


def count(customer: Customer | None) -> tuple[Customer, Annotated[str | None, sensitive]]:
    customer = customer or Customer(iban=IBAN)
    if customer.orders > 100:
        raise LookupError(customer.iban)
    return replace(customer, orders=customer.orders + 1), customer.iban


def quoted(customer: Customer) -> Customer:
    raise LookupError(customer.iban)


def lost(customer: Customer) -> Customer:
    return LOST  # type: ignore[return-value] # the mistake


payment = Service("payment", state=Wallet)
payment.document(Customer, "customers")


@payment.resource(expected_errors=(Declined,))
async def bank() -> AsyncIterator[Bank]:
    yield Bank()


@payment.handler(retry=Retry(attempts_max=3))
async def reserve(order: OrderPlaced, bank: Bank, saga: Saga[Wallet]) -> PaymentReserved:
    saga.on_abort(bank.forget, HANDED)
    try:
        token = await saga.step(bank.tokenize, order.card)
    except Declined as why:
        raise PermissionError(f"{order} was declined") from why
    pin = await saga.step(bank.pin, order.card)
    known = await saga.read(Customer, order.customer_id)
    iban = await saga.update(Customer, order.customer_id, count)
    saga.state = replace(saga.state, seen=7, card=order.card, tokens=(token,))
    match order.sku:
        case "card":
            raise LookupError(f"nobody takes {order.card!r}")
        case "token":
            raise LookupError(token, saga.state)
        case "iban":
            raise LookupError(f"{iban!r} {known} {pin}") from ValueError(repr(iban))
        case "state":
            saga.state = order.card  # type: ignore[assignment] # the mistake
        case "document":
            await saga.update(Customer, order.customer_id, lost)
        case "other":
            await saga.update(Customer, "customer-2", quoted)
        case "saga":
            return PaymentReserved(order_id=order.order_id, charge_id=f"{order.card}\udfff", amount=order.total)
    return PaymentReserved(order_id=order.order_id, charge_id="c", amount=order.total)


@payment.handler(retry=Retry(attempts_max=1))
async def capture(confirmed: OrderConfirmed, was: PaymentReserved, bank: Bank, saga: Saga[Wallet]) -> PaymentCaptured:
    await saga.step(bank.pin, f"{saga.state.card}-away")
    saga.state = replace(saga.state, seen=8)
    raise LookupError("no more")


@payment.compensation(reserve)
async def release(why: OrderCancelled, was: PaymentReserved, saga: Saga[Wallet]) -> PaymentReleased:
    if why.reason == "stuck":
        raise RuntimeError(f"{saga.state.card} stands")
    return PaymentReleased(order_id=why.order_id, charge_id=was.charge_id)


SKUS = ("tea", "card", "token", "iban", "state", "document", "other", "saga")


async def a_life(place: Workplace) -> None:
    """Sagas that succeed, that fail in each way, that are undone, and that cannot be."""
    orders = [an_order(f"order-{sku}", sku=sku, card=CARD) for sku in SKUS]
    orders += [an_order(f"order-{card}", card=f"{CARD}-{card}") for card in ("declined", "away", "gone away")]
    await place.store.insert("customers", "customer-2", msgspec.json.encode(Customer(iban=OTHER)))
    async with at_work(place, payment, use=(Bank(),)):
        await place.publish(*orders, an_order("order-paid", card=CARD), OrderConfirmed(order_id="order-paid"))
        await place.at_rest(payment)
        await place.until(lambda: len(place.reported_dead_letters()) >= len(orders))
        await place.publish(*(OrderCancelled(order_id=f"order-{end}", reason="") for end in ("tea", "card", "away")))
        await place.publish(an_order("order-stuck", card=CARD))
        await place.publish(OrderCancelled(order_id="order-stuck", reason="stuck"))
        await place.until(lambda: {each.saga for each in place.reported(Escalated)} >= {"order-stuck", "order-away"})


def logged(moments: Iterable[TelemetryEvent], form: Literal["json", "text"]) -> str:
    """Lines of a log that tells all of them."""
    stream = io.StringIO()
    log = EventLog(stream, Settings(log=form, log_level="debug"))
    for moment in moments:
        log.report(moment)
    return stream.getvalue()


async def counted(moments: Iterable[TelemetryEvent]) -> str:
    """Page of metrics that has heard all of them."""
    metrics = Metrics({}, SystemClock())
    for moment in moments:
        metrics(moment)
    return (await MetricsPage(metrics, SystemClock()).text("text/plain"))[0].decode()


async def seen_by_people(folder: Path) -> tuple[dict[str, str], list[DeadLetter]]:
    """All that is reported of these sagas, by where it stands; and their dead letters."""
    seen: dict[str, str] = {}
    async with workplace(folder) as place:
        await a_life(place)
        for n, moment in enumerate(place.moments):
            seen[f"moment {n} {type(moment).__name__}"] = str(moment)
            if (body := encode_body(moment, 0, 0)) is not None:
                seen[f"hook {n}"] = body[1].decode()
        seen["log"] = logged(place.moments, "json")
        seen["log for people"] = logged(place.moments, "text")
        seen["metrics"] = await counted(place.moments)
        dead = await place.dead(payment)
        for n, (_, headers) in enumerate(dead):
            seen[f"dead letter {n}"] = json.dumps(headers)
        for collection in ("saga", "saga-archive"):
            async for key, document in place.store.scan(collection):
                seen[f"{collection} {key}"] = json.dumps(hide_marked(json.loads(document.content)), ensure_ascii=False)
        letters = [letter for record, _ in dead if (letter := decode_dead_letter("payment", record)) is not None]
        for letter in letters:
            if letter.what == "dead letter":
                wish = CommandRequest(wanted="replay", operator=Operator("me", "to see"))
                setup = RehearsalSetup(declared=payment.declared, store=place.store, clock=place.clock)
                rehearsal = await rehearse(letter, wish, setup)
                seen[f"rehearsal of {letter.id}"] = str(rehearsal)
    return seen, letters


def test_no_sensitive_value_is_in_anything_that_people_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, letters = asyncio.run(seen_by_people(tmp_path))
    monkeypatch.setenv("SAGA_CONTRACTS", str(ROOT / "contracts"))
    monkeypatch.setenv("SAGA_BROKER", f"embedded:///{tmp_path}/broker.db")
    monkeypatch.setenv("SAGA_STORE", f"sqlite:///{tmp_path}/store.db")
    sagas = [f"order-{end}" for end in (*SKUS, "declined", "away", "stuck", "paid")]
    commands = [("sagas", "list"), ("sagas", "list", "--json"), ("dead", "list"), ("dead", "list", "--json")]
    commands += [("dead", "show", letter.id) for letter in letters]
    commands += [("sagas", "show", saga, *more) for saga in sagas for more in SHOWN]
    commands += [
        ("sagas", "show", f"order-{sku}", "--service", "payment", "--transition", "0", "--json") for sku in SKUS
    ]
    for command in commands:
        done = CliRunner().invoke(main, command, catch_exceptions=False, prog_name="saga")
        assert done.exit_code in (0, 1), (command, done.output)
        seen[" ".join(command)] = done.output
    assert {where: text for where, text in seen.items() if "SECRET" in text} == {}
    assert "***" in seen["sagas show order-tea --json"]
    assert "***" in json.dumps([letter.state for letter in letters])
    rehearsals = " ".join(text for where, text in seen.items() if where.startswith("rehearsal"))
    assert 'reserve would call Bank.tokenize("***")' in rehearsals
    assert "'card': '***'" in rehearsals
    assert any("LookupError: nobody takes '***'" in text for text in seen.values())


SHOWN = ((), ("--steps", "--values"), ("--json", "--values"), ("--json",))


@pytest.mark.parametrize(
    "failing",
    [
        lambda: codec.encode(an_order(card=f"{CARD}\udfff")),
        lambda: codec.encode(
            replace(an_order(), card=CARD.encode()),  # type: ignore[arg-type] # the mistake
        ),
        lambda: codec.from_json({"order_id": "o", "card": [CARD]}, OrderPlaced),
        lambda: codec.to_json(an_order(card=f"{CARD}\udfff")),
    ],
)
def test_an_error_about_an_event_does_not_show_its_sensitive_values(failing: Callable[[], object]) -> None:
    with pytest.raises(BadInput) as refusal:
        failing()
    assert "SECRET" not in str(refusal.value)


def test_an_event_is_printed_without_its_sensitive_fields() -> None:
    assert "SECRET" not in repr(an_order(card=CARD))
    assert repr(an_order(card=CARD)) == repr(an_order(card="another"))
    assert an_order(card=CARD) != an_order(card="another")
