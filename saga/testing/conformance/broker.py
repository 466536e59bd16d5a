"""Tests of the guarantees in `saga.broker.port`, one for each. To test a broker, subclass `BrokerConformance`:

    class TestMine(BrokerConformance):
        @pytest.fixture
        def connect(self) -> Connect:
            return lambda: MyBroker(...)

        @pytest.fixture
        def remove(self) -> Remove:
            ...

Each call of `connect` returns a broker that is not open yet. All brokers of one test share a log, as different
processes would. The suite runs with pytest-asyncio in its automatic mode.

`BrokerConformance` combines smaller suites. They test the ends of the log, the marks of partitions in progress, what a
broker refuses to publish, and logs that lose records, are replaced, or become unreadable. Records of other producers
are tested in `saga.testing.conformance.foreign_records`.
"""

import asyncio
from collections.abc import Callable, Collection
from contextlib import AsyncExitStack, suppress
from typing import TypeAlias

import pytest
from msgspec.structs import replace

from saga.broker.port import Broker, MemberIdentity, Membership, Subscription, record_size
from saga.errors import BrokerError, BrokerUnavailable, ConfigurationError, Fenced, SagaError
from saga.messages import Outgoing, Partition, Record, Topic
from saga.testing.conformance.broker_suite import (
    CLOCK,
    LOOK_S,
    BrokerSuite,
    Connect,
    RecordingListener,
    Recreate,
    Remove,
    event,
    values,
)
from saga.testing.conformance.foreign_records import ForeignConformance


class EndsConformance(BrokerSuite):
    """Tests that a member can tell whether it has read everything in the log."""

    async def test_the_ends_of_the_log_count_everything_published_before_the_request(
        self, broker: Broker, connect: Connect, topic: str, group: str
    ) -> None:
        async with self.member(broker, group, topic) as (membership, listener):
            await self.complete(listener)
            assert sum(end or 0 for end in (await membership.fetch_ends()).values()) == 0
            async with connect() as other:
                await other.publish([event(topic, f"{n}", "one") for n in range(20)])
            ends = await membership.fetch_ends()
            assert set(ends) == {Partition(topic, number) for number in range(self.partitions)}
            assert sum(end or 0 for end in ends.values()) == 20

    async def test_a_member_has_read_to_the_ends_once_a_poll_has_given_every_record(
        self, broker: Broker, topic: str, group: str
    ) -> None:
        async with self.member(broker, group, topic) as (membership, listener):
            await self.complete(listener)
            await broker.publish([event(topic, f"{n}", "one") for n in range(20)])
            ends = await membership.fetch_ends()
            assert any(membership.polled_offsets()[partition] < (end or 0) for partition, end in ends.items())
            await self.read(membership, 20, listener=listener)
            assert membership.polled_offsets() == ends

    async def test_each_member_may_ask_for_the_positions_of_the_whole_group(
        self, broker: Broker, connect: Connect, topic: str, group: str
    ) -> None:
        async with self.member(broker, group, topic) as (membership, listener):
            await self.complete(listener)
            await broker.publish([event(topic, f"{n}", "one") for n in range(20)])
            await self.read(membership, 20, listener=listener)
            ends = {partition: end or 0 for partition, end in (await membership.fetch_ends()).items()}
            async with connect() as other, self.member(other, group, topic) as (second, beside):
                await self.until(lambda: len(listener.has) + len(beside.has) == self.partitions and bool(listener.has))
                theirs, ours = set(beside.has), set(listener.has)
                assert await second.fetch_ends() == ends, "also those of partitions of others"
                await membership.commit({partition: ends[partition] for partition in ours})
                positions = await second.fetch_positions(ends)
                assert {p: positions.get(p, 0) for p in ours} == {p: ends[p] for p in ours}
                assert not any(positions.get(p, 0) for p in theirs)
                assert set(await second.fetch_positions(theirs)) <= theirs


class LeavingConformance(BrokerSuite):
    """Tests of the mark of a partition whose messages are in progress. The mark stays until it is cleared, so the next
    owner of the partition sees it.
    """

    async def test_partitions_that_nothing_has_begun_have_no_mark(self, broker: Broker, topic: str, group: str) -> None:
        async with self.member(broker, group, topic) as (membership, listener):
            await self.complete(listener)
            assert not await membership.mark_in_progress(listener.has)

    async def test_the_next_owner_finds_the_marks_of_partitions_that_were_not_finished(
        self, broker: Broker, topic: str, group: str
    ) -> None:
        async with self.member(broker, group, topic) as (membership, listener):
            await self.complete(listener)
            begun = dict(list(listener.has.items())[:2])
            assert not await membership.mark_in_progress(begun)
        for _ in range(2):  # until it is cleared
            async with self.member(broker, group, topic) as (membership, listener):
                await self.complete(listener)
                assert set(await membership.mark_in_progress(listener.has)) >= set(begun)

    async def test_a_commit_keeps_the_mark(self, broker: Broker, topic: str, group: str) -> None:
        await broker.publish([event(topic, "k", f"{n}") for n in range(3)])
        async with self.member(broker, group, topic) as (membership, listener):
            await self.complete(listener)
            await membership.mark_in_progress(listener.has)
            (*_, record) = await self.read(membership, 3, listener=listener)
            place = Partition(record.topic, record.partition)
            await membership.commit({place: record.offset})
        async with self.member(broker, group, topic) as (membership, listener):
            await self.complete(listener)
            assert listener.has[place] == record.offset
            assert place in await membership.mark_in_progress(listener.has)

    async def test_a_cleared_mark_is_gone(self, broker: Broker, topic: str, group: str) -> None:
        await broker.publish([event(topic, "k", f"{n}") for n in range(3)])
        async with self.member(broker, group, topic) as (membership, listener):
            await self.complete(listener)
            await membership.mark_in_progress(listener.has)
            (*_, record) = await self.read(membership, 3, listener=listener)
            place = Partition(record.topic, record.partition)
            offsets = {**listener.has, place: record.offset}
            await membership.commit({place: record.offset})
            listener.before_letting_go = lambda: membership.clear_in_progress(offsets)
        async with self.member(broker, group, topic) as (membership, listener):
            await self.complete(listener)
            assert listener.has[place] == record.offset
            assert not await membership.mark_in_progress(listener.has)


class RefusalsConformance:
    """Tests that a broker refuses what it cannot publish."""

    async def test_publishing_to_a_topic_that_is_not_there_is_refused(self, broker: Broker) -> None:
        with pytest.raises(SagaError, match="nowhere"):
            await broker.publish([event("nowhere", "k")])

    async def test_the_largest_record_is_published_and_a_larger_one_refused_with_its_whole_batch(
        self, broker: Broker, topic: str
    ) -> None:
        beside = (("ce_id", b"1"), ("many", bytes(1000)))
        room = broker.record_bytes_max - record_size(Outgoing(topic, b"k", b"", beside))
        largest, larger = (Outgoing(topic, b"k", bytes(room + more), beside) for more in (0, 1))
        with pytest.raises(BrokerError, match=f"{broker.record_bytes_max}") as refused:
            await broker.publish([event(topic, "k", "with it"), larger])
        assert not isinstance(refused.value, BrokerUnavailable)
        await broker.publish([largest, event(topic, "k", "after")])
        assert [len(record.value or b"") async for record in broker.scan(topic)] == [room, len("after")]


# ---------------------------------------------------------------- damaged logs


class RemovalConformance(BrokerSuite):
    """Tests that removed records are reported, and that no other record is lost."""

    async def test_records_that_were_removed_unread_are_reported_per_partition_and_nothing_else_is_lost(
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
            await membership.commit(begins)  # in each partition, the first of the five records is handled
        some, all_, handled, untouched = sorted(begins)
        await remove({some: begins[some] + 2, all_: begins[all_] + 4, handled: begins[handled]})
        async with self.member(broker, group, topic) as (membership, listener):
            await self.complete(listener)
            left = await self.read(membership, 10, listener=listener)
            await self.read_until(membership, listener, lambda: len(listener.expired) == 2)
            assert listener.expired == {
                some: [range(begins[some], begins[some] + 2)],
                all_: [range(begins[all_], begins[all_] + 4)],
            }
            wanted = {some: ["3", "4"], all_: [], handled: ["1", "2", "3", "4"], untouched: ["1", "2", "3", "4"]}
            assert {p: values([r for r in left if r.partition == p.number]) for p in wanted} == wanted
            assert not any((membership.lag() or {}).values())
            await broker.publish([event(topic, keys[all_], "next")])
            assert values(await self.read(membership, 1, listener=listener)) == ["next"]
            assert len(listener.expired[all_]) == 1


OLD, NEW = 40, 120
"""Number of records in a topic before and after it is created again. There are more afterwards, so every offset of the
old log also exists in the new one.
"""


class ReplacementConformance(BrokerSuite):
    """Tests that an offset belongs to one log: after a topic was created again, it is read from its beginning."""

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

    async def test_a_topic_that_is_created_again_is_read_from_its_beginning(
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

    async def test_a_late_commit_for_the_old_log_does_not_count_in_the_new_one(
        self, broker: Broker, topic: str, group: str, recreate: Recreate
    ) -> None:
        async with self.member(broker, group, topic) as (membership, listener):
            await self.complete(listener)
            await broker.publish([event(topic, f"{n}", f"old {n}") for n in range(OLD)])
            read = await self.read(membership, OLD, listener=listener)
            ends = {p: sum(r.partition == p.number for r in read) for p in listener.has}
            before = list(listener.calls)
            await recreate(topic, self.partitions)
            if (
                listener.calls == before
            ):  # otherwise the member was assigned the new log, and a commit counts in that one
                with suppress(Fenced):
                    await membership.commit(ends)
            await broker.publish([event(topic, f"{n}", f"new {n}") for n in range(NEW)])
        async with self.member(broker, group, topic) as (membership, listener):
            await self.complete(listener)
            await self.read_all(membership, listener, {f"new {n}" for n in range(NEW)})
        assert all(listener.replaced.get(partition, [at]) == [at] for partition, at in ends.items())

    async def test_only_the_topic_that_is_created_again_is_read_from_its_beginning(
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
            assert {partition.topic for partition in listener.replaced} <= {topic}


Damage: TypeAlias = Callable[[Record], Callable[[], None]]
"""Function that makes a stored record unreadable, and returns a function that makes it readable again."""


KEYS = 24


class UnreadableConformance(BrokerSuite):
    """Tests that an unreadable record stalls only its partition, is reported, and is read once it has been repaired."""

    no_damage_reason = "give the fixture `damage`, or say here why no record of this broker can become unreadable"
    damaged_topic_partitions = 12

    @pytest.fixture
    def damage(self) -> Damage:
        """Provide a function that damages a stored record. Parametrise the fixture if records can be damaged in several
        ways.
        """
        pytest.skip(self.no_damage_reason)

    async def test_an_unreadable_record_stalls_only_its_partition_and_once_repaired_nothing_is_lost(
        self, connect: Connect, topic: str, group: str, damage: Damage
    ) -> None:
        topic = f"{topic}.damaged"
        async with connect() as broker:
            await broker.ensure_topics([Topic(topic, self.damaged_topic_partitions)])
            await self._publish(broker, topic, 8)
            stored = [record async for record in broker.scan(topic)]
            hurt = self._pick_middle_record(stored)
            place, count = Partition(topic, hurt.partition), [r.partition for r in stored].count(hurt.partition)
            repair = damage(hurt)
            try:
                async with self.member(broker, group, topic) as (membership, listener):
                    before = DamagedPartitionReader(membership, listener, place, self.within_s)
                    await before.until(lambda: before.others == len(stored) - count and membership.stalled_partitions())
                    await self._publish(broker, topic, 8)
                    await before.until(lambda: before.others == 2 * (len(stored) - count))
                    (stalled,) = membership.stalled_partitions()
                    at = len(before.ours)
                    assert at <= hurt.offset
                    assert (stalled.topic, stalled.partition, stalled.offset) == (*place, at)
                    assert f"{topic}/{hurt.partition} is stalled at offset {at}" in stalled.reason
                    await membership.commit(before.ends)
                found, why = await self._scan(broker, topic)
                assert f"{topic}/{hurt.partition} is stalled at offset {at}" in why
                assert [r.offset for r in found if r.partition == hurt.partition] == list(range(at))
                async with self.member(broker, group, topic) as (membership, listener):
                    after = DamagedPartitionReader(membership, listener, place, self.within_s)
                    await after.until(membership.stalled_partitions)
                    assert after.ours == []
                    repair()
                    await after.until(lambda: at + len(after.ours) == 2 * count and not membership.stalled_partitions())
            finally:
                repair()
            stored = [record async for record in broker.scan(topic)]
        assert [r.offset for r in before.ours + after.ours] == list(range(2 * count))
        assert sorted(before.records + after.records) == stored

    async def _scan(self, broker: Broker, topic: str) -> tuple[list[Record], str]:
        """Scan the topic. Return the records that were read, and the error that ended the scan."""
        found: list[Record] = []
        try:
            async for record in broker.scan(topic):
                found.append(record)  # noqa: PERF401 - keeps the records before an error
        except SagaError as why:
            return found, str(why)
        return found, ""

    async def _publish(self, broker: Broker, topic: str, rounds: int) -> None:
        for _ in range(rounds):
            await broker.publish([event(topic, f"k{number}", "a value of some length") for number in range(KEYS)])

    def _pick_middle_record(self, records: Collection[Record]) -> Record:
        """Return a record from the middle of the partition with the most records."""
        numbers = [record.partition for record in records]
        most = max(numbers, key=numbers.count)
        of_it = [record for record in records if record.partition == most]
        return of_it[len(of_it) // 2]


class DamagedPartitionReader:
    """A reader that collects the records of the damaged partition separately from the others."""

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


# ---------------------------------------------------------------- the whole suite


class BrokerConformance(
    LeavingConformance,
    RemovalConformance,
    RefusalsConformance,
    ReplacementConformance,
    UnreadableConformance,
    ForeignConformance,
    EndsConformance,
):
    """All tests for brokers. Set the attributes of `BrokerSuite` to say what your broker can do."""

    # ---------------------------------------------------------------- publish and read

    async def test_records_of_one_key_come_in_the_order_in_which_they_were_published(
        self, broker: Broker, topic: str, group: str
    ) -> None:
        for number in range(20):
            await broker.publish([event(topic, f"k{number % 3}", f"{number}")])
        async with self.member(broker, group, topic) as (membership, listener):
            await self.complete(listener)
            records = await self.read(membership, 20, listener=listener)
        for key in range(3):
            of_key = [r for r in records if r.key == f"k{key}".encode()]
            assert len({r.partition for r in of_key}) == 1
            assert values(of_key) == [f"{n}" for n in range(20) if n % 3 == key]

    async def test_a_batch_keeps_its_order_per_key(self, broker: Broker, topic: str, group: str) -> None:
        await broker.publish([event(topic, f"k{n % 5}", f"{n}") for n in range(50)])
        records = [record async for record in broker.scan(topic)]
        for key in range(5):
            of_key = [r for r in records if r.key == f"k{key}".encode()]
            assert values(of_key) == [f"{n}" for n in range(50) if n % 5 == key]

    async def test_equal_keys_lie_in_partitions_of_equal_number(self, broker: Broker, topic: str, group: str) -> None:
        other = f"{topic}.other"
        await broker.ensure_topics([Topic(other, self.partitions)])
        await broker.publish([event(t, f"key {n}") for n in range(30) for t in (topic, other)])
        places = [{r.key: r.partition async for r in broker.scan(t)} for t in (topic, other)]
        assert places[0] == places[1]
        assert len(set(places[0].values())) > 1

    async def test_a_record_comes_as_it_was_published(self, broker: Broker, topic: str, group: str) -> None:
        headers = (
            *(("ce_id", b"1"), ("many", b"a"), ("many", b"b"), ("empty", b""), ("bytes", bytes(range(256)))),
            *(("null", None), ("", b"nameless"), ("\x00\n\U0001f600", b"-"), ("n" * 5000, b"long")),
        )
        before_ms = CLOCK.now_ms()
        await broker.publish([Outgoing(topic, b"k\x00\xff", b"v\x00\xff", headers)])
        (record,) = [record async for record in broker.scan(topic)]
        assert (record.topic, record.key, record.value) == (topic, b"k\x00\xff", b"v\x00\xff")
        assert record.headers == headers
        assert before_ms - 1000 <= record.time_ms <= CLOCK.now_ms() + 1000

    async def test_a_record_without_value_comes_as_none(self, broker: Broker, topic: str, group: str) -> None:
        await broker.publish([event(topic, "k", None), event(topic, "k", "")])
        assert [record.value async for record in broker.scan(topic)] == [None, b""]

    async def test_published_records_are_there_for_later_connections(
        self, connect: Connect, topic: str, group: str
    ) -> None:
        async with connect() as broker:
            await broker.ensure_topics([Topic(topic, self.partitions)])
            await broker.publish([event(topic, "k", "kept")])
        async with connect() as broker:
            assert values([record async for record in broker.scan(topic)]) == ["kept"]

    async def test_disconnecting_waits_for_records_that_are_being_published(
        self, connect: Connect, topic: str, group: str
    ) -> None:
        async with connect() as broker:
            await broker.ensure_topics([Topic(topic, self.partitions)])
            publishing = asyncio.gather(*(broker.publish([event(topic, f"k{n}", f"{n}")]) for n in range(50)))
            await CLOCK.sleep(0)  # all calls have begun, and none has returned
        await CLOCK.within(self.within_s, publishing)
        async with connect() as broker:
            assert sorted(values([record async for record in broker.scan(topic)])) == sorted(map(str, range(50)))

    # ---------------------------------------------------------------- topics

    async def test_ensuring_a_topic_again_changes_nothing(self, broker: Broker, topic: str, group: str) -> None:
        await broker.publish([event(topic, "k", "kept")])
        await broker.ensure_topics([Topic(topic, self.partitions), Topic(f"{topic}.new", 1)])
        assert values([record async for record in broker.scan(topic)]) == ["kept"]

    async def test_a_topic_with_other_partitions_is_refused(self, broker: Broker, topic: str, group: str) -> None:
        with pytest.raises(SagaError, match=f"{topic}.*{self.partitions} partitions"):
            await broker.ensure_topics([Topic(topic, self.partitions + 1)])

    async def test_topics_are_found_with_their_partitions_and_asking_creates_none(
        self, connect: Connect, broker: Broker, topic: str, group: str
    ) -> None:
        wanted = [topic, f"{topic}.missing"]
        async with connect() as other:
            for each in (broker, other, broker):
                assert await each.count_partitions(wanted) == {topic: self.partitions}
            await broker.ensure_topics([Topic(f"{topic}.missing", 2)])
            assert await other.count_partitions(wanted) == {topic: self.partitions, f"{topic}.missing": 2}

    async def test_a_client_with_all_rights_misses_none(self, broker: Broker, topic: str, group: str) -> None:
        assert list(await broker.find_missing_rights([topic, f"{topic}.missing"], [topic], [group])) == []

    # ---------------------------------------------------------------- polling

    async def test_a_new_group_begins_at_the_oldest_record(self, broker: Broker, topic: str, group: str) -> None:
        await broker.publish([event(topic, "k", "old")])
        async with self.member(broker, group, topic) as (membership, listener):
            await self.complete(listener)
            assert set(listener.has.values()) == {0}
            assert values(await self.read(membership, 1, listener=listener)) == ["old"]

    async def test_polling_returns_as_soon_as_there_is_something(self, broker: Broker, topic: str, group: str) -> None:
        async with self.member(broker, group, topic) as (membership, listener):
            await self.complete(listener)
            polling = asyncio.gather(membership.poll(list(listener.has), records_max=10, timeout_s=2 * self.within_s))
            await CLOCK.sleep(LOOK_S)
            await broker.publish([event(topic, "k", "new")])
            ((record,),) = await CLOCK.within(self.within_s, polling)
            assert record.value == b"new"

    async def test_polling_gives_nothing_when_its_time_is_over(self, broker: Broker, topic: str, group: str) -> None:
        async with self.member(broker, group, topic) as (membership, listener):
            began_s = CLOCK.monotonic_s()
            assert list(await membership.poll(list(listener.has), records_max=10, timeout_s=0.1)) == []
            assert 0.09 <= CLOCK.monotonic_s() - began_s < self.within_s

    async def test_a_poll_that_is_woken_returns_at_once(self, broker: Broker, topic: str, group: str) -> None:
        async with self.member(broker, group, topic) as (membership, listener):
            await self.complete(listener)
            for early in (True, False):
                if early:
                    membership.wake()
                polling = asyncio.gather(membership.poll(list(listener.has), records_max=10, timeout_s=3600))
                await CLOCK.sleep(LOOK_S)
                if not early:
                    membership.wake()
                assert not any(await CLOCK.within(self.within_s, polling))

    async def test_polling_gives_no_more_than_asked_for_and_leaves_nothing_out(
        self, broker: Broker, topic: str, group: str
    ) -> None:
        await broker.publish([event(topic, f"k{n}", f"{n}") for n in range(30)])
        async with self.member(broker, group, topic) as (membership, listener):
            await self.complete(listener)
            records: list[Record] = []
            while len(records) < 30:
                some = await membership.poll(list(listener.has), records_max=7, timeout_s=self.within_s)
                assert 1 <= len(some) <= 7
                records.extend(some)
        assert sorted(values(records)) == sorted(map(str, range(30)))

    async def test_a_partition_that_is_left_out_is_paused_and_nothing_of_it_is_lost(
        self, broker: Broker, topic: str, group: str
    ) -> None:
        await broker.publish([event(topic, f"k{n}", f"{n}") for n in range(40)])
        everything = [record async for record in broker.scan(topic)]
        paused = Partition(topic, everything[0].partition)
        kept_back = [r for r in everything if r.partition == paused.number]
        async with self.member(broker, group, topic) as (membership, listener):
            await self.complete(listener)
            others = [p for p in listener.has if p != paused]
            records = await self.read(membership, 40 - len(kept_back), others, listener=listener)
            assert paused.number not in {r.partition for r in records}
            assert list(await membership.poll(others, records_max=10, timeout_s=0.05)) == []
            assert await self.read(membership, len(kept_back), [paused], listener=listener) == kept_back

    # ---------------------------------------------------------------- positions

    async def test_the_next_member_goes_on_at_the_committed_position(
        self, connect: Connect, topic: str, group: str
    ) -> None:
        async with connect() as broker:
            await broker.ensure_topics([Topic(topic, 1)])
            await broker.publish([event(topic, "k", f"{n}") for n in range(5)])
            async with self.member(broker, group, topic) as (membership, listener):
                await self.read(membership, 5, listener=listener)
                await membership.commit({Partition(topic, 0): 3})
        async with connect() as broker, self.member(broker, group, topic) as (membership, listener):
            assert listener.has == {Partition(topic, 0): 3}
            assert values(await self.read(membership, 2, listener=listener)) == ["3", "4"]

    async def test_records_that_are_not_committed_come_again(self, broker: Broker, topic: str, group: str) -> None:
        await broker.publish([event(topic, "k", "again")])
        for _ in range(2):
            async with self.member(broker, group, topic) as (membership, listener):
                await self.complete(listener)
                assert values(await self.read(membership, 1, listener=listener)) == ["again"]

    async def test_each_group_reads_everything(self, broker: Broker, topic: str, group: str) -> None:
        await broker.publish([event(topic, "k", "for both")])
        async with (
            self.member(broker, group, topic) as (first, hears_first),
            self.member(broker, f"{group}.other", topic) as (second, hears_second),
        ):
            for membership, listener in ((first, hears_first), (second, hears_second)):
                assert values(await self.read(membership, 1, listener=listener)) == ["for both"]

    # ---------------------------------------------------------------- how far behind

    async def test_the_lag_is_the_number_of_records_not_yet_polled(
        self, broker: Broker, topic: str, group: str
    ) -> None:
        await broker.publish([event(topic, f"k{n}", f"{n}") for n in range(40)])
        async with self.member(broker, group, topic) as (membership, listener):
            await self.complete(listener)
            given = len(await membership.poll(list(listener.has), records_max=7, timeout_s=self.within_s))
            await self.until(lambda: sum((membership.lag() or {}).values()) == 40 - given > 0)
            await self.read(membership, 40 - given, listener=listener)
            await self.until(lambda: membership.lag() == dict.fromkeys(listener.has, 0))

    async def test_a_member_for_whom_no_partition_is_left_knows_it(
        self, connect: Connect, topic: str, group: str
    ) -> None:
        async with connect() as broker, connect() as other:
            await broker.ensure_topics([Topic(topic, 1)])
            async with (
                broker.join(Subscription(group, [topic]), RecordingListener()) as one,
                other.join(Subscription(group, [topic]), RecordingListener()) as two,
            ):
                lags = (one.lag, two.lag)
                await self.until(lambda: sorted(-1 if (had := lag()) is None else len(had) for lag in lags) == [0, 1])

    # ---------------------------------------------------------------- where a group begins

    async def test_a_group_begins_at_its_given_time_and_continues_at_its_commit(
        self, connect: Connect, broker: Broker, topic: str, group: str
    ) -> None:
        await broker.publish([event(topic, f"k{n}", f"old {n}") for n in range(20)])
        begins_ms = 1 + max([record.time_ms async for record in broker.scan(topic)])
        await CLOCK.sleep(0.01)  # later records have a later time
        starts, listener = {topic: begins_ms}, RecordingListener()
        async with broker.join(Subscription(group, [topic], starts=starts), listener) as membership:
            await self.complete(listener)
            await membership.mark_in_progress(dict(listener.has))
            await broker.publish([event(topic, f"k{n}", f"new {n}") for n in range(20)])
            assert sorted(values(await self.read(membership, 20, listener=listener))) == sorted(
                f"new {n}" for n in range(20)
            )
        listener = RecordingListener()  # uncommitted records are delivered again, and no earlier ones
        async with (
            connect() as other,
            other.join(Subscription(group, [topic], starts={topic: CLOCK.now_ms()}), listener) as again,
        ):
            await self.complete(listener)
            assert sorted(values(await self.read(again, 20, listener=listener))) == sorted(
                f"new {n}" for n in range(20)
            )

    # ---------------------------------------------------------------- members

    async def test_a_member_of_another_service_or_store_is_refused_and_gets_no_partition(
        self, connect: Connect, broker: Broker, topic: str, group: str
    ) -> None:
        ours = MemberIdentity(service="payment", store="1", worker="here:1")
        others = [replace(ours, store="2"), replace(ours, service="payments")]
        first, second = RecordingListener(), RecordingListener()
        async with broker.join(Subscription(group, [topic], identity=ours), first) as membership:
            await self.complete(first)
            for other in others:
                listener = RecordingListener()
                async with connect() as elsewhere:
                    with pytest.raises(
                        ConfigurationError, match=f"group '{group}' belongs to another service or store"
                    ) as refused:
                        async with elsewhere.join(Subscription(group, [topic], identity=other), listener):
                            raise AssertionError("it has joined")
                assert refused.value.problems == ("service 'payment' in process 'here:1' with store '1'",)
                assert not listener.has
            assert not membership.disagreeing_members()
            async with connect() as elsewhere:
                fellow = replace(ours, worker="there:2")
                async with elsewhere.join(Subscription(group, [topic], identity=fellow), second) as beside:
                    await self.until(lambda: bool(second.has))
                    assert not membership.disagreeing_members()
                    assert not beside.disagreeing_members()

    async def test_a_member_of_another_store_may_join_after_the_others_have_left(
        self, connect: Connect, broker: Broker, topic: str, group: str
    ) -> None:
        for store in ("1", "2"):
            listener = RecordingListener()
            async with broker.join(
                Subscription(group, [topic], identity=MemberIdentity(service="payment", store=store)), listener
            ) as membership:
                await self.complete(listener)
                assert not membership.disagreeing_members()

    async def test_members_share_the_partitions_and_no_partition_has_two_members(
        self, connect: Connect, broker: Broker, topic: str, group: str
    ) -> None:
        all_ = {Partition(topic, number) for number in range(self.partitions)}
        async with connect() as other, self.member(broker, group, topic) as (_, first):
            await self.until(lambda: first.has.keys() == all_)
            async with self.member(other, group, topic) as (_, second):
                await self.until(lambda: first.has.keys() | second.has.keys() == all_ and len(first.has) < len(all_))
                assert not first.has.keys() & second.has.keys()
                assert first.has

    async def test_partitions_of_equal_number_go_to_the_same_member(
        self, connect: Connect, broker: Broker, topic: str, group: str
    ) -> None:
        other_topic = f"{topic}.other"
        await broker.ensure_topics([Topic(other_topic, self.partitions)])
        topics = (topic, other_topic)
        async with (
            connect() as other,
            self.member(broker, group, *topics) as (_, first),
            self.member(other, group, *topics) as (_, second),
        ):
            await self.until(lambda: len(first.has) + len(second.has) == 2 * self.partitions and bool(second.has))
            for listener in (first, second):
                numbers = [{p.number for p in listener.has if p.topic == t} for t in topics]
                assert numbers[0] == numbers[1]

    async def test_a_partition_moves_only_after_its_member_has_let_go_of_it(
        self, connect: Connect, broker: Broker, topic: str, group: str
    ) -> None:
        async with connect() as other, self.member(broker, group, topic) as (membership, first):
            await self.complete(first)
            first.may_let_go.clear()
            second = RecordingListener()
            async with other.join(Subscription(group, [topic]), second):
                await self.until(lambda: bool(first.partitions_of("revoked")))
                leaving = first.partitions_of("revoked")
                await CLOCK.sleep(min(0.3, self.drain_s / 4))  # it would have arrived by then
                assert not second.has
                await membership.commit(dict.fromkeys(leaving, 0))  # still assigned to this member
                first.may_let_go.set()
                await self.until(lambda: bool(second.has) and second.has.keys() <= leaving)
                assert not first.partitions_of("lost")

    async def test_leaving_revokes_and_hands_over(
        self, connect: Connect, broker: Broker, topic: str, group: str
    ) -> None:
        second = RecordingListener()
        async with connect() as other, AsyncExitStack() as staying:
            async with self.member(broker, group, topic) as (_, first):
                await self.complete(first)
                await staying.enter_async_context(other.join(Subscription(group, [topic]), second))
                await self.until(lambda: bool(second.has))
            assert not first.has
            assert first.partitions_of("revoked") == {Partition(topic, number) for number in range(self.partitions)}
            await self.complete(second)

    async def test_a_commit_of_a_partition_that_went_to_another_member_is_fenced(
        self, connect: Connect, broker: Broker, topic: str, group: str
    ) -> None:
        await broker.publish([event(topic, f"k{n}", f"{n}") for n in range(40)])
        async with connect() as other, self.member(broker, group, topic) as (membership, first):
            await self.complete(first)
            await self.read(membership, 40, listener=first)
            async with self.member(other, group, topic) as (_, second):
                gone = next(iter(second.has))
                with pytest.raises(Fenced):
                    await membership.commit({gone: 1})
            await self.complete(first)
            assert first.has[gone] == 0

    async def test_a_member_that_gets_a_partition_reads_on_where_the_last_one_committed(
        self, connect: Connect, broker: Broker, topic: str, group: str
    ) -> None:
        await broker.publish([event(topic, f"k{n}", f"{n}") for n in range(40)])
        async with connect() as other:
            async with self.member(broker, group, topic) as (membership, first):
                await self.complete(first)
                records = await self.read(membership, 40, listener=first)
                ends = {Partition(r.topic, r.partition): r.offset + 1 for r in records}
                await membership.commit(ends)
            await broker.publish([event(topic, "k0", "new")])
            async with self.member(other, group, topic) as (membership, second):
                await self.complete(second)
                assert values(await self.read(membership, 1, listener=second)) == ["new"]

    async def test_records_fetched_but_not_polled_when_a_member_leaves_come_to_the_next(
        self, connect: Connect, broker: Broker, topic: str, group: str
    ) -> None:
        await broker.publish([event(topic, "k", "0")])
        async with self.member(broker, group, topic) as (membership, listener):
            await self.complete(listener)
            (record,) = await self.read(membership, 1, listener=listener)
            partition = Partition(record.topic, record.partition)
            others = [other for other in listener.has if other != partition]
            await broker.publish([event(topic, "k", "1"), event(topic, "k", "2")])
            # The client fetches the records; then only other partitions are polled, as by a worker without capacity.
            given = len(await membership.poll([partition], records_max=1, timeout_s=0))
            assert not await membership.poll(others, records_max=1, timeout_s=0.5)
            listener.before_letting_go = lambda: membership.commit({partition: 1 + given})
        async with connect() as other, self.member(other, group, topic) as (membership, listener):
            await self.complete(listener)
            left = await self.read(membership, 2 - given, [partition], listener=listener)
            assert values(left) == ["1", "2"][given:]
