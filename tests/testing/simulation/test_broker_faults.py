"""What each kind of fault does to a broker and to the members of its groups: one planted, its effect seen."""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import copy_context
from dataclasses import dataclass, field

import pytest

from saga.errors import BrokerUnavailable, Fenced
from saga.messages import Partition, Record
from saga.testing.faults import Kind
from saga.testing.simulation.broker import SimulatedBroker
from saga.testing.simulation.groups import DRAIN_S, SILENCE_S
from saga.testing.simulation.members import SimulatedMember
from saga.testing.simulation.processes import CURRENT
from tests.testing.simulation.ground import NAME, SEEDS, SERVICE, TOPIC, Ground, by_seed, fault, passes, record, told

OTHER = f"{SERVICE}-2"

each_seed = pytest.mark.parametrize("seed", SEEDS)


@dataclass
class Hears:
    """A listener that writes down what it hears, and when."""

    ground: Ground
    has: set[Partition] = field(default_factory=set)
    lost_s: list[float] = field(default_factory=list)
    drains_s: float = 0.0
    """How long it takes to let go of a partition."""

    async def assigned(self, partitions: Mapping[Partition, int]) -> None:
        self.has |= partitions.keys()

    async def revoked(self, partitions: Collection[Partition]) -> None:
        await passes(self.drains_s)
        self.has -= set(partitions)

    def lost(self, partitions: Collection[Partition]) -> None:
        self.lost_s.append(self.ground.now_s())
        self.has -= set(partitions)


@asynccontextmanager
async def joined(ground: Ground, broker: SimulatedBroker) -> AsyncIterator[tuple[SimulatedMember, Hears]]:
    hears = Hears(ground)
    async with broker.join(SERVICE, [TOPIC], hears) as member:
        await passes(1)
        yield member, hears


async def read(member: SimulatedMember, hears: Hears) -> list[str]:
    """All that there is to read."""
    values: list[str] = []
    while records := await member.poll(hears.has, records_max=10, timeout_s=1):
        values += texts(records)
    return values


def texts(records: Sequence[Record]) -> list[str]:
    return [(each.value or b"").decode() for each in records]


def published(seed: int, kind: Kind, count: int = 1) -> tuple[Ground, str]:
    """The ground after so many records were published at once, with that fault; and what was said."""
    ground = Ground.with_(seed, fault(1, kind))

    async def work() -> str:
        async with ground.broker() as broker:
            said = await told(broker.publish([record("k", f"{number}") for number in range(count)]))
            await passes(5000)
            return said

    return ground, ground.runs(work())


# -------------------------------------------------------------------- publishing


@each_seed
def test_of_a_lost_answer_the_record_is_there(seed: int) -> None:
    ground, said = published(seed, "lost answer")
    assert (said, ground.values()) == ("BrokerUnavailable", ["0"])


def test_of_a_lost_answer_to_many_the_first_ones_are_there() -> None:
    lengths: set[int] = set()
    for seed in range(50):
        ground, said = published(seed, "lost answer", 4)
        assert said == "BrokerUnavailable"
        assert ground.values() == [f"{number}" for number in range(len(ground.values()))]
        lengths.add(len(ground.values()))
    assert lengths == {0, 1, 2, 3, 4}


def test_a_late_answer_is_told_before_the_record_is_there() -> None:
    def there_when_told(seed: int) -> bool:
        ground = Ground.with_(seed, fault(1, "late answer"))

        async def work() -> bool:
            async with ground.broker() as broker:
                with pytest.raises(BrokerUnavailable):
                    await broker.publish([record("k", "0")])
                there = bool(ground.values())
                await passes(6)
                assert ground.values() == ["0"]
                return there

        return ground.runs(work())

    assert False in by_seed(there_when_told)


@each_seed
def test_a_duplicate_is_the_same_record_once_more(seed: int) -> None:
    ground, said = published(seed, "duplicate", 3)
    assert said == "done"
    assert sorted(set(ground.values())) == ["0", "1", "2"]
    (twice,) = [value for value in "012" if ground.values().count(value) == 2]
    first, second = [each for each in ground.cluster.log if each.value == twice.encode()]
    assert (first.key, first.value, first.headers) == (second.key, second.value, second.headers)
    assert second.offset > first.offset
    assert second.time_ms - first.time_ms <= 60_000


def test_a_delayed_record_or_answer_comes_seconds_later() -> None:
    def visible_s(seed: int) -> float:
        ground = Ground.with_(seed, fault(1, "delay"))

        async def work() -> float:
            async with ground.broker() as broker:
                await broker.publish([record("k", "0")])
            return ground.now_s()

        ground.runs(work())
        return ground.now_s()

    assert max(by_seed(visible_s)) > 1


@each_seed
def test_an_expired_record_comes_again_when_its_saga_is_forgotten(seed: int) -> None:
    ground, said = published(seed, "expiry")
    first, second = ground.cluster.log
    assert said == "done"
    assert (first.key, first.value, first.headers) == (second.key, second.value, second.headers)
    assert second.time_ms - first.time_ms > 1000 * 1000  # the ground's services remember for 1000 s
    assert ground.cluster.spoiled == {"k"}


@pytest.mark.parametrize("kind", ["poison", "newer schema"])
@each_seed
def test_a_spoiled_record_comes_beside_a_good_one(seed: int, kind: Kind) -> None:
    ground, said = published(seed, kind)
    assert said == "done"
    assert len(ground.values()) == 2
    assert "0" in ground.values()
    bad, good = ground.cluster.log
    assert bad.key == good.key
    assert dict(bad.headers)["ce_id"] != dict(good.headers)["ce_id"]
    assert ground.cluster.spoiled == {"k"}


@each_seed
def test_a_full_disk_refuses_records_but_no_positions(seed: int) -> None:
    ground = Ground.with_(seed, fault(1, "full disk"))

    async def work() -> None:
        async with ground.broker() as broker, joined(ground, broker) as (member, hears):
            with pytest.raises(BrokerUnavailable, match="no space left"):
                await broker.publish([record("k")])
            await member.commit(dict.fromkeys(hears.has, 0))
            await passes(16)
            assert ground.values() == []
            await broker.publish([record("k", "1")])
        assert ground.values() == ["1"]

    ground.runs(work())


@each_seed
def test_a_crash_before_a_publish_leaves_nothing_and_one_after_it_the_record(seed: int) -> None:
    for way in ("", "after"):
        ground = Ground.with_(seed, fault(1, "crash", "after") if way else fault(1, "crash"))

        async def work(ground: Ground = ground) -> None:
            async with ground.broker() as broker:
                await broker.publish([record("k", "0")])

        ground.dies(work())
        assert ground.told == [("crash", NAME)]
        assert ground.values() == (["0"] if way else [])


@each_seed
def test_closing_waits_for_records_whose_publisher_went_away(seed: int) -> None:
    ground = Ground.with_(seed, fault(1, "delay"))

    async def work() -> None:
        async with ground.broker() as broker:
            publishing = ground.loop.create_task(broker.publish([record("k", "0")]))
            await passes(0.0001)
            publishing.cancel()
            await asyncio.wait([publishing])
            assert publishing.cancelled()
        assert ground.values() == ["0"]

    ground.runs(work())


# -------------------------------------------------------------------- members


@each_seed
def test_of_a_lost_answer_to_a_commit_the_position_has_moved(seed: int) -> None:
    ground = Ground.with_(seed, fault(1, "lost answer"))

    async def work() -> None:
        async with ground.broker() as broker, joined(ground, broker) as (member, _):
            with pytest.raises(BrokerUnavailable):
                await member.commit({Partition(TOPIC, 0): 3})
        assert ground.cluster.group(SERVICE).committed == {Partition(TOPIC, 0): 3}

    ground.runs(work())


@each_seed
def test_who_is_cut_off_can_neither_read_nor_publish_nor_commit(seed: int) -> None:
    ground = Ground.with_(seed, fault(1, "partition"))

    async def work() -> None:
        async with ground.broker() as broker, joined(ground, broker) as (member, hears):
            publishing = ground.loop.create_task(told(broker.publish([record("k")])))
            await passes(0.0001)
            assert await told(member.poll(hears.has, records_max=1, timeout_s=1)) == "BrokerUnavailable"
            assert await told(member.commit(dict.fromkeys(hears.has, 0))) == "BrokerUnavailable"
            assert await publishing == "BrokerUnavailable"
            assert ground.told == [("silent", SERVICE)]
            await passes(21)
            assert ground.values() == []
            await broker.publish([record("k", "1")])
            assert await read(member, hears) == ["1"]

    ground.runs(work())


@each_seed
def test_who_is_not_heard_of_for_ten_seconds_loses_its_partitions_and_is_told(seed: int) -> None:
    ground = Ground.with_(seed)

    async def work() -> None:
        async with (
            ground.broker() as broker,
            ground.broker(OTHER) as other,
            joined(ground, broker) as (member, hears),
            joined(ground, other) as (_, others),
        ):
            assert len(hears.has) == len(others.has) == 1
            silent = set(hears.has)
            began_s = ground.now_s()
            ground.loop.freeze(ground.process(NAME))
            member.silent_for(30)
            await passes(SILENCE_S - 0.1)
            assert len(others.has) == 1
            await passes(0.2)
            assert len(others.has) == 2
            assert hears.has == silent  # it does not know yet: a zombie
            zombie = ground.loop.create_task(told(member.commit(dict.fromkeys(silent, 1))), context=copy_context())
            await passes(began_s + 30 - ground.now_s())
            ground.loop.thaw(ground.process(NAME))
            await passes(1)
            assert await zombie == "Fenced"
            assert hears.lost_s == [pytest.approx(began_s + 30, abs=0.1)]
            await passes(10)
            assert (len(hears.has), len(others.has)) == (1, 1)  # it is back

    ground.runs(work())


@each_seed
def test_who_is_silent_for_less_than_ten_seconds_loses_nothing(seed: int) -> None:
    ground = Ground.with_(seed)

    async def work() -> None:
        async with (
            ground.broker() as broker,
            ground.broker(OTHER) as other,
            joined(ground, broker) as (member, hears),
            joined(ground, other) as (_, others),
        ):
            member.silent_for(SILENCE_S)
            await passes(20)
            assert (len(hears.has), len(others.has)) == (1, 1)
            assert hears.lost_s == others.lost_s == []
            await member.commit(dict.fromkeys(hears.has, 1))

    ground.runs(work())


@each_seed
def test_who_does_not_let_go_in_time_is_told_that_it_has_lost(seed: int) -> None:
    ground = Ground.with_(seed)

    async def work() -> None:
        async with ground.broker() as broker, ground.broker(OTHER) as other, joined(ground, broker) as (member, hears):
            hears.drains_s = 2 * DRAIN_S
            began_s = ground.now_s()
            async with joined(ground, other) as (_, others):
                await passes(DRAIN_S - 1.1)
                assert (len(hears.has), len(others.has)) == (2, 0)
                await passes(0.5)
                assert (len(hears.has), len(others.has)) == (1, 1)
                assert hears.lost_s == [pytest.approx(began_s + DRAIN_S, abs=0.1)]
                with pytest.raises(Fenced):
                    await member.commit(dict.fromkeys(others.has, 1))
            hears.drains_s = 0

    ground.runs(work())


@each_seed
def test_partitions_that_move_are_revoked_first_and_nothing_is_read_twice(seed: int) -> None:
    ground = Ground.with_(seed)

    async def work() -> None:
        async with ground.broker() as broker, ground.broker(OTHER) as other:
            await broker.publish([record(f"k{number}", f"{number}") for number in range(20)])
            async with joined(ground, broker) as (member, hears), joined(ground, other) as (_, others):
                got = await read(member, hears)
                before = set(hears.has)
                await member.commit({p: ground.cluster.ends()[p] for p in before})
                group = ground.cluster.group(SERVICE)
                group.rotation += 1
                group.balance()
                await passes(1)
                assert others.has == before
                assert not hears.has & before
                got += await read(member, hears)
                assert sorted(got, key=int) == [f"{number}" for number in range(20)]
                assert hears.lost_s == others.lost_s == []

    ground.runs(work())


@each_seed
def test_an_error_of_the_block_comes_out_as_it_is(seed: int) -> None:
    ground = Ground.with_(seed)

    async def work() -> None:
        async with ground.broker() as broker, joined(ground, broker):
            raise KeyError("the block's own")

    with pytest.raises(KeyError, match="the block's own"):
        ground.runs(work())
    ground.loop.end()


@each_seed
def test_a_crash_at_a_poll_gives_nothing_to_the_dead(seed: int) -> None:
    ground = Ground.with_(seed, fault(2, "crash"))

    async def work() -> None:
        async with ground.broker() as broker:
            await broker.publish([record("k", "0")])
            async with joined(ground, broker) as (member, hears):
                await member.poll(hears.has, records_max=1, timeout_s=1)

    ground.dies(work())
    assert ground.told == [("crash", NAME)]
    assert ground.cluster.group(SERVICE).committed == {}
