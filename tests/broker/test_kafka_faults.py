"""Kafka, or a member, is killed or frozen: nothing is lost, and reading resumes by itself."""

import asyncio
import gc
import itertools
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from saga.broker.kafka.adapter import KafkaSettings
from saga.broker.kafka.broker import KafkaBroker
from saga.broker.port import Subscription
from saga.errors import BrokerError, BrokerUnavailable
from saga.messages import Partition, Topic
from saga.support.clock import SystemClock
from saga.testing.conformance.broker_suite import RecordingListener, event, values
from saga.testing.servers.kafka import KafkaServer
from tests.broker.retrying import Reader, put
from tests.servers.plain_clients import recreate_topic

CLOCK = SystemClock()
NUMBERS = itertools.count()
WITHIN_S = 60.0
SETTINGS = KafkaSettings(
    servers=("127.0.0.1:1",),
    replication_factor=1,
    min_insync_replicas=1,
    session_s=10,
    heartbeat_s=0.2,
    rebalance_s=8,
)


@pytest.fixture(scope="module")
def kafka(server_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """A broker of this module's own: it is killed."""
    server = KafkaServer.start(tmp_path_factory.mktemp("kafka"))
    yield server
    server.stop()


@pytest.fixture
def settings(kafka: KafkaServer) -> KafkaSettings:
    return replace(SETTINGS, servers=(kafka.address,))


@pytest.fixture
def topic() -> str:
    return f"orders.{next(NUMBERS)}"


@asynccontextmanager
async def frozen(kafka: KafkaServer) -> AsyncIterator[None]:
    kafka.pause()
    try:
        yield
    finally:
        kafka.resume()


async def test_a_broker_that_is_killed_and_comes_back_loses_nothing_and_keeps_the_order(
    kafka: KafkaServer, settings: KafkaSettings, topic: str
) -> None:
    async with KafkaBroker(replace(settings, commit_s=1), clock=CLOCK) as broker:
        await broker.ensure_topics([Topic(topic, 4)])
        listening = RecordingListener()
        stop = asyncio.Event()
        acknowledged: list[list[str]] = [[] for _ in range(8)]

        async def lane(number: int) -> None:
            for count in itertools.count():
                if stop.is_set():
                    return
                value = f"{number}.{count}"
                await put(broker, topic, f"key {number}", value)
                acknowledged[number].append(value)
                await CLOCK.sleep(0.005)

        async with broker.join(Subscription("payment", [topic]), listening) as membership, asyncio.TaskGroup() as tasks:
            reader = Reader(membership, listening)
            reading = tasks.create_task(reader.read())
            lanes = [tasks.create_task(lane(number)) for number in range(8)]
            await reader.until({"0.20"})
            await asyncio.to_thread(kafka.kill)
            await CLOCK.sleep(3)  # longer than a member says nothing about it
            before = [len(lane) for lane in acknowledged]
            await asyncio.to_thread(kafka.restart)
            for number, count in enumerate(before):
                await reader.until({f"{number}.{count + 20}"})
            stop.set()
            await asyncio.wait(lanes)
            await reader.until({value for lane in acknowledged for value in lane})
            reading.cancel()
        assert reader.unavailable
        for number, lane_values in enumerate(acknowledged):
            firsts = list(dict.fromkeys(v for v in values(reader.records) if v.startswith(f"{number}.")))
            assert firsts == lane_values
        places = [(r.partition, r.offset) for r in reader.records]
        assert len(places) == len(set(places))  # the member went on where it was
        async with broker.join(Subscription("payment", [topic]), after := RecordingListener()) as membership:
            await Reader(membership, after).until(set())
            last = {r.partition: r.offset + 1 for r in reader.records}
            while not after.has:
                await CLOCK.sleep(0.02)
            assert {p.number: offset for p, offset in after.has.items()} == last


async def test_a_broker_that_is_frozen_for_a_moment_is_waited_for(
    kafka: KafkaServer, settings: KafkaSettings, topic: str
) -> None:
    async with KafkaBroker(settings, clock=CLOCK) as broker:
        await broker.ensure_topics([Topic(topic, 1)])
        listening = RecordingListener()
        async with broker.join(Subscription("payment", [topic]), listening) as membership, asyncio.TaskGroup() as tasks:
            reader = Reader(membership, listening)
            reading = tasks.create_task(reader.read())
            await put(broker, topic, "k", "before")
            await reader.until({"before"})
            async with frozen(kafka):
                publishing = tasks.create_task(broker.publish([event(topic, "k", "during")]))
                await CLOCK.sleep(3)
                assert not publishing.done()
            await publishing
            await reader.until({"during"})
            reading.cancel()
        assert values(reader.records) == ["before", "during"]
        assert not listening.partitions_of("lost")


async def test_a_publish_without_acknowledgement_is_an_outage_and_may_succeed_later(
    kafka: KafkaServer, settings: KafkaSettings, topic: str
) -> None:
    async with KafkaBroker(replace(settings, publish_s=1), clock=CLOCK) as broker:
        await broker.ensure_topics([Topic(topic, 1)])
        await broker.publish([event(topic, "k", "before")])
        async with frozen(kafka):
            with pytest.raises(BrokerUnavailable, match=topic):
                await broker.publish([event(topic, "k", "during")])
        await put(broker, topic, "k", "during")
        await put(broker, topic, "k", "after")
        found = values([record async for record in broker.scan(topic)])
    assert list(dict.fromkeys(found)) == ["before", "during", "after"]


async def test_a_commit_that_is_not_acknowledged_in_time_is_unavailable(
    kafka: KafkaServer, settings: KafkaSettings, topic: str
) -> None:
    async with KafkaBroker(replace(settings, commit_s=0.5), clock=CLOCK) as broker:
        await broker.ensure_topics([Topic(topic, 1)])
        await broker.publish([event(topic, "k", f"{n}") for n in range(3)])
        listening = RecordingListener()
        async with broker.join(Subscription("payment", [topic]), listening) as membership:
            while not listening.has:
                await CLOCK.sleep(0.02)
            async with frozen(kafka):
                with pytest.raises(BrokerUnavailable, match="committing"):
                    await membership.commit({Partition(topic, 0): 1})
            while True:
                try:
                    await membership.commit({Partition(topic, 0): 2})
                except BrokerUnavailable:
                    continue  # it has work to make up for, and half a second is little on a busy machine
                break
        async with broker.join(Subscription("payment", [topic]), after := RecordingListener()):
            while not after.has:
                await CLOCK.sleep(0.02)
            assert after.has == {Partition(topic, 0): 2}


async def test_leaving_and_disconnecting_end_although_the_broker_answers_nothing(
    kafka: KafkaServer, settings: KafkaSettings, topic: str
) -> None:
    listening = RecordingListener()
    quick = replace(settings, publish_s=1, commit_s=1)
    async with KafkaBroker(quick, clock=CLOCK) as broker:
        await broker.ensure_topics([Topic(topic, 1)])
        async with broker.join(Subscription("payment", [topic]), listening):
            while not listening.has:
                await CLOCK.sleep(0.02)
            kafka.pause()
            began_s = CLOCK.monotonic_s()
    try:
        assert CLOCK.monotonic_s() - began_s < 15
        assert listening.partitions_of("revoked") == {Partition(topic, 0)}
    finally:
        kafka.resume()


async def test_a_record_that_the_topic_refuses_does_not_stop_what_comes_after_it(
    settings: KafkaSettings, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with KafkaBroker(settings, clock=CLOCK) as broker:
        await broker.ensure_topics([Topic(topic, 1)])
    generous = replace(settings, record_bytes_max=3_000_000)
    async with KafkaBroker(generous, clock=CLOCK) as broker:
        await broker.publish([event(topic, "k", "before")])
        with pytest.raises(BrokerError, match=r"max\.message\.bytes") as refused:
            await broker.publish([event(topic, "k", "x" * 2_000_000), event(topic, "k", "y" * 2_000_000)])
        assert not isinstance(refused.value, BrokerUnavailable)
        del refused  # and with it what its traceback holds
        for value in ("after", "and later"):
            await broker.publish([event(topic, "k", value)])
        assert values([record async for record in broker.scan(topic)]) == ["before", "after", "and later"]
    gc.collect()
    assert "never retrieved" not in caplog.text


async def test_a_record_that_is_too_large_is_refused_before_it_is_sent(settings: KafkaSettings, topic: str) -> None:
    async with KafkaBroker(settings, clock=CLOCK) as broker:
        await broker.ensure_topics([Topic(topic, 1)])
        with pytest.raises(BrokerError, match="too large"):
            await broker.publish([event(topic, "k", "x" * settings.record_bytes_max)])
        await broker.publish([event(topic, "k", "x" * (settings.record_bytes_max - 1000))])


async def test_a_group_that_is_ahead_of_a_log_that_lost_its_end_reads_it_again(
    settings: KafkaSettings, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with KafkaBroker(settings, clock=CLOCK) as broker:
        await broker.ensure_topics([Topic(topic, 1)])
        await broker.publish([event(topic, "k", f"{n}") for n in range(3)])
        place = Partition(topic, 0)
        async with broker.join(Subscription("payment", [topic]), listening := RecordingListener()) as membership:
            while not listening.has:
                await CLOCK.sleep(0.02)
            await membership.commit({place: 100})  # what a broker that lost its disk would leave behind
        async with broker.join(Subscription("payment", [topic]), listening := RecordingListener()) as membership:
            reader = Reader(membership, listening)
            reading = asyncio.gather(reader.read())
            await reader.until({"0", "1", "2"})
            reading.cancel()
            assert listening.calls[-2:] == [("lost", frozenset({place})), ("assigned", frozenset({place}))]
            assert listening.has == {place: 0}
        async with broker.join(Subscription("payment", [topic]), listening := RecordingListener()):
            while not listening.has:
                await CLOCK.sleep(0.02)
            assert listening.has == {place: 3}
    assert "has lost records that were already read" in caplog.text


# -------------------------------------------------------------------- zombies


class Child:
    """A member in another process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    @classmethod
    @asynccontextmanager
    async def start(cls, address: str, group: str, topic: str, session_s: float = 2) -> "AsyncIterator[Child]":
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.broker.kafka_child", address, group, topic, str(session_s)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            yield cls(process)
        finally:
            process.kill()
            await process.communicate()

    async def read_line(self, *starts: str) -> list[str]:
        """The next line that begins with one of these."""
        assert self.process.stdout is not None

        async def read_matching_line() -> list[str]:
            assert self.process.stdout is not None
            while True:
                line = (await self.process.stdout.readline()).decode().split()
                assert line, "the child has ended"
                if line[0] in starts:
                    return line

        return await CLOCK.within(WITHIN_S, read_matching_line())

    def write_line(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)


async def test_a_member_that_slept_for_too_long_is_fenced_and_loses_what_it_had(
    kafka: KafkaServer, settings: KafkaSettings, topic: str
) -> None:
    async with KafkaBroker(settings, clock=CLOCK) as broker, Child.start(kafka.address, "payment", topic) as child:
        await broker.ensure_topics([Topic(topic, 1)])
        await broker.publish([event(topic, "k", f"{n}") for n in range(10)])
        await child.read_line("assigned")
        await child.read_line("read")
        child.write_line("commit 0 2")
        await child.read_line("committed")
        child.signal(signal.SIGSTOP)
        async with broker.join(Subscription("payment", [topic]), listening := RecordingListener()) as membership:
            while not listening.has:
                await CLOCK.sleep(0.02)
            assert listening.has == {Partition(topic, 0): 2}
            await membership.commit({Partition(topic, 0): 5})
            child.write_line("commit 0 3")
            child.signal(signal.SIGCONT)
            # Its heartbeat may be answered before its commit.
            lines = [await child.read_line("fenced", "committed", "lost", "revoked") for _ in range(2)]
            assert sorted(lines) == [["fenced"], ["lost", "0"]]
        while (await child.read_line("assigned")) != ["assigned", "0"]:
            pass
        child.signal(signal.SIGKILL)
    async with (
        KafkaBroker(settings, clock=CLOCK) as broker,
        broker.join(Subscription("payment", [topic]), listening := RecordingListener()),
    ):
        while not listening.has:
            await CLOCK.sleep(0.02)
        assert listening.has == {Partition(topic, 0): 5}


# -------------------------------------------------------------------- topics that are created again


@pytest.mark.slow
async def test_a_member_that_slept_while_its_topic_was_created_again_reads_all_of_the_new_one(
    kafka: KafkaServer, settings: KafkaSettings, topic: str
) -> None:
    """Its session outlives the pause, so nothing but the topic's id tells it."""
    async with KafkaBroker(settings, clock=CLOCK) as broker:
        await broker.ensure_topics([Topic(topic, 1)])
        await broker.publish([event(topic, "k", f"old {n}") for n in range(10)])
        async with Child.start(kafka.address, topic, topic, session_s=30) as child:
            while (await child.read_line("read"))[-1] != "9":
                pass
            child.write_line("commit 0 10")
            await child.read_line("committed")
            child.signal(signal.SIGSTOP)
            await recreate_topic(kafka.address, topic, 1)
            await broker.publish([event(topic, "k", f"new {n}") for n in range(30)])
            child.signal(signal.SIGCONT)
            assert await child.read_line("lost") == ["lost", "0"]
            (_, _, position) = await child.read_line("replaced")
            assert int(position) in (10, 30), "it may have read on before it looked"
            assert await child.read_line("assigned") == ["assigned", "0"]
            assert [int((await child.read_line("read"))[-1]) for _ in range(30)] == [*range(30)]
            child.write_line("commit 0 30")
            await child.read_line("committed")
        async with broker.join(Subscription(topic, [topic]), listening := RecordingListener()):
            while not listening.has:
                await CLOCK.sleep(0.02)
            assert (listening.has, listening.replaced) == ({Partition(topic, 0): 30}, {})
