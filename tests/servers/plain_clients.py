"""Plain clients of aiokafka, as tests use them beside ours."""

from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient

from saga.broker.kafka.client import starting


async def begun(client: AIOKafkaAdminClient | AIOKafkaProducer) -> None:
    """Start a client that closes, as ours do, the connections that it forgets when a broker hangs up: aiokafka's own
    may stay open, until the garbage collector reports them in another test."""
    with starting(client._client if isinstance(client, AIOKafkaAdminClient) else client.client):
        await client.start()
