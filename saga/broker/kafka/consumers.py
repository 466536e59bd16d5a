"""Consumers of aiokafka as we want them: none of them reads what a transaction has not committed, nor counts it. And
the listener that they call when the group has decided."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.errors import KafkaError

from saga.broker.kafka.assignor import IdentityAssignor
from saga.broker.kafka.client import FAILED, end_consumer, failed, starting
from saga.broker.kafka.settings import Access, KafkaSettings
from saga.support.clock import Clock

FETCH_BYTES = 1 << 23
"""Most bytes that one broker sends at once; of one partition an eighth of it."""
END_S = 2.0
FOREVER_MS = (1 << 31) - 1


def of_group(
    group: str, topics: Sequence[str], settings: KafkaSettings, access: Access, assignor: IdentityAssignor
) -> AIOKafkaConsumer:
    """Make a consumer that is to be a member of a group that reads these topics. Raises `BrokerUnavailable` without a
    password."""
    return _consumer(
        access,
        group_id=group,
        group_instance_id=settings.instance_for(topics),
        auto_offset_reset="earliest",
        partition_assignment_strategy=(assignor,),
        session_timeout_ms=int(settings.session_s * 1000),
        heartbeat_interval_ms=int(settings.heartbeat_s * 1000),
        rebalance_timeout_ms=int(settings.rebalance_s * 1000),
        max_poll_interval_ms=FOREVER_MS,  # who cannot go on for want of a store shall not lose partitions for it
        request_timeout_ms=int(settings.request_s * 1000),
        metadata_max_age_ms=int(settings.metadata_s * 1000),
        fetch_max_wait_ms=int(settings.fetch_wait_s * 1000),
        fetch_max_bytes=FETCH_BYTES,
        max_partition_fetch_bytes=FETCH_BYTES // 8,
    )


@asynccontextmanager
async def of_nobody(
    settings: KafkaSettings, access: Access, clock: Clock, request_s: float
) -> AsyncIterator[AIOKafkaConsumer]:
    """Open a consumer for tools inside the block: it has no positions but those that it is told. Raises `BrokerError`:
    it cannot connect."""
    consumer = _consumer(
        access,
        group_id=None,
        auto_offset_reset="none",
        request_timeout_ms=int(request_s * 1000),
        fetch_max_wait_ms=int(settings.fetch_wait_s * 1000),
    )
    try:
        try:
            with starting(consumer._client):
                await clock.within(request_s, consumer.start())
        except FAILED as why:
            raise access.explained(failed(why, "connecting to Kafka, to read", "Read")) from why
        yield consumer
    finally:
        await asyncio.shield(end_consumer(consumer, clock, END_S))


def _consumer(access: Access, **options: Any) -> AIOKafkaConsumer:
    try:
        known = access.options
    except KafkaError as why:
        raise failed(why, "connecting to Kafka") from why
    return AIOKafkaConsumer(**known, isolation_level="read_committed", enable_auto_commit=False, **options)


class Rebalances(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    """Listener that hands on what the group has decided, with the consumer to which it was said."""

    def __init__(
        self,
        consumer: AIOKafkaConsumer,
        given_up: Callable[[AIOKafkaConsumer], Awaitable[None]],
        given: Callable[[AIOKafkaConsumer, Collection[TopicPartition]], Awaitable[None]],
    ) -> None:
        self._consumer, self._given_up, self._given = consumer, given_up, given

    async def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        await self._given_up(self._consumer)

    async def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        await self._given(self._consumer, assigned)
