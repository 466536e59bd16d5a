"""What cannot be read is told anew under another assignment; for all of this no broker is needed."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from saga.broker.kafka.fetching import Fetching
from saga.messages import Standstill
from tests.broker.waiting import CLOCK

PLACE = TopicPartition("orders", 0)


class Told:
    """What stood, each time that it was different."""

    def __init__(self, consumer: AIOKafkaConsumer) -> None:
        self.standing: list[list[Standstill]] = []
        self.fetching = Fetching(consumer, CLOCK, lambda: self.standing.append(self.fetching.standing()))

    def stands(self, consumer: AIOKafkaConsumer) -> None:
        """The partition, at offset 5."""
        assignment = consumer._subscription.subscription.assignment
        self.fetching._stands(assignment, PLACE, self.fetching._new(5, "damaged"))


@pytest.fixture
async def consumer() -> AsyncIterator[AIOKafkaConsumer]:
    consumer = AIOKafkaConsumer(bootstrap_servers="127.0.0.1:9")
    consumer.assign([PLACE])
    yield consumer
    await consumer.stop()


async def test_what_stands_is_told_to_be_over_when_the_assignment_is_and_told_again_under_the_next_one(
    consumer: AIOKafkaConsumer,
) -> None:
    told, stands = Told(consumer), [Standstill("orders", 0, 5, "damaged")]
    told.stands(consumer)
    told.stands(consumer)
    assert told.standing == [stands], "news only"
    told.fetching.begin()
    told.fetching.begin()
    assert told.standing == [stands, []]
    told.stands(consumer)
    assert told.standing == [stands, [], stands]
    await told.fetching.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}
