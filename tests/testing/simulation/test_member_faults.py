"""Faults of members of a group, and who has which partition then."""

import pytest

from saga.errors import BrokerUnavailable, Fenced
from saga.messages import Partition
from saga.testing.simulation.broker import SimulatedMember
from saga.testing.simulation.cluster import DRAIN_S, SILENCE_S
from tests.testing.simulation.planted_faults import (
    NAME,
    OTHER,
    SEEDS,
    SERVICE,
    TOPIC,
    FaultGround,
    Hears,
    by_seed,
    describe_result,
    fault,
    joined,
    passes,
    read,
    record,
)

each_seed = pytest.mark.parametrize("seed", SEEDS)


@each_seed
def test_a_commit_whose_answer_is_lost_has_moved_the_offset(seed: int) -> None:
    ground = FaultGround.with_(seed, fault(1, "lost answer"))

    async def work() -> None:
        async with ground.broker() as broker, joined(ground, broker) as (member, _):
            with pytest.raises(BrokerUnavailable):
                await member.commit({Partition(TOPIC, 0): 3})
        assert ground.cluster.group(SERVICE).committed == {Partition(TOPIC, 0): 3}

    ground.runs(work())


@each_seed
def test_a_disconnected_member_can_neither_read_nor_publish_nor_commit(seed: int) -> None:
    ground = FaultGround.with_(seed, fault(1, "partition"))

    async def work() -> None:
        async with ground.broker() as broker, joined(ground, broker) as (member, hears):
            publishing = ground.loop.create_task(describe_result(broker.publish([record("k")])))
            await passes(0.0001)
            assert await describe_result(member.poll(hears.has, records_max=1, timeout_s=1)) == "BrokerUnavailable"
            assert await describe_result(member.commit(dict.fromkeys(hears.has, 0))) == "BrokerUnavailable"
            assert await publishing == "BrokerUnavailable"
            assert ground.noted == [("silence", SERVICE)]
            await passes(21)
            assert ground.values() == []
            await broker.publish([record("k", "1")])
            assert await read(member, hears) == ["1"]

    ground.runs(work())


@each_seed
def test_a_member_that_is_silent_for_ten_seconds_loses_its_partitions_and_is_notified(seed: int) -> None:
    ground = FaultGround.with_(seed)
    frozen: list[tuple[SimulatedMember, Hears]] = []

    async def freezes() -> str:
        async with ground.broker() as broker, joined(ground, broker) as (member, hears):
            frozen.append((member, hears))
            await passes(10)
            result = await describe_result(member.commit(dict.fromkeys(hears.has | {Partition(TOPIC, 0)}, 1)))
            await passes(10)
            return result

    async def work() -> None:
        zombie = ground.begin(freezes(), NAME)
        async with ground.broker(OTHER) as other, joined(ground, other) as (_, others):
            await passes(1)
            ((member, hears),) = frozen
            (mine,), began_s = hears.has, ground.now_s()
            ground.loop.freeze(ground.process(NAME))
            member.stop_heartbeats(30)
            await passes(SILENCE_S - 0.1)
            assert len(others.has) == 1
            await passes(0.2)
            assert len(others.has) == 2
            assert hears.has == {mine}  # it does not know yet
            await passes(began_s + 30 - ground.now_s())
            ground.loop.thaw(ground.process(NAME))
            await passes(1)
            assert hears.lost_s == [pytest.approx(began_s + 30, abs=0.1)]
            assert (len(hears.has), len(others.has)) == (1, 1)  # it is back
            assert others.lost_s == []
            assert await zombie == "Fenced"

    ground.runs(work())


@each_seed
def test_a_member_silent_for_under_ten_seconds_keeps_its_partitions(seed: int) -> None:
    ground = FaultGround.with_(seed)

    async def work() -> None:
        async with (
            ground.broker() as broker,
            ground.broker(OTHER) as other,
            joined(ground, broker) as (member, hears),
            joined(ground, other) as (_, others),
        ):
            member.stop_heartbeats(SILENCE_S)
            await passes(20)
            assert (len(hears.has), len(others.has)) == (1, 1)
            assert hears.lost_s == others.lost_s == []
            await member.commit(dict.fromkeys(hears.has, 1))

    ground.runs(work())


@each_seed
def test_a_member_that_does_not_give_up_partitions_in_time_is_notified_of_their_loss(seed: int) -> None:
    ground = FaultGround.with_(seed)

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
def test_no_member_waits_longer_than_the_drain_for_one_that_hangs(seed: int) -> None:
    ground = FaultGround.with_(seed)
    frozen: list[Hears] = []

    async def freezes() -> None:
        async with ground.broker() as broker, joined(ground, broker) as (_, hears):
            frozen.append(hears)
            await passes(20)

    async def work() -> None:
        zombie = ground.begin(freezes(), NAME)
        async with ground.broker(OTHER) as other, joined(ground, other) as (_, others):
            await passes(1)
            (hears,) = frozen
            wanted, group = set(hears.has), ground.cluster.group(SERVICE)
            ground.loop.freeze(ground.process(NAME))
            began_s = ground.now_s()
            group.rotation += 1
            group.balance()
            await passes(DRAIN_S - 0.1)
            assert not others.has & wanted
            await passes(0.2)
            assert others.has == hears.has == wanted  # it does not know yet
            await passes(3)
            ground.loop.thaw(ground.process(NAME))
            await passes(1)
            assert hears.lost_s == [pytest.approx(began_s + DRAIN_S + 3.1, abs=0.1)]
            assert not hears.has & others.has
            await zombie

    ground.runs(work())


@each_seed
def test_a_member_taken_for_dead_is_fenced_before_its_partitions_are_reassigned(seed: int) -> None:
    ground = FaultGround.with_(seed)

    async def work() -> None:
        async with ground.broker() as broker, joined(ground, broker) as (member, hears):
            group = ground.cluster.group(SERVICE)
            (id_,) = set(group.owner.values())
            member.leave_as_dead()
            with pytest.raises(Fenced):
                group.commit(id_, dict.fromkeys(hears.has, 1), {**group.grants}, {})
            await passes(1)
            assert set(group.owner.values()) != {id_}
            await member.commit(dict.fromkeys(hears.has, 1))  # it is back, as another

    ground.runs(work())


@each_seed
def test_partitions_that_move_are_revoked_first_and_nothing_is_read_twice(seed: int) -> None:
    ground = FaultGround.with_(seed)

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


def test_a_commit_that_was_sent_before_the_partition_went_and_came_back_is_fenced() -> None:
    def commit_while_moved_away_and_back(seed: int) -> str:
        ground = FaultGround.with_(seed, fault(1, "delay"))

        async def work() -> str:
            async with (
                ground.broker() as broker,
                ground.broker(OTHER) as other,
                joined(ground, broker) as (member, hears),
                joined(ground, other) as (_, others),
            ):
                mine, group = set(hears.has), ground.cluster.group(SERVICE)
                commit = ground.loop.create_task(describe_result(member.commit(dict.fromkeys(mine, 7))))
                for _ in range(2):  # away and back
                    await passes(0.05)
                    group.rotation += 1
                    group.balance()
                await passes(5)
                assert hears.has == mine
                assert not others.has & mine
                result = await commit
                assert group.committed == ({} if result == "Fenced" else dict.fromkeys(mine, 7))
                return result

        return ground.runs(work())

    assert set(by_seed(commit_while_moved_away_and_back)) == {
        "done",
        "Fenced",
    }  # whether it lands or answers late is up to the seed


@each_seed
def test_an_error_of_the_block_comes_out_as_it_is(seed: int) -> None:
    ground = FaultGround.with_(seed)

    async def work() -> None:
        async with ground.broker() as broker, joined(ground, broker):
            raise KeyError("the block's own")

    with pytest.raises(KeyError, match="the block's own"):
        ground.runs(work())
    ground.loop.end()


@each_seed
def test_a_crash_at_a_poll_gives_nothing_to_the_dead(seed: int) -> None:
    ground = FaultGround.with_(seed, fault(2, "crash"))

    async def work() -> None:
        async with ground.broker() as broker:
            await broker.publish([record("k", "0")])
            async with joined(ground, broker) as (member, hears):
                await member.poll(hears.has, records_max=1, timeout_s=1)

    ground.dies(work())
    assert ground.noted == [("crash", NAME)]
    assert ground.cluster.group(SERVICE).committed == {}
