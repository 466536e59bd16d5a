"""Kafka keeps the promises of the port: on a real broker."""

import itertools
import os

import pytest

from saga.broker.kafka import KafkaBroker, KafkaSettings
from saga.clock import SystemClock
from saga.testing.conformance.broker import BrokerConformance, Connect

NUMBERS = itertools.count()


class TestKafkaBroker(BrokerConformance):
    within_s = 20.0

    @pytest.fixture
    def prefix(self) -> str:
        return f"{os.getpid()}.{next(NUMBERS)}."

    @pytest.fixture
    def connect(self, kafka_address: str) -> Connect:
        settings = KafkaSettings(
            servers=(kafka_address,), replication_factor=1, min_insync_replicas=1, heartbeat_s=0.2, rebalance_s=10
        )
        return lambda: KafkaBroker(settings, clock=SystemClock())
