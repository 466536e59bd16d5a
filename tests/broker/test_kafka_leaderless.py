"""The order of one key when a batch is given up for want of a leader: nothing later comes before it."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from aiokafka import TopicPartition

from saga.broker.kafka.adapter import KafkaSettings
from saga.broker.kafka.broker import KafkaBroker
from saga.errors import BrokerUnavailable
from saga.messages import Outgoing, Topic
from saga.testing.conformance.broker_suite import event, values
from tests.broker.waiting import CLOCK, until

LARGE = "x" * 100_000
"""Two of these do not fit into one batch."""


@pytest.mark.parametrize("away_s", [0.5, 1.1, 1.25, 2.2])
async def test_no_later_record_of_a_key_precedes_a_retried_one(
    kafka_settings: KafkaSettings, kafka_topic: str, monkeypatch: pytest.MonkeyPatch, away_s: float
) -> None:
    """Batches are given up after 1 s here, the whole after 2: the leader comes back before, between and behind them."""
    settings = replace(kafka_settings, publish_s=2)
    place, words = TopicPartition(kafka_topic, 0), [f"{n} {LARGE}" for n in range(4)]
    async with KafkaBroker(settings, clock=CLOCK) as broker:
        await broker.ensure_topics([Topic(kafka_topic, 1)])
        await broker.count_partitions([kafka_topic])
        producer = broker._open[0].producer
        await producer.partitions_for(kafka_topic)  # it knows the topic, and has sent nothing of it
        cluster = producer.client.cluster
        back_s, known = CLOCK.monotonic_s() + away_s, cluster.leader_for_partition

        def leader(of: TopicPartition) -> int:
            found: int = -1 if of == place and CLOCK.monotonic_s() < back_s else known(of)
            return found

        monkeypatch.setattr(cluster, "leader_for_partition", leader)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(again(broker, [event(kafka_topic, "other", "")]))  # its batch is the first to be given up
            await CLOCK.sleep(0.4)
            await again(broker, [event(kafka_topic, "k", word) for word in words])
        await until(lambda: CLOCK.monotonic_s() > back_s + 0.5)  # whatever is still on its way has arrived
        found = values([record async for record in broker.scan(kafka_topic) if record.key == b"k"])
    assert list(dict.fromkeys(found)) == words


async def again(broker: KafkaBroker, messages: Sequence[Outgoing]) -> None:
    """Publish as lanes do: until all of it is acknowledged."""
    while True:
        try:
            await broker.publish(messages)
        except BrokerUnavailable:
            await CLOCK.sleep(0.05)
        else:
            return
