"""Listener that aiokafka calls when the group has decided, always about everything that a member has."""

from collections.abc import Awaitable, Callable, Collection

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.abc import ConsumerRebalanceListener


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
