"""Plans: the faults that are asked for, the operations that they meet, and schedules that are read."""

from datetime import timedelta
from typing import cast, get_args

import pytest

from saga.errors import SagaError
from saga.testing.fault_plans import (
    APPLICATION,
    EVERYTHING_RATES,
    KINDS,
    POSSIBLE,
    Chance,
    FaultKind,
    Faults,
    Operation,
    OperationKind,
    PlannedFault,
    RandomPlan,
    ScheduledPlan,
    faults,
)

ALL: tuple[OperationKind, ...] = get_args(OperationKind)


def operation(number: int, what: OperationKind = "publish", service: str = "payment", *names: str) -> Operation:
    return Operation(f"{service}-1", service, number, what, "somewhere", names)


def hits(
    asked: Faults, *, what: OperationKind = "publish", service: str = "payment", names: tuple[str, ...] = ()
) -> int:
    """Hits among a thousand operations."""
    plan = RandomPlan(asked, Chance(1))
    return sum(plan.fault_at(operation(n, what, service, *names), 0) is not None for n in range(1000))


def meant_for(kind: FaultKind) -> str:
    """Process to which faults of this kind happen."""
    return APPLICATION if kind == "other partitioner" else "payment"


# -------------------------------------------------------------------- asking for faults


def test_a_kind_that_there_is_not_is_refused() -> None:
    with pytest.raises(SagaError, match="no fault 'earthquake': crash, lost answer"):
        faults.of("crash", cast(FaultKind, "earthquake"))


def test_no_kind_at_all_is_refused() -> None:
    with pytest.raises(SagaError, match="none given"):
        faults.of()


@pytest.mark.parametrize("rate", [-0.01, 1.01, float("nan")])
def test_a_rate_that_is_no_chance_is_refused(rate: float) -> None:
    with pytest.raises(SagaError, match="from 0 to 1"):
        faults.of("crash", rate=rate)


def test_a_window_that_ends_before_it_begins_is_refused() -> None:
    with pytest.raises(SagaError, match="ends before it begins"):
        faults.of("crash", window=(timedelta(seconds=2), timedelta(seconds=2)))


def test_faults_are_joined() -> None:
    joined = faults.of("crash", rate=0.1) | faults.of("delay", "duplicate", rate=0.2, target="payment")
    assert [(rule.kind, rule.rate, rule.target) for rule in joined.rules] == [
        ("crash", 0.1, "*"),
        ("delay", 0.2, "payment"),
        ("duplicate", 0.2, "payment"),
    ]


def test_everything_is_all_kinds_that_can_be_got_over() -> None:
    assert {rule.kind for rule in faults.everything().rules} == set(KINDS) - {"poison", "newer schema", "deploy", "gap"}
    assert set(EVERYTHING_RATES) <= set(POSSIBLE) == set(KINDS)


# -------------------------------------------------------------------- drawing them


def test_a_rate_is_the_chance_of_each_operation() -> None:
    assert hits(faults.of("crash", rate=0)) == 0
    assert 150 < hits(faults.of("crash", rate=0.2)) < 250
    assert hits(faults.of("crash", rate=1)) == 1000


def test_rates_of_several_kinds_add_up() -> None:
    plan = RandomPlan(faults.of("crash", rate=0.2) | faults.of("delay", rate=0.3), Chance(1))
    planned = [plan.fault_at(operation(number), 0) for number in range(1000)]
    assert 150 < sum(p is not None and p.kind == "crash" for p in planned) < 250
    assert 250 < sum(p is not None and p.kind == "delay" for p in planned) < 350


def test_half_of_the_crashes_come_after_the_operation() -> None:
    plan = RandomPlan(faults.of("crash", rate=0.5), Chance(1))
    planned = [p for number in range(1000) if (p := plan.fault_at(operation(number), 0)) is not None]
    assert 0.4 < sum(p.after for p in planned) / len(planned) < 0.6


def test_the_same_seed_draws_the_same_faults() -> None:
    drawn = [
        [RandomPlan(faults.everything(), Chance(seed)).fault_at(operation(n), 0) for n in range(300)]
        for seed in (1, 1, 2, -1)
    ]
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2] != drawn[3] != drawn[0]


@pytest.mark.parametrize(
    ("target", "expected"),
    [("*", 1000), ("payment", 1000), ("orders.OrderPlaced", 1000), ("payment.reserve", 0), ("shipping", 0)],
)
def test_a_target_is_a_service_or_a_topic(target: str, expected: int) -> None:
    assert hits(faults.of("duplicate", rate=1, target=target), names=("orders.OrderPlaced",)) == expected


def test_a_target_can_be_a_handler_whose_steps_are_meant() -> None:
    asked = faults.of("crash", rate=1, target="payment.reserve")
    assert hits(asked, what="step", names=("payment.reserve",)) == 1000
    assert hits(asked, what="step", names=("payment.release",)) == 0


def test_a_window_has_a_beginning_and_an_end() -> None:
    plan = RandomPlan(faults.of("crash", rate=1, window=(timedelta(seconds=5), timedelta(seconds=10))), Chance(1))
    drawn = [now_s for now_s in (0, 4.9, 5, 9.9, 10, 11) if plan.fault_at(operation(1), now_s) is not None]
    assert drawn == [5, 9.9]


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_meets_only_what_it_can_happen_to(kind: FaultKind) -> None:
    met = {what for what in ALL if hits(faults.of(kind, rate=1), what=what, service=meant_for(kind))}
    assert met == POSSIBLE[kind] != set()


def test_the_application_does_not_crash_but_what_it_publishes_may_come_twice() -> None:
    assert {kind for kind in KINDS if hits(faults.of(kind, rate=1), service=APPLICATION)} == {
        "duplicate",
        "expiry",
        "newer schema",
        "poison",
        "other partitioner",
    }


# -------------------------------------------------------------------- schedules


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_that_was_drawn_reads_as_it_was_written(kind: FaultKind) -> None:
    plan, service = RandomPlan(faults.of(kind, rate=1), Chance(1)), meant_for(kind)
    asked = [operation(number, what, service) for what in ALL for number in range(20)]
    drawn = {p for each in asked if (p := plan.fault_at(each, 0)) is not None}
    assert {PlannedFault.parse(str(planned)) for planned in drawn} == drawn
    assert len({planned.after for planned in drawn}) == (2 if kind in ("crash", "partition") else 1)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "payment-1",
        "payment-1#12",
        "#12 crash after",
        "payment-1#x crash",
        "payment-1#12 earthquake",
        "payment-1#12 crash",
        "payment-1#12 delay after",
    ],
)
def test_an_invalid_planned_fault_is_refused(text: str) -> None:
    with pytest.raises(SagaError, match="no fault of a schedule: it reads"):
        PlannedFault.parse(text)


def test_a_schedule_plants_its_faults_and_no_others() -> None:
    planned = [PlannedFault("payment-1", 3, "duplicate"), PlannedFault("payment-1", 5, "crash", True)]
    plan = ScheduledPlan(planned)
    assert [p for n in range(10) if (p := plan.fault_at(operation(n), 0)) is not None] == planned
    assert plan.fault_at(operation(3, "publish", "shipping"), 0) is None


def test_a_schedule_leaves_out_what_cannot_happen_to_an_operation() -> None:
    plan = ScheduledPlan([PlannedFault("payment-1", 3, "duplicate")])
    assert plan.fault_at(operation(3, "get"), 0) is None
