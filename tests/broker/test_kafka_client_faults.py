"""Breaks inside the client, which are mended; and questions about topics."""

import asyncio
from dataclasses import replace

import pytest
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.structs import TopicPartition

from saga.broker.kafka import producer
from saga.broker.kafka.adapter import KafkaSettings
from saga.broker.kafka.broker import KafkaBroker
from saga.broker.kafka.membership import KafkaMember
from saga.broker.port import Subscription
from saga.errors import BrokerError, BrokerUnavailable
from saga.messages import Partition, Topic
from saga.testing.conformance.broker_suite import RecordingListener, event, values
from tests.broker.waiting import CLOCK, WITHIN_S, until
from tests.servers.plain_clients import started


@pytest.fixture
def settings(kafka_settings: KafkaSettings) -> KafkaSettings:
    return kafka_settings


@pytest.fixture
def topic(kafka_topic: str) -> str:
    return kafka_topic


# -------------------------------------------------------------------- what breaks inside


@pytest.mark.parametrize("broken", ["_fetcher._fetch_task", "_coordinator._coordination_task", "_client._sync_task"])
async def test_a_member_whose_client_breaks_gets_another_one(settings: KafkaSettings, topic: str, broken: str) -> None:
    async with KafkaBroker(settings, clock=CLOCK) as broker:
        await broker.ensure_topics([Topic(topic, 1)])
        place = Partition(topic, 0)
        async with broker.join(Subscription(topic, [topic]), listening := RecordingListener()) as membership:
            await until(lambda: listening.has)
            assert isinstance(membership, KafkaMember)
            await membership.commit({place: 0})
            owner, _, task = broken.partition(".")
            getattr(getattr(membership._consumer, owner), task).cancel()
            await until(lambda: listening.partitions_of("lost"))
            await until(lambda: listening.has)
            await broker.publish([event(topic, "k", "after")])
            found: list[str] = []
            while found != ["after"]:
                try:
                    found += values(await membership.poll([place], records_max=1, timeout_s=1))
                except BrokerError:
                    await CLOCK.sleep(0.05)
            await membership.commit({place: 1})


async def test_a_consumer_that_is_cancelled_inside_while_it_ends_does_not_end_its_member(
    settings: KafkaSettings, topic: str
) -> None:
    """Cancelling from inside: a fetch does so that waits to be tried again, because its broker is down."""

    async def cancelled_inside() -> None:
        raise asyncio.CancelledError

    async with KafkaBroker(settings, clock=CLOCK) as broker:
        await broker.ensure_topics([Topic(topic, 1)])
        async with broker.join(Subscription(topic, [topic]), listening := RecordingListener()) as membership:
            await until(lambda: listening.has)
            assert isinstance(membership, KafkaMember)
            first = membership._consumer
            assert first is not None
            first._fetcher.close = cancelled_inside
            first._fetcher._fetch_task.cancel()
            await until(lambda: listening.partitions_of("lost"))
            await until(lambda: listening.has)
            assert membership._consumer is not first


async def test_a_member_without_partitions_gets_the_error_that_its_group_refuses_it(
    settings: KafkaSettings, topic: str
) -> None:
    async with KafkaBroker(replace(settings, session_s=4000), clock=CLOCK) as broker:
        await broker.ensure_topics([Topic(topic, 1)])
        async with broker.join(Subscription(topic, [topic]), RecordingListener()) as membership:
            with pytest.raises(BrokerError, match="session_s"):
                await membership.poll([], records_max=1, timeout_s=WITHIN_S)


async def test_many_lanes_that_meet_a_new_topic_ask_about_it_once(settings: KafkaSettings, topic: str) -> None:
    async with KafkaBroker(settings, clock=CLOCK) as broker:
        await broker.ensure_topics([Topic(topic, 3)])
        assert broker._opened is not None
        client, asked = broker._opened[0].producer.client, 0
        ask = client.fetch_all_metadata

        async def counted() -> object:
            nonlocal asked
            asked += 1
            return await ask()

        client.fetch_all_metadata = counted
        await asyncio.gather(*(broker.publish([event(topic, f"k{n}", f"{n}")]) for n in range(300)))
        assert asked == 1
        assert len([record async for record in broker.scan(topic)]) == 300


async def test_a_producer_that_breaks_is_replaced(settings: KafkaSettings, topic: str) -> None:
    async with KafkaBroker(settings, clock=CLOCK) as broker:
        await broker.ensure_topics([Topic(topic, 1)])
        await broker.publish([event(topic, "k", "before")])
        assert broker._opened is not None
        broker._opened[0].producer._sender._sender_task.cancel()
        quick = KafkaSettings(servers=settings.servers, publish_s=0.5)
        broker._opened[0]._settings = quick
        with pytest.raises(BrokerError):
            await broker.publish([event(topic, "k", "during")])
        broker._opened[0]._settings = settings
        await broker.publish([event(topic, "k", "after")])
        assert values([record async for record in broker.scan(topic)])[-1] == "after"


async def test_a_cancellation_inside_aiokafka_does_not_cancel_the_caller(
    settings: KafkaSettings, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def cancelled(*_: object) -> None:
        raise asyncio.CancelledError

    def handed_over(*_: object) -> asyncio.Future[object]:
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        return future

    async with KafkaBroker(settings, clock=CLOCK) as broker:
        await broker.ensure_topics([Topic(topic, 1)])
        await broker.publish([event(topic, "k", "before")])
        with monkeypatch.context() as patch:
            patch.setattr(producer, "enqueue_record", handed_over)
            with pytest.raises(BrokerUnavailable):
                await broker.publish([event(topic, "k", "during")])
        async with broker.join(Subscription(topic, [topic]), listening := RecordingListener()) as membership:
            await until(lambda: listening.has)
            assert isinstance(membership, KafkaMember)
            with monkeypatch.context() as patch:
                patch.setattr(membership._consumer, "commit", cancelled)
                with pytest.raises(BrokerUnavailable):
                    await membership.commit({Partition(topic, 0): 1})
            await membership.commit({Partition(topic, 0): 1})


async def test_a_publishing_caller_can_be_cancelled(
    settings: KafkaSettings, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with KafkaBroker(settings, clock=CLOCK) as broker:
        await broker.ensure_topics([Topic(topic, 1)])
        await broker.publish([event(topic, "k", "before")])
        never = asyncio.get_running_loop().create_future()
        monkeypatch.setattr(producer, "enqueue_record", lambda *_: never)
        publishing = asyncio.get_running_loop().create_task(broker.publish([event(topic, "k", "during")]))
        await CLOCK.sleep(0)
        publishing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await publishing


# -------------------------------------------------------------------- topics


async def test_records_that_were_removed_before_they_were_read_are_reported(
    settings: KafkaSettings, topic: str
) -> None:
    async with KafkaBroker(settings, clock=CLOCK) as broker:
        await broker.ensure_topics([Topic(topic, 1)])
        await broker.publish([event(topic, "k", f"{n}") for n in range(10)])
        async with broker.join(Subscription(topic, [topic]), listening := RecordingListener()) as membership:
            await until(lambda: listening.has)
            await membership.commit({Partition(topic, 0): 2})
        async with started(AIOKafkaAdminClient(bootstrap_servers=list(settings.servers))) as admin:
            await admin.delete_records({TopicPartition(topic, 0): RecordsToDelete(before_offset=5)})
        async with broker.join(Subscription(topic, [topic]), listening := RecordingListener()) as membership:
            await until(lambda: listening.has)
            assert values(await membership.poll(list(listening.has), records_max=1, timeout_s=WITHIN_S)) == ["5"]
            assert listening.expired == {Partition(topic, 0): [range(2, 5)]}


async def test_a_topic_is_made_as_it_has_to_be(settings: KafkaSettings, topic: str) -> None:
    async with KafkaBroker(settings, clock=CLOCK) as broker, KafkaBroker(settings, clock=CLOCK) as other:
        wanted = [Topic(topic, 3, retention_days=2), Topic(f"{topic}.wakes", 3, retention_days=None)]
        await asyncio.gather(broker.ensure_topics(wanted), other.ensure_topics(wanted))
    async with started(AIOKafkaAdminClient(bootstrap_servers=list(settings.servers))) as admin:
        described = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, t.name) for t in wanted])
    configs = [{entry[0]: entry[1] for entry in resource[4]} for answer in described for resource in answer.resources]
    assert [config["retention.ms"] for config in configs] == [str(2 * 86_400_000), "-1"]
    for config in configs:
        assert config["message.timestamp.type"] == "LogAppendTime"
        assert config["cleanup.policy"] == "delete"
        assert config["min.insync.replicas"] == "1"
        assert config["unclean.leader.election.enable"] == "false"


async def test_more_replicas_than_brokers_are_refused(settings: KafkaSettings, topic: str) -> None:
    safe = KafkaSettings(servers=settings.servers)
    async with KafkaBroker(safe, clock=CLOCK) as broker:
        with pytest.raises(BrokerError, match=f"{topic}.*fewer brokers than replication_factor"):
            await broker.ensure_topics([Topic(topic, 1)])


async def test_joining_for_a_topic_that_is_not_there_is_refused_and_does_not_make_it(
    settings: KafkaSettings, topic: str
) -> None:
    async with KafkaBroker(settings, clock=CLOCK) as broker:
        with pytest.raises(BrokerError, match=f"no topic '{topic}'"):
            async with broker.join(Subscription(topic, [topic]), RecordingListener()):
                pass
        with pytest.raises(BrokerError, match=topic):
            assert [record async for record in broker.scan(topic)] == []
