"""Faults of a store: one of each kind is planted, and its effect observed."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import TypeVar

import pytest

from saga.errors import Ambiguous, Exists, StoreUnavailable
from saga.testing.simulation.loop import SimulatedClock
from saga.testing.simulation.network import HOP_S_FIRST
from saga.testing.simulation.store import SimulatedStore
from tests.testing.simulation.planted_faults import (
    NAME,
    OTHER,
    SEEDS,
    FaultGround,
    by_seed,
    describe_result,
    fault,
    passes,
    until_done,
)

ELSEWHERE = "shipping-1"

T = TypeVar("T")

each_seed = pytest.mark.parametrize("seed", SEEDS)


async def sent(*work: Coroutine[object, object, T]) -> "list[asyncio.Task[T]]":
    """All of it has asked, and nothing has landed yet."""
    tasks = [asyncio.get_running_loop().create_task(each) for each in work]
    await passes(HOP_S_FIRST / 4)
    return tasks


async def cas_of(store: SimulatedStore, key: str = "a") -> int:
    document = await store.get("saga", key)
    assert document is not None
    return document.cas


@each_seed
def test_without_faults_an_operation_takes_milliseconds(seed: int) -> None:
    ground = FaultGround.with_(seed)

    async def work() -> float:
        async with ground.store() as store:
            for number in range(10):
                cas = await store.insert("saga", f"{number}", b"0")
                await store.replace("saga", f"{number}", b"1", cas=cas)
        return ground.now_s()

    assert 0.005 < ground.runs(work()) < 1


# -------------------------------------------------------------------- answers


@each_seed
def test_a_write_whose_answer_is_lost_is_stored(seed: int) -> None:
    ground = FaultGround.with_(seed, fault(1, "lost answer"), fault(3, "lost answer"), fault(5, "lost answer"))

    async def work() -> None:
        async with ground.store() as store:
            with pytest.raises(Ambiguous):
                await store.insert("saga", "a", b"0")
            assert ground.content("a") == b"0"
            cas = await cas_of(store)
            with pytest.raises(Ambiguous):
                await store.replace("saga", "a", b"1", cas=cas)
            assert ground.content("a") == b"1"
            cas = await cas_of(store)
            with pytest.raises(Ambiguous):
                await store.remove("saga", "a", cas=cas)
            assert ground.content("a") is None

    ground.runs(work())


def test_a_late_answer_arrives_before_its_effect_is_there() -> None:
    def is_written_at_the_error(seed: int) -> bool:
        ground = FaultGround.with_(seed, fault(1, "late answer"))

        async def work() -> bool:
            async with ground.store() as store:
                with pytest.raises(Ambiguous):
                    await store.insert("saga", "a", b"0")
                there = ground.content("a") is not None
                await passes(6)
                assert ground.content("a") == b"0"
                return there

        return ground.runs(work())

    assert False in by_seed(is_written_at_the_error)  # how much later it lands is up to the seed


@each_seed
def test_a_late_write_whose_version_has_gone_by_changes_nothing(seed: int) -> None:
    ground = FaultGround.with_(seed, fault(2, "late answer"))

    async def work() -> None:
        async with ground.store() as store, ground.store(OTHER) as other:
            cas = await store.insert("saga", "a", b"0")
            late, other_ = await asyncio.gather(
                describe_result(store.replace("saga", "a", b"late", cas=cas)),
                describe_result(other.replace("saga", "a", b"1", cas=cas)),
            )
            await passes(6)
            assert late == "Ambiguous"
            assert (other_, ground.content("a")) in (("done", b"1"), ("Conflict", b"late"))

    ground.runs(work())


@each_seed
def test_closing_does_not_wait_for_an_answer_that_is_late_but_what_was_sent_lands(seed: int) -> None:
    ground = FaultGround.with_(seed, fault(1, "late answer"))

    async def work() -> None:
        async with ground.store() as store:
            with pytest.raises(Ambiguous):
                await store.insert("saga", "a", b"0")

    ground.runs(work())
    assert ground.content("a") == b"0"


@each_seed
def test_closing_waits_for_a_write_whose_caller_went_away(seed: int) -> None:
    ground = FaultGround.with_(seed, fault(1, "delay"))

    async def work() -> None:
        async with ground.store() as store:
            (write,) = await sent(store.insert("saga", "a", b"0"))
            write.cancel()
            await asyncio.wait([write])
            assert write.cancelled()
        assert ground.content("a") == b"0"

    ground.runs(work())


# -------------------------------------------------------------------- slow and refused


def test_a_delayed_operation_takes_up_to_three_seconds_more() -> None:
    def took_s(seed: int) -> float:
        ground = FaultGround.with_(seed, fault(1, "delay"))

        async def work() -> None:
            async with ground.store() as store:
                await store.insert("saga", "a", b"0")

        ground.runs(work())
        return ground.now_s()

    took = by_seed(took_s)
    assert max(took) > 1.5
    assert max(took) < 3.2


@each_seed
def test_a_throttled_operation_is_refused_once(seed: int) -> None:
    ground = FaultGround.with_(seed, fault(1, "throttle"), fault(3, "throttle"))

    async def work() -> None:
        async with ground.store() as store:
            with pytest.raises(StoreUnavailable, match="too many requests"):
                await store.insert("saga", "a", b"0")
            assert ground.content("a") is None
            cas = await store.insert("saga", "a", b"1")
            with pytest.raises(StoreUnavailable, match="too many requests"):
                await store.get("saga", "a")
            assert await cas_of(store) == cas

    ground.runs(work())


@each_seed
def test_a_full_disk_refuses_what_is_written_and_nothing_else_until_there_is_room(seed: int) -> None:
    ground = FaultGround.with_(seed, fault(2, "full disk"))

    async def work() -> None:
        async with ground.store() as store, ground.store(OTHER) as other, ground.store(ELSEWHERE) as elsewhere:
            cas = await store.insert("saga", "a", b"0")
            full_s = ground.now_s()
            with pytest.raises(StoreUnavailable, match="no space left"):
                await store.replace("saga", "a", b"1", cas=cas)
            assert await describe_result(store.get("saga", "a")) == "done"
            assert await describe_result(elsewhere.insert("saga", "a", b"0")) == "done"
            refused = await until_done(lambda: other.replace("saga", "a", b"2", cas=cas))
            assert refused
            assert set(refused) == {"StoreUnavailable"}
            assert ground.now_s() - full_s < 16
        assert ground.content("a") == b"2"

    ground.runs(work())


@each_seed
def test_a_slow_store_takes_longer_for_everything_and_everybody_of_its_service(seed: int) -> None:
    ground = FaultGround.with_(seed, fault(1, "slow store"))

    async def took_s(store: SimulatedStore) -> float:
        began_s = ground.now_s()
        await store.get("saga", "a")
        return ground.now_s() - began_s

    async def work() -> None:
        async with ground.store() as store, ground.store(OTHER) as other, ground.store(ELSEWHERE) as elsewhere:
            first = await sent(took_s(store))
            mine, others, elsewheres = await asyncio.gather(*first, took_s(other), took_s(elsewhere))
            assert 0.1 <= mine <= 6.5
            assert 0.1 <= others <= 6.5
            assert elsewheres < 0.1
            await passes(16)
            assert await took_s(store) < 0.1

    ground.runs(work())


# -------------------------------------------------------------------- cut off


@each_seed
def test_a_service_that_is_cut_off_does_not_reach_its_store_for_a_while(seed: int) -> None:
    ground = FaultGround.with_(seed, fault(1, "partition"))

    async def work() -> None:
        async with ground.store() as store, ground.store(OTHER) as other, ground.store(ELSEWHERE) as elsewhere:
            first = await sent(describe_result(store.insert("saga", "mine", b"0")))
            mine, others, elsewheres = await asyncio.gather(
                *first,
                describe_result(other.insert("saga", "other", b"0")),
                describe_result(elsewhere.insert("saga", "a", b"0")),
            )
            assert (mine, others, elsewheres) == ("StoreUnavailable", "StoreUnavailable", "done")
            assert set(await until_done(lambda: store.insert("saga", "mine", b"1"))) <= {"StoreUnavailable"}
            assert ground.now_s() < 22
        assert ground.content("mine") == b"1"

    ground.runs(work())


@each_seed
def test_a_process_that_is_cut_off_is_so_alone(seed: int) -> None:
    ground = FaultGround.with_(seed, fault(1, "partition", "of the process"))

    async def work() -> None:
        async with ground.store() as store, ground.store(OTHER) as other:
            first = await sent(describe_result(store.get("saga", "a")))
            mine, others = await asyncio.gather(*first, describe_result(other.get("saga", "a")))
            assert (mine, others) == ("StoreUnavailable", "done")

    ground.runs(work())


@each_seed
def test_an_answer_that_is_under_way_when_the_process_is_cut_off_is_lost(seed: int) -> None:
    ground = FaultGround.with_(seed, fault(3, "partition", "of the process"))

    async def work() -> None:
        async with ground.store() as store:
            under_way = await sent(
                describe_result(store.insert("saga", "a", b"0")), describe_result(store.get("saga", "b"))
            )
            written, read, refused = await asyncio.gather(*under_way, describe_result(store.get("saga", "b")))
            assert (written, read, refused) == ("Ambiguous", "StoreUnavailable", "StoreUnavailable")
            assert ground.content("a") == b"0"

    ground.runs(work())


# -------------------------------------------------------------------- what happens to the process


@each_seed
def test_a_crash_before_an_operation_leaves_nothing(seed: int) -> None:
    ground = FaultGround.with_(seed, fault(1, "crash"))

    async def work() -> None:
        async with ground.store() as store:
            await store.insert("saga", "a", b"0")

    ground.dies(work())
    assert ground.noted == [("crash", NAME)]
    assert ground.content("a") is None


@each_seed
def test_a_crash_after_an_operation_leaves_its_effect(seed: int) -> None:
    ground = FaultGround.with_(seed, fault(1, "crash", "after"))

    async def work() -> None:
        async with ground.store() as store:
            with suppress(Exists):
                await store.insert("saga", "a", b"0")

    ground.dies(work())
    assert ground.noted == [("crash", NAME)]
    assert ground.content("a") == b"0"


@each_seed
def test_a_sent_write_is_stored_although_its_process_crashes(seed: int) -> None:
    ground = FaultGround.with_(seed, fault(2, "crash"))

    async def work() -> None:
        async with ground.store() as store:
            await asyncio.gather(store.insert("saga", "a", b"0"), store.insert("saga", "b", b"0"))

    ground.dies(work())
    assert {ground.content("a"), ground.content("b")} == {b"0", None}


@each_seed
def test_a_freeze_and_a_rebalance_leave_the_operation_as_it_is(seed: int) -> None:
    ground = FaultGround.with_(seed, fault(1, "freeze"), fault(2, "rebalance"))

    async def work() -> None:
        async with ground.store() as store:
            cas = await store.insert("saga", "a", b"0")
            await store.replace("saga", "a", b"1", cas=cas)

    ground.runs(work())
    assert ground.noted == [("freeze", NAME), ("rebalance", NAME)]
    assert ground.content("a") == b"1"


def test_a_clock_goes_wrong_by_up_to_ten_minutes_either_way() -> None:
    def wrong_ms(seed: int) -> int:
        ground = FaultGround.with_(seed, fault(1, "clock"))
        wrong, right = (SimulatedClock(ground.process(name), ground.network.chance) for name in (NAME, OTHER))

        async def work() -> int:
            async with ground.store() as store:
                assert wrong.now_ms() == right.now_ms()
                await store.get("saga", "a")
                assert wrong.monotonic_s() == right.monotonic_s()
                return wrong.now_ms() - right.now_ms()

        return ground.runs(work())

    wrong = by_seed(wrong_ms)
    assert min(wrong) < -60_000
    assert max(wrong) > 60_000
    assert all(abs(each) <= 600_000 for each in wrong)


# -------------------------------------------------------------------- the trace


@each_seed
def test_planted_faults_are_in_the_trace(seed: int) -> None:
    planned = [fault(1, "lost answer"), fault(2, "throttle"), fault(3, "crash", "after")]
    ground = FaultGround.with_(seed, *planned)

    async def work() -> None:
        async with ground.store() as store:
            for number in range(5):
                await describe_result(store.insert("saga", f"{number}", b"0"))

    ground.dies(work())
    assert [line.planned for line in ground.network.trace.faults] == planned
