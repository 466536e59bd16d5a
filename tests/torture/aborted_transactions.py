"""Another producer at the same topics: aborted transactions, unexpected records, another partitioner, a topic
created again; and a disk that fails."""

import asyncio
import zlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count, islice
from random import Random  # noqa: TID251 - seeded

from aiokafka import AIOKafkaProducer

from saga.clients.events import to_record
from saga.messages import Outgoing, Record
from saga.support.clock import Clock
from saga.testing.servers.kafka import KafkaServer
from services.order.events import OrderPlaced
from tests.servers.damage import WAYS, spoil
from tests.servers.plain_clients import recreate_topic, started
from tests.torture.customers import orders

ABORTED, ODD, LARGE_BYTES = 30, 40, 800_000
DAMAGED_S = (2.0, 6.0)
PARTITIONS = 12
UNHEARD_OF = ("ce_type", b"elsewhere.NobodyHandlesThis")
"""Makes a record one of no service; whatever else it has must not matter."""


class Foreigners:
    """Another producer at the same topics, which leaves no trace in any book."""

    def __init__(self, kafka: KafkaServer, chance: Random, clock: Clock) -> None:
        self._kafka, self._chance, self._clock = kafka, chance, clock
        self._numbers = count()

    async def abort(self) -> str:
        """Orders that were never placed: no service may charge for them."""
        async with self._producer() as producer:
            await producer.begin_transaction()
            for placed in islice(orders(), ABORTED):
                record = to_record(_renamed(placed, next(self._numbers)), self._clock.now_ms())
                await producer.send_and_wait(
                    record.topic, record.value, record.key, self._any_partition(), headers=list(record.headers)
                )
            await producer.abort_transaction()
        return f"a transaction of {ABORTED} orders aborted"

    async def write_oddities(self) -> str:
        """Headers of any kind, and large records."""
        async with self._producer() as producer:
            await producer.begin_transaction()
            for number in range(ODD):
                value = self._chance.randbytes(LARGE_BYTES if number % 10 == 0 else 100)
                headers = [
                    UNHEARD_OF,
                    ("null", None),
                    ("", b""),
                    ("ce_id", self._chance.randbytes(50)),
                    ("ü" * 99, b""),
                ]
                key = self._chance.choice((None, b"", b"k\x00\xff", b"k" * 200_000))
                await producer.send_and_wait(self._topic(), value, key, self._any_partition(), headers=headers)
            await producer.commit_transaction()
        return f"{ODD} records with odd headers and keys, some of {LARGE_BYTES} bytes"

    async def damage(self) -> str:
        """Damage a record, before any consumer reads it: neither it nor what follows in its partition can be read."""
        way, partition, topic = self._chance.choice(list(WAYS)), self._any_partition(), self._topic()
        async with self._producer() as producer:
            await producer.begin_transaction()
            written = await producer.send_and_wait(topic, b"x" * 100, b"k", partition, headers=[UNHEARD_OF])
            record = Record(topic, partition, written.offset, None, None, (), 0)
            mend = await asyncio.to_thread(spoil, self._kafka.properties.parent / "data", record, way)
            try:
                await producer.commit_transaction()
                damaged_s = self._chance.uniform(*DAMAGED_S)
                await self._clock.sleep(damaged_s)
            finally:
                mend()
        return f"{topic}/{partition} damaged ({way}) for {damaged_s:.1f} s"

    async def publish(self, records: Sequence[Outgoing]) -> None:
        """Publish as librdkafka does: its default partitioner puts most keys into other partitions."""
        async with self._producer() as producer:
            await producer.begin_transaction()
            for topic, key, value, headers, *_ in records:
                partition = zlib.crc32(key) % PARTITIONS
                await producer.send_and_wait(topic, value, key, partition, headers=list(headers))
            await producer.commit_transaction()

    async def recreate(self) -> None:
        """Delete the topic of the orders and create it again."""
        await recreate_topic(self._kafka.address, self._topic(), PARTITIONS)

    def _any_partition(self) -> int:
        return self._chance.randrange(PARTITIONS)

    def _topic(self) -> str:
        return to_record(next(iter(orders())), 0).topic

    @asynccontextmanager
    async def _producer(self) -> AsyncIterator[AIOKafkaProducer]:
        producer = AIOKafkaProducer(
            bootstrap_servers=self._kafka.address, transactional_id="elsewhere", max_request_size=1 << 21
        )
        async with started(producer):
            yield producer


def _renamed(placed: OrderPlaced, number: int) -> OrderPlaced:
    return replace(placed, order_id=f"aborted-{number}")
