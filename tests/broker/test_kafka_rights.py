"""Rights that are revoked while a client publishes and reads: the missing right is named, the client waits, and nothing
is lost."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from saga.broker.kafka.adapter import KafkaSettings
from saga.broker.kafka.broker import KafkaBroker
from saga.broker.kafka.membership import KafkaMember
from saga.broker.port import Broker, Membership, Subscription
from saga.errors import BrokerError, BrokerUnavailable
from saga.messages import Partition, Topic
from saga.support.clock import SystemClock
from saga.testing.conformance.broker_suite import RecordingListener, event, values
from tests.broker.retrying import Reader, put
from tests.broker.waiting import until
from tests.servers.rights import DESCRIBE, GROUP, PASSWORD, READ, TOPIC, USER, WRITE, Guarded, Right, guarded_kafka

CLOCK = SystemClock()
WITHIN_S = 60.0


@pytest.fixture(scope="module")
def running(server_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with guarded_kafka(tmp_path_factory.mktemp("kafka")) as guarded:
        yield guarded


@pytest.fixture
async def guarded(running: Guarded) -> AsyncIterator[Guarded]:
    """In which nothing is allowed yet."""
    yield running
    await running.take_all()


@pytest.fixture
def settings_with_all_rights(guarded: Guarded) -> KafkaSettings:
    """Settings of a user with all rights."""
    return KafkaSettings(
        servers=(guarded.kafka.address,),
        replication_factor=1,
        min_insync_replicas=1,
        session_s=3,
        heartbeat_s=0.2,
        rebalance_s=8,
        publish_s=3,
        commit_s=1,
    )


@pytest.fixture
def settings(guarded: Guarded, settings_with_all_rights: KafkaSettings) -> KafkaSettings:
    """Settings of the user who may do what was allowed."""
    shown = {"sasl": "PLAIN", "username": USER, "password": lambda: PASSWORD}
    return replace(settings_with_all_rights, servers=(guarded.address,), **shown)  # type: ignore[arg-type]  # the names of its fields


@pytest.fixture
async def other(settings_with_all_rights: KafkaSettings, kafka_name: str) -> AsyncIterator[Broker]:
    """The same broker for a user with all rights; the test's topics are there."""
    async with KafkaBroker(settings_with_all_rights, clock=CLOCK) as broker:
        await broker.ensure_topics([Topic(kafka_name, 1), Topic(f"{kafka_name}.free", 1)])
        yield broker


@pytest.fixture
def kafka_name(request: pytest.FixtureRequest) -> str:
    """Name of a topic and a group; each test has its own."""
    name: str = request.node.name
    return name.replace("[", ".").replace("]", "")[-60:]


async def refusal(membership: Membership, place: Partition) -> str:
    """Error that a member gets which continues to poll."""

    async def refused() -> str:
        while True:
            try:
                await membership.poll([place], records_max=9, timeout_s=0.1)
            except BrokerUnavailable as why:
                return str(why)

    return await CLOCK.within(WITHIN_S, refused())


async def standstill(membership: Membership, place: Partition, says: str = "") -> str:
    """Stalled topic that a polling member gets, once its text has `says`: what stops first is reported
    first."""

    async def wait_for_stall_reason() -> str:
        while not any(says in each.reason for each in membership.stalled_partitions()):
            await membership.poll([place], records_max=9, timeout_s=0.1)
        (each,) = membership.stalled_partitions()
        assert (each.topic, each.partition) == (place.topic, None)
        return each.reason

    return await CLOCK.within(WITHIN_S, wait_for_stall_reason())


async def read(membership: Membership, place: Partition, wanted: list[str]) -> None:
    """Return when exactly these have come, and are committed."""

    async def all_of_them() -> None:
        found: list[str] = []
        while len(found) < len(wanted):
            try:
                records = await membership.poll([place], records_max=9, timeout_s=0.1)
            except BrokerUnavailable:
                await CLOCK.sleep(0.05)
                continue
            found += values(records)
            if records:
                await membership.commit({place: records[-1].offset + 1})
        assert found == wanted

    await CLOCK.within(WITHIN_S, all_of_them())


@pytest.mark.parametrize("left", ["Describe", "nothing"])
async def test_a_topic_that_may_not_be_written_any_more_is_waited_for_and_all_else_continues(
    guarded: Guarded, settings: KafkaSettings, other: Broker, kafka_name: str, left: str
) -> None:
    free, write = f"{kafka_name}.free", Right(TOPIC, kafka_name, WRITE)
    await guarded.allow(write, Right(TOPIC, free, WRITE))
    if left == "Describe":
        await guarded.allow(Right(TOPIC, kafka_name, DESCRIBE))
    async with KafkaBroker(settings, clock=CLOCK) as broker:
        await broker.publish([event(kafka_name, "k", "before")])
        await guarded.take(write)
        for _ in range(3):
            with pytest.raises(BrokerUnavailable, match=rf"{kafka_name}.*allowed (Write|Describe) on"):
                await broker.publish([event(kafka_name, "k", "after")])
            await put(broker, free, "k", "free")
        await guarded.allow(write)
        await CLOCK.within(WITHIN_S, put(broker, kafka_name, "k", "after"))
        assert values([record async for record in other.scan(kafka_name)]) == ["before", "after"]


async def test_many_who_wait_for_a_right_do_not_cost_a_producer_each(
    guarded: Guarded, settings: KafkaSettings, other: Broker, kafka_name: str
) -> None:
    await guarded.allow(Right(TOPIC, kafka_name, DESCRIBE), some_write(kafka_name))
    producers = set()
    async with KafkaBroker(settings, clock=CLOCK) as broker:
        assert broker._opened is not None
        publisher, _ = broker._opened
        for _ in range(20):
            with pytest.raises(BrokerUnavailable, match="allowed Write on"):
                await broker.publish([event(kafka_name, "k", "v")])
            await broker.publish([event(f"{kafka_name}.free", "k", "v")])
            producers.add(publisher.producer)
    assert len(producers) <= 4  # 20, without a pause between two trials


async def test_a_client_that_may_write_nothing_any_more_gets_that_error_and_continues_with_the_right(
    guarded: Guarded, settings: KafkaSettings, other: Broker, kafka_name: str
) -> None:
    write = Right(TOPIC, kafka_name, WRITE)
    await guarded.allow(write)
    async with KafkaBroker(settings, clock=CLOCK) as broker:
        await broker.publish([event(kafka_name, "k", "before")])
        await guarded.take(write)
        message = ""
        while "ClusterAuthorizationFailed" not in message:  # at first the topic is refused, then another producer
            with pytest.raises(BrokerUnavailable, match="allowed Write on") as refused:
                await broker.publish([event(kafka_name, "k", "after")])
            message = str(refused.value)
            await CLOCK.sleep(0.2)
        await guarded.allow(write)
        await CLOCK.within(WITHIN_S, put(broker, kafka_name, "k", "after"))


@asynccontextmanager
async def reading(
    settings: KafkaSettings, other: Broker, name: str
) -> AsyncIterator[tuple[Membership, RecordingListener]]:
    """A member of the group and the topic of that name, which has read one record."""
    async with (
        KafkaBroker(settings, clock=CLOCK) as broker,
        broker.join(Subscription(name, [name]), listening := RecordingListener()) as membership,
    ):
        await other.publish([event(name, "k", "before")])
        await until(lambda: listening.has)
        await read(membership, Partition(name, 0), ["before"])
        yield membership, listening


async def test_reading_waits_for_a_revoked_right(
    guarded: Guarded, settings: KafkaSettings, other: Broker, kafka_name: str
) -> None:
    place, may_read = Partition(kafka_name, 0), Right(TOPIC, kafka_name, READ)
    await guarded.allow(
        may_read, Right(TOPIC, kafka_name, DESCRIBE), Right(GROUP, kafka_name, READ), some_write(kafka_name)
    )
    async with reading(settings, other, kafka_name) as (membership, listening):
        await guarded.take(may_read)
        assert "allowed Read on the topic" in await standstill(membership, place)
        await other.publish([event(kafka_name, "k", "meanwhile")])
        with pytest.raises(BrokerUnavailable, match=r"committing.*allowed Read on the topic"):
            await membership.commit({place: 2})
        await guarded.allow(may_read)
        await read(membership, place, ["meanwhile"])
        assert not listening.partitions_of("lost")


async def test_a_topic_that_is_hidden_is_looked_for_and_read_on_once_it_is_seen(
    guarded: Guarded, settings: KafkaSettings, other: Broker, kafka_name: str
) -> None:
    place, may_read = Partition(kafka_name, 0), Right(TOPIC, kafka_name, READ)
    await guarded.allow(may_read, Right(GROUP, kafka_name, READ), some_write(kafka_name))
    async with reading(settings, other, kafka_name) as (membership, listening):
        await guarded.take(may_read)
        assert isinstance(membership, KafkaMember)
        assert membership._consumer is not None
        membership._consumer._client.force_metadata_update()  # as aiokafka does every few minutes
        await until(lambda: not listening.has)
        await other.publish([event(kafka_name, "k", "meanwhile")])
        await standstill(membership, place, says="is missing or hidden")
        await guarded.allow(may_read)
        await until(lambda: listening.has)
        assert listening.has == {place: 1}
        await read(membership, place, ["meanwhile"])


@pytest.mark.parametrize("left", ["Describe", "nothing"])
async def test_a_topic_without_rights_does_not_stop_the_others(
    guarded: Guarded, settings: KafkaSettings, other: Broker, kafka_name: str, left: str
) -> None:
    free, may_read = f"{kafka_name}.free", Right(TOPIC, kafka_name, READ)
    place, freely = Partition(kafka_name, 0), Partition(free, 0)
    await guarded.allow(may_read, Right(TOPIC, free, READ), Right(GROUP, kafka_name, READ), some_write(kafka_name))
    if left == "Describe":
        await guarded.allow(Right(TOPIC, kafka_name, DESCRIBE))
    async with (
        KafkaBroker(settings, clock=CLOCK) as broker,
        broker.join(Subscription(kafka_name, [kafka_name, free]), listening := RecordingListener()) as membership,
    ):
        await until(lambda: len(listening.has) == 2)
        await other.publish([event(kafka_name, "k", "before"), event(free, "k", "free before")])
        both = Reader(membership, listening)
        reading = asyncio.get_running_loop().create_task(both.read())
        try:
            await both.until({"before", "free before"})
            await guarded.take(may_read)
            await other.publish([event(kafka_name, "k", "meanwhile")])
            for number in range(3):
                assert isinstance(membership, KafkaMember)
                assert membership._consumer is not None
                membership._consumer._client.force_metadata_update()  # as aiokafka does every few minutes
                await other.publish([event(free, "k", f"free {number}")])
                await until(lambda number=number: f"free {number}" in values(both.records))  # type: ignore[misc]
            await until(membership.stalled_partitions)
            assert {(each.topic, each.partition) for each in membership.stalled_partitions()} == {(kafka_name, None)}
            await until(lambda: both.committed.get(freely) == 4)
            await guarded.allow(may_read)
            await both.until({"meanwhile"})
            await until(lambda: not membership.stalled_partitions())
        finally:
            reading.cancel()
            await asyncio.wait([reading])
    assert [r.offset for r in both.records if r.topic == free] == [0, 1, 2, 3]
    assert place in both.committed


async def test_a_group_that_may_not_be_joined_any_more_is_waited_for(
    guarded: Guarded, settings: KafkaSettings, other: Broker, kafka_name: str
) -> None:
    place, may_join = Partition(kafka_name, 0), Right(GROUP, kafka_name, READ)
    await guarded.allow(Right(TOPIC, kafka_name, READ), may_join, some_write(kafka_name))
    async with reading(settings, other, kafka_name) as (membership, listening):
        await guarded.take(may_join)
        await other.publish([event(kafka_name, "k", "meanwhile")])
        assert "allowed Read on the group" in await refusal(membership, place)
        await until(lambda: listening.partitions_of("lost"))
        await guarded.allow(may_join)
        await until(lambda: listening.has)
        assert listening.has == {place: 1}
        await read(membership, place, ["meanwhile"])


async def test_a_member_that_may_not_join_the_group_from_the_beginning_gets_that_error_and_does_not_wait(
    guarded: Guarded, settings: KafkaSettings, other: Broker, kafka_name: str
) -> None:
    await guarded.allow(Right(TOPIC, kafka_name, READ), some_write(kafka_name))
    async with (
        KafkaBroker(settings, clock=CLOCK) as broker,
        broker.join(Subscription(kafka_name, [kafka_name]), RecordingListener()) as membership,
    ):
        with pytest.raises(BrokerError, match="allowed Read on the group") as refused:
            await CLOCK.within(WITHIN_S, membership.poll([], records_max=1, timeout_s=WITHIN_S))
        assert not isinstance(refused.value, BrokerUnavailable)


def some_write(name: str) -> Right:
    """Without any, no client gets a producer."""
    return Right(TOPIC, f"{name}.free", WRITE)
