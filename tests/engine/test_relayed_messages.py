"""Messages of relays and connectors: the contract names where their id is, a record without a value is no event, and an
unknown type is reported."""

import json
from pathlib import Path
from typing import Any

import pytest

from saga import Event, Saga, Service
from saga.contracts import codec
from saga.contracts.foreign_values import read_declared_id
from saga.contracts.library import binding_of
from saga.engine.foreign_values import identify_message
from saga.messages import Headers, Message, Outgoing
from saga.messaging.envelope import HEADER_BYTES_MAX
from saga.telemetry.events import PassedOver, UnknownType
from tests.contracts.folders import event, field, generated, put, schema, write
from tests.engine.real_worker import Workplace, at_work, workplace

CENTS = field("cents", "long")
EXTERNAL: dict[str, Any] = {"topic": "accounts", "owner": "bank", "starts": True, "produced_by": "external"}


class Bank:
    """A service that adds money for each event, and an outside that honours its keys."""

    def __init__(self, folder: Path, *fields: dict[str, Any], topic: dict[str, Any] | None = None, **more: Any) -> None:
        if topic is not None:
            put(folder / "contracts/accounts/topic.json", json.dumps({"partitions": 1, **topic}))
        self.topped = event(folder, CENTS, *fields, name="Topped", **EXTERNAL, **more)
        self.service, self.added = Service("ledger"), dict[str, int]()

        async def add(key: str, cents: int) -> int:
            return self.added.setdefault(key, cents)

        async def top(topped, saga):  # type: ignore[no-untyped-def]  # its classes are made while the test runs
            await saga.step(add, saga.idempotency_key("add"), topped.cents)

        top.__annotations__ = {"topped": self.topped, "saga": Saga, "return": None}
        self.service.handler(repeats=self.topped)(top)

    def a_top_up(self, **fields: Any) -> Event:
        return self.topped(order_id="a-1", cents=100, **fields)  # type: ignore[call-arg]

    async def publish_and_settle(
        self, place: Workplace, *values: bytes | None, headers: Headers = (), times: int = 2
    ) -> None:
        """Publish these, again and again, and wait until all are handled."""
        for _ in range(times):
            await place.broker.publish([Outgoing("accounts", b"a-1", value, headers) for value in values])
        await place.at_rest(self.service)


RELAYED: Headers = (("id", b"uuid-1"), ("eventType", b"Topped"))


@pytest.mark.parametrize("where", ["the contract", "the topic"])
async def test_a_message_published_twice_by_a_relay_is_handled_once(tmp_path: Path, where: str) -> None:
    declares: dict[str, Any] = {"id_header": "id"}
    bank = Bank(tmp_path, **declares) if where == "the contract" else Bank(tmp_path, topic=declares)
    async with workplace(tmp_path) as place, at_work(place, bank.service):
        await bank.publish_and_settle(place, codec.encode(bank.a_top_up()), headers=RELAYED)
        assert list(bank.added.values()) == [100]
        assert [e.message for e in await place.history(bank.service, "a-1")] == ["|accounts/Topped#uuid-1"]
        await bank.publish_and_settle(place, codec.encode(bank.a_top_up()), headers=(("id", b"uuid-2"),))
        assert list(bank.added.values()) == [100, 100], "equal content, and another id"
        assert not place.reported_dead_letters()


async def test_an_id_in_a_header_may_be_binary_and_counts_per_source(tmp_path: Path) -> None:
    bank = Bank(tmp_path, id_header="id")
    async with workplace(tmp_path) as place, at_work(place, bank.service):
        value, binary = codec.encode(bank.a_top_up()), ("id", b"\xff" * 16)
        await bank.publish_and_settle(place, value, headers=(binary,))
        await bank.publish_and_settle(place, value, headers=(binary, ("ce_source", b"/a")))
        await bank.publish_and_settle(place, value, headers=(binary, ("ce_source", b"/b")))
        await bank.publish_and_settle(place, value, headers=(("id", None),))
        seen = [e.message for e in await place.history(bank.service, "a-1")]
        assert seen == [f"|accounts/Topped#{'ff' * 16}", f"/a|{'ff' * 16}", f"/b|{'ff' * 16}", *seen[3:]]
        assert len(seen) == 5, "without the header each goes by its place"


async def test_a_ce_id_comes_before_what_the_contract_names(tmp_path: Path) -> None:
    bank = Bank(tmp_path, id_header="id")
    async with workplace(tmp_path) as place, at_work(place, bank.service):
        value = codec.encode(bank.a_top_up())
        for number in (b"1", b"2"):
            await bank.publish_and_settle(
                place, value, headers=(("id", number), ("ce_id", b"7"), ("ce_source", b"/shop"))
            )
        assert [e.message for e in await place.history(bank.service, "a-1")] == ["/shop|7"]


@pytest.mark.parametrize(
    ("type_", "value", "shown"),
    [("string", "u 1", "u%201"), ("long", 17, "17"), ({"type": "string", "logicalType": "uuid"}, None, None)],
)
async def test_an_id_in_a_field_is_read_in_each_form(tmp_path: Path, type_: Any, value: Any, shown: str | None) -> None:
    from uuid import UUID

    given = UUID("2f1a5f0e-6c3b-4f52-9b6e-0c1d2e3f4a5b") if value is None else value
    bank = Bank(tmp_path, field("number", type_), id_field="number")
    async with workplace(tmp_path) as place, at_work(place, bank.service):
        top_up = bank.a_top_up(number=given)
        await bank.publish_and_settle(place, codec.encode(top_up))
        as_json: Headers = (("content-type", b"application/json"), ("ce_type", b"Topped"))
        await bank.publish_and_settle(place, json.dumps(codec.to_json(top_up)).encode(), headers=as_json)
        name = f"|accounts/Topped#{shown or given}"
        assert [e.message for e in await place.history(bank.service, "a-1")] == [name]
        assert list(bank.added.values()) == [100]


async def test_a_message_without_a_readable_id_field_is_identified_by_its_bytes(tmp_path: Path) -> None:
    bank = Bank(tmp_path, field("number", "string"), id_field="number")
    as_json: Headers = (("content-type", b"application/json"), ("ce_type", b"Topped"))
    async with workplace(tmp_path) as place, at_work(place, bank.service):
        await bank.publish_and_settle(place, b'{"order_id": "a-1", "cents": 1}', headers=as_json)
        (name,) = {headers["dead_message"] for _, headers in await place.dead(bank.service)}
        assert name.startswith("|accounts/Topped#bytes-")


@pytest.mark.parametrize(("type_", "default"), [("long", 0), ("string", "none")])
async def test_messages_from_before_the_id_field_are_no_repetitions_of_each_other(
    tmp_path: Path, type_: str, default: object
) -> None:
    """Read as the newest version, each of them has the default of the field."""
    write(tmp_path, schema("Topped", CENTS, **EXTERNAL))
    write(
        tmp_path,
        schema("Topped", CENTS, field("number", type_, default=default), id_field="number", **EXTERNAL),
        version=2,
    )
    module = generated(tmp_path, "Topped", "Topped.v1")
    binding = binding_of(module.Topped)

    def declared_id(made: Event) -> str | None:
        return read_declared_id(codec.encode(made), binding.contract, binding.library)

    assert declared_id(module.ToppedV1(order_id="a-1", cents=1)) is None
    assert declared_id(module.Topped(order_id="a-1", cents=1)) is None
    assert read_declared_id(b'{"number": %s}' % json.dumps(default).encode(), binding.contract, binding.library) is None
    given = 17 if type_ == "long" else "u-17"
    assert declared_id(module.Topped(order_id="a-1", cents=1, number=given)) == str(given)


@pytest.mark.parametrize("id_", ["x" * (HEADER_BYTES_MAX + 1), "\ud800"])
def test_an_id_in_a_field_that_is_too_long_or_no_text_is_none(tmp_path: Path, id_: str) -> None:
    bank = Bank(tmp_path, field("number", "string"), id_field="number")
    binding, value = binding_of(bank.topped), json.dumps({"number": id_}).encode()
    message = Message(
        id="|accounts/0/1",
        type="Topped",
        schema="",
        saga="a-1",
        source="unknown",
        time="2026-11-21T14:06:40.123Z",
        value=value,
    )
    identified = identify_message(message, "accounts", binding.contract, binding.library)
    assert identified.id.startswith("|accounts/Topped#bytes-")


async def test_an_id_without_a_source_does_not_swallow_another_senders_message(tmp_path: Path) -> None:
    bank = Bank(tmp_path)
    async with workplace(tmp_path) as place, at_work(place, bank.service):
        one, other = bank.a_top_up(), bank.topped(order_id="a-1", cents=5)  # type: ignore[call-arg]
        await bank.publish_and_settle(place, codec.encode(one), codec.encode(other), headers=(("ce_id", b"1"),))
        assert sorted(bank.added.values()) == [5, 100], "each once"
        sources = {e.message.partition("|")[0].partition("/")[0] for e in await place.history(bank.service, "a-1")}
        assert sources == {"unknown"}


async def test_a_tombstone_is_passed_over_and_counted(tmp_path: Path) -> None:
    bank = Bank(tmp_path)
    async with workplace(tmp_path) as place, at_work(place, bank.service):
        await bank.publish_and_settle(place, codec.encode(bank.a_top_up()), times=1)
        await bank.publish_and_settle(
            place, None, headers=(("ce_type", b"Topped"), ("ce_id", b"d"), ("ce_source", b"/cdc"))
        )
        await bank.publish_and_settle(place, None)
        assert not place.reported_dead_letters()
        assert [moment.why for moment in place.reported(PassedOver)] == ["tombstone"] * 4
        assert list(bank.added.values()) == [100]


async def test_a_type_without_a_contract_is_reported_once_and_counted(tmp_path: Path) -> None:
    bank = Bank(tmp_path)
    async with workplace(tmp_path) as place, at_work(place, bank.service):
        await bank.publish_and_settle(place, b"{}", headers=(("ce_type", b"com.bank.Closed\x1b[2J"),))
        await bank.publish_and_settle(place, b"{}", headers=(("ce_type", b"com.bank.Opened"),))
        assert [moment.why for moment in place.reported(PassedOver)] == ["unknown type"] * 4
        assert [moment.type for moment in place.reported(UnknownType)] == [r"com.bank.Closed\x1b[2J", "com.bank.Opened"]
        assert not place.reported_dead_letters()


async def test_no_digest_of_what_is_sensitive_names_a_message(tmp_path: Path) -> None:
    bank = Bank(tmp_path, field("card", "string", sensitive=True), field("number", "string"), id_field="number")
    as_json: Headers = (("content-type", b"application/json"), ("ce_type", b"Topped"))
    async with workplace(tmp_path) as place, at_work(place, bank.service):
        top_up = bank.a_top_up(card="4111", number="n-1")
        await bank.publish_and_settle(place, codec.encode(top_up), headers=(("ce_id", b"1"),))
        assert [e.message for e in await place.history(bank.service, "a-1")] == ["|accounts/Topped#1"]
        await bank.publish_and_settle(place, b'{"order_id": "a-1", "card": "4111"}', headers=as_json, times=1)
        (_, headers), *_ = await place.dead(bank.service)
        assert "bytes-" not in headers["dead_message"]
