"""Administration of a broker, with the same expected results on each adapter."""

import itertools
import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeAlias

import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.admin import DescribeConfigsRequest
from aiokafka.protocol.api import Request

from saga.broker.administration import BY_LOG, DATED_BY, DAY_MS, Administration, GroupDescription, OffsetBounds
from saga.broker.embedded.broker import EmbeddedAdministration
from saga.broker.kafka.adapter import KafkaSettings
from saga.broker.kafka.administration import GROUPS_AT_ONCE, PROBE, KafkaAdministration
from saga.broker.kafka.client import TOPIC, Topics
from saga.broker.port import Subscription, partition_of
from saga.errors import BrokerError
from saga.messages import Outgoing, Partition, Topic
from saga.ops.offsets import read_service_offsets
from saga.ops.topic_plans import TopicStep, apply, plan
from saga.testing.conformance.broker_suite import RecordingListener
from tests.broker.waiting import CLOCK, until

NUMBERS = itertools.count()
Tools: TypeAlias = Administration


@pytest.fixture(params=["embedded", "kafka"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def broker(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Tools]:
    if kind == "embedded":
        async with EmbeddedAdministration(tmp_path / "broker.db", clock=CLOCK) as embedded:
            yield embedded
    else:
        async with KafkaAdministration(request.getfixturevalue("kafka_settings"), clock=CLOCK) as kafka:
            yield kafka


@pytest.fixture
def name() -> str:
    """For a topic and a group that no other test has."""
    return f"tools.{os.getpid()}.{next(NUMBERS)}"


def records(topic: str, count: int) -> list[Outgoing]:
    return [Outgoing(topic, f"key-{n}".encode(), b"value", ()) for n in range(count)]


@asynccontextmanager
async def a_member(
    broker: Tools, group: str, topic: str, partitions: int, *, commits: int | None = 1
) -> AsyncIterator[None]:
    """In the group, with all of the topic, of which it has committed one record of each partition, or none."""
    listener = RecordingListener()
    async with broker.join(Subscription(group, [topic]), listener) as membership:
        await until(lambda: len(listener.has) == partitions)
        if commits is not None:
            await membership.commit({Partition(topic, number): commits for number in range(partitions)})
        yield


async def publish_everywhere(broker: Tools, topic: str, partitions: int, each: int) -> None:
    """So many records in each partition."""
    wanted = dict.fromkeys(range(partitions), each)
    for n in itertools.count():
        if not any(wanted.values()):
            return
        key = f"key-{n}".encode()
        number = partition_of(key, partitions)
        if wanted[number]:
            wanted[number] -= 1
            await broker.publish([Outgoing(topic, key, b"value", ())])


# -------------------------------------------------------------------- topics


async def test_all_topics_are_named(broker: Tools, name: str) -> None:
    names = {f"{name}.commands", f"{name}.dead"}
    assert not names & {*await broker.list_topics()}
    await broker.ensure_topics([Topic(each, 1) for each in names])
    await until_known(broker, names)


async def until_known(broker: Tools, names: set[str]) -> None:
    """Wait for them: a Kafka broker may hear of a topic later than who has made it."""
    while not names <= {*await broker.list_topics()}:
        await CLOCK.sleep(0.05)


async def test_topics_are_described_as_they_were_made(broker: Tools, name: str) -> None:
    await broker.ensure_topics([Topic(name, 3, 2), Topic(f"{name}.dead", 2, None)])
    found = await broker.describe_topics([name, f"{name}.dead", f"{name}.missing"])
    assert set(found) == {name, f"{name}.dead"}
    assert (found[name].partitions, found[name].retention_ms) == (3, 2 * DAY_MS)
    assert (found[f"{name}.dead"].partitions, found[f"{name}.dead"].retention_ms) == (2, None)


async def test_kafka_describes_replicas_settings_and_rights(kafka_settings: KafkaSettings, name: str) -> None:
    async with KafkaAdministration(kafka_settings, clock=CLOCK) as broker:
        await broker.ensure_topics([Topic(name, 3, 2)])
        found = (await broker.describe_topics([name]))[name]
        servers = await broker.fetch_server_settings()
    assert (found.replicas, found.in_sync) == (1, 1)
    assert found.settings["min.insync.replicas"] == "1"
    assert found.settings["message.timestamp.type"] == "LogAppendTime"
    assert found.may is not None
    assert found.may >= {"read", "write"}
    assert servers["1"]["auto.create.topics.enable"] == "false"


async def test_a_topic_that_not_all_brokers_know_yet_is_asked_for_again(
    kafka_settings: KafkaSettings, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker that is asked for settings, or for what has just been changed, knows of the topic a moment later."""
    send, behind = KafkaAdministration._send, dict[str, int]()

    async def sent(self: KafkaAdministration, request: Request, node: int | None = None) -> object:
        asked = type(request).__name__
        behind[asked] = behind.get(asked, 0) - 1
        if asked == "DescribeConfigsRequest" and behind[asked] >= 0:
            return await send(self, DescribeConfigsRequest([(TOPIC, f"{name}.elsewhere", None)], False), node)
        return await send(self, Topics([]) if asked == "Topics" and behind[asked] >= 0 else request, node)

    monkeypatch.setattr(KafkaAdministration, "_send", sent)
    async with KafkaAdministration(kafka_settings, clock=CLOCK) as broker:
        await broker.ensure_topics([Topic(name, 3, 2)])
        behind["DescribeConfigsRequest"] = 2
        assert (await broker.describe_topics([name]))[name].partitions == 3
        behind["Topics"] = 2
        await broker.add_partitions(name, 5)
        assert min(behind.values()) < 0


async def test_asking_makes_no_topic(broker: Tools, name: str) -> None:
    assert await broker.fetch_bounds([name]) == {}
    assert await broker.describe_topics([name]) == {}
    with pytest.raises(BrokerError, match=name):
        await broker.find_offsets(name, 0)
    assert await broker.describe_topics([name]) == {}


async def test_retention_changes_and_nothing_else_does(broker: Tools, name: str) -> None:
    await broker.ensure_topics([Topic(name, 3, 2)])
    before = (await broker.describe_topics([name]))[name]
    for retention_ms in (5 * DAY_MS, None):
        await broker.set_retention(name, retention_ms)

        async def changed(wanted: int | None = retention_ms) -> None:
            while (await broker.describe_topics([name]))[name].retention_ms != wanted:
                await CLOCK.sleep(0.05)

        await CLOCK.within(10, changed())
        after = (await broker.describe_topics([name]))[name]
        assert {**after.settings, "retention.ms": ""} == {**before.settings, "retention.ms": ""} or not before.settings
        assert after.partitions == before.partitions


async def test_kafka_dates_records_again_where_senders_did(kafka_settings: KafkaSettings, name: str) -> None:
    topic = Topic(f"{name}.wake.1h", 1, None)
    async with KafkaAdministration(kafka_settings, clock=CLOCK) as broker:

        async def planned() -> list[TopicStep]:
            return plan([topic], await broker.describe_topics([topic.name]), {}, can_grow=True)

        await broker.ensure_topics([topic])
        before = await broker.describe_topics([topic.name])
        await broker._set(topic.name, DATED_BY, "CreateTime")
        steps = await planned()
        assert [(step.doing, step.says) for step in steps] == [("dates", f"{DATED_BY} {BY_LOG} instead of CreateTime")]
        await apply(steps, broker)
        assert await broker.describe_topics([topic.name]) == before
        assert [step.doing for step in await planned()] == ["nothing"]


async def test_kafka_topics_grow_and_never_shrink(kafka_settings: KafkaSettings, name: str) -> None:
    async with KafkaAdministration(kafka_settings, clock=CLOCK) as broker:
        await broker.ensure_topics([Topic(name, 3, 2)])
        await broker.add_partitions(name, 5)
        assert (await broker.describe_topics([name]))[name].partitions == 5
        with pytest.raises(BrokerError):
            await broker.add_partitions(name, 4)
        assert (await broker.describe_topics([name]))[name].partitions == 5


async def test_embedded_topics_keep_their_partitions(tmp_path: Path) -> None:
    async with EmbeddedAdministration(tmp_path / "broker.db", clock=CLOCK) as broker:
        await broker.ensure_topics([Topic("orders", 3)])
        with pytest.raises(BrokerError, match="keeps its 3 partitions"):
            await broker.add_partitions("orders", 5)
        assert (await broker.describe_topics(["orders"]))["orders"].partitions == 3


# -------------------------------------------------------------------- groups and positions


async def test_a_group_is_described_with_members_offsets_and_what_it_reads(broker: Tools, name: str) -> None:
    await broker.ensure_topics([Topic(name, 2), Topic(f"{name}.other", 2)])
    await publish_everywhere(broker, name, 2, 3)
    assert await broker.describe_group(name) == GroupDescription()
    async with a_member(broker, name, name, 2):
        group = await broker.describe_group(name)
        assert len(group.members) == 1
        assert group.reads == {name}
        assert group.positions == {Partition(name, 0): 1, Partition(name, 1): 1}
        assert list(await broker.find_readers(name)) == [name]
        assert await broker.find_readers(f"{name}.other") == {}
    group = await broker.describe_group(name)
    assert group.members == ()
    assert group.positions == {Partition(name, 0): 1, Partition(name, 1): 1}
    bounds = await broker.fetch_bounds([name, f"{name}.missing"])
    assert bounds == {Partition(name, 0): OffsetBounds(0, 3), Partition(name, 1): OffsetBounds(0, 3)}


async def test_several_groups_are_described_together_each_as_it_is_alone(broker: Tools, name: str) -> None:
    await broker.ensure_topics([Topic(name, 2)])
    groups = [f"{name}.{n}" for n in range(3)]
    async with a_member(broker, groups[0], name, 2):
        await broker.move_positions(groups[1], {Partition(name, 1): 0})
        found = await broker.describe_groups(groups)
        assert found == {each: await broker.describe_group(each) for each in groups}
        assert [(len(found[each].members), len(found[each].positions)) for each in groups] == [(1, 2), (0, 1), (0, 0)]
    assert await broker.describe_groups([]) == {}


async def test_kafka_is_asked_about_many_groups_at_the_same_time_but_not_about_all(
    kafka_settings: KafkaSettings, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, send, asked = 2 * GROUPS_AT_ONCE + 5, AIOKafkaClient.send, Counter[str]()
    kinds = ("FindCoordinatorRequest", "DescribeGroupsRequest", "OffsetFetchRequest")
    in_flight, most = 0, 0

    async def sent(self: AIOKafkaClient, node: int, request: Request, **more: object) -> object:
        nonlocal in_flight, most
        counts = type(request).__name__ in kinds
        asked[type(request).__name__] += counts
        in_flight += counts
        most = max(most, in_flight)
        try:
            return await send(self, node, request, **more)
        finally:
            in_flight -= counts

    async with KafkaAdministration(kafka_settings, clock=CLOCK) as broker:
        monkeypatch.setattr(AIOKafkaClient, "send", sent)
        found = await broker.describe_groups([f"{name}.{n}" for n in range(count)])
    assert len(found) == count
    assert +asked == dict.fromkeys(kinds, count)
    assert most == GROUPS_AT_ONCE


async def test_topics_without_a_committed_offset_count_as_unhandled(broker: Tools, name: str) -> None:
    await broker.ensure_topics([Topic(name, 2)])
    await publish_everywhere(broker, name, 2, 3)
    async with a_member(broker, name, name, 2, commits=None):
        assert (await read_service_offsets(name, broker)).lag == 6


async def test_a_time_is_found_in_each_partition(broker: Tools, name: str) -> None:
    await broker.ensure_topics([Topic(name, 2)])
    await publish_everywhere(broker, name, 2, 2)
    await CLOCK.sleep(0.02)
    between = CLOCK.now_ms()
    await CLOCK.sleep(0.02)
    await publish_everywhere(broker, name, 2, 1)
    assert set((await broker.find_offsets(name, 0)).values()) == {0}
    assert set((await broker.find_offsets(name, between)).values()) == {2}
    assert set((await broker.find_offsets(name, CLOCK.now_ms() + 60_000)).values()) == {3}


async def test_offsets_move_when_the_group_has_no_member_and_are_read_from_then_on(broker: Tools, name: str) -> None:
    await broker.ensure_topics([Topic(name, 2)])
    await publish_everywhere(broker, name, 2, 3)
    async with a_member(broker, name, name, 2):
        pass
    await broker.move_positions(name, {Partition(name, 1): 2})
    assert (await broker.describe_group(name)).positions == {Partition(name, 0): 1, Partition(name, 1): 2}
    listener = RecordingListener()
    async with broker.join(Subscription(name, [name]), listener):
        await until(lambda: len(listener.has) == 2)
        assert listener.has == {Partition(name, 0): 1, Partition(name, 1): 2}


async def test_positions_of_a_group_that_never_was_can_be_set(broker: Tools, name: str) -> None:
    await broker.ensure_topics([Topic(name, 2)])
    await publish_everywhere(broker, name, 2, 3)
    await broker.move_positions(name, {Partition(name, 0): 2})
    assert (await broker.describe_group(name)).positions == {Partition(name, 0): 2}


async def test_offsets_stay_while_the_group_has_a_member(broker: Tools, name: str) -> None:
    await broker.ensure_topics([Topic(name, 2)])
    await publish_everywhere(broker, name, 2, 3)
    async with a_member(broker, name, name, 2):
        with pytest.raises(BrokerError, match="has members"):
            await broker.move_positions(name, {Partition(name, 0): 0})
        assert (await broker.describe_group(name)).positions[Partition(name, 0)] == 1


async def test_a_dead_embedded_member_does_not_prevent_moving_positions(tmp_path: Path) -> None:
    async with EmbeddedAdministration(tmp_path / "broker.db", clock=CLOCK) as broker:
        await broker.ensure_topics([Topic("orders", 2)])
        await publish_everywhere(broker, "orders", 2, 3)
        # As a crash leaves it: in the table, and no process holds its seat.
        insert = "INSERT INTO members (grp, seat, topics) VALUES ('payment', 'broker.db.member-0-0', '[]')"
        broker.connection.execute(insert)
        assert (await broker.describe_group("payment")).members == ()
        await broker.move_positions("payment", {Partition("orders", 0): 2})
        assert (await broker.describe_group("payment")).positions == {Partition("orders", 0): 2}


# -------------------------------------------------------------------- a record of our own


async def test_the_embedded_broker_has_our_own_clock(tmp_path: Path) -> None:
    async with EmbeddedAdministration(tmp_path / "broker.db", clock=CLOCK) as broker:
        assert await broker.append_probe() is None
        assert await broker.describe_topics([PROBE.name]) == {}


async def test_kafka_has_a_time_that_can_be_read(kafka_settings: KafkaSettings) -> None:
    async with KafkaAdministration(kafka_settings, clock=CLOCK) as broker:
        before = CLOCK.now_ms()
        log_time_ms = await broker.append_probe()
        again = await broker.append_probe()
        assert log_time_ms is not None
        assert again is not None
        assert before <= log_time_ms <= again <= CLOCK.now_ms()  # one machine
        assert (await broker.describe_topics([PROBE.name]))[PROBE.name].retention_ms == DAY_MS
