"""Sealed values: with keys no sensitive value lies anywhere in the clear, and without its key none can be read."""

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import msgspec
import pytest

from saga import Retry, Saga, Service, sensitive
from saga.clients import events
from saga.configuration.settings import Settings
from saga.contracts import codec
from saga.contracts.encryption import decrypt_fields, encrypt_fields
from saga.contracts.library import binding_of
from saga.encryption.key_folder import KeyFolder
from saga.encryption.keys import SubjectKey
from saga.encryption.sensitive_fields import find_key_names, recorded_place
from saga.engine.consumer.flow_control import FlowControl, FlowLimits
from saga.engine.execution.value_codec import STATE, ValueCodec, place_of_call
from saga.engine.isolated_ports import RecordedClock, RecordedDocuments, make_isolated_ports
from saga.engine.prepared_service import prepare
from saga.engine.processing_state import Measurements, ProcessingState
from saga.engine.service_runtime import make_service_runtime
from saga.errors import BadInput, Permanent, SagaError
from saga.messages import Position
from saga.ops.dead_letters import DeadLetter
from saga.ops.operator_commands import CommandRequest, send_commands
from saga.ops.selection import Deployment, Operator
from saga.progress.document import RunKey, StepRecord, decode_progress, progress_key
from saga.progress.overflow import is_claim
from saga.telemetry.events import Parked, Recovered, Unavailable
from saga.testing.world import encode_answer
from services.payment.events import OrderCancelled, OrderConfirmed, OrderPlaced, PaymentReleased, PaymentReserved
from tests.encryption.readable import can_be_read
from tests.engine.real_worker import SAGA, Workplace, an_order, at_work, message_of, workplace

CARD, TOKEN, IBAN = "4111-SECRET-1111", "token-SECRET-2222", "iban-SECRET-3333"


@dataclass(frozen=True)
class Wallet:
    card: Annotated[str, sensitive] = ""
    seen: int = 0


@dataclass(frozen=True)
class Customer:
    iban: Annotated[str, sensitive] = IBAN


class Bank:
    """Bank that notes what it is handed."""

    def __init__(self) -> None:
        self.handed: list[str] = []
        self.answers = True
        self.stop: asyncio.Event | None = None
        """Event to be set when it does not answer."""

    async def tokenize(self, card: str) -> Annotated[str, sensitive]:
        self.handed.append(f"tokenize {card}")
        return TOKEN

    async def reserve(self, token: str) -> str:
        self.handed.append(f"reserve {token}")
        if not self.answers:
            if self.stop is not None:
                self.stop.set()
            raise ConnectionError("away")
        return "charge-1"

    async def forget(self, token: Annotated[str, sensitive]) -> None:
        self.handed.append(f"forget {token}")

    async def release(self, charge: str, card: str) -> None:
        self.handed.append(f"release {charge} {card}")


class RealBank(Bank):
    """The one that tests take the place of."""


def look(customer: Customer | None) -> tuple[Customer, Annotated[str, sensitive]]:
    return customer or Customer(), (customer or Customer()).iban


payment = Service("payment", state=Wallet)
payment.document(Customer, "customers")


@payment.resource()
async def bank() -> AsyncIterator[Bank]:
    yield RealBank()


@payment.handler(retry=Retry(attempts_max=2))
async def reserve(order: OrderPlaced, bank: Bank, saga: Saga[Wallet]) -> PaymentReserved:
    token = await saga.step(bank.tokenize, order.card)
    saga.on_abort(bank.forget, token)
    iban = await saga.update(Customer, order.customer_id, look)
    assert iban == (IBAN if order.card == CARD else "erased")
    known = await saga.read(Customer, order.customer_id)
    assert known == Customer(iban=iban)
    charge = await saga.step(bank.reserve, token)
    saga.state = Wallet(card=order.card, seen=1)
    return PaymentReserved(order_id=order.order_id, charge_id=charge, amount=order.total)


@payment.compensation(reserve)
async def release(why: OrderCancelled, was: PaymentReserved, bank: Bank, saga: Saga[Wallet]) -> PaymentReleased:
    await saga.step(bank.release, was.charge_id, saga.state.card)
    return PaymentReleased(order_id=why.order_id, charge_id=was.charge_id)


def order_of(saga: str = SAGA) -> OrderPlaced:
    return an_order(saga, card=CARD)


def keys_in(folder: Path, place: Workplace) -> KeyFolder:
    """Keys as another process has them, from the folder of this test."""
    keys = KeyFolder(folder / "keys", place.clock)
    if not keys.folder.exists():
        keys.create_wrapping_key("ada", "the first one")
    return keys


async def publish_orders(place: Workplace, keys: KeyFolder, *orders: OrderPlaced) -> None:
    """Publish as a Client with keys does."""
    records = []
    for order in orders:
        seal = await events.encryptor_of(order, keys)
        records.append(events.to_record(order, place.clock.now_ms(), encrypt=seal))
    await place.broker.publish(records)


def in_the_clear(folder: Path, text: bytes = b"SECRET") -> list[str]:
    """Files of stores and logs in which something sensitive can be read."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return [path.name for path in files if can_be_read(text, path.read_bytes())]


async def test_with_keys_nothing_sensitive_lies_in_a_store_or_a_log_and_handlers_see_it_all_the_same(
    tmp_path: Path,
) -> None:
    async with workplace(tmp_path) as place:
        keys, bank = keys_in(tmp_path, place), Bank()
        async with at_work(place, payment, use=(bank,), keys=keys):
            await publish_orders(place, keys, order_of())
            await place.at_rest(payment)
            await place.publish(OrderCancelled(order_id=SAGA, reason="no"))
            await place.at_rest(payment)
        assert bank.handed == [f"tokenize {CARD}", f"reserve {TOKEN}", f"release charge-1 {CARD}"]
        assert [entry.outcome for entry in await place.history(payment)] == ["handled", "compensated"]
        p = await place.progress(payment)
        assert p is not None
        assert p.state["card"]["_sensitive"].startswith("sealed:1:")
        documents = [content async for key, content in place.store.scan("customers")]
        assert b"SECRET" in documents[0].content  # what an application keeps is its own affair, but not what it gave
        await place.store.remove("customers", "customer-1", cas=documents[0].cas)
    for file in ("store.db", "broker.db"):
        with closing(sqlite3.connect(tmp_path / file)) as connection:
            connection.execute("VACUUM")  # what was removed is still in the file before
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert in_the_clear(tmp_path) == []


async def test_values_of_an_erased_subject_read_as_erased_and_compensations_still_run(tmp_path: Path) -> None:
    async with workplace(tmp_path) as place:
        keys, bank = keys_in(tmp_path, place), Bank()
        async with at_work(place, payment, use=(bank,), keys=keys):
            await publish_orders(place, keys, order_of())
            await place.at_rest(payment)
        (record,) = await place.records("orders")
        assert keys.forget(SAGA, "ada", "asked for it")
        assert not keys.forget(SAGA, "ada", "asked for it again")
        async with at_work(place, payment, use=(bank,), keys=keys_in(tmp_path, place)):
            await place.publish(OrderCancelled(order_id=SAGA, reason="no"))
            await place.at_rest(payment)
        assert bank.handed[-1] == "release charge-1 erased"
        assert [entry.outcome for entry in await place.history(payment)] == ["handled", "compensated"]
        assert not place.reported_dead_letters()
        everyone = keys_in(tmp_path, place)
        names = find_key_names(record.value or b"")
        assert [await everyone.get_key(name) for name in names] == [None]
        with pytest.raises(SagaError, match=r"the key of its order_id was erased for good by saga keys forget"):
            await publish_orders(place, everyone, order_of())
    content = b"".join(path.read_bytes() for path in (tmp_path / "keys").rglob("*") if path.is_file())
    assert b'"wrapped"' not in content


async def test_a_begun_run_resumes_after_an_erasure_and_is_not_taken_for_another(tmp_path: Path) -> None:
    async with workplace(tmp_path) as place:
        keys, bank = keys_in(tmp_path, place), Bank()
        bank.answers = False
        async with at_work(place, payment, use=(bank,), keys=keys):
            await publish_orders(place, keys, order_of())
            await place.until(lambda: bool(place.reported_dead_letters()))
        keys.forget(SAGA, "ada", "asked for it")
        bank.answers = True
        async with at_work(place, payment, use=(bank,), keys=keys_in(tmp_path, place)):
            (dead,) = await place.dead(payment)
            p = await place.progress(payment)
            from saga.testing.world import make_command

            await place.broker.publish([make_command("replay", p, place.clock.now_ms())])
            await place.until(lambda: bank.handed[-1] == "reserve erased")
            await place.at_rest(payment)
        assert [entry.outcome for entry in await place.history(payment)][-2:] == ["replayed", "handled"]
        assert "SECRET" not in json.dumps(dead[1])


async def test_a_message_that_is_published_again_is_the_same_message(tmp_path: Path) -> None:
    async with workplace(tmp_path) as place:
        keys = keys_in(tmp_path, place)
        for each in (keys, keys_in(tmp_path, place)):  # as two processes
            await publish_orders(place, each, order_of())
        one, other = await place.records("orders")
        assert (one.value, one.headers[1:2]) == (other.value, other.headers[1:2])
        await publish_orders(place, keys, replace(order_of(), card="another"), order_of("order-2"))
        assert len({record.value for record in await place.records("orders")}) == 3


async def test_keys_that_are_read_are_no_writes_by_which_the_load_of_store_and_broker_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = list[float]()
    monkeypatch.setattr(FlowControl, "took", lambda _, seconds, now_s: samples.append(seconds))
    counts = list[int]()
    for name in ("with keys", "without"):
        async with workplace(tmp_path / name) as place:
            keys = keys_in(tmp_path / name, place) if name == "with keys" else None
            async with at_work(place, payment, use=(Bank(),), keys=keys):
                await place.publish(order_of())
                await place.at_rest(payment)
                await place.publish(OrderCancelled(order_id=SAGA, reason="no"))
                await place.at_rest(payment)
        counts.append(len(samples))
        samples.clear()
    assert counts[0] == counts[1] > 0


async def test_while_the_keys_are_away_the_lane_waits_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = list[FlowControl]()
    monkeypatch.setattr(FlowControl, "on_failure", lambda flow: failures.append(flow))
    async with workplace(tmp_path) as place:
        keys, bank = keys_in(tmp_path, place), Bank()
        await publish_orders(place, keys, order_of())
        (tmp_path / "keys").rename(tmp_path / "elsewhere")
        away = KeyFolder(tmp_path / "keys", place.clock)
        async with at_work(place, payment, use=(bank,), keys=away):
            await place.until(lambda: bool(place.reported(Unavailable)))
            moment = place.reported(Unavailable)[0]
            assert (moment.what, moment.operation) == ("key folder", "get a key")
            assert "the folder of keys" in moment.error
            assert failures == [], "store and broker have less to do than before"
            assert not bank.handed
            (tmp_path / "elsewhere").rename(tmp_path / "keys")
            await place.at_rest(payment)
        assert [moment.what for moment in place.reported(Recovered)] == ["key folder"]
        (entry,) = await place.history(payment)
        assert (entry.outcome, entry.attempt) == ("handled", 1)


async def test_without_keys_a_sealed_text_is_not_taken_for_the_value(tmp_path: Path) -> None:
    async with workplace(tmp_path) as place:
        keys, bank = keys_in(tmp_path, place), Bank()
        await publish_orders(place, keys, order_of())
        async with at_work(place, payment, use=(bank,)):
            await place.until(lambda: bool(place.reported(Parked)))
            assert "set SAGA_KEYS" in place.reported(Parked)[0].error
        assert not bank.handed
        assert [entry.outcome for entry in await place.history(payment)] == ["retrying"]
        async with at_work(place, payment, use=(bank,), keys=keys):
            await place.until(lambda: bool(bank.handed))
            await place.at_rest(payment)
        assert bank.handed[0] == f"tokenize {CARD}"


FORGED = f"sealed:1:{'0' * 32}:AAAA"
"""Text that claims to be encrypted with a key that does not exist."""


async def test_a_text_with_a_made_up_key_is_parked_and_becomes_a_dead_letter_and_others_continue(
    tmp_path: Path,
) -> None:
    async with workplace(tmp_path) as place:
        keys, bank = keys_in(tmp_path, place), Bank()
        async with at_work(place, payment, use=(bank,), keys=keys):
            await place.broker.publish([place.to_client_record(an_order("order-2", card=FORGED))])
            await place.until(lambda: bool(place.reported(Parked)))
            assert "was never encrypted with a key of this folder" in place.reported(Parked)[0].error
            await publish_orders(place, keys, order_of())
            await place.until(lambda: "reserve token-SECRET-2222" in bank.handed)
            await place.until(lambda: bool(place.reported_dead_letters()))
            (dead,) = await place.dead(payment)
        assert bank.handed[0] == f"tokenize {CARD}"
        assert "its sender has forged it" in json.dumps(dead[1])


async def test_a_run_whose_state_has_a_key_that_is_missing_is_parked_until_it_is_back(tmp_path: Path) -> None:
    async with workplace(tmp_path) as place:
        keys, bank = keys_in(tmp_path, place), Bank()
        async with at_work(place, payment, use=(bank,), keys=keys):
            await publish_orders(place, keys, order_of())
            await place.at_rest(payment)
        (secret,) = (tmp_path / "keys" / "subjects").glob("??/*.json")
        secret.rename(tmp_path / "aside")
        async with at_work(place, payment, use=(bank,), keys=keys_in(tmp_path, place)):
            await place.publish(OrderCancelled(order_id=SAGA, reason="no"))
            await place.until(lambda: bool(place.reported(Parked)))
            assert bank.handed[-1] == f"reserve {TOKEN}"
            (tmp_path / "aside").rename(secret)
            await place.until(lambda: bank.handed[-1] == f"release charge-1 {CARD}")
            await place.at_rest(payment)
        assert [entry.outcome for entry in await place.history(payment)] == ["handled", "retrying", "compensated"]


@pytest.mark.parametrize("has_keys", [True, False])
async def test_text_that_looks_encrypted_in_a_field_that_is_not_sensitive_is_not_changed(
    tmp_path: Path, has_keys: bool
) -> None:
    """Anybody can type it into a form."""
    async with workplace(tmp_path) as place:
        keys, bank = keys_in(tmp_path, place) if has_keys else None, Bank()
        async with at_work(place, payment, use=(bank,), keys=keys):
            order = replace(an_order(card=CARD), customer_id=FORGED)
            await place.broker.publish([place.to_client_record(order)])
            await place.at_rest(payment)
        (entry,) = await place.history(payment)
        assert (entry.outcome, entry.attempt) == ("handled", 1)


async def test_runs_begun_without_keys_resume_with_them_and_vice_versa(tmp_path: Path) -> None:
    async with workplace(tmp_path) as place:
        bank = Bank()
        bank.answers = False
        async with at_work(place, payment, use=(bank,), limits=FlowLimits(drain_s=0)) as bank.stop:
            await place.broker.publish([place.to_client_record(order_of())])
            await place.until(lambda: "reserve token-SECRET-2222" in bank.handed)
        bank.answers = True
        async with at_work(place, payment, use=(bank,), keys=keys_in(tmp_path, place)):
            await place.at_rest(payment)
        assert bank.handed.count(f"tokenize {CARD}") == 1
        assert [entry.outcome for entry in await place.history(payment)][-1] == "handled"


async def test_a_sealed_text_opens_nowhere_but_in_its_field_and_saga(tmp_path: Path) -> None:
    async with workplace(tmp_path) as place:
        keys = keys_in(tmp_path, place)
        key = await keys.get_or_create_key("ada")
        binding = binding_of(OrderPlaced)
        value = encrypt_fields(place.to_client_record(order_of()).value or b"", binding.version, SAGA, key)
        assert decrypt_fields(value, binding.library, SAGA, lambda _: key) == place.to_client_record(order_of()).value
        assert key is not None
        another = codec.encode(an_order(card=key.encrypt(b"Kiel", f"OrderPlaced|address|{SAGA}")))
        at = value.index(b"sealed:1:") + 50
        changed = value[:at] + (b"AA" if value[at : at + 2] != b"AA" else b"BB") + value[at + 2 :]
        for wrong, saga in ((value, "order-2"), (another, SAGA), (changed, SAGA)):
            with pytest.raises(BadInput, match="it was encrypted for another field or saga, or changed since"):
                decrypt_fields(wrong, binding.library, saga, lambda _: key)


@dataclass(frozen=True)
class WalletV1:
    card: Annotated[str, sensitive] = ""
    cents: Annotated[int, sensitive] = 0


later = Service("payment", state=WalletV1)


@later.handler
async def note(order: OrderPlaced, saga: Saga[WalletV1]) -> None:
    saga.state = WalletV1(card=order.card, cents=4711)


newer = Service("payment", state=Wallet)


@newer.migrate(1)
def moved(old: WalletV1) -> Wallet:
    return Wallet(card=f"{old.card} {old.cents}", seen=1)


async def as_before(order: OrderPlaced, saga: Saga[Wallet]) -> None:
    saga.state = Wallet(card=order.card)


as_before.__name__ = "note"
newer.handler(as_before)


@newer.handler
async def confirm(confirmed: OrderConfirmed, saga: Saga[Wallet]) -> None:
    seen.append(saga.state.card)
    saga.state = replace(saga.state, seen=2)


seen: list[str] = []


async def test_a_sealed_state_is_migrated_and_sealed_again(tmp_path: Path) -> None:
    async with workplace(tmp_path) as place:
        keys = keys_in(tmp_path, place)
        async with at_work(place, later, keys=keys):
            await publish_orders(place, keys, order_of())
            await place.at_rest(later)
        async with at_work(place, newer, keys=keys):
            await place.publish(OrderConfirmed(order_id=SAGA))
            await place.at_rest(newer)
        assert seen.pop() == f"{CARD} 4711"
        p = await place.progress(newer)
        assert p is not None
        assert (p.version, p.state["seen"]) == (2, 2)
        assert p.state["card"]["_sensitive"].startswith("sealed:1:")
        keys.forget(SAGA, "ada", "asked for it")
        other = keys_in(tmp_path, place)
        async with at_work(place, newer, keys=other):
            assert await other.get_or_create_key(SAGA) is None


async def test_an_erased_state_field_that_is_no_text_has_its_default(tmp_path: Path) -> None:
    async with workplace(tmp_path) as place:
        keys = keys_in(tmp_path, place)
        async with at_work(place, later, keys=keys):
            await publish_orders(place, keys, order_of())
            await place.at_rest(later)
        keys.forget(SAGA, "ada", "asked for it")
        async with at_work(place, newer, keys=keys):
            await place.publish(OrderConfirmed(order_id=SAGA))
            await place.at_rest(newer)
        assert seen.pop() == "erased 0"
        assert not place.reported_dead_letters()


large = Service("payment")


async def statement(card: str) -> Annotated[str, sensitive]:
    return "SECRET " * 20_000


@large.handler
async def tell(order: OrderPlaced, saga: Saga) -> PaymentReserved:
    text = await saga.step(statement, order.card)
    return PaymentReserved(order_id=order.order_id, charge_id=str(len(text)), amount=order.total)


async def test_a_large_result_lies_sealed_in_its_document_of_its_own(tmp_path: Path) -> None:
    async with workplace(tmp_path) as place:
        keys = keys_in(tmp_path, place)
        async with at_work(place, large, keys=keys):
            await publish_orders(place, keys, order_of())
            await place.at_rest(large)
        (content,) = [document.content async for key, document in place.store.scan("saga-archive") if is_claim(key)]
        assert b"sealed:1:" in content
        assert b"SECRET" not in content
        (entry,) = await place.history(large)
        assert entry.outcome == "handled"
    assert in_the_clear(tmp_path) == []


# ---------------------------------------------------------------- answers of people, and places of recorded values


class Silent(Bank):
    """Bank that gives no token."""

    async def tokenize(self, card: str) -> Annotated[str, sensitive]:
        raise ConnectionError("away")


@pytest.mark.parametrize("tool", ["has keys", "has none"])
async def test_the_answer_of_an_operator_is_sealed_as_that_of_a_step_and_its_run_resumes_with_it(
    tool: str, tmp_path: Path
) -> None:
    async with workplace(tmp_path) as place:
        keys, bank = keys_in(tmp_path, place), Silent()
        async with at_work(place, payment, use=(bank,), keys=keys):
            await publish_orders(place, keys, order_of())
            await place.until(lambda: bool(place.reported_dead_letters()))
            p = await place.progress(payment)
            assert p is not None
            dead = p.queue[0].dead or ""
            letter = DeadLetter(service="payment", id=dead, what="", time="", reason="", remedy="", saga=SAGA)
            answer = encode_answer("tokenize", "token-ANSWERED", None)
            wish = CommandRequest(
                wanted="resolve", operator=Operator("ada", "it is in the bank's list"), answered=answer
            )
            folder = str(keys.folder) if tool == "has keys" else ""
            settings = Settings(broker=f"embedded:///{tmp_path}/broker.db", keys=folder)
            await send_commands([letter], wish, Deployment(settings=settings, clock=place.clock, warn=print))
            await place.until(lambda: bool(bank.handed))
            await place.at_rest(payment)
        assert bank.handed == ["reserve token-ANSWERED"]
        assert [entry.outcome for entry in await place.history(payment)][-2:] == ["resolved", "handled"]
        (commanded,) = await place.records("payment.commands")
        assert can_be_read(b"ANSWERED", commanded.value or b"") is (tool == "has none")
        assert not [name for name in in_the_clear(tmp_path, b"ANSWERED") if name.startswith("store")]


async def test_an_answer_whose_saga_was_forgotten_is_not_sent(tmp_path: Path) -> None:
    async with workplace(tmp_path) as place:
        keys = keys_in(tmp_path, place)
        keys.forget(SAGA, "ada", "asked for it")
        letter = DeadLetter(service="payment", id="dead-1", what="", time="", reason="", remedy="", saga=SAGA)
        wish = CommandRequest(
            wanted="resolve", operator=Operator("ada", "-"), answered=encode_answer("tokenize", "token", None)
        )
        settings = Settings(broker=f"embedded:///{tmp_path}/broker.db", keys=str(keys.folder))
        with pytest.raises(BadInput, match="the key of saga order-1 was erased"):
            await send_commands([letter], wish, Deployment(settings=settings, clock=place.clock, warn=print))


async def test_recorded_values_that_change_places_within_a_saga_are_refused(tmp_path: Path) -> None:
    async with workplace(tmp_path) as place:
        keys = keys_in(tmp_path, place)
        ports = make_isolated_ports("payment", RecordedDocuments(1 << 20), RecordedClock(), 1 << 20, keys)
        service = make_service_runtime(prepare(payment.declared), {}, ports)
        message = message_of(order_of(), started=None)
        at = Position("orders", 0, 0)
        seals = ValueCodec(service, ProcessingState(message=message, position=at, measurements=Measurements()))
        seals.own = await keys.get_or_create_key(SAGA)
        assert seals.own is not None
        call = StepRecord(kind="step", name="tokenize", number=1, input="")
        run: RunKey = ("do", "reserve", "m-1")
        others: list[RunKey] = [("undo", "reserve", "m-1"), ("do", "note", "m-1"), ("do", "reserve", "m-2")]
        places = [
            STATE,
            place_of_call(run, call),
            place_of_call(run, msgspec.structs.replace(call, number=2)),
            place_of_call(run, msgspec.structs.replace(call, name="statement")),
            place_of_call(run, msgspec.structs.replace(call, kind="update")),
            *(place_of_call(other, call) for other in others),
        ]
        plain = msgspec.Raw(b'{"a":{"_sensitive":"x"},"b":[{"_sensitive":"x"},{"_sensitive":"y"}]}')
        for what in places:
            closed = seals.encrypt_raw(plain, what)
            assert await seals.decrypt_raw(closed, what) == plain
            for elsewhere in places:
                if elsewhere != what:
                    with pytest.raises(Permanent, match="was sealed for another place"):
                        await seals.decrypt_raw(closed, elsewhere)
        parts = msgspec.json.decode(seals.encrypt_raw(plain, STATE))
        for moved_ in ({**parts, "a": parts["b"][0]}, {**parts, "b": parts["b"][::-1]}, {"c": parts["a"]}):
            with pytest.raises(Permanent, match="was sealed for another place"):
                seals.decrypt(moved_, STATE)


async def killed_in_its_second_step(tmp_path: Path, place: Workplace) -> tuple[KeyFolder, Bank]:
    """Run a worker until the bank has been asked to reserve and has not answered: the token of the step before is on
    record."""
    keys, bank = keys_in(tmp_path, place), Bank()
    bank.answers = False
    async with at_work(place, payment, use=(bank,), keys=keys, limits=FlowLimits(drain_s=0)) as bank.stop:
        await publish_orders(place, keys, order_of())
        await place.until(lambda: f"reserve {TOKEN}" in bank.handed)
    return keys, bank


async def test_values_encrypted_by_an_earlier_release_are_read(tmp_path: Path) -> None:
    async with workplace(tmp_path) as place:
        keys, bank = await killed_in_its_second_step(tmp_path, place)
        await _replace_sealed(place, keys, lambda key: key.encrypt(f'"{TOKEN}"'.encode(), f"payment|{SAGA}"))
        bank.answers = True
        async with at_work(place, payment, use=(bank,), keys=keys):
            await place.at_rest(payment)
        assert bank.handed.count(f"tokenize {CARD}") == 1
        assert bank.handed[-1] == f"reserve {TOKEN}"


async def test_a_recorded_value_from_elsewhere_in_its_saga_fails_its_run(tmp_path: Path) -> None:
    async with workplace(tmp_path) as place:
        keys, bank = await killed_in_its_second_step(tmp_path, place)
        at = recorded_place("payment", SAGA, "state", "['card']")
        await _replace_sealed(place, keys, lambda key: key.encrypt_recorded(f'"{TOKEN}"'.encode(), at))
        async with at_work(place, payment, use=(bank,), keys=keys):
            await place.until(lambda: bool(place.reported_dead_letters()))
        assert "a recorded value was sealed for another place" in place.reported_dead_letters()[0].reason


async def _replace_sealed(place: Workplace, keys: KeyFolder, sealing: Callable[[SubjectKey], str]) -> None:
    """Put another sealed text in the place of the recorded answer of the first step."""
    key, document = await keys.get_or_create_key(SAGA), await place.store.get("saga", progress_key("payment", SAGA))
    assert key is not None
    assert document is not None
    (intent,) = decode_progress(document.content).intents
    text: str = msgspec.json.decode(intent.calls[0].value)["_sensitive"]
    content = document.content.replace(text.encode(), sealing(key).encode())
    await place.store.replace("saga", progress_key("payment", SAGA), content, cas=document.cas)
