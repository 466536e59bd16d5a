"""Logs for fuzzed records: in memory, the embedded broker, Kafka."""

import asyncio
import json
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, Self

from aiokafka import AIOKafkaProducer, TopicPartition, codec
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from saga.broker.embedded.broker import EmbeddedBroker
from saga.broker.kafka.adapter import KafkaSettings
from saga.broker.kafka.broker import KafkaBroker
from saga.broker.port import RECORD_BYTES_MAX, Broker, Listener, Membership, Subscription, partition_of, record_size
from saga.errors import BrokerError
from saga.messages import Outgoing, Partition, Record, StalledPartition, Topic
from saga.messaging.names import command_topic, dead_letter_topic
from saga.messaging.timers import tiers_of
from saga.registry.edge import RegistryBroker
from saga.support.clock import SystemClock
from saga.testing.servers.kafka import KafkaServer
from tests.fuzz.records import SCHEMAS, TOPIC, Written
from tests.registry.fake_registry import FakeRegistry
from tests.servers.plain_clients import started

CLOCK = SystemClock()
PARTITIONS = 4
CODECS = [None, *(name for name in ("gzip", "snappy", "lz4", "zstd") if getattr(codec, f"has_{name}")())]
"""Compressions of batches that work with what is installed."""
PAYMENTS = "payments"
DEAD, COMMANDS = dead_letter_topic("payment"), command_topic("payment")
WAKES = tuple(tiers_of("payment"))
ALL = (TOPIC, PAYMENTS, DEAD, COMMANDS, *WAKES)


class FuzzedLog(Protocol):
    """A log with the topics of the service."""

    @property
    def broker(self) -> Broker: ...

    @property
    def bytes_max(self) -> int:
        """Bytes that the topic of the records takes as one record."""

    async def put(self, written: Sequence[Written]) -> None:
        """Into the log, each as it is as far as the log can have it."""

    async def positions(self) -> Mapping[Partition, int]:
        """Positions of the service in each partition of the topic."""


# -------------------------------------------------------------------- in memory


@dataclass
class InMemory:
    """A log that holds whatever it is given; dead letters may be no larger than half of that."""

    record_bytes_max: int = RECORD_BYTES_MAX
    bytes_max: int = RECORD_BYTES_MAX
    letters_bytes_max: int = RECORD_BYTES_MAX // 2
    creates_topics: bool = True
    logs: dict[str, list[list[Record]]] = field(default_factory=dict)
    done: dict[Partition, int] = field(default_factory=dict)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.logs = {topic: [[] for _ in range(PARTITIONS)] for topic in ALL}

    @property
    def broker(self) -> Broker:
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None: ...

    async def put(self, written: Sequence[Written], topic: str = TOPIC) -> None:
        for each in written:
            self._append(topic, each)

    def _append(self, topic: str, each: Written) -> None:
        number = partition_of(each.key or b"", PARTITIONS)
        log = self.logs[topic][number]
        log.append(Record(topic, number, len(log), each.key, each.value, each.headers, each.time_ms))
        self.news.set()

    async def positions(self) -> Mapping[Partition, int]:
        return self.done

    async def ensure_topics(self, topics: Sequence[Topic]) -> None: ...

    async def count_partitions(self, topics: Collection[str]) -> Mapping[str, int]:
        return dict.fromkeys(topics, PARTITIONS)

    async def fetch_log_ids(self, topics: Collection[str]) -> Mapping[str, str]:
        return {}

    async def find_missing_rights(
        self, reads: Collection[str], writes: Collection[str], groups: Collection[str] = ()
    ) -> Sequence[str]:
        return ()

    async def publish(self, messages: Sequence[Outgoing]) -> None:
        for topic, *_ in messages:
            limit = self.letters_bytes_max if topic == DEAD else self.record_bytes_max
            if any(record_size(message) > limit for message in messages if message.topic == topic):
                raise BrokerError("a record is too large")
        for message in messages:
            self._append(message.topic, Written(message.key, message.value, message.headers, CLOCK.now_ms()))

    @asynccontextmanager
    async def join(self, subscription: Subscription, listener: Listener) -> AsyncIterator[Membership]:
        ours = [Partition(topic, number) for topic in subscription.topics for number in range(PARTITIONS)]
        await listener.on_assigned({partition: self.done.get(partition, 0) for partition in ours})
        yield _Member(self, dict.fromkeys(ours, 0))
        await listener.on_revoked(ours)

    async def scan(self, topic: str) -> AsyncIterator[Record]:
        for log in self.logs[topic]:
            for record in log:
                yield record


class BehindRegistry(InMemory):
    """The same behind a schema registry, which has the schemas of `SCHEMAS`."""

    @property
    def broker(self) -> Broker:
        registry = FakeRegistry()
        registry.by_id = {id_: json.dumps(schema) for id_, schema in enumerate(SCHEMAS, 1)}
        return RegistryBroker(self, registry, CLOCK)


@dataclass
class _Member:
    ground: InMemory
    next: dict[Partition, int]

    async def poll(self, partitions: Collection[Partition], *, records_max: int, timeout_s: float) -> Sequence[Record]:
        for partition in partitions:
            log, at = self.ground.logs[partition.topic][partition.number], self.next[partition]
            if at < len(log):
                taken = log[at : at + records_max]
                self.next[partition] += len(taken)
                return taken
        self.ground.news.clear()
        with suppress(TimeoutError):
            await CLOCK.within(timeout_s, self.ground.news.wait())
        return ()

    def wake(self) -> None:
        self.ground.news.set()

    async def commit(self, offsets: Mapping[Partition, int]) -> None:
        self.ground.done |= offsets

    async def mark_in_progress(self, offsets: Mapping[Partition, int]) -> Collection[Partition]:
        return ()

    async def clear_in_progress(self, offsets: Mapping[Partition, int]) -> None:
        return None

    def log_id(self, partition: Partition) -> str:
        return ""

    def lag(self) -> Mapping[Partition, int] | None:
        return None

    def disagreeing_members(self) -> Sequence[str]:
        return ()

    def polled_offsets(self) -> Mapping[Partition, int]:
        return self.next

    async def fetch_ends(self) -> Mapping[Partition, int | None]:
        return {partition: len(self.ground.logs[partition.topic][partition.number]) for partition in self.next}

    async def fetch_positions(self, partitions: Collection[Partition]) -> Mapping[Partition, int]:
        return {partition: self.ground.done.get(partition, 0) for partition in partitions}

    def stalled_partitions(self) -> Sequence[StalledPartition]:
        return ()


# -------------------------------------------------------------------- brokers


@dataclass
class Embedded:
    """The embedded broker: it gives records their times, and every record a key."""

    broker: EmbeddedBroker
    bytes_max: int = RECORD_BYTES_MAX

    async def put(self, written: Sequence[Written]) -> None:
        await self.broker.publish([Outgoing(TOPIC, each.key or b"", each.value, each.headers) for each in written])

    async def positions(self) -> Mapping[Partition, int]:
        rows = self.broker.connection.execute(
            "SELECT log - first_log, offset FROM positions JOIN topics ON log >= first_log"
            " AND log < first_log + partitions WHERE name = ?",
            (TOPIC,),
        )
        return {Partition(TOPIC, number): offset for number, offset in rows}


@asynccontextmanager
async def embedded(folder: Path) -> AsyncIterator[Embedded]:
    """In a file of its own."""
    async with EmbeddedBroker(folder / "broker.db", clock=CLOCK) as broker:
        await broker.ensure_topics([Topic(topic, PARTITIONS) for topic in ALL])
        yield Embedded(broker)


@dataclass
class Kafka:
    """Kafka: times and codecs as their sender has them; dead letters may be far smaller than records."""

    broker: KafkaBroker
    address: str
    bytes_max: int = 1_500_000

    async def put(self, written: Sequence[Written]) -> None:
        for compression in CODECS:
            producer = AIOKafkaProducer(
                bootstrap_servers=self.address,
                compression_type=compression,
                max_request_size=2 * self.bytes_max,
                linger_ms=5,
            )
            async with started(producer):
                sent = [
                    await producer.send(
                        TOPIC,
                        b"" if each.key is None and each.value is None else each.value,  # aiokafka wants one
                        each.key,
                        partition_of(each.key or b"", PARTITIONS),
                        timestamp_ms=each.time_ms if each.time_ms >= 0 else None,
                        headers=list(each.headers),
                    )
                    for each in written
                    if CODECS[each.codec % len(CODECS)] == compression
                ]
                await asyncio.gather(*sent)

    async def positions(self) -> Mapping[Partition, int]:
        async with started(AIOKafkaAdminClient(bootstrap_servers=self.address)) as admin:
            found = await admin.list_consumer_group_offsets("payment")
        return {
            Partition(*place): position.offset
            for place, position in found.items()
            if isinstance(place, TopicPartition) and place.topic == TOPIC
        }


@asynccontextmanager
async def kafka(folder: Path) -> AsyncIterator[Kafka]:
    """A new one, with topics that other people have made."""
    server = KafkaServer.start(folder / "kafka")
    try:
        theirs = {
            "message.timestamp.type": "CreateTime",
            "message.timestamp.after.max.ms": str((1 << 63) - 1),
            "message.timestamp.before.max.ms": str((1 << 63) - 1),
            "max.message.bytes": "1600000",
            "retention.ms": "-1",
        }
        limits = {**{topic: {} for topic in ALL}, TOPIC: theirs, DEAD: {"max.message.bytes": "300000"}}
        topics = [NewTopic(name, PARTITIONS, 1, topic_configs=configs) for name, configs in limits.items()]
        async with started(AIOKafkaAdminClient(bootstrap_servers=server.address)) as admin:
            await admin.create_topics(topics)
        settings = KafkaSettings(
            servers=(server.address,), replication_factor=1, min_insync_replicas=1, heartbeat_s=0.2, rebalance_s=10
        )
        async with KafkaBroker(settings, clock=CLOCK) as broker:
            yield Kafka(broker, server.address)
    finally:
        server.stop()
