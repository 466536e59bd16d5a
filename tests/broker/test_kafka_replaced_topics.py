"""A topic that is deleted and created again has another log: positions of the one before count nowhere."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaConnectionError
from aiokafka.structs import OffsetAndMetadata

from saga.broker.kafka import administration
from saga.broker.kafka.adapter import KafkaSettings
from saga.broker.kafka.administration import KafkaAdministration
from saga.broker.kafka.membership import KafkaMember
from saga.broker.port import Subscription
from saga.errors import BrokerUnavailable
from saga.messages import Partition, Topic
from saga.testing.conformance.broker_suite import RecordingListener, event, values
from tests.broker.waiting import CLOCK, until
from tests.servers.plain_clients import recreate_topic, started


@pytest.fixture
async def broker(kafka_settings: KafkaSettings, kafka_topic: str) -> AsyncIterator[KafkaAdministration]:
    async with KafkaAdministration(kafka_settings, clock=CLOCK) as broker:
        await broker.ensure_topics([Topic(kafka_topic, 1)])
        yield broker


async def begins(broker: KafkaAdministration, topic: str) -> tuple[int, list[int]]:
    """Where a member of the group named like the topic begins, and the positions that do not count."""
    async with broker.join(Subscription(topic, [topic]), listening := RecordingListener()):
        await until(lambda: listening.has)
        return listening.has[Partition(topic, 0)], listening.replaced.get(Partition(topic, 0), [])


async def committed(settings: KafkaSettings, topic: str, offset: int, metadata: str) -> None:
    """Commit an offset like a slow member that still believes to have the partition."""
    consumer = AIOKafkaConsumer(bootstrap_servers=list(settings.servers), group_id=topic, enable_auto_commit=False)
    async with started(consumer):
        consumer.assign([TopicPartition(topic, 0)])
        await consumer.commit({TopicPartition(topic, 0): OffsetAndMetadata(offset, metadata)})


async def test_a_position_of_the_log_before_counts_neither_for_members_nor_for_tools(
    broker: KafkaAdministration, kafka_settings: KafkaSettings, kafka_topic: str
) -> None:
    (before,) = (await broker.fetch_log_ids([kafka_topic])).values()
    await recreate_topic(kafka_settings.servers[0], kafka_topic, 1)
    await broker.publish([event(kafka_topic, "k", f"{n}") for n in range(20)])
    (after,) = (await broker.fetch_log_ids([kafka_topic])).values()
    assert before != after
    place = Partition(kafka_topic, 0)
    await committed(kafka_settings, kafka_topic, 7, f"in hand@{before}")
    assert (await broker.describe_group(kafka_topic)).positions == {}
    assert await begins(broker, kafka_topic) == (0, [7])
    await committed(kafka_settings, kafka_topic, 7, f"in hand@{after}")
    assert (await broker.describe_group(kafka_topic)).positions == {place: 7}
    assert await begins(broker, kafka_topic) == (7, [])


@pytest.mark.parametrize("metadata", ["", "clean", "in hand", "of another tool"])
async def test_a_position_that_does_not_say_of_which_log_it_is_counts(
    broker: KafkaAdministration, kafka_settings: KafkaSettings, kafka_topic: str, metadata: str
) -> None:
    """Releases before wrote no id, and people move positions with other tools."""
    await broker.publish([event(kafka_topic, "k", f"{n}") for n in range(20)])
    await committed(kafka_settings, kafka_topic, 7, metadata)
    assert await begins(broker, kafka_topic) == (7, [])


async def test_a_position_that_people_move_is_of_the_log_that_is_there(
    broker: KafkaAdministration, kafka_settings: KafkaSettings, kafka_topic: str
) -> None:
    await broker.publish([event(kafka_topic, "k", f"{n}") for n in range(20)])
    place = Partition(kafka_topic, 0)
    await broker.move_positions(kafka_topic, {place: 9})
    assert await begins(broker, kafka_topic) == (9, [])
    await recreate_topic(kafka_settings.servers[0], kafka_topic, 1)
    await broker.publish([event(kafka_topic, "k", f"{n}") for n in range(20)])
    assert (await begins(broker, kafka_topic))[0] == 0


async def test_a_reader_without_a_group_reads_all_of_a_recreated_topic(
    broker: KafkaAdministration, kafka_settings: KafkaSettings, kafka_topic: str
) -> None:
    place, new = Partition(kafka_topic, 0), {f"new {n}" for n in range(30)}
    await broker.publish([event(kafka_topic, "k", f"old {n}") for n in range(10)])
    came: list[str] = []
    async with broker.open_reader({place: 0}) as reading:
        while len(came) < 10:
            came += values(await reading.poll(records_max=100, timeout_s=1))
        before = dict(reading.log_ids())
        await recreate_topic(kafka_settings.servers[0], kafka_topic, 1)
        await broker.publish([event(kafka_topic, "k", value) for value in sorted(new)])
        while not new <= {*came}:
            came += values(await reading.poll(records_max=100, timeout_s=1))
        assert reading.positions() == {place: 30}
        assert reading.log_ids() != before
    again: list[str] = []
    async with broker.open_reader(
        {place: 10}, before
    ) as reading:  # as who had it open while the topic was created again
        while not new <= {*again}:
            again += values(await reading.poll(records_max=100, timeout_s=1))
    assert {*again} == new


async def test_a_reader_reads_all_of_a_recreated_topic_though_its_bounds_could_not_be_fetched_at_first(
    broker: KafkaAdministration, kafka_settings: KafkaSettings, kafka_topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, new = await broker.fetch_log_ids([kafka_topic]), {f"new {n}" for n in range(30)}
    await recreate_topic(kafka_settings.servers[0], kafka_topic, 1)
    await broker.publish([event(kafka_topic, "k", value) for value in sorted(new)])

    async def fails(*_: object) -> None:
        raise KafkaConnectionError("gone")

    came: list[str] = []
    async with broker.open_reader({Partition(kafka_topic, 0): 10}, before) as reading:
        with monkeypatch.context() as planted:
            planted.setattr(administration, "fetch_bounds", fails)
            with pytest.raises(BrokerUnavailable):
                await reading.poll(records_max=100, timeout_s=1)
        assert not reading.log_ids(), "the positions are still those of the log before"

        async def read() -> None:
            while not new <= {*came}:
                came.extend(values(await reading.poll(records_max=100, timeout_s=1)))

        await CLOCK.within(15, read())
        assert reading.log_ids() == await broker.fetch_log_ids([kafka_topic])


async def test_a_reader_reads_on_though_its_topic_was_created_again_with_fewer_partitions(
    broker: KafkaAdministration, kafka_settings: KafkaSettings, kafka_topic: str
) -> None:
    topic, places = f"{kafka_topic}.wide", [Partition(f"{kafka_topic}.wide", number) for number in range(2)]
    await broker.ensure_topics([Topic(topic, 2)])
    before = await broker.fetch_log_ids([topic])
    await recreate_topic(kafka_settings.servers[0], topic, 1)
    await broker.publish([event(topic, "k", "new")])
    async with broker.open_reader(dict.fromkeys(places, 10), before) as reading:
        while not (came := await reading.poll(records_max=100, timeout_s=5)):
            pass  # a slow broker
        assert values(came) == ["new"]
        assert reading.positions() == {places[0]: 1, places[1]: 0}
        assert reading.log_ids() == await broker.fetch_log_ids([topic])


async def test_a_member_reads_on_though_its_position_was_found_out_of_range_while_it_was_assigned(
    broker: KafkaAdministration, kafka_settings: KafkaSettings, kafka_topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """aiokafka fetches from the committed offset on while we still ask in which log it counts."""
    asked = KafkaMember._fetch_positions

    async def slow(
        self: KafkaMember, consumer: AIOKafkaConsumer, places: Sequence[TopicPartition], limit_s: float
    ) -> Any:
        found = await asked(self, consumer, places, limit_s)
        await until(
            lambda: self._fetching is not None and TopicPartition(kafka_topic, 0) in self._fetching.out_of_range
        )
        return found

    monkeypatch.setattr(KafkaMember, "_fetch_positions", slow)
    (before,) = (await broker.fetch_log_ids([kafka_topic])).values()
    await recreate_topic(kafka_settings.servers[0], kafka_topic, 1)
    await committed(kafka_settings, kafka_topic, 70, f"in hand@{before}")
    await broker.publish([event(kafka_topic, "k", f"{n}") for n in range(20)])
    async with broker.join(Subscription(kafka_topic, [kafka_topic]), listening := RecordingListener()) as member:
        await until(lambda: listening.has)
        records = await member.poll([Partition(kafka_topic, 0)], records_max=50, timeout_s=5)
    assert values(records) == [f"{n}" for n in range(20)]
