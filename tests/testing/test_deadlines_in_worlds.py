"""Deadlines in a world: simulated under faults, in virtual time, and in real processes."""

from datetime import timedelta
from decimal import Decimal

import pytest

from saga import Later, Saga, Service
from saga.errors import Permanent
from saga.testing.processes import ProcessWorld
from saga.testing.trials import trial
from saga.testing.world import World
from services.inventory import inventory
from services.inventory.stock import Stock
from services.order import PATIENCE, order
from services.order.events import (
    OrderCancelled,
    OrderConfirmed,
    OrderPlaced,
    ShipmentBooked,
)
from services.payment import payment
from services.payment.bank import Bank
from services.shipping import shipping
from services.shipping.carrier import Carrier
from tests.testing.faulty_worlds import CLOCK_OFF_MAX, CLOCKS, seeds, simulated
from tests.testing.simulation.orders import an_order

SEEDS = seeds(12)
SAGA = "order-17"
hasty = Service("order")
"""Service that waits for two seconds: real time."""


@hasty.deadline(within=timedelta(seconds=2))
async def hurry(placed: OrderPlaced) -> OrderCancelled:
    return OrderCancelled(order_id=placed.order_id, reason="nobody answered in time")


class ClosedDesk(Service):
    """Service that can check no booking until its desk is open; a deadline and a suspended run wait behind it."""

    def __init__(self) -> None:
        super().__init__("order")
        self.is_open = False

        @self.handler
        async def check(booked: ShipmentBooked) -> None:
            if not self.is_open:
                raise Permanent("the desk is closed")

        @self.handler
        async def watch(placed: OrderPlaced, saga: Saga) -> Later | None:
            return Later(after=PATIENCE) if saga.elapsed < PATIENCE else None

        @self.deadline(within=PATIENCE)
        async def expire(placed: OrderPlaced) -> OrderCancelled:
            return OrderCancelled(order_id=placed.order_id, reason="nobody answered in time")


class SilentBank(Bank):
    """Bank that cannot be reached until it is mended."""

    def __init__(self) -> None:
        super().__init__()
        self.is_there = False

    async def reserve(self, key: str, card: str, amount: Decimal) -> str:
        if not self.is_there:
            raise ConnectionError("no answer from the bank")
        return await super().reserve(key, card, amount)


def started(world: World, decider: Service = order) -> SilentBank:
    bank = SilentBank()
    world.start(decider, payment, inventory, shipping, use=[bank, Carrier()], documents={"tea": Stock(left=5)})
    return bank


@pytest.mark.parametrize("seed", SEEDS)
def test_an_unanswered_order_is_cancelled_once_and_all_of_it_is_undone(seed: int) -> None:
    with simulated(seed) as world:
        bank = started(world)
        world.publish(an_order(17))
        world.run_for(PATIENCE - timedelta(minutes=1))
        assert world.outcome(SAGA) is None
        world.run_for(timedelta(minutes=2))
        assert world.outcome(SAGA) is OrderCancelled
        bank.is_there = True
        world.run_until_quiet()
        assert (len(bank.taken), bank.held) == (0, {})
        stock = world.read(inventory, Stock, "tea")
        assert stock is not None
        assert stock.left == 5
        world.verify(rerun=True)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_deadline_is_met_by_clocks_that_are_wrong_as_late_or_as_early_as_they_are(seed: int) -> None:
    with simulated(seed, CLOCKS) as world:
        bank = started(world)
        world.publish(an_order(17))
        world.run_for(PATIENCE - CLOCK_OFF_MAX - timedelta(minutes=1))
        assert world.outcome(SAGA) is None
        world.run_for(2 * CLOCK_OFF_MAX + timedelta(minutes=2))
        assert world.outcome(SAGA) is OrderCancelled
        bank.is_there = True
        world.run_until_quiet()
        assert (len(bank.taken), bank.held) == (0, {})
        assert world.read(inventory, Stock, "tea") == Stock(left=5)
        world.verify(rerun=True)


@pytest.mark.parametrize("seed", SEEDS)
def test_an_order_that_is_answered_in_time_does_not_expire(seed: int) -> None:
    with simulated(seed, CLOCKS) as world:
        bank = started(world)
        bank.is_there = True
        world.publish(an_order(17))
        world.run_until_quiet()
        assert world.outcome(SAGA) is OrderConfirmed
        world.run_for(PATIENCE * 2)
        world.run_until_quiet()
        assert (len(bank.taken), bank.held) == (1, {})
        world.verify(rerun=True)


def test_a_deadline_is_met_within_a_second() -> None:
    with simulated(0) as world:
        started(world)
        world.publish(an_order(17))
        world.run_for(PATIENCE - timedelta(milliseconds=100))
        assert world.outcome(SAGA) is None
        world.run_for(timedelta(seconds=1))
        assert world.outcome(SAGA) is OrderCancelled


def test_a_world_can_be_checked_before_the_time_of_a_deadline_that_was_closed() -> None:
    with simulated(0) as world:
        started(world).is_there = True
        world.publish(an_order(17))
        world.run_for(timedelta(seconds=60))
        assert world.outcome(SAGA) is OrderConfirmed
        world.verify()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_world_is_quiet_while_a_dead_letter_holds_up_what_is_overdue_and_a_replay_lets_it_run(seed: int) -> None:
    with simulated(seed) as world:
        desk = ClosedDesk()
        started(world, desk).is_there = True
        world.publish(an_order(17))
        world.run_until_quiet()
        world.run_for(PATIENCE * 2)
        world.run_until_quiet()
        p = world.progress("order", SAGA)
        assert p is not None
        assert ([k.handler for k in p.deadlines], len(p.suspended_runs), p.timer) == (["expire"], 1, None)
        desk.is_open = True
        world.replay(desk, SAGA)
        world.run_until_quiet()
        assert world.outcome(SAGA) is OrderCancelled
        world.verify(rerun=True)


def test_a_deadline_is_met_in_real_processes() -> None:
    with ProcessWorld() as world:
        world.start(hasty)
        world.publish(an_order(17))
        world.run_until_quiet()
        assert world.outcome(SAGA) is OrderCancelled


async def test_a_trial_lets_time_pass_between_events() -> None:
    placed = an_order(17)
    early = await trial(order, placed, PATIENCE - timedelta(seconds=1))
    assert early.emitted == []
    late = await trial(order, placed, PATIENCE)
    assert [type(event).__name__ for event in late.emitted] == ["OrderCancelled"]
    booked = ShipmentBooked(order_id=placed.order_id, booking_id="b-1")
    in_time = await trial(order, placed, timedelta(minutes=5), booked, PATIENCE * 2)
    assert [type(event).__name__ for event in in_time.emitted] == ["OrderConfirmed"]
    assert [t.outcome for t in in_time.progress.transitions] == ["noted", "handled"]
