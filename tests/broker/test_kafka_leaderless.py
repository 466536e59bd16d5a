"""Partitions without a leader: what is published to them keeps its order, and they hold up no other partition."""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import replace

import pytest
from aiokafka import TopicPartition
from aiokafka.cluster import ClusterMetadata

from saga.broker.kafka.adapter import KafkaSettings
from saga.broker.kafka.broker import KafkaBroker
from saga.broker.port import Membership, Subscription, partition_of
from saga.errors import BrokerUnavailable
from saga.messages import Outgoing, Partition, Topic
from saga.testing.conformance.broker_suite import RecordingListener, event, values
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


async def read_next(member: Membership, partitions: Collection[Partition]) -> str:
    """Poll until a record comes: a poll returns without one when a partition stalls."""

    async def read() -> str:
        while not (found := await member.poll(partitions, records_max=1, timeout_s=1)):
            pass
        return values(found)[0]

    return await CLOCK.within(60, read())


async def again(broker: KafkaBroker, messages: Sequence[Outgoing]) -> None:
    """Publish as lanes do: until all of it is acknowledged."""
    while True:
        try:
            await broker.publish(messages)
        except BrokerUnavailable:
            await CLOCK.sleep(0.05)
        else:
            return


async def test_a_partition_without_leader_and_without_position_delays_no_other_one(
    kafka_settings: KafkaSettings, kafka_topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is opened at its oldest record as soon as it has a leader, and reported until then."""
    away, known = TopicPartition(kafka_topic, 1), ClusterMetadata.leader_for_partition
    leaderless = [away]
    others = {Partition(kafka_topic, 0), Partition(kafka_topic, 2)}
    keys = {partition_of(key.encode(), 3): key for key in "abcdefgh"}

    def leader(self: ClusterMetadata, of: TopicPartition) -> int | None:
        return -1 if of in leaderless else known(self, of)

    async with KafkaBroker(kafka_settings, clock=CLOCK) as broker:
        await broker.ensure_topics([Topic(kafka_topic, 3)])
        await broker.publish([event(kafka_topic, keys[number], f"{number}") for number in range(3)])
        monkeypatch.setattr(ClusterMetadata, "leader_for_partition", leader)
        listening = RecordingListener()
        async with broker.join(Subscription(kafka_topic, [kafka_topic]), listening) as member:
            await until(lambda: listening.has.keys() >= others)
            assert sorted([await read_next(member, [partition]) for partition in others]) == ["0", "2"]
            await member.commit(dict.fromkeys(others, 1))
            await until(member.stalled_partitions)
            assert [each[:3] for each in member.stalled_partitions()] == [(kafka_topic, 1, None)]
            assert listening.has.keys() == others
            assert set(await member.fetch_positions([*others, Partition(*away)])) == others
            leaderless.clear()
            await until(lambda: Partition(*away) in listening.has)
            assert await read_next(member, [Partition(*away)]) == "1"
            await member.commit({Partition(*away): 1})
            assert not member.stalled_partitions()
            assert await member.fetch_positions([Partition(*away)]) == {Partition(*away): 1}
