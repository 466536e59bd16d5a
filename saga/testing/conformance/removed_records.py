"""Records that are removed from a log before a group had them: tests for `BrokerConformance`, which has their
fixtures."""

from saga.broker.port import Broker
from saga.messages import Partition
from saga.testing.conformance.broker_suite import BrokerSuite, Remove
from saga.testing.conformance.listening import event, values


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
