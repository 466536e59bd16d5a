"""Three brokers: one of them may be killed at any time; without two of them nothing counts as published."""

import asyncio
import gc
import itertools
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from click.testing import Result

from saga.broker.kafka.adapter import KafkaSettings
from saga.broker.kafka.administration import KafkaAdministration
from saga.broker.kafka.broker import KafkaBroker
from saga.broker.port import Broker, Subscription, partition_of
from saga.errors import BrokerUnavailable
from saga.messages import Topic
from saga.support.clock import SystemClock
from saga.testing.conformance.broker_suite import RecordingListener, event, values
from tests.broker.retrying import Reader, put
from tests.broker.waiting import until
from tests.cli.conftest import Call, embedded_pottery, folder, saga
from tests.cli.pottery_service import Pottery
from tests.servers.cluster import NODES, KafkaCluster, kafka_cluster
from tests.servers.plain_clients import started

__all__ = ["embedded_pottery", "folder", "saga"]

pytestmark = pytest.mark.slow
CLOCK = SystemClock()
LANES = 8
FURTHER = 20
"""So many values of each lane show that it continues."""
GOES_ON_S_MAX = 60.0
"""Generous: a broker is taken for dead after three seconds, and a controller has to be elected."""


@pytest.fixture(scope="module")
def running(server_jars: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    with kafka_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def cluster(running: KafkaCluster) -> KafkaCluster:
    """With all of its brokers: also those that the test before has killed."""
    running.start(node for node in NODES if not running.nodes[node].pid)
    return running


@pytest.fixture
def settings(cluster: KafkaCluster) -> KafkaSettings:
    """With replication as it is by default."""
    return KafkaSettings(servers=cluster.addresses, heartbeat_s=0.2, rebalance_s=8, publish_s=2, commit_s=2)


@dataclass
class Lanes:
    """Publish one value after the other, each until it is acknowledged, as sagas do."""

    broker: Broker
    topic: str
    acknowledged: list[list[str]] = field(default_factory=lambda: [[] for _ in range(LANES)])

    async def run(self, number: int) -> None:
        for count in itertools.count():
            value = f"{number}.{count}"
            await put(self.broker, self.topic, f"key {number}", value)
            self.acknowledged[number].append(value)
            await CLOCK.sleep(0.005)

    def counts(self) -> list[int]:
        return [len(lane) for lane in self.acknowledged]

    async def go_on(self) -> None:
        """Return when each has gone on."""
        wanted = [count + FURTHER for count in self.counts()]

        async def further() -> None:
            while not all(now >= then for now, then in zip(self.counts(), wanted, strict=True)):
                await CLOCK.sleep(0.05)

        await CLOCK.within(GOES_ON_S_MAX, further())

    @asynccontextmanager
    async def going(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            lanes = [tasks.create_task(self.run(number)) for number in range(LANES)]
            yield
            for lane in lanes:
                lane.cancel()


def firsts(found: list[str], number: int) -> list[str]:
    """Records of this lane, without repetitions."""
    return list(dict.fromkeys(value for value in found if value.startswith(f"{number}.")))


async def everywhere(settings: KafkaSettings, topic: Topic) -> None:
    """Have that topic, and return when all brokers have it: one that has just come back takes a moment."""
    async with KafkaAdministration(settings, clock=CLOCK) as broker:

        async def in_sync() -> None:
            while True:
                try:
                    await broker.ensure_topics([topic])
                    described = (await broker.describe_topics([topic.name])).get(
                        topic.name
                    )  # by a broker that may not know it yet
                    if described and described.in_sync == len(NODES):
                        return
                except BrokerUnavailable:
                    pass
                await CLOCK.sleep(0.1)

        await CLOCK.within(GOES_ON_S_MAX, in_sync())


async def coordinates(cluster: KafkaCluster, group: str, topic: str) -> int:
    """The broker that coordinates the group; it leads partitions of the topic, too."""
    async with started(AIOKafkaAdminClient(bootstrap_servers=list(cluster.addresses))) as admin:
        node: int = await admin.find_coordinator(group)
        [described] = await admin.describe_topics([topic])
    assert node in {partition["leader"] for partition in described["partitions"]}
    return node


@pytest.mark.timeout(300)
async def test_a_broker_that_leads_and_coordinates_is_killed_and_nothing_acknowledged_is_lost(
    cluster: KafkaCluster,
    settings: KafkaSettings,
    embedded_pottery: Pottery,
    saga: Call,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SAGA_BROKER", f"kafka://{','.join(cluster.addresses)}")
    pottery, topic = embedded_pottery, embedded_pottery.topic
    for name in (topic, pottery.made, pottery.sold):
        pottery.agree(name, partitions=2 * len(NODES), retention_days=7)  # each broker leads two
    module = pottery.declare(memory_days=30)
    made = await asyncio.to_thread(saga, "topics", "apply", module)
    assert made.exit_code == 0, made.output
    healthy = found_in(await asyncio.to_thread(saga, "doctor", module, "--json"))
    assert {("ok", name, "as the contracts require") for name in (topic, pottery.dead)} <= healthy

    async with KafkaBroker(settings, clock=CLOCK) as broker:
        lanes, listening = Lanes(broker, topic), RecordingListener()
        async with broker.join(Subscription("payment", [topic]), listening) as membership, asyncio.TaskGroup() as tasks:
            reader = Reader(membership, listening)
            reading = tasks.create_task(reader.read())
            async with lanes.going():
                await reader.until({"0.20"})
                killed = await coordinates(cluster, "payment", topic)
                began_s = CLOCK.monotonic_s()
                cluster.kill(killed)
                async with KafkaBroker(settings, clock=CLOCK) as other:  # as a service that starts just now
                    assert list(await other.find_missing_rights([topic], [topic], ["payment"])) == []
                await lanes.go_on()
                await reader.until({lane[-1] for lane in lanes.acknowledged})
                assert CLOCK.monotonic_s() - began_s < GOES_ON_S_MAX
            await reader.until({value for lane in lanes.acknowledged for value in lane})
            reading.cancel()
        for number, lane in enumerate(lanes.acknowledged):
            assert firsts(values(reader.records), number)[: len(lane)] == lane
        places = [(r.partition, r.offset) for r in reader.records]
        assert len(places) == len(set(places))  # the member went on where it was
        async with broker.join(Subscription("payment", [topic]), after := RecordingListener()):
            await until(lambda: after.has)
            assert {place: offset for place, offset in after.has.items() if offset} == reader.committed

    ill = found_in(await asyncio.to_thread(saga, "doctor", module, "--json"))
    assert ("warning", topic, "only 2 of 3 replicas of a partition are up to date") in ill


def found_in(result: Result) -> set[tuple[str, str, str]]:
    """Findings of the doctor: severity, what each is about, and what it is."""
    return {(each["severity"], each["about"], each["what"]) for each in json.loads(result.stdout)["findings"]}


@pytest.mark.timeout(300)
async def test_without_two_of_three_nothing_is_acknowledged_and_it_resumes_once_one_is_back(
    cluster: KafkaCluster, settings: KafkaSettings, caplog: pytest.LogCaptureFixture
) -> None:
    gc.collect()
    caplog.clear()  # of what other tests have left
    topic = Topic("two-of-three", 6)
    await everywhere(settings, topic)
    async with KafkaBroker(settings, clock=CLOCK) as broker:
        lanes = Lanes(broker, topic.name)
        async with lanes.going():
            await lanes.go_on()
            cluster.kill(1, 2)
            await CLOCK.sleep(0.5)  # what was on its way has arrived
            before = lanes.counts()
            with pytest.raises(BrokerUnavailable, match=topic.name):
                await broker.publish([event(topic.name, "k", "too few")])
            assert lanes.counts() == before
            await asyncio.to_thread(cluster.start, [2])
            await lanes.go_on()
        found = values([record async for record in broker.scan(topic.name)])
    for number, lane in enumerate(lanes.acknowledged):
        assert firsts(found, number)[: len(lane)] == lane
    gc.collect()
    assert not [record for record in caplog.records if record.name == "asyncio"]  # nothing fails in the background


async def test_brokers_that_are_away_are_named_with_the_reason(cluster: KafkaCluster, settings: KafkaSettings) -> None:
    _, *others = NODES
    await everywhere(settings, Topic("away", 3))
    for node in others:
        await asyncio.to_thread(cluster.nodes[node].kill)
    quick = replace(settings, connect_s=6)

    async def works() -> None:
        async with (
            KafkaBroker(quick, clock=CLOCK) as broker,
            broker.join(Subscription("away", ["away"]), listening := RecordingListener()) as membership,
        ):
            await broker.count_partitions(["away"])
            while True:
                await membership.poll(list(listening.has), records_max=1, timeout_s=0.1)

    with pytest.raises(BrokerUnavailable) as raised:
        await works()
    for node in others:
        assert cluster.nodes[node].address in str(raised.value)


@pytest.mark.timeout(300)
async def test_the_only_broker_of_a_new_partition_is_away_and_the_others_are_read_meanwhile(
    cluster: KafkaCluster, settings: KafkaSettings
) -> None:
    single = replace(settings, replication_factor=1, min_insync_replicas=1)
    await everywhere(settings, Topic("elsewhere", 1))  # all brokers are there
    async with KafkaBroker(single, clock=CLOCK) as broker:
        await broker.ensure_topics([Topic("single", len(NODES))])
        keys = {partition_of(key.encode(), len(NODES)): key for key in "abcdefgh"}
        for number, key in keys.items():
            await put(broker, "single", key, f"{number}")
        async with started(AIOKafkaAdminClient(bootstrap_servers=list(cluster.addresses))) as admin:
            [described] = await admin.describe_topics(["single"])
        away = described["partitions"][0]
        number, others = away["partition"], {f"{number}" for number in keys if number != away["partition"]}
        cluster.kill(away["leader"])
        listening = RecordingListener()
        async with broker.join(Subscription("single", ["single"]), listening) as membership, asyncio.TaskGroup() as on:
            reader = Reader(membership, listening)
            reading = on.create_task(reader.read())
            await reader.until(others)
            await until(lambda: [each.partition for each in membership.stalled_partitions()] == [number])
            assert {*values(reader.records)} == others
            await asyncio.to_thread(cluster.start, [away["leader"]])
            await reader.until(others | {f"{number}"})
            assert len(reader.records) == len(NODES), "nothing was delivered twice"
            await until(lambda: not membership.stalled_partitions())
            reading.cancel()
