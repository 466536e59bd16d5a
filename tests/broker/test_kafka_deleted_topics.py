"""A topic that is gone stops what needs it, and nothing else; it is asked for again."""

import asyncio
from dataclasses import replace

import pytest
from aiokafka.admin import AIOKafkaAdminClient

from saga.broker.kafka.adapter import KafkaSettings
from saga.broker.kafka.broker import KafkaBroker
from saga.broker.port import Subscription
from saga.errors import BrokerUnavailable
from saga.messages import Topic
from saga.testing.conformance.broker_suite import RecordingListener, event, values
from tests.broker.retrying import Reader, put
from tests.broker.waiting import CLOCK, until
from tests.servers.plain_clients import started

WITHIN_S = 60.0


@pytest.mark.timeout(120)
async def test_a_topic_that_is_gone_stops_nothing_else_and_is_written_and_read_when_it_is_back(
    kafka_settings: KafkaSettings, kafka_topic: str
) -> None:
    settings, free = replace(kafka_settings, publish_s=4), f"{kafka_topic}.free"
    topics = [Topic(kafka_topic, 1), Topic(free, 1)]
    async with KafkaBroker(settings, clock=CLOCK) as broker:
        await broker.ensure_topics(topics)
        async with broker.join(
            Subscription(kafka_topic, [kafka_topic, free]), listening := RecordingListener()
        ) as membership:
            await until(lambda: len(listening.has) == 2)
            reader = Reader(membership, listening)
            reading = asyncio.get_running_loop().create_task(reader.read())
            try:
                await broker.publish([event(kafka_topic, "k", "before"), event(free, "k", "free before")])
                await reader.until({"before", "free before"})
                await remove(settings, kafka_topic)
                with pytest.raises(BrokerUnavailable, match=kafka_topic):
                    await CLOCK.within(WITHIN_S, write_without_end(broker, kafka_topic))
                for number in range(20):  # each at once, however often the other one is tried
                    with pytest.raises(BrokerUnavailable, match=f"no topic '{kafka_topic}'"):
                        await broker.publish([event(kafka_topic, "k", "nowhere")])
                    await broker.publish([event(free, "k", f"free {number}")])
                await reader.until({f"free {number}" for number in range(20)})
                await until(membership.stalled_partitions)
                assert {each.topic for each in membership.stalled_partitions()} == {kafka_topic}
                await broker.ensure_topics(topics)
                await CLOCK.within(WITHIN_S, put(broker, kafka_topic, "k", "after"))
                await until(lambda: "after" in values(reader.records))
                await until(lambda: not membership.stalled_partitions())
            finally:
                reading.cancel()
                await asyncio.wait([reading])


async def remove(settings: KafkaSettings, topic: str) -> None:
    async with started(AIOKafkaAdminClient(bootstrap_servers=list(settings.servers))) as admin:
        answer = await admin.delete_topics([topic])
    assert [code for _, code in answer.topic_error_codes] == [0]


async def write_without_end(broker: KafkaBroker, topic: str) -> None:
    """Publish until that fails: Kafka tells of a removal when its controller has decided it, and its broker goes on
    taking records until it hears of that, which is later while it makes other topics."""
    while True:
        await broker.publish([event(topic, "k", "nowhere")])
