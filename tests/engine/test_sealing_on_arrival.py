"""Messages whose sender knows nothing of keys: what is kept of them, and what is sent on, is sealed, whatever form they
have, and it cannot be read once their subject is forgotten."""

import base64
import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from saga import Change, Insert, Retry, Saga, Service
from saga.change import DocumentChange, to_record
from saga.contracts import codec
from saga.contracts.encryption import decrypt_fields, decrypt_value
from saga.contracts.foreign_values import frame, to_registered_schema
from saga.contracts.library import contract_of
from saga.encryption.sensitive_fields import find_key_names
from saga.engine.consumer.committer import Committer
from saga.engine.consumer.poison_guard import DeathCount
from saga.engine.consumer.record_router import route_record
from saga.engine.execution import value_codec
from saga.engine.isolated_ports import RecordedClock, RecordedDocuments, make_isolated_ports
from saga.engine.prepared_service import prepare
from saga.engine.service_runtime import make_service_runtime
from saga.errors import BadInput, KeyMissing, SchemaUnasked
from saga.messages import Headers, Message, Outgoing, Partition, Position, Record, Writer
from saga.messaging.names import ARCHIVES
from saga.telemetry.events import Parked
from saga.testing.world import make_command
from services.payment.events import OrderPlaced, PaymentReserved
from tests.encryption.readable import can_be_read
from tests.engine.deployed_contracts import Contracts, newer_order
from tests.engine.real_worker import SAGA, Workplace, an_order, at_work, workplace
from tests.engine.test_sealing import keys_in

CARD = "4111-SECRET-1111"
ORDER = replace(an_order(card=CARD), address="Kiel SECRET")
FIELDS = codec.to_json(ORDER)
ATTRIBUTES = {"specversion": "1.0", "id": "a7f3-1", "source": "/shops/kiel", "type": "org.example.shop.OrderPlaced"}
handed: list[str] = []
mended: list[bool] = []

payment = Service("payment", retry=Retry(attempts_max=1))


@payment.handler
async def reserve(order: OrderPlaced) -> PaymentReserved:
    handed.append(order.card)
    if not mended:
        raise ConnectionError(f"the bank refuses {order.card.lower()}")
    return PaymentReserved(order_id=order.order_id, charge_id="c", amount=order.total)


@contextmanager
def one_test() -> Iterator[None]:
    handed.clear()
    mended.clear()
    yield


def in_binary_mode(value: bytes, content_type: str = "application/json", key: str = SAGA) -> Outgoing:
    headers: Headers = tuple((f"ce_{name}", text.encode()) for name, text in ATTRIBUTES.items())
    return Outgoing("orders", key.encode(), value, (*headers, ("content-type", content_type.encode())))


def structured(**data: object) -> Outgoing:
    value = json.dumps({**ATTRIBUTES, **data}).encode()
    return Outgoing("orders", SAGA.encode(), value, (("content-type", b"application/cloudevents+json"),))


def as_json(**changed: object) -> bytes:
    return json.dumps({**FIELDS, **changed}).encode()


NATIVE = codec.encode(ORDER)
READABLE = {
    "single object of a client without keys": in_binary_mode(NATIVE, "application/avro"),
    "single object without any header": Outgoing("orders", SAGA.encode(), NATIVE, ()),
    "JSON": in_binary_mode(as_json()),
    "structured JSON": structured(data=FIELDS),
    "structured, with bytes": structured(
        datacontenttype="application/avro", data_base64=base64.b64encode(NATIVE).decode()
    ),
}
REFUSED = {
    "a number in the place of a text": in_binary_mode(as_json(card={"number": CARD, "pins": ["SECRET", 7]})),
    "a name that is misspelt": in_binary_mode(
        as_json(Card=CARD, quantity="many", more={"deep": [{"address": "SECRET"}]})
    ),
    "another type in a field that is not sensitive": in_binary_mode(as_json(quantity=["SECRET"], sku={"a": "SECRET"})),
    "a field that is missing": in_binary_mode(json.dumps({"order_id": SAGA, "card": CARD}).encode()),
    "a name that comes twice": in_binary_mode(as_json()[:-1] + b', "card": "SECRET"}'),
    "JSON that ends too early": in_binary_mode(as_json()[:-3]),
    "no object": in_binary_mode(json.dumps([CARD]).encode()),
    "half of a surrogate pair in the subject": in_binary_mode(as_json(order_id="order-\ud800")),
    "JSON with another content type": in_binary_mode(as_json(), "text/plain"),
    "markup": in_binary_mode(f"<card>{CARD}</card>".encode(), "application/xml"),
    "the key is not the saga": in_binary_mode(NATIVE, "application/avro", key="order-2"),
    "an event that ends too early": in_binary_mode(NATIVE[:-4], "application/avro"),
    "bytes behind the end": in_binary_mode(NATIVE + b"SECRET", "application/avro"),
    "the wire format of a registry that was not asked": in_binary_mode(frame(7, NATIVE), "application/avro"),
}
UNKNOWN = codec.MARKER + b"unknown!" + NATIVE[codec.HEADER_SIZE :]
LETTERS = {
    "no key": in_binary_mode(as_json(), key=""),
    "no key, and half of a surrogate pair in the subject": in_binary_mode(as_json(order_id="order-\ud800"), key=""),
    "an unknown schema, and no key": in_binary_mode(UNKNOWN, "application/avro", key=""),
    "no type, and no event": Outgoing("orders", SAGA.encode(), f"card={CARD}".encode(), ()),
    "a time that is none": in_binary_mode(NATIVE, "application/avro")._replace(
        headers=(("ce_type", b"OrderPlaced"), ("ce_id", b"1"), ("ce_time", b"yesterday"))
    ),
}


def stored(place: Workplace) -> list[bytes]:
    """Files of the store, as they are on the disk."""
    return [path.read_bytes() for path in place.folder.glob("store.db*")]


async def kept_by(place: Workplace) -> list[bytes]:
    """All that the service has written: its store as it is on the disk, and each topic but that of the sender."""
    files = stored(place)
    for topic in ("payments", "payment.dead", "payment.commands"):
        for record in await place.records(topic):
            files += [record.value or b"", *(value or b"" for _, value in record.headers)]
    return files


@pytest.mark.parametrize("form", READABLE)
async def test_plain_sensitive_values_of_senders_are_stored_encrypted_and_handlers_read_them(
    form: str, tmp_path: Path
) -> None:
    with one_test():
        async with workplace(tmp_path) as place:
            keys = keys_in(tmp_path, place)
            async with at_work(place, payment, keys=keys):
                await place.broker.publish([READABLE[form]])
                await place.until(lambda: bool(place.reported_dead_letters()))
                p = await place.progress(payment)
                assert p is not None
                (kept,) = p.queue
                assert len(find_key_names(kept.message.value)) == 1
                mended.append(True)
                await place.broker.publish([make_command("replay", p, place.clock.now_ms())])
                await place.until(lambda: len(handed) == 2)
                await place.at_rest(payment)
            assert handed == [CARD, CARD]
            assert [entry.outcome for entry in await place.history(payment)][-1] == "handled"
            assert not [1 for content in await kept_by(place) if can_be_read(b"SECRET", content)]


@pytest.mark.parametrize("form", [*REFUSED, *LETTERS])
async def test_an_unreadable_message_is_stored_encrypted_in_its_dead_letter_and_in_the_progress(
    form: str, tmp_path: Path
) -> None:
    with one_test():
        async with workplace(tmp_path) as place:
            async with at_work(place, payment, keys=keys_in(tmp_path, place)):
                await place.broker.publish([{**REFUSED, **LETTERS}[form]])
                await place.until(lambda: bool(place.reported_dead_letters()))
                (dead,) = await place.dead(payment)
            assert b"sealed:1:" in (dead[0].value or b"")
            assert not [1 for content in await kept_by(place) if can_be_read(b"SECRET", content)]
            assert handed == []


@pytest.mark.parametrize("form", REFUSED)
async def test_the_reason_is_the_same_with_keys_and_without(form: str, tmp_path: Path) -> None:
    reasons = []
    for folder in ("with", "without"):
        (tmp_path / folder).mkdir()
        async with workplace(tmp_path / folder) as place:
            keys = keys_in(tmp_path / folder, place) if folder == "with" else None
            async with at_work(place, payment, keys=keys):
                await place.broker.publish([REFUSED[form]])
                await place.until(lambda place=place: bool(place.reported_dead_letters()))  # type: ignore[misc] # of this round
                reasons.append(place.reported_dead_letters()[0].reason)
    assert reasons[0] == reasons[1]


async def test_values_of_a_subject_erased_before_the_message_are_never_stored(tmp_path: Path) -> None:
    with one_test():
        async with workplace(tmp_path) as place:
            keys = keys_in(tmp_path, place)
            keys.forget(SAGA, "ada", "asked for it")
            async with at_work(place, payment, keys=keys):
                await place.broker.publish([READABLE["JSON"], REFUSED["markup"]])
                await place.until(lambda: len(place.reported_dead_letters()) == 1)
                await place.at_rest(payment)
            assert handed == ["erased"]
            assert not [1 for content in await kept_by(place) if b"SECRET" in content or b"sealed:1:" in content]


async def test_a_message_with_a_lost_secret_is_parked_until_the_secret_is_restored(tmp_path: Path) -> None:
    with one_test():
        async with workplace(tmp_path) as place:
            await keys_in(tmp_path, place).get_or_create_key(SAGA)
            (secret,) = (tmp_path / "keys" / "subjects").glob("??/*.json")
            secret.rename(tmp_path / "aside")
            mended.append(True)
            async with at_work(place, payment, keys=keys_in(tmp_path, place)):
                await place.broker.publish([READABLE["JSON"]])
                await place.until(lambda: bool(place.reported_dead_letters()))
                assert "restore what it lacks" in place.reported_dead_letters()[0].reason
                (tmp_path / "aside").rename(secret)
                p = await place.progress(payment)
                await place.broker.publish([make_command("replay", p, place.clock.now_ms())])
                await place.at_rest(payment)
            assert handed == [CARD]


# ---------------------------------------------------------------- values of an unknown schema


def of_newer_schema(folder: Path) -> tuple[Contracts, bytes]:
    """Contracts that lack a version here, and an order of it."""
    contracts = Contracts(folder)
    newer = newer_order(contracts.newer_class("OrderPlaced"))
    return contracts, codec.encode(replace(newer, card=CARD, address="Kiel SECRET"))  # type: ignore[type-var]


def parked_times(place: Workplace) -> int:
    """Number of attempts after which a message was parked: when there is a second one, the first is written."""
    return sum(isinstance(moment, Parked) for moment in place.moments)


async def test_a_value_of_an_unknown_schema_is_kept_sealed_and_handled_once_its_schema_is_deployed(
    tmp_path: Path,
) -> None:
    contracts, value = of_newer_schema(tmp_path / "contracts")
    with one_test():
        async with workplace(tmp_path) as place:
            async with at_work(place, payment, keys=keys_in(tmp_path, place), contracts=contracts.read):
                await place.broker.publish([in_binary_mode(value, "application/avro")])
                await place.until(lambda: parked_times(place) > 1)
                p = await place.progress(payment)
                assert p is not None
                (kept,) = p.queue
                assert kept.message.value[: codec.HEADER_SIZE] == value[: codec.HEADER_SIZE]
                assert not [1 for content in await kept_by(place) if can_be_read(b"SECRET", content)]
                contracts.deploy()
                mended.append(True)
                await place.until(lambda: bool(handed))
                await place.at_rest(payment)
            assert handed == [CARD]
            assert [entry.outcome for entry in await place.history(payment)][-1] == "handled"
            assert not [1 for content in await kept_by(place) if can_be_read(b"SECRET", content)]


async def test_a_subject_erased_while_a_message_waits_for_its_schema_is_never_read(tmp_path: Path) -> None:
    contracts, value = of_newer_schema(tmp_path / "contracts")
    with one_test():
        async with workplace(tmp_path) as place:
            keys = keys_in(tmp_path, place)
            async with at_work(place, payment, keys=keys, contracts=contracts.read):
                await place.broker.publish([in_binary_mode(value, "application/avro")])
                await place.until(lambda: parked_times(place) > 1)
                keys.forget(SAGA, "ada", "asked for it")
                await place.until(lambda: bool(place.reported_dead_letters()))
            assert handed == []
            assert not [1 for content in await kept_by(place) if can_be_read(b"SECRET", content)]


async def test_a_value_encrypted_as_a_whole_is_decrypted_by_its_schema_in_its_own_saga_only(tmp_path: Path) -> None:
    contracts, newer = of_newer_schema(tmp_path / "contracts")
    async with workplace(tmp_path) as place:
        keys = keys_in(tmp_path, place)
        service, bare = (
            make_service_runtime(
                prepare(payment.declared),
                {},
                make_isolated_ports("payment", RecordedDocuments(1 << 20), RecordedClock(), 1 << 20, known),
            )
            for known in (keys, None)
        )
        key, role = await keys.get_or_create_key(SAGA), service.roles.handlers["reserve"]
        for value in (newer, frame(7, NATIVE)):
            record = in_binary_mode(value, "application/avro")
            message = route_record(Record("orders", 0, 0, record.key, value, record.headers, 0), service)
            assert isinstance(message, Message)
            kept = await value_codec.encrypt_message(service, message, Position("orders", 0, 0))
            assert not can_be_read(b"SECRET", kept.value)
            assert await value_codec.encrypt_message(service, kept, Position("orders", 0, 0)) is kept, (
                "it is sealed once"
            )
            assert decrypt_value(kept.value, kept.type, SAGA, {key and key.name: key}.__getitem__) == value
            for name, saga in (("OrderConfirmed", SAGA), (kept.type, "order-2")):
                with pytest.raises(BadInput, match="for another saga"):
                    decrypt_value(kept.value, name, saga, {key and key.name: key}.__getitem__)
            with pytest.raises(KeyMissing, match="no keys: set SAGA_KEYS"):
                bare.decode("reserve", kept)
            if value is newer:
                assert "no schema in" in str(service.why_undecodable(role, kept)), "as without keys"
                contracts.deploy()
                service.schemas.library = await contracts.read(service.schemas.library)
                assert service.why_undecodable(role, kept) is None, "its run will find out"
            else:
                with pytest.raises(SchemaUnasked):
                    service.why_undecodable(role, kept)


# ---------------------------------------------------------------- changes of documents, and a registry's wire format


@dataclass(frozen=True)
class Patient:
    visit_id: str
    name: str


clinic = Service("clinic", retry=Retry(attempts_max=1))
clinic.document(Patient, "patients", saga="visit_id")


@clinic.handler
async def register(change: Change[Patient], saga: Saga) -> None:
    assert isinstance(change, Insert)
    assert change.document is not None
    handed.append(change.document.name)
    if not mended:
        raise ConnectionError("the register is closed")


async def test_a_document_that_changes_is_kept_sealed_until_its_change_is_handled(tmp_path: Path) -> None:
    with one_test():
        async with workplace(tmp_path) as place:
            document = json.dumps({"visit_id": SAGA, "name": "Ada SECRET"}).encode()
            changed = DocumentChange(kind="insert", key="p-1", version=7, time_ms=place.clock.now_ms(), after=document)
            async with at_work(place, clinic, keys=keys_in(tmp_path, place)):
                await place.broker.publish([to_record("clinic.changes.patients", changed)])
                await place.until(lambda: bool(place.reported_dead_letters()))
                p = await place.progress(clinic)
                assert p is not None
                (dead,) = await place.dead(clinic)
                mended.append(True)
                await place.broker.publish([make_command("replay", p, place.clock.now_ms())])
                await place.until(lambda: len(handed) == 2)
                await place.at_rest(clinic)
            assert handed == ["Ada SECRET"] * 2
            assert not [1 for content in [*stored(place), dead[0].value or b""] if can_be_read(b"SECRET", content)]


async def test_a_value_in_the_wire_format_of_a_registry_is_sealed_as_any_other(tmp_path: Path) -> None:
    async with workplace(tmp_path) as place:
        keys = keys_in(tmp_path, place)
        ports = make_isolated_ports("payment", RecordedDocuments(1 << 20), RecordedClock(), 1 << 20, keys)
        service = make_service_runtime(prepare(payment.declared), {}, ports)
        schema = to_registered_schema(contract_of(OrderPlaced).newest.schema)
        for fields in (schema["fields"], [*schema["fields"], {"name": "more", "type": "string", "default": ""}]):
            writer = Writer(7, json.dumps({**schema, "fields": fields}), "https://registry.example")
            value = frame(7, NATIVE if fields is schema["fields"] else NATIVE + b"\0")
            record = in_binary_mode(value, "application/avro")
            message = route_record(Record("orders", 0, 0, record.key, value, record.headers, 0, writer), service)
            assert isinstance(message, Message)
            assert can_be_read(b"SECRET", message.value)
            kept = await value_codec.encrypt_message(service, message, Position("orders", 0, 0))
            assert not can_be_read(b"SECRET", kept.value)
            key = await keys.get_or_create_key(SAGA)
            shown = decrypt_fields(kept.value, service.schemas.library, SAGA, {key and key.name: key}.__getitem__)
            assert codec.decode(shown, OrderPlaced, service.schemas.library) == ORDER


async def test_a_message_of_which_the_process_dies_lies_sealed_in_its_dead_letter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = Committer.open_partitions

    async def left(self: Committer, offsets: Mapping[Partition, int], is_current: Any) -> Collection[Partition]:
        await begin(self, offsets, is_current)
        return set(offsets)

    monkeypatch.setattr(Committer, "open_partitions", left)
    with one_test():
        async with workplace(tmp_path) as place:
            keys = keys_in(tmp_path, place)
            await place.broker.publish([READABLE["JSON"]])
            (record,) = await place.records("orders")
            key = f"guard::payment::{record.topic}/{record.partition}/{record.offset}@{record.log_id}"
            await place.store.insert(ARCHIVES, key, msgspec.json.encode(DeathCount(50)))
            async with at_work(place, payment, keys=keys):
                await place.until(lambda: bool(place.reported_dead_letters()))
                await place.at_rest(payment)
            assert "the process died" in place.reported_dead_letters()[0].reason
            assert handed == []
            assert not [1 for content in await kept_by(place) if can_be_read(b"SECRET", content)]
