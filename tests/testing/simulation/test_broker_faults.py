"""Faults of publishing: one of each kind is planted, and its effect observed."""

import asyncio

import pytest

from saga.errors import BrokerUnavailable
from saga.testing.fault_plans import FaultKind
from tests.testing.simulation.planted_faults import (
    NAME,
    SEEDS,
    FaultGround,
    by_seed,
    describe_result,
    fault,
    joined,
    passes,
    record,
)

each_seed = pytest.mark.parametrize("seed", SEEDS)


def published(seed: int, kind: FaultKind, count: int = 1) -> tuple[FaultGround, str]:
    """The ground after so many records were published at once, with that fault; and what was answered."""
    ground = FaultGround.with_(seed, fault(1, kind))

    async def work() -> str:
        async with ground.broker() as broker:
            result = await describe_result(broker.publish([record("k", f"{number}") for number in range(count)]))
            await passes(5000)
            return result

    return ground, ground.runs(work())


@each_seed
def test_a_record_whose_answer_is_lost_is_published(seed: int) -> None:
    ground, result = published(seed, "lost answer")
    assert (result, ground.values()) == ("BrokerUnavailable", ["0"])


def test_a_lost_answer_to_many_records_has_published_the_first_ones() -> None:
    lengths: set[int] = set()
    for seed in range(50):
        ground, result = published(seed, "lost answer", 4)
        assert result == "BrokerUnavailable"
        assert ground.values() == [f"{number}" for number in range(len(ground.values()))]
        lengths.add(len(ground.values()))
    assert lengths == {0, 1, 2, 3, 4}


def test_a_late_answer_arrives_before_the_record_is_there() -> None:
    def is_published_at_the_error(seed: int) -> bool:
        ground = FaultGround.with_(seed, fault(1, "late answer"))

        async def work() -> bool:
            async with ground.broker() as broker:
                with pytest.raises(BrokerUnavailable):
                    await broker.publish([record("k", "0")])
                there = bool(ground.values())
                await passes(6)
                assert ground.values() == ["0"]
                return there

        return ground.runs(work())

    assert False in by_seed(is_published_at_the_error)


@each_seed
def test_a_duplicate_is_the_same_record_once_more(seed: int) -> None:
    ground, result = published(seed, "duplicate", 3)
    assert result == "done"
    assert sorted(set(ground.values())) == ["0", "1", "2"]
    (twice,) = [value for value in "012" if ground.values().count(value) == 2]
    first, second = [each for each in ground.cluster.log if each.value == twice.encode()]
    assert (first.key, first.value, first.headers) == (second.key, second.value, second.headers)
    assert second.offset > first.offset
    assert second.time_ms - first.time_ms <= 60_000


def test_a_delayed_record_or_answer_comes_seconds_later() -> None:
    def visible_s(seed: int) -> float:
        ground = FaultGround.with_(seed, fault(1, "delay"))

        async def work() -> float:
            async with ground.broker() as broker:
                await broker.publish([record("k", "0")])
            return ground.now_s()

        ground.runs(work())
        return ground.now_s()

    assert max(by_seed(visible_s)) > 1


@each_seed
def test_an_expired_record_comes_again_when_its_saga_is_forgotten(seed: int) -> None:
    ground, result = published(seed, "expiry")
    first, second = ground.cluster.log
    assert result == "done"
    assert (first.key, first.value, first.headers) == (second.key, second.value, second.headers)
    assert second.time_ms - first.time_ms > 1000 * 1000  # the ground's services remember for 1000 s
    assert ground.cluster.spoiled == {"k"}


@pytest.mark.parametrize("kind", ["poison", "newer schema"])
@each_seed
def test_a_spoiled_record_comes_beside_a_good_one(seed: int, kind: FaultKind) -> None:
    ground, result = published(seed, kind)
    assert result == "done"
    assert len(ground.values()) == 2
    assert "0" in ground.values()
    bad, good = ground.cluster.log
    assert bad.key == good.key
    assert dict(bad.headers)["ce_id"] != dict(good.headers)["ce_id"]
    assert ground.cluster.spoiled == {"k"}


@each_seed
def test_a_full_disk_refuses_records_but_no_positions(seed: int) -> None:
    ground = FaultGround.with_(seed, fault(1, "full disk"))

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
        ground = FaultGround.with_(seed, fault(1, "crash", "after") if way else fault(1, "crash"))

        async def work(ground: FaultGround = ground) -> None:
            async with ground.broker() as broker:
                await broker.publish([record("k", "0")])

        ground.dies(work())
        assert ground.noted == [("crash", NAME)]
        assert ground.values() == (["0"] if way else [])


@each_seed
def test_closing_waits_for_records_whose_publisher_went_away(seed: int) -> None:
    ground = FaultGround.with_(seed, fault(1, "delay"))

    async def work() -> None:
        async with ground.broker() as broker:
            publishing = ground.loop.create_task(broker.publish([record("k", "0")]))
            await passes(0.0001)
            publishing.cancel()
            await asyncio.wait([publishing])
            assert publishing.cancelled()
        assert ground.values() == ["0"]

    ground.runs(work())
