"""Records of open and aborted transactions: members, tools and counts ignore them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiokafka import AIOKafkaProducer

from saga.broker.administration import OffsetBounds
from saga.broker.kafka.adapter import KafkaSettings
from saga.broker.kafka.administration import KafkaAdministration
from saga.broker.port import Subscription
from saga.messages import Partition, Topic
from saga.testing.conformance.broker_suite import RecordingListener, event, values
from tests.broker.waiting import CLOCK, until
from tests.servers.plain_clients import started


@pytest.fixture
def place(kafka_topic: str) -> Partition:
    return Partition(kafka_topic, 0)


@pytest.fixture
async def broker(kafka_settings: KafkaSettings, place: Partition) -> AsyncIterator[KafkaAdministration]:
    async with KafkaAdministration(kafka_settings, clock=CLOCK) as broker:
        await broker.ensure_topics([Topic(place.topic, 1)])
        yield broker


@asynccontextmanager
async def foreign(settings: KafkaSettings, name: str) -> AsyncIterator[AIOKafkaProducer]:
    """A producer with transactions: of another program, for ours has none."""
    producer = AIOKafkaProducer(bootstrap_servers=list(settings.servers), transactional_id=name)
    async with started(producer):
        yield producer


async def send(producer: AIOKafkaProducer, topic: str, *words: str) -> None:
    for word in words:
        await producer.send_and_wait(topic, word.encode(), b"k")


async def transactions(settings: KafkaSettings, topic: str, *words: str) -> None:
    """One for each word: aborted, if it begins with `no`."""
    async with foreign(settings, topic) as producer:
        for word in words:
            await producer.begin_transaction()
            await send(producer, topic, f"{word} 1", f"{word} 2")
            await (producer.abort_transaction() if word.startswith("no") else producer.commit_transaction())


async def test_members_and_tools_skip_records_of_aborted_transactions(
    broker: KafkaAdministration, kafka_settings: KafkaSettings, place: Partition
) -> None:
    await broker.publish([event(place.topic, "k", "before")])
    await transactions(kafka_settings, place.topic, "no", "yes", "no too", "yes again")
    await broker.publish([event(place.topic, "k", "after")])
    wanted = ["before", "yes 1", "yes 2", "yes again 1", "yes again 2", "after"]
    assert values([record async for record in broker.scan(place.topic)]) == wanted
    async with broker.join(Subscription(place.topic, [place.topic]), listening := RecordingListener()) as membership:
        await until(lambda: listening.has)
        found: list[str] = []
        while len(found) < len(wanted):
            found += values(await membership.poll([place], records_max=2, timeout_s=1))
        assert found == wanted
        for _ in range(50):  # the end is known from the last answer, which may have come before the last record
            if membership.lag() == {place: 0}:
                break
            assert not await membership.poll([place], records_max=2, timeout_s=0.1)
        assert membership.lag() == {place: 0}


@pytest.mark.parametrize("last", ["yes", "no"])
async def test_a_group_that_has_handled_everything_has_no_lag_behind_a_transaction(
    broker: KafkaAdministration, kafka_settings: KafkaSettings, place: Partition, last: str
) -> None:
    """Else no worker would ever look drained."""
    await broker.publish([event(place.topic, "k", "before")])
    async with broker.join(Subscription(place.topic, [place.topic]), listening := RecordingListener()) as membership:
        await until(lambda: listening.has)
        (record,) = await membership.poll([place], records_max=5, timeout_s=10)
        await membership.commit({place: record.offset + 1})
        await transactions(kafka_settings, place.topic, last)

        async def at_the_end() -> None:
            while (await broker.describe_group(place.topic)).positions != {place: 4}:
                for record in await membership.poll([place], records_max=5, timeout_s=0.1):
                    await membership.commit({place: record.offset + 1})

        await CLOCK.within(10, at_the_end())
        assert membership.lag() == {place: 0}
    assert await broker.fetch_bounds([place.topic]) == {place: OffsetBounds(0, 4)}


async def test_records_of_an_open_transaction_appear_when_it_is_committed(
    broker: KafkaAdministration, kafka_settings: KafkaSettings, place: Partition
) -> None:
    await broker.publish([event(place.topic, "k", "before")])
    async with (
        foreign(kafka_settings, place.topic) as producer,
        broker.join(Subscription(place.topic, [place.topic]), listening := RecordingListener()) as membership,
    ):
        await producer.begin_transaction()
        await send(producer, place.topic, "perhaps")
        await until(lambda: listening.has)
        assert values(await membership.poll([place], records_max=5, timeout_s=10)) == ["before"]
        assert list(await membership.poll([place], records_max=5, timeout_s=0.3)) == []
        assert await broker.fetch_bounds([place.topic]) == {place: OffsetBounds(0, 1)}
        assert values([record async for record in broker.scan(place.topic)]) == ["before"]
        assert membership.lag() == {place: 0}
        polling = asyncio.gather(membership.poll([place], records_max=5, timeout_s=10))
        await producer.commit_transaction()
        ((record,),) = await polling
        assert record.value == b"perhaps"
