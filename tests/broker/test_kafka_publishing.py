"""Publishing on Kafka when it has to wait: for a full batch, for an answer that does not come, for the caller."""

import asyncio
import gc
from dataclasses import replace

import pytest
from aiokafka import TopicPartition

from saga.broker.kafka.adapter import KafkaSettings
from saga.broker.kafka.broker import KafkaBroker
from saga.broker.kafka.client import enqueue_record
from saga.broker.kafka.producer import BATCH_BYTES
from saga.errors import BrokerUnavailable
from saga.messages import Topic
from saga.testing.conformance.broker_suite import event, values
from tests.broker.waiting import CLOCK


@pytest.fixture
def settings(kafka_settings: KafkaSettings) -> KafkaSettings:
    return kafka_settings


@pytest.fixture
def topic(kafka_topic: str) -> str:
    return kafka_topic


async def test_records_beyond_a_batch_are_in_the_next_one_in_order(settings: KafkaSettings, topic: str) -> None:
    many = [event(topic, "k", f"{number:04}{'x' * 2_000}") for number in range(5 * BATCH_BYTES // 2_000)]
    async with KafkaBroker(settings, clock=CLOCK) as broker:
        await broker.ensure_topics([Topic(topic, 1)])
        await broker.publish([event(topic, "k", "before")])  # from now on the topic is known
        await broker.publish(many)
        found = values([record async for record in broker.scan(topic)])
    assert [value[:4] for value in found[1:]] == [f"{number:04}" for number in range(len(many))]


async def test_a_full_batch_takes_no_more_and_is_not_waited_for(settings: KafkaSettings, topic: str) -> None:
    async with KafkaBroker(settings, clock=CLOCK) as broker:
        await broker.ensure_topics([Topic(topic, 1)])
        await broker.publish([event(topic, "k", "before")])
        assert broker._opened is not None
        producer, taken = broker._opened[0].producer, []
        while future := enqueue_record(producer, TopicPartition(topic, 0), b"k", b"x" * 2_000, []):
            taken.append(future)
        assert len(taken) * 2_000 < BATCH_BYTES < (len(taken) + 1) * 2_100
        await asyncio.gather(*taken)
        assert len([record async for record in broker.scan(topic)]) == len(taken) + 1


async def test_each_call_is_given_up_when_its_own_time_is_up(
    settings: KafkaSettings, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with KafkaBroker(replace(settings, publish_s=1), clock=CLOCK) as broker:
        await broker.ensure_topics([Topic(topic, 1)])
        await broker.publish([event(topic, "k", "before")])
        assert broker._opened is not None
        producer = broker._opened[0].producer
        producer._sender._sender_task.cancel()  # it takes records and never sends them
        began_s = CLOCK.monotonic_s()
        calls = [broker.publish([event(topic, "k", f"{n}"), event(topic, "k", "and")]) for n in range(50)]
        for result in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(result, BrokerUnavailable)
        assert 1 <= CLOCK.monotonic_s() - began_s < 25, "not one after the other"
        await broker.publish([event(topic, "k", "after")])  # by another producer
        assert values([record async for record in broker.scan(topic)]) == ["before", "after"]
    gc.collect()
    assert "never retrieved" not in caplog.text


async def test_a_cancelled_publisher_is_removed(settings: KafkaSettings, topic: str) -> None:
    async with KafkaBroker(settings, clock=CLOCK) as broker:
        await broker.ensure_topics([Topic(topic, 1)])
        await broker.publish([event(topic, "k", "before")])
        assert broker._opened is not None
        async with asyncio.TaskGroup() as tasks:
            call = tasks.create_task(broker.publish([event(topic, "k", "during")]))
            await CLOCK.sleep(0)
            assert broker._opened[0]._under_way
            call.cancel()
        assert not broker._opened[0]._under_way
        await broker.publish([event(topic, "k", "after")])
        assert values([record async for record in broker.scan(topic)])[-1] == "after"
