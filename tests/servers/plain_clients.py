"""Plain clients of aiokafka, as tests use them beside ours."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic, RecordsToDelete
from aiokafka.errors import TopicAlreadyExistsError

from saga.broker.kafka.client import close_connections, closing_on_failure
from saga.broker.kafka.consumers import fetch_log_ids
from tests.broker.waiting import CLOCK

PlainClient = TypeVar("PlainClient", AIOKafkaAdminClient, AIOKafkaConsumer, AIOKafkaProducer)


@asynccontextmanager
async def started(client: PlainClient) -> AsyncIterator[PlainClient]:
    """Start a client, and close it at the end with all of its connections, as ours do.

    aiokafka leaves some open if a start or an end fails, until the garbage collector reports them in another test.
    """
    inner = client.client if isinstance(client, AIOKafkaProducer) else client._client
    try:
        with closing_on_failure(inner):
            await client.start()
        yield client
    finally:
        try:
            await (client.close() if isinstance(client, AIOKafkaAdminClient) else client.stop())
        finally:
            close_connections(inner)


async def recreate_topic(server: str, topic: str, partitions: int) -> None:
    """Delete a topic and create it again, empty. Return once the broker has heard of it: until then it takes records
    for the log that goes."""
    async with (
        started(AIOKafkaAdminClient(bootstrap_servers=server)) as admin,
        started(AIOKafkaConsumer(bootstrap_servers=server)) as consumer,
    ):
        before = await fetch_log_ids([topic], admin._client)
        await admin.delete_topics([topic])
        code, answer = TopicAlreadyExistsError.errno, None
        while code == TopicAlreadyExistsError.errno:  # it is deleted in the background
            await CLOCK.sleep(0.05)
            answer = await admin.create_topics([NewTopic(topic, partitions, 1)])
            [(_, code, *_)] = answer.topic_errors
        assert code == 0, answer
        while await fetch_log_ids([topic], admin._client) in ({}, before):
            await CLOCK.sleep(0.05)
        places = [TopicPartition(topic, number) for number in range(partitions)]
        while any((await consumer.end_offsets(places)).values()):
            await CLOCK.sleep(0.05)


async def delete_topics(server: str) -> None:
    """Delete all topics, and with them the positions of all groups in them."""
    async with started(AIOKafkaAdminClient(bootstrap_servers=server)) as admin:
        await admin.delete_topics([topic for topic in await admin.list_topics() if not topic.startswith("__")])


async def delete_records(server: str, topic: str, partitions: int) -> None:
    """Remove all records of a topic, as retention does. Return once it is seen."""
    async with (
        started(AIOKafkaConsumer(bootstrap_servers=server)) as consumer,
        started(AIOKafkaAdminClient(bootstrap_servers=server)) as admin,
    ):
        ends = await consumer.end_offsets([TopicPartition(topic, number) for number in range(partitions)])
        while await consumer.beginning_offsets(list(ends)) != ends:  # a broker may say no to one partition alone
            await admin.delete_records({place: RecordsToDelete(end) for place, end in ends.items() if end})
