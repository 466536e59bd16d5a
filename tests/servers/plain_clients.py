"""Plain clients of aiokafka, as tests use them beside ours."""

from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import TopicAlreadyExistsError

from saga.broker.kafka.client import starting
from tests.broker.waiting import CLOCK


async def begun(client: AIOKafkaAdminClient | AIOKafkaProducer) -> None:
    """Start a client that closes, as ours do, the connections that it forgets when a broker hangs up: aiokafka's own
    may stay open, until the garbage collector reports them in another test."""
    with starting(client._client if isinstance(client, AIOKafkaAdminClient) else client.client):
        await client.start()


async def created_again(server: str, topic: str, partitions: int) -> None:
    """Delete a topic and create it again, empty."""
    admin = AIOKafkaAdminClient(bootstrap_servers=server)
    await begun(admin)
    try:
        await admin.delete_topics([topic])
        code = TopicAlreadyExistsError.errno
        while code == TopicAlreadyExistsError.errno:  # it is deleted in the background
            await CLOCK.sleep(0.05)
            answer = await admin.create_topics([NewTopic(topic, partitions, 1)])
            [(_, code, *_)] = answer.topic_errors
        assert code == 0, answer
    finally:
        await admin.close()
