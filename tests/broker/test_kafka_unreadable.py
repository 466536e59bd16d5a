"""Odd records that are no damage: they are read, and nothing of them is lost. Damage itself is in the suite for
brokers."""

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from aiokafka import TopicPartition

from saga.broker.kafka.adapter import KafkaSettings
from saga.broker.kafka.administration import SEARCH_S, KafkaAdministration, Probe
from saga.broker.kafka.broker import KafkaBroker
from saga.broker.kafka.membership import KafkaMember
from saga.broker.port import Subscription
from saga.messages import Outgoing, Partition, Record, Topic
from saga.testing.conformance.broker_suite import RecordingListener, event, values
from saga.testing.trials import TrialClock
from tests.broker.waiting import CLOCK, until
from tests.servers.damage import HARMLESS, spoil


async def read(broker: KafkaBroker, topic: str, count: int) -> list[Record]:
    """Read all that is there, as a member of a group."""
    found: list[Record] = []
    async with broker.join(Subscription(topic, [topic]), listening := RecordingListener()) as membership:
        await until(lambda: listening.has)
        while len(found) < count:
            found += await membership.poll(list(listening.has), records_max=100, timeout_s=1)
    return found


@pytest.mark.parametrize("way", HARMLESS)
async def test_a_batch_with_a_damaged_header_loses_nothing(
    kafka_settings: KafkaSettings, kafka_topic: str, kafka_data: Path, way: str
) -> None:
    async with KafkaBroker(kafka_settings, clock=CLOCK) as broker:
        await broker.ensure_topics([Topic(kafka_topic, 1)])
        for number in range(3):
            await broker.publish([event(kafka_topic, f"k{n}", f"{number}") for n in range(5)])
        stored = [record async for record in broker.scan(kafka_topic)]
        spoil(kafka_data, stored[7], way)
        assert await read(broker, kafka_topic, 15) == stored


async def test_names_of_headers_that_are_no_text_are_read_all_the_same(
    kafka_settings: KafkaSettings, kafka_topic: str, kafka_data: Path
) -> None:
    """Brokers take any bytes as a name; aiokafka takes text only, so ours is put into what is stored."""
    headers = (("ce_id", b"1"), ("name", b"\x00"), ("empty", b""))
    async with KafkaBroker(kafka_settings, clock=CLOCK) as broker:
        await broker.ensure_topics([Topic(kafka_topic, 1)])
        for number in range(3):
            await broker.publish([Outgoing(kafka_topic, b"k", f"{number} {n}".encode(), headers) for n in range(4)])
        stored = [record async for record in broker.scan(kafka_topic)]
        spoil(kafka_data, stored[5], "names of headers")
        odd = (("ce_id", b"1"), ("\\xff\\xfeme", b"\x00"), ("empty", b""))
        wanted = [record._replace(headers=odd) if 4 <= record.offset < 8 else record for record in stored]
        assert await read(broker, kafka_topic, 12) == wanted
        assert [record async for record in broker.scan(kafka_topic)] == wanted


@pytest.mark.parametrize("drained", [1, 5])
async def test_after_a_fetch_that_raises_nothing_of_the_others_is_lost(
    kafka_settings: KafkaSettings, kafka_topic: str, monkeypatch: pytest.MonkeyPatch, drained: int
) -> None:
    """Whatever aiokafka raises: what it had taken of other partitions is dropped with it, and has to come again."""
    async with KafkaBroker(kafka_settings, clock=CLOCK) as broker:
        await broker.ensure_topics([Topic(kafka_topic, 6)])
        await broker.publish([event(kafka_topic, f"k{n}", f"{n}") for n in range(60)])
        stored = [record async for record in broker.scan(kafka_topic)]
        broken, found = Partition(kafka_topic, stored[0].partition), list[Record]()
        others = [record for record in stored if record.partition != broken.number]
        async with broker.join(
            Subscription(kafka_topic, [kafka_topic]), listening := RecordingListener()
        ) as membership:
            await until(lambda: listening.has)
            assert isinstance(membership, KafkaMember)
            consumer, raised = membership._consumer, 0
            assert consumer is not None
            getmany = consumer.getmany

            async def taking_and_raising(*places: TopicPartition, timeout_ms: int, max_records: int) -> object:
                nonlocal raised
                if TopicPartition(*broken) in places and raised < 8:
                    await getmany(*places, timeout_ms=0, max_records=drained)
                    raised += 1
                    raise ValueError("whatever it is")
                return await getmany(*places, timeout_ms=timeout_ms, max_records=max_records)

            monkeypatch.setattr(consumer, "getmany", taking_and_raising)
            while len(found) < len(others):
                found += await membership.poll(list(listening.has), records_max=10, timeout_s=1)
            await until(membership.stalled_partitions)
            (stalled,) = membership.stalled_partitions()
            assert (stalled.topic, stalled.partition, stalled.offset) == (*broken, 0)
            assert "ValueError: whatever it is" in stalled.reason
            raised = 8
            while len(found) < len(stored):
                found += await membership.poll(list(listening.has), records_max=10, timeout_s=1)
            assert sorted(found) == stored
            await until(lambda: not membership.stalled_partitions())


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
async def test_each_codec_is_written_and_read(
    kafka_settings: KafkaSettings, kafka_topic: str, codec: Literal["gzip", "snappy", "lz4", "zstd"]
) -> None:
    async with KafkaBroker(replace(kafka_settings, compression=codec), clock=CLOCK) as broker:
        await broker.ensure_topics([Topic(kafka_topic, 1)])
        await broker.publish([event(kafka_topic, "k", f"{n} " * 100) for n in range(50)])
        stored = await read(broker, kafka_topic, 50)
        assert values(stored) == [f"{n} " * 100 for n in range(50)]
        assert [record async for record in broker.scan(kafka_topic)] == stored


@pytest.mark.parametrize("way", ["a value", "a length below zero", "a length that is too large", "gzip that is none"])
async def test_how_far_it_cannot_be_read_is_found_out_from_wherever_it_stands(
    kafka_settings: KafkaSettings, kafka_topic: str, kafka_data: Path, way: str
) -> None:
    place = Partition(kafka_topic, 0)
    async with KafkaAdministration(kafka_settings, clock=CLOCK) as broker:
        await broker.ensure_topics([Topic(kafka_topic, 1)])
        for number in range(3):
            await broker.publish([event(kafka_topic, "k", f"{number} {n}") for n in range(3)])
        stored = [record async for record in broker.scan(kafka_topic)]
        spoil(kafka_data, stored[4], way)
        assert await broker.find_unreadable(place, 2) is None
        found = await broker.find_unreadable(place, 3)
        assert found is not None
        assert found.begin == 3
        assert found.end >= 6
        assert await broker.find_unreadable(place, found.end) is None
        assert f"{kafka_topic}/0 is stalled at offset 3" in found.reason
        if way in ("a value", "gzip that is none"):  # the frame of the batch is whole
            assert found.end == 6
            assert found.size is not None


async def test_only_what_cannot_be_read_is_found_if_readable_records_lie_between(
    kafka_settings: KafkaSettings, kafka_topic: str, kafka_data: Path
) -> None:
    async with KafkaAdministration(kafka_settings, clock=CLOCK) as broker:
        await broker.ensure_topics([Topic(kafka_topic, 1)])
        for number, count in enumerate([1, 2, 1, 1, 1, 3, 3, 1]):  # offsets 0, 1-2, 3, 4, 5, 6-8, 9-11, 12
            await broker.publish([event(kafka_topic, "k", f"{number} {n}") for n in range(count)])
        stored = [record async for record in broker.scan(kafka_topic)]
        for offset in (1, 3, 5, 9):
            spoil(kafka_data, stored[offset], "a value")
        at, ranges = 0, list[tuple[int, int]]()
        while at < 13:
            found = await broker.find_unreadable(Partition(kafka_topic, 0), at)
            if found is not None:
                assert found.size is not None
                ranges.append((found.begin, found.end))
            at = at + 1 if found is None else found.end
        assert ranges == [(1, 4), (5, 6), (9, 12)], "4 and 6 to 8 can be read"


class PartlyReadable(Probe):
    """Probe of a partition in which only some offsets can be read. Each attempt takes two seconds."""

    def __init__(self, readable: Collection[int]) -> None:
        self._clock: TrialClock = TrialClock()
        self._readable = readable

    async def find_record(self, offset: int) -> int | str:
        await self._clock.sleep(2)
        return offset if offset in self._readable else f"stalled at offset {offset}"

    async def _fetch_bytes(self, offset: int) -> bytes:
        return b""


async def test_a_search_that_takes_too_long_ends_with_what_it_has_tried() -> None:
    assert await PartlyReadable({7, 9}).find_unreadable(7) is None
    assert await PartlyReadable({7, 9}).find_unreadable(3) == (3, 7, None, "stalled at offset 3")
    found = await PartlyReadable({1000}).find_unreadable(3)
    assert found is not None
    assert found.end == 3 + SEARCH_S // 2
