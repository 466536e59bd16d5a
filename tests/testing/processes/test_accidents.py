"""Numbers of faults of each kind: from rates, seeded, bounded. On a crew that only notes what is done to it."""

from collections import Counter
from collections.abc import Mapping
from typing import cast

import pytest

from saga.testing.processes.faults import FAULTS_MAX, FROZEN_S_MAX, ProcessFaults, count_of, describe_left_out
from saga.testing.processes.worker_processes import WorkerPool
from tests.testing.processes.noted_crew import HandClock, Hands


def accidents(rates: Mapping[str, float], *, seed: int = 0) -> tuple[ProcessFaults, Hands, HandClock]:
    clock = HandClock()
    hands = Hands(["payment", "order"])
    made = ProcessFaults(
        seed=seed,
        rates=rates,
        crew=cast(WorkerPool, hands),
        clock=clock,
        hire=hands.hire,
        publish_again=lambda chance: hands.note("again"),
    )
    return made, hands, clock


def run(made: ProcessFaults, clock: HandClock) -> None:
    made.begin()
    for _ in range(2000):
        if made.are_over:
            return
        clock.now_s += 0.02
        made.happen(lambda service: True)
    raise AssertionError("they do not come to an end")


@pytest.mark.parametrize(("rate", "count"), [(0, 0), (0.0001, 1), (0.01, 1), (0.03, 3), (0.2, 20)])
def test_a_rate_is_a_number_of_faults_at_least_one(rate: float, count: int) -> None:
    assert count_of(rate) == count


def test_each_kind_happens_as_often_as_its_rate() -> None:
    made, hands, clock = accidents({"crash": 0.03, "duplicate": 0.02, "freeze": 0.01, "rebalance": 0.02, "clock": 0.5})
    run(made, clock)
    assert Counter(what for what, _ in hands.done) == {
        "crash": 3, "again": 2, "freeze": 1, "thaw": 1, "hire": 2, "dismiss": 2,
    }  # fmt: skip
    assert len(made.happened) == 3 + 2 + 1 + 2 * 2


def test_the_faults_of_a_world_are_bounded() -> None:
    made, hands, clock = accidents({"crash": 0.15})
    for _ in range(3):
        run(made, clock)
    assert len(hands.done) == FAULTS_MAX


def test_a_seed_gives_the_same_faults_in_the_same_order() -> None:
    def of(seed: int) -> list[str]:
        made, _, clock = accidents({"crash": 0.03, "duplicate": 0.03, "freeze": 0.03}, seed=seed)
        run(made, clock)
        return made.happened

    assert of(1) == of(1) != of(2)


def test_a_frozen_worker_is_thawed_in_time() -> None:
    made, hands, clock = accidents({"freeze": 0.01})
    made.begin()
    while not hands.done:
        clock.now_s += 0.02
        made.happen(lambda service: True)
    assert not made.are_over
    clock.now_s += FROZEN_S_MAX
    made.happen(lambda service: True)
    assert [what for what, _ in hands.done] == ["freeze", "thaw"]
    assert made.are_over


def test_a_third_worker_leaves_only_once_it_has_its_share() -> None:
    made, hands, clock = accidents({"rebalance": 0.01})
    made.begin()
    for _ in range(100):
        clock.now_s += 0.1
        made.happen(lambda service: False)
    assert [what for what, _ in hands.done] == ["hire"]
    assert not made.are_over
    for _ in range(10):
        clock.now_s += 0.1
        made.happen(lambda service: True)
    assert [what for what, _ in hands.done] == ["hire", "dismiss"]
    assert hands.done[0][1] == hands.done[1][1]


def test_a_third_worker_that_was_killed_leaves_as_the_one_that_replaced_it() -> None:
    made, hands, clock = accidents({"rebalance": 0.01, "crash": 0.19})
    run(made, clock)
    assert [member.name for member in hands.members] == ["payment-1", "payment-2", "order-1", "order-2"]


def test_there_is_a_reason_for_each_kind_that_is_left_out() -> None:
    (reason,) = describe_left_out(["freeze", "slow store"])
    assert reason.startswith("slow store: left out in a world of real processes: ")
