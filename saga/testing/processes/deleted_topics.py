"""Delete the topics that a world has created on a Kafka that keeps running after the world."""

from collections.abc import Collection

from saga.errors import BrokerError
from saga.support.clock import SystemClock

DELETED_S_MAX = 30.0
LOOK_S = 0.05


async def delete_topics(server: str, topics: Collection[str]) -> None:
    """Delete topics, and wait until the broker no longer lists them. Raises `BrokerError` if it still lists one after
    `DELETED_S_MAX` seconds.

    The wait is needed because Kafka deletes topics in the background, and the next world could still see them.
    """
    from aiokafka.admin import AIOKafkaAdminClient

    if not topics:
        return
    clock, admin = SystemClock(), AIOKafkaAdminClient(bootstrap_servers=server)
    until_s = clock.monotonic_s() + DELETED_S_MAX
    try:
        await admin.start()
        while left := sorted(set(topics).intersection(await admin.list_topics())):
            if clock.monotonic_s() > until_s:
                raise BrokerError(f"Kafka at {server} has not deleted {', '.join(left)} within {DELETED_S_MAX:g} s")
            await admin.delete_topics(left)
            await clock.sleep(LOOK_S)
    finally:
        await admin.close()
