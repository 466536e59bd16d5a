"""Records that are removed from a log before a group had them: tests for `BrokerConformance`, which has their
fixtures."""

from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TypeAlias

import pytest

from saga.broker.port import Broker, Membership
from saga.errors import Fenced, SagaError
from saga.messages import Partition, Record, Topic
from saga.testing.conformance.broker_suite import (
    CLOCK,
    BrokerSuite,
    Connect,
    RecordingListener,
    Recreate,
    Remove,
    event,
    values,
)


class RemovalConformance(BrokerSuite):
    """Tests that removed records are told, and that nothing else is lost."""

    async def test_what_was_removed_before_the_group_had_it_is_told_of_each_partition_and_the_others_lose_nothing(
        self, broker: Broker, topic: str, group: str, remove: Remove
    ) -> None:
        async with self.member(broker, group, topic) as (membership, listener):
            await self.complete(listener)
            await broker.publish([event(topic, f"{n}", "before") for n in range(100)])
            before = await self.read(membership, 100, listener=listener)
            keys = {Partition(topic, record.partition): (record.key or b"").decode() for record in before}
            begins = {partition: 1 + sum(r.partition == partition.number for r in before) for partition in keys}
            await broker.publish([event(topic, key, f"{n}") for key in keys.values() for n in range(5)])
            await self.read(membership, 5 * len(keys), listener=listener)
            await membership.commit(begins)  # of each, the first of the five is handled
        some, all_, handled, untouched = sorted(begins)
        await remove({some: begins[some] + 2, all_: begins[all_] + 4, handled: begins[handled]})
        async with self.member(broker, group, topic) as (membership, listener):
            await self.complete(listener)
            left = await self.read(membership, 10, listener=listener)
            await self.read_until(membership, listener, lambda: len(listener.gone) == 2)
            assert listener.gone == {
                some: [range(begins[some], begins[some] + 2)],
                all_: [range(begins[all_], begins[all_] + 4)],
            }
            wanted = {some: ["3", "4"], all_: [], handled: ["1", "2", "3", "4"], untouched: ["1", "2", "3", "4"]}
            assert {p: values([r for r in left if r.partition == p.number]) for p in wanted} == wanted
            assert not any((membership.lag() or {}).values())
            await broker.publish([event(topic, keys[all_], "next")])
            assert values(await self.read(membership, 1, listener=listener)) == ["next"]
            assert len(listener.gone[all_]) == 1


OLD, NEW = 40, 120
"""Records of the log before, and of the one that takes its place: all positions in the one are inside of the other."""


class ReplacementConformance(BrokerSuite):
    """Tests that a position belongs to one log."""

    async def test_a_topic_keeps_its_log_and_each_record_names_it(
        self, connect: Connect, broker: Broker, topic: str, group: str
    ) -> None:
        await broker.publish([event(topic, "k", "old")])
        ids = dict(await broker.fetch_log_ids([topic, f"{topic}.missing"]))
        assert list(ids) == [topic]
        assert ids[topic]
        async with connect() as other, self.member(other, group, topic) as (membership, listener):
            await self.complete(listener)
            assert dict(await other.fetch_log_ids([topic])) == ids
            assert {membership.log_id(partition) for partition in listener.has} == {ids[topic]}
            (record,) = await self.read(membership, 1, listener=listener)
            assert record.log_id == ids[topic]
        assert [record.log_id async for record in broker.scan(topic)] == [ids[topic]]

    async def test_who_reads_a_topic_that_is_created_again_reads_all_of_the_new_one(
        self, broker: Broker, topic: str, group: str, recreate: Recreate
    ) -> None:
        async with self.member(broker, group, topic) as (membership, listener):
            await self.complete(listener)
            await broker.publish([event(topic, f"{n}", f"old {n}") for n in range(OLD)])
            await self.read(membership, OLD, listener=listener)
            before = {partition: membership.log_id(partition) for partition in listener.has}
            await recreate(topic, self.partitions)
            await broker.publish([event(topic, f"{n}", f"new {n}") for n in range(NEW)])
            came = await self.read_all(membership, listener, {f"new {n}" for n in range(NEW)})
            assert not any(value.startswith("old") for value in values(came))
            after = {partition: membership.log_id(partition) for partition in listener.has}
            assert before.keys() == after.keys()
            assert not {*before.values()} & {*after.values()}
            await membership.commit(
                {p: 1 + max(r.offset for r in came if r.partition == p.number) for p in listener.has}
            )
        async with self.member(broker, group, topic) as (membership, listener):
            await self.complete(listener)
            assert sum(listener.has.values()) == NEW

    async def test_a_position_of_the_log_before_that_comes_late_does_not_count_in_the_new_one(
        self, broker: Broker, topic: str, group: str, recreate: Recreate
    ) -> None:
        async with self.member(broker, group, topic) as (membership, listener):
            await self.complete(listener)
            await broker.publish([event(topic, f"{n}", f"old {n}") for n in range(OLD)])
            read = await self.read(membership, OLD, listener=listener)
            ends = {p: sum(r.partition == p.number for r in read) for p in listener.has}
            told = list(listener.told)
            await recreate(topic, self.partitions)
            if listener.told == told:  # else it has been given the new log, and a commit counts there
                with suppress(Fenced):
                    await membership.commit(ends)
            await broker.publish([event(topic, f"{n}", f"new {n}") for n in range(NEW)])
        async with self.member(broker, group, topic) as (membership, listener):
            await self.complete(listener)
            await self.read_all(membership, listener, {f"new {n}" for n in range(NEW)})
        assert all(listener.begun_anew.get(partition, [at]) == [at] for partition, at in ends.items())

    async def test_only_the_topic_that_is_created_again_begins_anew(
        self, broker: Broker, topic: str, group: str, recreate: Recreate
    ) -> None:
        other = f"{topic}.other"
        await broker.ensure_topics([Topic(other, self.partitions)])
        async with self.member(broker, group, topic, other) as (membership, listener):
            await self.until(lambda: len(listener.has) == 2 * self.partitions)
            await broker.publish([event(each, f"{n}", f"old {n}") for n in range(OLD) for each in (topic, other)])
            await self.read(membership, 2 * OLD, listener=listener)
            await recreate(topic, self.partitions)
            await broker.publish([event(topic, f"{n}", f"new {n}") for n in range(NEW)])
            await self.read_all(membership, listener, {f"new {n}" for n in range(NEW)})
            await broker.publish([event(other, "k", "last")])
            came = await self.read_all(membership, listener, {"last"})
            assert values([record for record in came if record.topic == other]) == ["last"]
            assert {partition.topic for partition in listener.begun_anew} <= {topic}


Damage: TypeAlias = Callable[[Record], Callable[[], None]]
"""Make a stored record unreadable; gives what makes it readable again."""


KEYS = 24


class UnreadableConformance(BrokerSuite):
    """Tests that an unreadable record halts its partition alone, is told, and is read again once it is mended."""

    undamageable = "give the fixture `damage`, or say here why no record of this broker can become unreadable"
    damaged_among = 12

    @pytest.fixture
    def damage(self) -> Damage:
        """Function that damages a stored record; a fixture with parameters where there are several ways."""
        pytest.skip(self.undamageable)

    async def test_what_cannot_be_read_stands_alone_and_is_told_and_when_it_is_mended_nothing_is_lost(
        self, connect: Connect, topic: str, group: str, damage: Damage
    ) -> None:
        topic = f"{topic}.damaged"
        async with connect() as broker:
            await broker.ensure_topics([Topic(topic, self.damaged_among)])
            await self._publish(broker, topic, 8)
            stored = [record async for record in broker.scan(topic)]
            hurt = self._in_the_middle(stored)
            place, count = Partition(topic, hurt.partition), [r.partition for r in stored].count(hurt.partition)
            mend = damage(hurt)
            try:
                async with self.member(broker, group, topic) as (membership, listener):
                    before = DamagedPartitionReader(membership, listener, place, self.within_s)
                    await before.until(lambda: before.others == len(stored) - count and membership.stalled_partitions())
                    await self._publish(broker, topic, 8)
                    await before.until(lambda: before.others == 2 * (len(stored) - count))
                    (told,) = membership.stalled_partitions()
                    at = len(before.ours)
                    assert at <= hurt.offset
                    assert (told.topic, told.partition, told.offset) == (*place, at)
                    assert f"{topic}/{hurt.partition} is stalled at offset {at}" in told.reason
                    await membership.commit(before.ends)
                found, why = await self._scanned(broker, topic)
                assert f"{topic}/{hurt.partition} is stalled at offset {at}" in why
                assert [r.offset for r in found if r.partition == hurt.partition] == list(range(at))
                async with self.member(broker, group, topic) as (membership, listener):
                    after = DamagedPartitionReader(membership, listener, place, self.within_s)
                    await after.until(membership.stalled_partitions)
                    assert after.ours == []
                    mend()
                    await after.until(lambda: at + len(after.ours) == 2 * count and not membership.stalled_partitions())
            finally:
                mend()
            stored = [record async for record in broker.scan(topic)]
        assert [r.offset for r in before.ours + after.ours] == list(range(2 * count))
        assert sorted(before.records + after.records) == stored

    async def _scanned(self, broker: Broker, topic: str) -> tuple[list[Record], str]:
        """Records that a scan gave, and the error that ended it."""
        found: list[Record] = []
        try:
            async for record in broker.scan(topic):
                found.append(record)  # noqa: PERF401 - what came before the error counts
        except SagaError as why:
            return found, str(why)
        return found, ""

    async def _publish(self, broker: Broker, topic: str, rounds: int) -> None:
        for _ in range(rounds):
            await broker.publish([event(topic, f"k{number}", "a value of some length") for number in range(KEYS)])

    def _in_the_middle(self, records: Collection[Record]) -> Record:
        """A record from the middle of the partition that has most of them."""
        numbers = [record.partition for record in records]
        most = max(numbers, key=numbers.count)
        of_it = [record for record in records if record.partition == most]
        return of_it[len(of_it) // 2]


class DamagedPartitionReader:
    """Records that a member was given: of one partition, and of the others."""

    def __init__(
        self, membership: Membership, listener: RecordingListener, partition: Partition, within_s: float
    ) -> None:
        self.records: list[Record] = []
        self._membership, self._listener = membership, listener
        self._partition, self._within_s = partition, within_s

    @property
    def ours(self) -> list[Record]:
        return [record for record in self.records if record.partition == self._partition.number]

    @property
    def others(self) -> int:
        return len(self.records) - len(self.ours)

    @property
    def ends(self) -> dict[Partition, int]:
        return {Partition(record.topic, record.partition): record.offset + 1 for record in self.records}

    async def until(self, holds: Callable[[], object]) -> None:
        """Read until the condition holds."""

        async def read() -> None:
            while not holds():
                self.records += await self._membership.poll(list(self._listener.has), records_max=100, timeout_s=0.1)

        await CLOCK.within(self._within_s, read())
