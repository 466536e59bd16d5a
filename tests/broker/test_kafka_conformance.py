"""Kafka keeps the promises of the port: on a real broker."""

import itertools
import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

from saga.broker.kafka.adapter import KafkaSettings
from saga.broker.kafka.broker import KafkaBroker
from saga.messages import Partition
from saga.support.clock import SystemClock
from saga.testing.conformance.broker import BrokerConformance, Damage
from saga.testing.conformance.broker_suite import Connect, Recreate, Remove
from tests.servers.damage import WAYS, spoil
from tests.servers.plain_clients import recreate_topic, started

NUMBERS = itertools.count()


class TestKafkaBroker(BrokerConformance):
    within_s = 60.0

    @pytest.fixture(params=WAYS)
    def damage(self, kafka_data: Path, request: pytest.FixtureRequest) -> Damage:
        return lambda record: spoil(kafka_data, record, request.param)

    @pytest.fixture
    def prefix(self) -> str:
        return f"{os.getpid()}.{next(NUMBERS)}."

    @pytest.fixture
    def connect(self, kafka_address: str) -> Connect:
        settings = KafkaSettings(
            servers=(kafka_address,), replication_factor=1, min_insync_replicas=1, heartbeat_s=0.2, rebalance_s=10
        )
        return lambda: KafkaBroker(settings, clock=SystemClock())

    @pytest.fixture
    def remove(self, kafka_address: str) -> Remove:
        async def removed(before: Mapping[Partition, int]) -> None:
            up_to = {TopicPartition(*p): RecordsToDelete(offset) for p, offset in before.items()}
            async with started(AIOKafkaAdminClient(bootstrap_servers=kafka_address)) as admin:
                await admin.delete_records(up_to)

        return removed

    @pytest.fixture
    def recreate(self, kafka_address: str) -> Recreate:
        return lambda topic, partitions: recreate_topic(kafka_address, topic, partitions)
