"""Commits end with their assignment, and count for the topics that took them; for all of this no broker is needed."""

import asyncio
from collections.abc import Mapping

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import TopicAuthorizationFailedError

from saga.broker.kafka.consumers import OwnedPartition, commit
from saga.errors import BrokerUnavailable, Fenced
from saga.messages import Partition
from tests.broker.waiting import CLOCK, until

ORDERS, PAYMENTS = Partition("orders", 0), Partition("payments", 0)
AT_ONCE_S, LONG_S = 20.0, 60.0


class Committing(AIOKafkaConsumer):  # type: ignore[misc]  # aiokafka has no types
    """A consumer of which commits go on until they are cancelled, or are refused for these topics."""

    def __init__(self, *refused: str) -> None:
        self.refused = refused
        self.offsets: Mapping[TopicPartition, int] = {}
        self.cancelled = False

    def __del__(self) -> None:
        """There is nothing to close."""

    async def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        self.offsets = offsets or {}
        if self.refused:
            raise TopicAuthorizationFailedError(*self.refused)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise


def moved(*partitions: Partition) -> dict[Partition, tuple[OwnedPartition, int]]:
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    return {partition: (OwnedPartition(next=5, committed=3, over=over), 5) for partition in partitions}


async def test_a_commit_is_fenced_as_soon_as_its_assignment_is_over() -> None:
    consumer, orders = Committing(), moved(ORDERS)
    owned, _ = orders[ORDERS]
    asyncio.get_running_loop().call_later(0.05, owned.over.set_result, None)
    with pytest.raises(Fenced, match=r"^here: the assignment was over before it was acknowledged$"):
        await CLOCK.within(AT_ONCE_S, commit(consumer, orders, "here", LONG_S))
    await until(lambda: consumer.cancelled)
    placed: object = {TopicPartition(*ORDERS): (5, "")}
    assert consumer.offsets == placed
    assert owned.committed == 3


async def test_a_commit_without_an_answer_is_given_up_in_time() -> None:
    consumer, orders = Committing(), moved(ORDERS)
    with pytest.raises(BrokerUnavailable, match=r"^here: not acknowledged within 0\.05 s$"):
        await CLOCK.within(AT_ONCE_S, commit(consumer, orders, "here", 0.05))
    await until(lambda: consumer.cancelled)


async def test_topics_without_rights_do_not_hold_up_the_others() -> None:
    both = moved(ORDERS, PAYMENTS)
    await commit(Committing("orders"), both, "here", LONG_S)
    assert {partition: owned.committed for partition, (owned, _) in both.items()} == {ORDERS: 3, PAYMENTS: 5}


async def test_a_commit_that_is_refused_for_all_partitions_raises() -> None:
    both = moved(ORDERS, PAYMENTS)
    with pytest.raises(BrokerUnavailable, match=r"^here: TopicAuthorizationFailedError"):
        await commit(Committing("orders", "payments"), both, "here", LONG_S)
    assert {owned.committed for owned, _ in both.values()} == {3}
