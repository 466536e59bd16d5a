"""Fixtures of tests on Kafka."""

import itertools
import os

import pytest

from saga.broker.kafka.adapter import KafkaSettings

NUMBERS = itertools.count()


@pytest.fixture
def kafka_settings(kafka_address: str) -> KafkaSettings:
    """For the broker that all tests share, with members that soon hear of one another."""
    return KafkaSettings(
        servers=(kafka_address,), replication_factor=1, min_insync_replicas=1, heartbeat_s=0.2, rebalance_s=8
    )


@pytest.fixture
def kafka_topic() -> str:
    """A name, for a topic and a group, that no other test has."""
    return f"test.{os.getpid()}.{next(NUMBERS)}"
