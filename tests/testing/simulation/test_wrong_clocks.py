"""A date that was ahead for a minute parks nothing until that date."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from decimal import Decimal

import pytest

from saga import Later, Saga, Service
from saga.telemetry.events import StartInFuture
from saga.testing.simulation.simulated_world import SimulatedWorld
from services.inventory import inventory
from services.inventory.stock import Stock
from services.order import order
from services.order.events import OrderCancelled, OrderConfirmed, OrderPlaced, ShipmentBooked
from services.payment import payment
from services.payment.bank import Bank
from services.shipping import shipping
from services.shipping.carrier import Carrier
from tests.testing.simulation.orders import an_order
from tests.testing.simulation.test_standstill import moments

YEAR, MONTHS = timedelta(days=365), timedelta(days=100)


class Away(Bank):
    """A bank that cannot be reached for a while."""

    is_away = True

    async def reserve(self, key: str, card: str, amount: Decimal) -> str:
        if self.is_away:
            raise ConnectionError("away")
        return await super().reserve(key, card, amount)


@contextmanager
def ahead(world: SimulatedWorld, by: timedelta, service: str = "") -> Iterator[None]:
    """Inside the block the clocks of a service are wrong; without a name those of all services and applications."""
    lives, right, ms = list(world.workers._lives.values()), world._time_ms, round(by.total_seconds() * 1000)
    wrong = [life.process for life in lives if service in ("", life.process.service)]
    for process in wrong:
        process.skew_ms = ms
    if not service:
        world._time_ms = lambda: right() + ms  # type: ignore[method-assign]
    yield
    world._time_ms = right  # type: ignore[method-assign]
    for process in wrong:
        process.skew_ms = 0


@pytest.mark.parametrize("service", ["payment", ""])
@pytest.mark.parametrize("by", [timedelta(minutes=5), timedelta(days=3), YEAR])
def test_a_run_that_failed_while_the_clock_was_ahead_is_retried_soon(by: timedelta, service: str) -> None:
    if by == YEAR and service:
        pytest.skip("a clock that is ahead by more than the memory takes the saga for one that is forgotten")
    with SimulatedWorld(1, None, guarded=False) as world:
        bank = Away()
        world.start(order, payment, inventory, shipping, use=[bank, Carrier()], documents={"tea": Stock(left=5)})
        world.run_for(timedelta(seconds=1))
        with ahead(world, by, service):
            world.publish(an_order(0))
            world.run_for(timedelta(minutes=1))
        bank.is_away = False
        world.run_for(timedelta(minutes=5))
        assert world.outcome("order-0") is OrderConfirmed


def test_a_deadline_that_was_opened_while_the_date_was_ahead_runs_within_its_own_time() -> None:
    with SimulatedWorld(1, None, guarded=False) as world:
        world.start(order)
        world.run_for(timedelta(seconds=1))
        with ahead(world, YEAR):
            world.publish(an_order(0))
            world.run_for(timedelta(minutes=1))
        world.run_for(timedelta(minutes=40))
        assert world.outcome("order-0") is OrderCancelled


def patient() -> Service:
    """An order service that looks again after ten minutes."""
    service = Service("order")

    @service.handler
    async def wait(
        placed: OrderPlaced, booked: ShipmentBooked | None, saga: Saga
    ) -> OrderConfirmed | OrderCancelled | Later[ShipmentBooked]:
        if booked is not None:
            return OrderConfirmed(order_id=placed.order_id)
        if not saga.elapsed:
            return Later(until=ShipmentBooked, within=timedelta(minutes=10))
        return OrderCancelled(order_id=placed.order_id, reason="nobody answered in time")

    return service


def test_a_suspended_run_resumes_though_the_date_was_ahead() -> None:
    with SimulatedWorld(1, None, guarded=False) as world:
        world.start(patient())
        world.run_for(timedelta(seconds=1))
        with ahead(world, YEAR):
            world.publish(an_order(0))
            world.run_for(timedelta(minutes=1))
        world.run_for(timedelta(minutes=40))
        assert world.outcome("order-0") is OrderCancelled


def test_a_clock_that_is_behind_makes_no_deadline_earlier() -> None:
    """Else a date that was wrong for a moment would cancel what has just been placed."""
    with SimulatedWorld(1, None, guarded=False) as world:
        world.start(order)
        world.publish(an_order(0))
        world.run_for(timedelta(minutes=1))
        with ahead(world, -MONTHS, "order"):
            world.run_for(timedelta(minutes=1))
        world.run_for(timedelta(minutes=10))
        assert world.outcome("order-0") is None
        world.run_for(timedelta(minutes=30))
        assert world.outcome("order-0") is OrderCancelled


def test_a_start_far_in_the_future_is_reported() -> None:
    with SimulatedWorld(1, None, guarded=False) as world:
        world.start(order)
        world.run_for(timedelta(seconds=1))
        with ahead(world, -timedelta(days=2), "order"):
            world.publish(an_order(0))
            world.run_for(timedelta(seconds=10))
        reported = [m for m in moments(world) if isinstance(m, StartInFuture)]
        assert {m.saga for m in reported} == {"order-0"}
        assert all(m.ahead_s > 86_400 for m in reported)
