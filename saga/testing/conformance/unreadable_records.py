"""Records that cannot be read any more: tests of what a broker keeps all the same, for `BrokerConformance`."""

from collections.abc import Callable, Collection
from typing import TypeAlias

import pytest

from saga.broker.port import Broker, Membership
from saga.errors import SagaError
from saga.messages import Partition, Record, Topic
from saga.testing.conformance.broker_suite import CLOCK, BrokerSuite, Connect
from saga.testing.conformance.listening import Listening, event

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
                    before = Reading(membership, listener, place, self.within_s)
                    await before.until(lambda: before.others == len(stored) - count and membership.stalled_partitions())
                    await self._publish(broker, topic, 8)
                    await before.until(lambda: before.others == 2 * (len(stored) - count))
                    (told,) = membership.stalled_partitions()
                    at = len(before.ours)
                    assert at <= hurt.offset
                    assert (told.topic, told.partition, told.offset) == (*place, at)
                    assert f"{topic}/{hurt.partition} stands at offset {at}" in told.reason
                    await membership.commit(before.ends)
                found, why = await self._scanned(broker, topic)
                assert f"{topic}/{hurt.partition} stands at offset {at}" in why
                assert [r.offset for r in found if r.partition == hurt.partition] == list(range(at))
                async with self.member(broker, group, topic) as (membership, listener):
                    after = Reading(membership, listener, place, self.within_s)
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


class Reading:
    """Records that a member was given: of one partition, and of the others."""

    def __init__(self, membership: Membership, listener: Listening, partition: Partition, within_s: float) -> None:
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
