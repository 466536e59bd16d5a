"""Our messages are read by the libraries of others, and theirs by a service of ours: on real Kafka, with a real schema
registry."""

import asyncio
import base64
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any

import avro.io
import avro.schema
import fastavro
import pytest
from cloudevents.core.bindings import kafka as python_sdk
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

from saga import Event, Service
from saga.contracts.foreign_values import registered_text
from saga.contracts.library import binding_of
from saga.engine.consumer.flow_control import FlowLimits
from saga.engine.lifecycle import ServiceOptions, serve
from saga.engine.prepared_service import prepare, topics_of
from saga.messages import Outgoing, texts_of
from saga.store.sqlite.store import SqliteStore
from tests.interop.programs import go_program, java_program, read_output_lines
from tests.interop.sold import CLOCK, TIME, Sales
from tests.servers.fixtures import or_left_out
from tests.servers.registry import RegistryServer

SAGAS = ("order-1", "order-2", "order-3")


@pytest.fixture(scope="module")
def sales(tmp_path_factory: pytest.TempPathFactory, kafka_address: str, schema_registry: RegistryServer) -> Sales:
    """Events of ours in both forms, on topics of this module."""
    folder = tmp_path_factory.mktemp("interop")
    mark = folder.parent.name
    made = Sales(folder, kafka_address, schema_registry.url, f"{mark}-single", f"{mark}-framed", f"{mark}-theirs")
    asyncio.run(made.prepare(SAGAS))
    return made


def as_expected(line: Mapping[str, Any], topic: str) -> None:
    """Check the attributes of one of our events, as a foreign program has read them."""
    assert line["key"] == line["subject"]
    assert line["topic"] == topic
    assert (line["type"], line["source"], line["datacontenttype"]) == ("org.example.Sold", "client", "application/avro")
    assert line["id"].startswith("Sold-")
    assert line["dataschema"] == f"urn:saga:{topic}/Sold.v1"
    for name in ("time", "sagastart"):
        assert datetime.fromisoformat(line[name]) == datetime.fromisoformat(TIME)


def each_as_expected(lines: Sequence[Mapping[str, Any]], sales: Sales) -> None:
    """All of our events were read once, in both forms."""
    assert sorted((line["topic"], line["key"]) for line in lines) == sorted(
        (topic, saga) for topic in (sales.single, sales.framed) for saga in SAGAS
    )
    for line in lines:
        as_expected(line, line["topic"])


# -------------------------------------------------------------------- ours, read by others


@pytest.mark.slow
async def test_a_plain_consumer_reads_what_the_registry_and_the_file_say(
    sales: Sales, schema_registry: RegistryServer
) -> None:
    version = binding_of(sales.event(sales.framed)).version
    for record in await sales.as_they_lie(sales.framed):
        value = record.value or b""
        assert value[0] == 0
        schema = json.loads(schema_registry.ask(f"/schemas/ids/{int.from_bytes(value[1:5], 'big')}")["schema"])
        fields = fastavro.schemaless_reader(BytesIO(value[5:]), schema, None)
        assert fields == {
            "order_id": (record.key or b"").decode(),
            "total": sales.sold(sales.framed, "x").total,  # type: ignore[attr-defined]
            "at": datetime(2026, 11, 21, 14, 6, 40, 500_000, UTC),
            "note": None,
            "kind": "GIFT",
            "lines": [{"sku": "tea", "count": 2}],
            "weights": {"tea": 0.25},
        }
    for record in await sales.as_they_lie(sales.single):
        value = record.value or b""
        assert value[:2] == b"\xc3\x01"
        by_avro = avro.schema.parse(registered_text(version))
        decoder = avro.io.BinaryDecoder(BytesIO(value[10:]))
        decoded: Any = avro.io.DatumReader(by_avro).read(decoder)
        assert (decoded["order_id"], str(decoded["total"])) == ((record.key or b"").decode(), "9.80")
        assert value[2:10] == version.fingerprint


async def test_pythons_sdk_reads_ours(sales: Sales) -> None:
    lines = []
    for topic in (sales.single, sales.framed):
        for record in await sales.as_they_lie(topic):
            headers = {name: value for name, value in record.headers if value is not None}
            message = python_sdk.KafkaMessage(headers=headers, key=record.key, value=record.value or b"")
            event = python_sdk.from_kafka(message, JSONFormat())
            assert event.get_data() == record.value
            attributes = {name: str(value) for name, value in event.get_attributes().items()}
            lines.append({**attributes, "topic": topic, "key": attributes["partitionkey"]})
    each_as_expected(lines, sales)


@pytest.mark.timeout(300)
def test_gos_sdk_reads_ours_and_a_service_reads_what_it_writes(sales: Sales, tmp_path: Path) -> None:
    program = or_left_out(go_program)
    count = str(2 * len(SAGAS))
    lines = [
        json.loads(line)
        for line in read_output_lines([str(program), sales.kafka, count, sales.theirs, sales.single, sales.framed])
    ]
    each_as_expected(lines, sales)
    assert {base64.b64decode(each["data"])[0] for each in lines} == {0, 0xC3}
    asyncio.run(handled(sales, tmp_path, "go-json", "go-structured"))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_javas_avro_and_sdk_read_ours_and_a_service_reads_what_they_write(sales: Sales, tmp_path: Path) -> None:
    classes = or_left_out(java_program)
    version = binding_of(sales.event(sales.framed)).version
    schema = tmp_path / "Sold.avsc"
    schema.write_text(registered_text(version))
    id_ = asyncio.run(sales.schema_id())
    command = ["java", "-XX:TieredStopAtLevel=1", "-cp", f"{classes}:{classes.parent}/*", "Interop"]
    command += [sales.kafka, sales.registry, str(schema), str(2 * len(SAGAS)), sales.theirs, str(id_)]
    lines = [json.loads(line) for line in read_output_lines([*command, sales.single, sales.framed])]
    each_as_expected(lines, sales)
    for each in lines:
        assert each["fields"] == {
            "order_id": each["key"],
            "total": "9.80",
            "at": "2026-11-21T14:06:40.500Z",
            "note": "null",
            "kind": "GIFT",
            "lines": '[{"sku": "tea", "count": 2}]',
            "weights": "{tea=0.25}",
        }
    assert {each["first"] for each in lines} == {0, 0xC3 - 256}
    asyncio.run(handled(sales, tmp_path, "java-single", "java-registry", "java-json", "java-structured"))


def test_a_service_reads_what_pythons_sdk_writes(sales: Sales, tmp_path: Path) -> None:
    records = []
    for saga, write in (("python-json", python_sdk.to_binary), ("python-structured", python_sdk.to_structured)):
        attributes = {
            "id": f"{saga}-1",
            "source": "/shops/python",
            "type": "org.example.Sold",
            "subject": saga,
            "time": datetime.fromisoformat(TIME),
            "datacontenttype": "application/json",
            "partitionkey": saga,
            "attempt": 3,
        }
        fields = {"order_id": saga, "total": "9.80", "at": TIME, "note": None, "kind": "GIFT"}
        more = {"lines": [{"sku": "tea", "count": 2}], "weights": {"tea": 0.25}}
        message = write(CloudEvent(attributes, {**fields, **more}), JSONFormat())
        key = message.key if isinstance(message.key, bytes) else (message.key or "").encode()
        records.append(Outgoing(sales.theirs, key, message.value, tuple(message.headers.items())))

    async def published() -> None:
        async with sales.broker() as broker:
            await broker.publish(records)
        await handled(sales, tmp_path, "python-json", "python-structured")

    asyncio.run(published())


# -------------------------------------------------------------------- theirs, read by a service


async def handled(sales: Sales, folder: Path, *sagas: str) -> None:
    """See that a service handles the event of each of these sagas, as it would one of ours."""
    seen: dict[str, Event] = {}
    stop = asyncio.Event()
    service = Service(f"hearing-{'-'.join(sagas)[:40].replace('_', '-')}")

    async def hear(sold):  # type: ignore[no-untyped-def]  # its class is made while the test runs
        seen[sold.order_id] = sold
        if seen.keys() >= set(sagas):
            stop.set()

    hear.__annotations__ = {"sold": sales.event(sales.theirs), "return": None}
    service.handler(hear)
    async with sales.broker() as broker, SqliteStore(folder / "store.db", clock=CLOCK) as store:
        await broker.ensure_topics([topic for topic in topics_of(service.declared) if topic.name != sales.theirs])
        options = ServiceOptions(clock=CLOCK, report=lambda _: None, limits=FlowLimits(), stop=stop)
        await asyncio.wait_for(serve(prepare(service.declared), store=store, broker=broker, options=options), 60)
    for saga in sagas:
        assert seen[saga] == sales.sold(sales.theirs, saga)
    for record in await sales.as_they_lie(sales.theirs):
        headers = texts_of(record.headers)
        assert "ce_sagastart" not in headers, "nothing of ours was needed"
