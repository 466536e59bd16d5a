"""A service whose topics use the wire format of a schema registry: what it writes and reads, and that nothing is lost
during an outage of the registry."""

from decimal import Decimal
from pathlib import Path

import pytest

from saga.broker.embedded.broker import EmbeddedAdministration
from saga.configuration.wiring import with_topics
from saga.contracts import codec
from saga.contracts.foreign_values import frame
from saga.contracts.library import binding_of
from saga.engine.prepared_service import get_consumed_contracts, get_emitted_contracts
from saga.errors import ConfigurationError, RegistryUnavailable
from saga.messages import Outgoing, Partition, Record, Writer, texts_of
from saga.registry.edge import IDS_MAX, MISSING_S, RegistryAdministration, RegistryCache, problems_of
from saga.registry.port import RegisteredSchema, SchemaIncomplete
from saga.support.clock import SystemClock
from saga.telemetry.events import GoesOn, Recovered, StandsStill, Unavailable
from tests.contracts.folders import decimal, field, schema
from tests.engine.real_worker import Workplace, at_work
from tests.registry.fake_registry import FakeRegistry
from tests.registry.shop import PAID, PLACED, Shop, Standing, as_they_lie, open_at

# -------------------------------------------------------------------- writing and reading


async def test_a_saga_runs_over_topics_in_the_wire_format(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.register()
    async with open_at(shop, tmp_path) as place, at_work(place, shop.service):
        await place.publish(shop.an_order())
        await place.at_rest(shop.service)
        (order,), (paid,) = await as_they_lie(place, "sales"), await as_they_lie(place, "money")
        native = codec.encode(shop.an_order())
        assert order.value == frame(2, native)
        assert (paid.value or b"")[:5] == b"\0\0\0\0\3"
        assert (paid.value or b"")[5:] == codec.encode(shop.paid(order_id="order-1", total=Decimal("9.80")))[10:]  # type: ignore[call-arg]
        (entry,) = await place.history(shop.service, "order-1")
        assert (entry.outcome, entry.events[0].value[:2]) == ("handled", codec.MARKER), "what is kept is in one form"
        assert shop.registry.asked.count("schema 2") == 1
    assert not place.reported_dead_letters()


async def test_both_formats_are_read_whatever_the_topic_declares(tmp_path: Path) -> None:
    shop = Shop(tmp_path, "single-object")
    shop.register()
    async with open_at(shop, tmp_path) as place, at_work(place, shop.service):
        native = place.record_of(shop.an_order())
        assert native.subject == ""
        await place.broker.publish([native])
        other = place.record_of(shop.an_order("order-2"))
        await place.broker.publish([other._replace(value=frame(2, other.value or b""))])
        await place.at_rest(shop.service)
        values = [record.value or b"" for record in await as_they_lie(place, "money")]
        assert [value[:2] for value in values] == [codec.MARKER] * 2
    assert not place.reported_dead_letters()


async def test_records_from_before_a_change_of_format_are_read(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.register()
    async with open_at(shop, tmp_path) as place:
        await place.broker.ensure_topics([binding_of(shop.placed).library.topics["sales"]])
        await place.broker.publish([place.record_of(shop.an_order())._replace(subject="")])
        await place.broker.publish([place.record_of(shop.an_order("order-2"))])
        async with at_work(place, shop.service):
            await place.at_rest(shop.service)
        assert [(record.value or b"")[0] for record in await as_they_lie(place, "sales")] == [0xC3, 0]
        assert len(await as_they_lie(place, "money")) == 2
    assert not place.reported_dead_letters()


async def test_a_record_with_an_unknown_schema_id_becomes_a_dead_letter_with_its_bytes_and_blocks_no_saga(
    tmp_path: Path,
) -> None:
    shop = Shop(tmp_path)
    shop.register()
    async with open_at(shop, tmp_path) as place, at_work(place, shop.service):
        bad = place.record_of(shop.an_order())
        value = frame(99, bad.value or b"")
        await place.broker.publish([bad._replace(value=value, subject="")])
        await place.broker.publish([place.record_of(shop.an_order("order-2"))])
        await place.at_rest(shop.service)
        ((record, headers),) = await place.dead(shop.service)
        assert record.value == value
        assert headers["dead_reason"] == (
            "BadInput: the value says schema id 99, and the registry at http://registry:8081 has none of that id: have "
            "its sender register the schema there, then retry it: saga dead replay"
        )
        assert headers["dead_class"] == "data"
        (paid,) = await as_they_lie(place, "money")
        assert texts_of(paid.headers)["ce_subject"] == "order-2"


async def test_records_in_command_topics_do_not_ask_the_registry(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.register()
    async with open_at(shop, tmp_path) as place, at_work(place, shop.service):
        shop.registry.asked.clear()
        await place.broker.publish([Outgoing("cash.commands", b"order-1", b"\0\0\0\0\7", ())])
        await place.at_rest(shop.service)
        assert shop.registry.asked == []


# -------------------------------------------------------------------- the registry is away


async def test_a_reader_without_a_group_waits_for_the_registry_and_loses_no_record(tmp_path: Path) -> None:
    shop, clock = Shop(tmp_path), Standing()
    shop.register()
    async with open_at(shop, tmp_path) as place:
        await place.broker.ensure_topics([binding_of(shop.placed).library.topics["sales"]])
        await place.broker.publish([place.record_of(shop.an_order(f"order-{n}")) for n in range(3)])
    behind = EmbeddedAdministration(tmp_path / "broker.db", clock=SystemClock())
    async with (
        RegistryAdministration(behind, shop.registry, clock) as tools,
        tools.open_reader({Partition("sales", 0): 1}) as reading,
    ):
        shop.registry.is_away = True
        for _ in range(2):
            with pytest.raises(RegistryUnavailable):
                await reading.poll(records_max=10, timeout_s=1)
            assert reading.positions() == {Partition("sales", 0): 1}, "nothing was handed out"
        shop.registry.is_away = False
        records = await reading.poll(records_max=10, timeout_s=1)
        assert [(record.offset, record.writer.id if record.writer else 0) for record in records] == [(1, 2), (2, 2)]
        assert reading.positions() == {Partition("sales", 0): 3}
        assert not reading.stalled_partitions()


async def test_during_an_outage_of_the_registry_no_record_is_skipped_or_lost(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.register()
    async with open_at(shop, tmp_path) as place:
        await place.broker.ensure_topics([binding_of(shop.placed).library.topics["sales"]])
        await place.broker.publish([place.record_of(shop.an_order(f"order-{n}")) for n in range(20)])
        shop.registry.is_away = True
        async with at_work(place, shop.service):
            await place.until(lambda: bool(place.reported(StandsStill)))
            (moment,) = place.reported(StandsStill)
            assert (moment.topic, moment.partition, moment.offset) == ("sales", 0, 0)
            assert moment.error == "the schema registry at http://registry:8081 cannot be used: it is away"
            assert await as_they_lie(place, "money") == []
            shop.registry.is_away = False
            await place.at_rest(shop.service)
            assert len(place.reported(GoesOn)) == 1
        assert len(await as_they_lie(place, "money")) == 20
        histories = [await place.history(shop.service, f"order-{n}") for n in range(20)]
        assert [(e.outcome, e.attempt) for entries in histories for e in entries] == [("handled", 1)] * 20
    assert not place.reported_dead_letters()


async def test_events_without_a_registered_schema_wait_as_in_a_broker_outage(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.registry.put("sales-Placed", PLACED)
    async with open_at(shop, tmp_path) as place, at_work(place, shop.service):
        await place.publish(shop.an_order())
        await place.until(lambda: bool(place.reported(Unavailable)))
        (reported,) = place.reported(Unavailable)
        assert (reported.what, reported.operation) == ("registry", "publish")
        assert "does not have the schema with the fingerprint" in reported.error
        assert reported.error.endswith("under money-Paid: register it, by saga contracts register")
        assert await as_they_lie(place, "money") == []
        shop.registry.put("money-Paid", PAID)
        await place.at_rest(shop.service)
        await place.until(lambda: bool(place.reported(Recovered)))
        assert [moment.what for moment in place.reported(Recovered)] == ["registry"]
        assert len(await as_they_lie(place, "money")) == 1
        assert [(e.outcome, e.attempt) for e in await place.history(shop.service, "order-1")] == [("handled", 1)]


# -------------------------------------------------------------------- at the start


async def test_a_service_does_not_start_before_its_emitted_schemas_are_registered(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    async with open_at(shop, tmp_path) as place:
        with pytest.raises(ConfigurationError, match=r"money/Paid\.v1 is not registered as money-Paid") as refused:
            await with_topics([shop.service.declared], place.broker, ["cash"], place.clock, 14)
        assert "saga contracts register" in str(refused.value)
        shop.register()
        await with_topics([shop.service.declared], place.broker, ["cash"], place.clock, 14)


async def test_a_service_that_needs_a_registry_does_not_start_without_one(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    services = [shop.service.declared]
    place = Workplace(tmp_path)
    problems = await problems_of(place.broker, get_emitted_contracts(services), get_consumed_contracts(services))
    assert problems == [
        f'{topic}/topic.json says "wire": "registry", and no schema registry is set: SAGA_REGISTRY'
        for topic in ("money", "sales")
    ]
    (tmp_path / "plain").mkdir()
    plain = Shop(tmp_path / "plain", "single-object")
    services = [plain.service.declared]
    assert await problems_of(place.broker, get_emitted_contracts(services), get_consumed_contracts(services)) == []


# -------------------------------------------------------------------- what is known


async def test_a_missing_schema_id_is_asked_for_again_after_a_while() -> None:
    registry, clock = FakeRegistry(), Standing()
    known = RegistryCache(registry, clock)
    record = Record("orders", 0, 0, b"k", b"\0\0\0\0\1", (), 0)
    await known.learn(1)
    assert known.missing_id(record) is None
    assert known.resolve(record).writer == Writer(1, "", registry.address)
    clock.now_s += MISSING_S
    assert known.missing_id(record) == 1
    registry.put("orders-Placed", PLACED)
    await known.learn(1)
    clock.now_s += 10 * MISSING_S
    assert known.missing_id(record) is None, "what is there stays there"
    assert registry.asked == ["schema 1", "schema 1"]


async def test_the_schema_cache_keeps_at_most_its_maximum_of_ids() -> None:
    registry = FakeRegistry()
    known = RegistryCache(registry, Standing())
    for id_ in range(IDS_MAX + 1):
        await known.learn(id_)
    assert len(known._writers) == 1


async def test_of_schemas_with_one_fingerprint_the_equal_one_is_used(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    binding = binding_of(shop.paid)
    other = schema("Paid", field("total", decimal(scale=3)), topic="money", owner="cash")
    ours = shop.registry.put("money-Paid", PAID)
    shop.registry.put("money-Paid", other)
    known = RegistryCache(shop.registry, Standing())
    assert await known.id_of(binding.contract, binding.version) == ours
    only_other = FakeRegistry()
    only_other.put("money-Paid", other)
    assert await RegistryCache(only_other, Standing()).id_of(binding.contract, binding.version) is None


async def test_an_incomplete_schema_under_the_subject_does_not_hide_the_own_one(tmp_path: Path) -> None:
    class Broken(FakeRegistry):
        async def version(self, subject: str, number: int) -> RegisteredSchema:
            if number == 2:
                raise SchemaIncomplete("version 2 refers to a schema that the registry does not have")
            return await super().version(subject, number)

    shop = Shop(tmp_path)
    shop.registry = Broken()
    shop.register()
    shop.registry.put("sales-Placed", schema("Placed", field("more", "string"), topic="sales", owner="sale"))
    known = RegistryCache(shop.registry, Standing())
    message = Outgoing("sales", b"order-1", codec.encode(shop.an_order()), (), "sales-Placed")
    assert (await known.to_wire_format(message)).value == frame(2, message.value or b"")


async def test_schema_ids_for_publishing_are_requested_once(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.register()
    known = RegistryCache(shop.registry, Standing())
    message = Outgoing("sales", b"order-1", codec.encode(shop.an_order()), (), "sales-Placed")
    assert [(await known.to_wire_format(message)).value for _ in range(3)] == [frame(2, message.value or b"")] * 3
    assert shop.registry.asked == ["versions sales-Placed", "version sales-Placed 1"]
    assert await known.to_wire_format(message._replace(value=None)) == message._replace(value=None)
    shop.registry.is_away = True
    with pytest.raises(RegistryUnavailable):
        await known.to_wire_format(message._replace(subject="sales-Other"))
