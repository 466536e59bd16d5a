"""Reading outside any group, on each adapter: from where it begins on, in order, and what comes later."""

import asyncio
import itertools
import os
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from saga.broker.administration import Administration, PartitionReader
from saga.broker.embedded import log
from saga.broker.embedded.broker import EmbeddedAdministration, EmbeddedBroker
from saga.broker.kafka.adapter import KafkaSettings
from saga.broker.kafka.administration import KafkaAdministration
from saga.broker.port import partition_of
from saga.errors import BrokerBroken, BrokerError
from saga.messages import Outgoing, Partition, Record, Topic
from tests.broker.removal import remove_records
from tests.broker.waiting import CLOCK

NUMBERS = itertools.count()
PARTITIONS = 3
WITHIN_S = 40.0


@pytest.fixture(params=["embedded", "kafka"])
async def broker(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Administration]:
    if request.param == "embedded":
        async with EmbeddedAdministration(tmp_path / "broker.db", clock=CLOCK) as embedded:
            yield embedded
    else:
        async with KafkaAdministration(request.getfixturevalue("kafka_settings"), clock=CLOCK) as kafka:
            yield kafka


@pytest.fixture
def topic() -> str:
    return f"reading.{os.getpid()}.{next(NUMBERS)}"


def a_record(topic: str, n: int) -> Outgoing:
    return Outgoing(topic, f"key-{n % 10}".encode(), f"value-{n}".encode(), (("x", b"y"),))


async def taken(reading: PartitionReader, count: int) -> list[Record]:
    """So many records, however often it has to be asked."""
    found: list[Record] = []

    async def take() -> None:
        while len(found) < count:
            found.extend(await reading.poll(records_max=100, timeout_s=1.0))

    await CLOCK.within(WITHIN_S, take())
    return found


def by_partition(records: list[Record]) -> dict[int, list[bytes | None]]:
    found: dict[int, list[bytes | None]] = {}
    for record in records:
        found.setdefault(record.partition, []).append(record.value)
    return found


async def test_all_is_read_in_the_order_of_its_partition_and_what_comes_later(
    broker: Administration, topic: str
) -> None:
    await broker.ensure_topics([Topic(topic, PARTITIONS)])
    await broker.publish([a_record(topic, n) for n in range(30)])
    begin = {Partition(topic, number): 0 for number in range(PARTITIONS)}
    async with broker.open_reader(begin) as reading:
        records = await taken(reading, 30)
        await broker.publish([a_record(topic, n) for n in range(30, 40)])
        records += await taken(reading, 10)
        assert await reading.poll(records_max=10, timeout_s=0.05) == []
        bounds = await broker.fetch_bounds([topic])
        assert reading.positions() == {partition: each.end for partition, each in bounds.items()}
        assert not reading.stalled_partitions()
    wanted: dict[int, list[bytes | None]] = {}
    for n in range(40):
        record = a_record(topic, n)
        wanted.setdefault(partition_of(record.key, PARTITIONS), []).append(record.value)
    assert by_partition(records) == wanted
    assert records[0].headers == (("x", b"y"),)
    assert await broker.find_readers(topic) == {}, "no group came into being"


async def test_only_the_named_partitions_are_read_from_the_given_offset(broker: Administration, topic: str) -> None:
    await broker.ensure_topics([Topic(topic, PARTITIONS)])
    await broker.publish([a_record(topic, n) for n in range(30)])
    number = partition_of(b"key-0", PARTITIONS)
    there = [n for n in range(30) if partition_of(f"key-{n % 10}".encode(), PARTITIONS) == number]
    async with broker.open_reader({Partition(topic, number): 2}) as reading:
        records = await taken(reading, len(there) - 2)
    assert [record.value for record in records] == [f"value-{n}".encode() for n in there[2:]]


async def test_a_reader_behind_the_oldest_record_continues_there(tmp_path: Path, topic: str) -> None:
    days = [0]

    class Calendar(type(CLOCK)):  # type: ignore[misc]  # a clock whose days can be turned
        def now_ms(self) -> int:
            return int(super().now_ms()) + (days[0] - 20) * 86_400_000

        def monotonic_s(self) -> float:
            return float(super().monotonic_s()) + days[0] * 86_400

    async with EmbeddedAdministration(tmp_path / "broker.db", clock=Calendar()) as broker:
        await broker.ensure_topics([Topic(topic, 1, retention_days=1)])
        await broker.publish([a_record(topic, n) for n in range(5)])
        days[0] += 10
        await broker.publish([a_record(topic, n) for n in range(5, 7)])
        await broker.trim()
        async with broker.open_reader({Partition(topic, 0): 1}) as reading:
            assert [record.offset for record in await taken(reading, 2)] == [5, 6]
            assert reading.positions() == {Partition(topic, 0): 7}


async def test_records_that_another_process_removes_while_they_are_read_are_no_damage(
    tmp_path: Path, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, partition = tmp_path / "broker.db", Partition(topic, 0)
    read_bounds = log.read_log_bounds

    def read_later(connection: sqlite3.Connection, number: int) -> tuple[int, int]:
        remove_records(path, {partition: 7})
        return read_bounds(connection, number)

    async with EmbeddedAdministration(path, clock=CLOCK) as broker:
        await broker.ensure_topics([Topic(topic, 1)])
        await broker.publish([a_record(topic, n) for n in range(10)])
        remove_records(path, {partition: 3})
        async with broker.open_reader({partition: 0}) as reading:
            monkeypatch.setattr(log, "read_log_bounds", read_later)
            assert [record.offset for record in await taken(reading, 7)] == list(range(3, 10))


async def test_kafka_continues_at_the_oldest_record_where_nothing_is_left(
    kafka_settings: KafkaSettings, topic: str
) -> None:
    """An offset behind the end is one that the log has lost."""
    async with KafkaAdministration(kafka_settings, clock=CLOCK) as broker:
        await broker.ensure_topics([Topic(topic, 1)])
        await broker.publish([a_record(topic, n) for n in range(5)])
        async with broker.open_reader({Partition(topic, 0): 77}) as reading:
            assert [record.offset for record in await taken(reading, 5)] == [0, 1, 2, 3, 4]


async def test_kafka_continues_at_the_oldest_record_while_other_partitions_always_have_records(
    kafka_settings: KafkaSettings, topic: str
) -> None:
    keys = {partition_of(key, 2): key for key in (b"key-%d" % n for n in range(20))}
    async with KafkaAdministration(kafka_settings, clock=CLOCK) as broker:
        await broker.ensure_topics([Topic(topic, 2)])
        await broker.publish([Outgoing(topic, keys[0], b"quiet", ())])

        async def keep_busy() -> None:
            while True:
                await broker.publish([Outgoing(topic, keys[1], b"busy", ())])
                await CLOCK.sleep(0.02)

        async with broker.open_reader({Partition(topic, 0): 77, Partition(topic, 1): 0}) as reading:

            async def find_quiet() -> None:
                while b"quiet" not in [each.value for each in await reading.poll(records_max=100, timeout_s=1.0)]:
                    pass

            busy = asyncio.get_running_loop().create_task(keep_busy())
            try:
                await CLOCK.within(10, find_quiet())
            finally:
                busy.cancel()
                await asyncio.wait([busy])


async def test_a_record_that_cannot_be_read_holds_up_its_partition_alone(tmp_path: Path, topic: str) -> None:
    async with EmbeddedAdministration(tmp_path / "broker.db", clock=CLOCK) as broker:
        await broker.ensure_topics([Topic(topic, PARTITIONS)])
        await broker.publish([a_record(topic, n) for n in range(30)])
        kept = broker._find_topic(topic)
        broker.connection.execute(f"UPDATE log_{kept.first_log} SET value = 'other' WHERE offset = 1")
        healthy = [n for n in range(30) if partition_of(f"key-{n % 10}".encode(), PARTITIONS) != 0]
        async with broker.open_reader({Partition(topic, number): 0 for number in range(PARTITIONS)}) as reading:
            records = await taken(reading, len(healthy) + 1)
            assert [record.offset for record in records if record.partition == 0] == [0]
            assert await reading.poll(records_max=10, timeout_s=0.05) == []
            [standstill] = reading.stalled_partitions()
            assert (standstill.topic, standstill.partition, standstill.offset) == (topic, 0, 1)


async def test_records_written_by_another_process_are_read(tmp_path: Path, topic: str) -> None:
    async with EmbeddedAdministration(tmp_path / "broker.db", clock=CLOCK) as broker:
        await broker.ensure_topics([Topic(topic, 1)])
        async with broker.open_reader({Partition(topic, 0): 0}) as reading:
            async with EmbeddedBroker(tmp_path / "broker.db", clock=CLOCK) as another:
                await another.publish([a_record(topic, 1)])
            assert len(await taken(reading, 1)) == 1


async def test_a_reader_gets_an_error_when_its_file_is_removed(tmp_path: Path, topic: str) -> None:
    async with EmbeddedAdministration(tmp_path / "broker.db", clock=CLOCK) as broker:
        await broker.ensure_topics([Topic(topic, 1)])
        async with broker.open_reader({Partition(topic, 0): 0}) as reading:
            (tmp_path / "broker.db").rename(tmp_path / "elsewhere.db")
            with pytest.raises(BrokerBroken):
                await taken(reading, 1)


async def test_a_partition_that_is_not_there_is_refused(tmp_path: Path, topic: str) -> None:
    async with EmbeddedAdministration(tmp_path / "broker.db", clock=CLOCK) as broker:
        await broker.ensure_topics([Topic(topic, 1)])
        with pytest.raises(BrokerError, match="has 1 partitions"):
            async with broker.open_reader({Partition(topic, 1): 0}):
                pass
        with pytest.raises(BrokerError, match="no topic"):
            async with broker.open_reader({Partition("elsewhere", 0): 0}):
                pass
