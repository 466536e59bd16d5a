"""Topics that are deleted and created again: tests for `BrokerConformance`, which has their fixtures."""

from contextlib import suppress

from saga.broker.port import Broker
from saga.errors import Fenced
from saga.messages import Topic
from saga.testing.conformance.broker_suite import BrokerSuite, Connect, Recreate
from saga.testing.conformance.listening import event, values

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
