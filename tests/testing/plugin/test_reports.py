"""Reports of a run: the timeline of several services with its faults, and the report of a failure."""

import re
from collections.abc import Callable

import pytest

from saga.errors import SagaError
from saga.messaging.names import PROGRESS
from saga.testing import World, faults
from saga.testing.decorators import Crashes, Seeds
from saga.testing.fault_plans import Faults, PlannedFault, Schedule
from saga.testing.simulation.network import OperationRecord
from saga.testing.simulation.reports import LINES_MAX, report, summary, timeline
from saga.testing.simulation.runs import Run, RunOptions, Tally, run, run_all
from saga.testing.simulation.simulated_world import SimulatedWorld
from services.inventory import inventory
from services.inventory.stock import Stock
from services.order import order
from services.order.events import OrderConfirmed
from services.payment import payment, release
from services.payment.bank import Bank
from services.shipping import shipping
from services.shipping.carrier import Carrier
from tests.testing.plugin.buggy_service import an_order, scenario


def orders(count: int, left: int | None = None) -> Callable[[World], None]:
    def run(world: World) -> None:
        documents = {"tea": Stock(left=count if left is None else left)}
        world.start(order, payment, inventory, shipping, use=[Bank(), Carrier()], documents=documents)
        world.publish(*map(an_order, range(count)))
        world.run_until_quiet()

    return run


def lines_of(done: Run, *sagas: str) -> list[str]:
    return timeline(done.world, sagas)


def report_of(lines: list[str]) -> list[str]:
    """Report without the times and the numbers of workers."""
    return [re.sub(r"^(?!\*)(\S+?)(-\d)? +", r"\1: ", re.sub(r"^ *[0-9.]+ s  ", "", line)) for line in lines]


def test_a_timeline_has_the_transitions_of_all_services_in_order() -> None:
    lines = lines_of(run(orders(1), Schedule(seed=0), RunOptions()))
    times = [float(line.split()[0]) for line in lines]
    assert times == sorted(times)
    transitions = [line for line in report_of(lines) if " handled" in line]
    steps = (
        "application: publishes OrderPlaced of order-0",
        "payment: calls reserve by payment.reserve of order-0",
        "payment: order-0: reserve(OrderPlaced) handled, emits PaymentReserved",
        "order: order-0: confirm(ShipmentBooked) handled, emits OrderConfirmed",
        "payment: order-0: capture(OrderConfirmed) handled, emits PaymentCaptured",
    )
    places = [report_of(lines).index(step) for step in steps]
    assert places == sorted(places)
    assert {line.split(":")[0] for line in transitions} == {"order", "payment", "inventory", "shipping"}


def test_a_fault_is_marked_where_it_happens() -> None:
    step = next(
        line.operation
        for line in run(orders(1), Schedule(seed=0), RunOptions()).world.trace.lines
        if isinstance(line, OperationRecord) and line.operation.what == "step"
    )
    planted = PlannedFault(step.process, step.number, "crash", after=True)
    lines = report_of(lines_of(run(orders(1), Schedule(seed=0, planted=(planted,)), RunOptions())))
    (at,) = (n for n, line in enumerate(lines) if f"*** {planted} *** (step {step.where})" in line)
    assert lines[at - 1] == f"{step.service}: calls {step.where}"
    assert lines.index(f"{step.service}: begins again") > at
    assert lines.index(f"{step.service}: calls {step.where}", at) > at


def test_a_write_that_a_fault_refuses_is_not_described_as_one_that_met_another_version() -> None:
    write = next(
        line.operation
        for line in run(orders(1), Schedule(seed=0), RunOptions()).world.trace.lines
        if isinstance(line, OperationRecord)
        and line.operation.where == f"{PROGRESS}/payment::order-0"
        and line.operation.what == "insert"
    )
    planted = PlannedFault(write.process, write.number, "throttle")
    lines = report_of(lines_of(run(orders(1), Schedule(seed=0, planted=(planted,)), RunOptions())))
    assert "payment: cannot write payment::order-0: too many requests" in lines
    assert "payment: finds that payment::order-0 is another one by now" not in lines


def test_a_timeline_of_one_saga_leaves_the_others_out_but_no_fault() -> None:
    done = run(orders(3), Schedule(seed=2, drawn=faults.of("delay", "duplicate", rate=0.1)), RunOptions())
    lines = lines_of(done, "order-1")
    assert sum("***" in line for line in lines) == len(done.schedule.planted) > 0
    rest = "\n".join(report_of([line for line in lines if "***" not in line]))
    assert "order-1" in rest
    assert "order-0" not in rest
    assert "order-2" not in rest


def test_the_same_run_has_the_same_timeline_each_time() -> None:
    schedule = Schedule(seed=7, drawn=faults.everything())
    assert lines_of(run(orders(2), schedule, RunOptions())) == lines_of(run(orders(2), schedule, RunOptions()))


def test_a_long_timeline_is_cut_in_the_middle() -> None:
    done = run(orders(20), Schedule(seed=0), RunOptions())
    lines = lines_of(done)
    assert len(lines) == LINES_MAX + 1
    assert re.fullmatch(r" +\.\.\. \d+ more lines \.\.\.", lines[LINES_MAX // 2])
    assert "publishes" in lines[0]
    assert "handled" in lines[-1]


@pytest.mark.slow
def test_a_report_names_of_many_sagas_the_one_that_the_failure_names() -> None:
    def asked(world: World) -> None:
        orders(6)(world)
        outcomes = [world.outcome(f"order-{n}") for n in range(6)]
        assert outcomes != [OrderConfirmed] * 6, "order-4 is wrong"

    failed = run_all(asked, Seeds(1, Faults()), Tally(), RunOptions())
    assert failed is not None
    lines = report(failed, "test_it").splitlines()
    assert lines[:3] == [
        "seed 0 of test_it fails: AssertionError: order-4 is wrong",
        "no fault is needed",
        "timeline of order-4:",
    ]
    assert not any("order-3:" in line for line in lines)


def test_a_report_is_the_same_each_time() -> None:
    def report_first_failure() -> str:
        failed = run_all(scenario(3, 1), Seeds(50, faults.of("crash", "delay", rate=0.1)), Tally(), RunOptions())
        assert failed is not None
        return report(failed, "test_it")

    assert report_first_failure() == report_first_failure()


@pytest.mark.slow
def test_a_summary_counts_points_and_pairs() -> None:
    tally = Tally()
    assert run_all(scenario(1, 99), Crashes(pairs=True), tally, RunOptions()) is None
    assert tally.pairs == tally.pairs_in_all > 0
    assert (
        f"a crash at each of {tally.points} points; two crashes at {tally.pairs:,} of {tally.pairs:,} pairs"
        in summary(tally)
    )


def test_a_summary_names_the_handlers_that_no_run_has_reached() -> None:
    tally = Tally()
    assert run_all(orders(1), Seeds(2, Faults()), tally, RunOptions()) is None
    _, _, never = summary(tally).partition("; NEVER RAN: ")
    assert {"payment.release (compensation)", "order.expire (deadline)"} <= {*never.split(", ")}
    assert "payment.reserve" not in never


def test_what_one_of_many_runs_has_reached_is_not_named() -> None:
    tally = Tally()

    def sold_out_in_one_run(world: SimulatedWorld) -> None:
        orders(1, left=world.seed)(world)

    assert run_all(sold_out_in_one_run, Seeds(2, Faults()), tally, RunOptions()) is None
    assert "payment.release" not in summary(tally)
    assert "payment.capture" not in summary(tally)
    assert "order.expire (deadline)" in summary(tally)


def test_a_single_run_names_no_handlers() -> None:
    tally = Tally()
    assert run_all(orders(1), Seeds(1, Faults()), tally, RunOptions()) is None
    assert "NEVER RAN" not in summary(tally)


def test_handlers_that_no_run_has_reached_fail_the_test_unless_they_are_allowed() -> None:
    tally = Tally()
    with pytest.raises(SagaError) as raised:
        run_all(orders(1), Seeds(2, Faults(), unreached=()), tally, RunOptions())
    assert "in 2 runs these handlers never ran" in str(raised.value)
    assert "payment.release (compensation)" in str(raised.value)

    but_one = tuple(each.function for each in tally.reactions.values() if each.name != "release")
    with pytest.raises(SagaError, match=r"nothing about them: payment.release \(compensation\)\. "):
        run_all(orders(1), Seeds(2, Faults(), but_one), Tally(), RunOptions())
    assert run_all(orders(1), Seeds(2, Faults(), (*but_one, release)), Tally(), RunOptions()) is None


def test_one_seed_alone_does_not_fail_for_handlers_that_it_has_not_reached() -> None:
    assert run_all(orders(1), Seeds(2, Faults(), unreached=()), Tally(), RunOptions(), [1]) is None
