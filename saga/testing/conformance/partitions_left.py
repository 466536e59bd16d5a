"""Partitions that were left in good order, or were not: tests for `BrokerConformance`, which has their fixtures."""

from saga.broker.port import Broker
from saga.messages import Partition
from saga.testing.conformance.broker_suite import BrokerSuite
from saga.testing.conformance.listening import event


class LeavingConformance(BrokerSuite):
    """Tests of the note that messages of a partition may be in hand."""

    async def test_nothing_is_noted_of_partitions_that_nobody_has_begun(
        self, broker: Broker, topic: str, group: str
    ) -> None:
        async with self.member(broker, group, topic) as (membership, listener):
            await self.complete(listener)
            assert not await membership.mark_in_progress(listener.has)

    async def test_what_was_begun_and_not_ended_is_told_to_the_next_owner(
        self, broker: Broker, topic: str, group: str
    ) -> None:
        async with self.member(broker, group, topic) as (membership, listener):
            await self.complete(listener)
            begun = dict(list(listener.has.items())[:2])
            assert not await membership.mark_in_progress(begun)
        for _ in range(2):  # until somebody ends it
            async with self.member(broker, group, topic) as (membership, listener):
                await self.complete(listener)
                assert set(await membership.mark_in_progress(listener.has)) >= set(begun)

    async def test_a_position_that_moves_takes_the_note_along(self, broker: Broker, topic: str, group: str) -> None:
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

    async def test_what_was_ended_is_as_if_it_had_never_begun(self, broker: Broker, topic: str, group: str) -> None:
        await broker.publish([event(topic, "k", f"{n}") for n in range(3)])
        async with self.member(broker, group, topic) as (membership, listener):
            await self.complete(listener)
            await membership.mark_in_progress(listener.has)
            (*_, record) = await self.read(membership, 3, listener=listener)
            place = Partition(record.topic, record.partition)
            offsets = {**listener.has, place: record.offset}
            await membership.commit({place: record.offset})
            listener.commits = lambda: membership.clear_in_progress(offsets)
        async with self.member(broker, group, topic) as (membership, listener):
            await self.complete(listener)
            assert listener.has[place] == record.offset
            assert not await membership.mark_in_progress(listener.has)
