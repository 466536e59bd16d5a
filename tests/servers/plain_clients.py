"""Plain clients of aiokafka, as tests use them beside ours."""

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic, RecordsToDelete
from aiokafka.errors import TopicAlreadyExistsError

from saga.broker.kafka.client import closing_on_failure
from saga.broker.kafka.consumers import fetch_log_ids
from tests.broker.waiting import CLOCK


async def start_client(client: AIOKafkaAdminClient | AIOKafkaProducer) -> None:
    """Start a client that closes, as ours do, the connection of a start that fails: aiokafka's own stays open, until
    the garbage collector reports it in another test."""
    with closing_on_failure(client._client if isinstance(client, AIOKafkaAdminClient) else client.client):
        await client.start()


async def recreate_topic(server: str, topic: str, partitions: int) -> None:
    """Delete a topic and create it again, empty. Return once the broker has heard of it: until then it takes records
    for the log that goes."""
    admin, consumer = AIOKafkaAdminClient(bootstrap_servers=server), AIOKafkaConsumer(bootstrap_servers=server)
    await start_client(admin)
    await consumer.start()
    try:
        before = await fetch_log_ids([topic], admin._client)
        await admin.delete_topics([topic])
        code = TopicAlreadyExistsError.errno
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
    finally:
        await admin.close()
        await consumer.stop()


async def delete_topics(server: str) -> None:
    """Delete all topics, and with them the positions of all groups in them."""
    admin = AIOKafkaAdminClient(bootstrap_servers=server)
    await start_client(admin)
    try:
        await admin.delete_topics([topic for topic in await admin.list_topics() if not topic.startswith("__")])
    finally:
        await admin.close()


async def delete_records(server: str, topic: str, partitions: int) -> None:
    """Remove all records of a topic, as retention does. Return once it is seen."""
    consumer, admin = AIOKafkaConsumer(bootstrap_servers=server), AIOKafkaAdminClient(bootstrap_servers=server)
    await consumer.start()
    await start_client(admin)
    try:
        ends = await consumer.end_offsets([TopicPartition(topic, number) for number in range(partitions)])
        while await consumer.beginning_offsets(list(ends)) != ends:  # a broker may say no to one partition alone
            await admin.delete_records({place: RecordsToDelete(end) for place, end in ends.items() if end})
    finally:
        await admin.close()
        await consumer.stop()
