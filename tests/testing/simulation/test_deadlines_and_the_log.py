"""A deadline waits for the log: what came in time counts, whatever was down, behind, paused or elsewhere."""

from datetime import timedelta

import pytest

from saga import Service
from saga.messages import Partition
from saga.telemetry.events import DeadlineBehindLog, DeadlinePassedLog
from saga.testing import World, faults, simulate
from saga.testing.simulation.simulated_world import SimulatedWorld
from services.inventory import inventory
from services.inventory.stock import Stock
from services.order import order
from services.order.events import OrderCancelled, OrderConfirmed, OrderPlaced, ShipmentBooked
from services.payment import payment
from services.payment.bank import Bank
from services.shipping import shipping
from services.shipping.carrier import Carrier
from tests.testing.simulation.orders import an_order, begun, drawn
from tests.testing.simulation.test_standstill import moments

IDS = [f"order-{n}" for n in range(5)]
OTHERS = (payment, inventory, shipping)


def placed(world: World) -> None:
    for number in range(len(IDS)):
        world.publish(an_order(number))


def outcomes(world: World) -> set[object]:
    return {world.outcome(each) for each in IDS}


def patient(grace: timedelta | None = None) -> Service:
    """An order service that decides, with a grace of its own."""
    service = Service("order")

    @service.handler
    async def confirm(booked: ShipmentBooked) -> OrderConfirmed:
        return OrderConfirmed(order_id=booked.order_id)

    @service.deadline(within=timedelta(minutes=15), grace=grace)
    async def expire(order: OrderPlaced) -> OrderCancelled:
        return OrderCancelled(order_id=order.order_id, reason="nobody answered in time")

    return service


def test_an_answer_that_came_in_time_counts_though_the_decider_was_down(world: World) -> None:
    world.start(*OTHERS, use=[Bank(), Carrier()], documents={"tea": Stock(left=50)})
    placed(world)
    world.run_for(timedelta(minutes=20))
    world.start(order)
    world.run_until_quiet()
    assert outcomes(world) == {OrderConfirmed}


@pytest.mark.parametrize("handler", ["confirm", None])
def test_an_answer_that_came_in_time_counts_though_the_decider_was_paused(world: World, handler: str | None) -> None:
    world.start(*OTHERS, order, use=[Bank(), Carrier()], documents={"tea": Stock(left=50)})
    world.pause(order, *([handler] if handler else []))
    world.run_for(timedelta(seconds=30))
    placed(world)
    world.run_for(timedelta(minutes=20))
    world.resume(order, *([handler] if handler else []))
    world.run_until_quiet()
    assert outcomes(world) == {OrderConfirmed}


def test_an_unanswered_order_is_cancelled_after_an_outage_at_once(world: World) -> None:
    world.start(order)
    world.run_for(timedelta(minutes=1))
    world.publish(an_order(0))
    world.run_for(timedelta(hours=8))
    assert world.outcome("order-0") is OrderCancelled


def test_an_order_that_is_read_hours_late_is_cancelled_when_all_has_been_read(world: World) -> None:
    world.start(*OTHERS[1:], use=[Carrier()], documents={"tea": Stock(left=50)})
    world.publish(an_order(0))
    world.run_for(timedelta(hours=8))
    world.start(order)
    world.run_for(timedelta(minutes=2))
    assert world.outcome("order-0") is OrderCancelled


def test_an_unreadable_part_of_the_log_blocks_no_deadline_and_is_reported() -> None:
    with SimulatedWorld(3, None, guarded=False) as world:
        begun(world)
        count = len(world.cluster.topics["shipments"])
        world.cluster.broken = {Partition("shipments", number): 0 for number in range(count)}
        world.publish(an_order(0))
        world.run_until_quiet()
        assert world.outcome("order-0") is OrderCancelled
        (moment,) = [m for m in moments(world) if isinstance(m, DeadlinePassedLog)]
        assert (moment.service, moment.saga, moment.topic) == ("order", "order-0", "shipments")


def behind(world: SimulatedWorld) -> None:
    """The answers reach their readers hours late."""
    for log in world.cluster.topics["shipments"]:
        log.due_s = 4 * 3600


@pytest.mark.parametrize(("grace", "outcome"), [(None, OrderConfirmed), (timedelta(minutes=30), OrderCancelled)])
def test_a_deadline_waits_for_readers_that_are_behind_as_long_as_its_grace_allows(
    grace: timedelta | None, outcome: type
) -> None:
    with SimulatedWorld(3, None, guarded=False) as world:
        world.start(*OTHERS, patient(grace), use=[Bank(), Carrier()], documents={"tea": Stock(left=50)})
        behind(world)
        world.publish(an_order(0))
        world.run_for(timedelta(hours=1))
        assert any(isinstance(m, DeadlineBehindLog) for m in moments(world)), "what it waits for is reported"
        assert world.outcome("order-0") is (None if grace is None else OrderCancelled)
        world.run_until_quiet()
        assert world.outcome("order-0") is outcome
        assert any(isinstance(m, DeadlinePassedLog) for m in moments(world)) == (grace is not None)


@simulate(
    seeds=12,
    faults=faults.everything()
    | faults.of("outage", rate=0.01, target="order")
    | faults.of("lag", rate=0.05, target="shipments")
    | faults.of("backlog", rate=0.01, target="order"),
)
def test_nothing_that_came_in_time_is_passed_whatever_happens(world: World) -> None:
    world.start(*OTHERS, order, use=[Bank(), Carrier()], documents={"tea": Stock(left=50)})
    placed(world)
    world.run_until_quiet()


def test_the_kit_finds_a_deadline_that_passes_what_came_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("saga.progress.timers.waits_for_log", lambda *asked: False)
    found = 0
    for seed in range(10):
        with SimulatedWorld(seed, drawn(seed, faults.of("outage", rate=0.02, target="order")), guarded=False) as world:
            begun(world)
            placed(world)
            world.run_until_quiet()
            try:
                world.verify()
            except AssertionError as why:
                found += "in time" in str(why)
    assert found
