"""Ends of the log and positions of the group, as each member may ask for them: tests for `BrokerConformance`, which has
their fixtures."""

from saga.broker.port import Broker
from saga.messages import Partition
from saga.testing.conformance.broker_suite import BrokerSuite, Connect
from saga.testing.conformance.listening import event


class EndsConformance(BrokerSuite):
    """Tests that a member can tell whether everything that the log holds has been read."""

    async def test_the_ends_of_the_log_count_what_was_published_before_they_were_asked_for(
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
                assert await second.fetch_ends() == ends, "whoever has them"
                await membership.commit({partition: ends[partition] for partition in ours})
                told = await second.fetch_positions(ends)
                assert {p: told.get(p, 0) for p in ours} == {p: ends[p] for p in ours}
                assert not any(told.get(p, 0) for p in theirs)
                assert set(await second.fetch_positions(theirs)) <= theirs
