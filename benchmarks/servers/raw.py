"""The plain clients: the fastest loop that gives comparable guarantees, with one insert and one answer for each
message.

It reads batches from aiokafka, has 256 inserts in flight, and sends answers without waiting. All answers of a batch are
acknowledged before the positions of the batch are committed, which happens in the background. It does not keep order
by key, remembers handled messages only as long as their documents exist, and does not react to any failure.
"""

import asyncio
import logging
from collections.abc import Sequence
from datetime import timedelta
from io import BytesIO
from typing import Any

import msgspec
from acouchbase.cluster import AsyncCluster  # type: ignore[import-untyped]  # the SDK has no types for checkers
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.structs import ConsumerRecord
from couchbase.auth import PasswordAuthenticator  # type: ignore[import-untyped]  # see above
from couchbase.options import ClusterOptions  # type: ignore[import-untyped]  # see above
from couchbase.transcoder import RawJSONTranscoder  # type: ignore[import-untyped]  # see above
from fastavro import parse_schema, schemaless_reader, schemaless_writer

from benchmarks.events import Pinged, Ponged
from benchmarks.servers.ground import Ground, Work
from saga.contracts.codec import HEADER_SIZE, MARKER
from saga.contracts.library import binding_of
from saga.contracts.schema import without_logical_types
from saga.testing.servers.couchbase import BUCKET

AT_ONCE = 128
"""Number of inserts of one batch in flight. Two batches are handled at a time."""
BATCHES = 2
RECORDS_MAX = 500
CONNECT_S = 10

logging.getLogger("aiokafka").setLevel(logging.CRITICAL)

PINGED = parse_schema(without_logical_types(binding_of(Pinged).version.schema))
PONGED = parse_schema(without_logical_types(binding_of(Ponged).version.schema))
HEADER = MARKER + binding_of(Ponged).version.fingerprint


async def loop(asked: Work, ground: Ground, *, as_it_comes: bool = False) -> None:
    """Answer messages until stopped. `as_it_comes`: true to leave tracing and metrics of the Couchbase SDK at their
    defaults, and to handle one batch of aiokafka at a time."""
    name, batches = ("usual", 1) if as_it_comes else ("raw", BATCHES)
    tuned = {} if as_it_comes else {"enable_tracing": False, "enable_metrics": False}
    cluster = AsyncCluster(
        ground.couchbase,
        ClusterOptions(PasswordAuthenticator("bench", "bench"), transcoder=RawJSONTranscoder(), **tuned),
    )
    await asyncio.wait_for(cluster.on_connect(), CONNECT_S)
    bucket = cluster.bucket(BUCKET)
    await bucket.on_connect()
    producer = AIOKafkaProducer(
        bootstrap_servers=ground.kafka, acks="all", enable_idempotence=True, linger_ms=0, max_batch_size=1 << 17
    )
    consumer = AIOKafkaConsumer(
        "pings",
        bootstrap_servers=ground.kafka,
        group_id=name,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        fetch_max_wait_ms=100,
        max_partition_fetch_bytes=1 << 20,
    )
    async with producer, consumer:
        await _Loop(asked, name, batches, consumer, producer, bucket.default_collection()).run()
    await cluster.close()


class _Loop:
    def __init__(
        self,
        asked: Work,
        name: str,
        batches: int,
        consumer: AIOKafkaConsumer,
        producer: AIOKafkaProducer,
        collection: Any,
    ) -> None:
        self._asked, self._name, self._room = asked, name, asyncio.Semaphore(batches)
        self._consumer, self._producer, self._collection = consumer, producer, collection

    async def run(self) -> None:
        await self._consumer.getmany(timeout_ms=0)
        while not self._consumer.assignment():
            await asyncio.sleep(0.01)
        self._asked.ready()
        self._asked.begins()
        before: asyncio.Task[None] | None = None
        async with asyncio.TaskGroup() as tasks:
            while not self._asked.stop.is_set():
                await self._room.acquire()
                got = await self._consumer.getmany(timeout_ms=100, max_records=RECORDS_MAX)
                before = tasks.create_task(self._batch(got, before))

    async def _batch(self, got: dict[TopicPartition, list[ConsumerRecord]], before: asyncio.Task[None] | None) -> None:
        records = [record for of_partition in got.values() for record in of_partition]
        if records:
            await self._answer(records)
        self._room.release()
        self._asked.done(len(records))
        if before is not None:
            await before
        if got:
            await self._consumer.commit({place: found[-1].offset + 1 for place, found in got.items()})

    async def _answer(self, records: Sequence[ConsumerRecord]) -> None:
        left, sent = iter(records), []

        async def one_after_another() -> None:
            for record in left:
                document, answer, headers = _handled(record)
                key = f"{self._name}::{record.key.decode()}"
                await self._collection.insert(key, document, timeout=timedelta(seconds=2.5))
                sent.append(await self._producer.send("pongs", answer, record.key, headers=headers))

        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(AT_ONCE, len(records))):
                tasks.create_task(one_after_another())
        for acknowledged in sent:
            await acknowledged


def _handled(record: ConsumerRecord) -> tuple[bytes, bytes, list[tuple[str, bytes]]]:
    """Return the document that marks a message as handled, and the answer to the message with its headers."""
    body = BytesIO(record.value)
    body.seek(HEADER_SIZE)
    pinged: Any = schemaless_reader(body, PINGED, None)
    id_ = next(value for name, value in record.headers if name == "ce_id")
    document = msgspec.json.encode({"seen": [id_.decode()], "state": {"text": pinged["text"]}})
    out = BytesIO()
    out.write(HEADER)
    schemaless_writer(out, PONGED, pinged)
    return document, out.getvalue(), [("ce_type", b"Ponged"), ("ce_id", b"answer-" + id_)]
