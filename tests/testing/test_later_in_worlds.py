"""Runs that go on later, in a world: simulated under faults, in virtual time, and in real processes."""

from datetime import timedelta

import pytest

from saga.testing.processes import ProcessWorld
from services.order.events import OrderConfirmed
from tests.testing.faulty_worlds import seeds, simulated
from tests.testing.instalments import PARTS, orders_in_instalments, started
from tests.testing.simulation.orders import an_order


@pytest.mark.parametrize("seed", seeds(8))
def test_a_long_job_goes_on_and_waits_whatever_dies_meanwhile(seed: int) -> None:
    with simulated(seed) as world:
        judge = orders_in_instalments(world)
        judge()
        world.verify(rerun=True)


def test_a_long_job_is_done_in_real_processes() -> None:
    with ProcessWorld() as world:
        paid = started(world)
        world.publish(an_order(1))
        for _ in range(120):
            world.run_for(timedelta(seconds=0.5))
            if world.outcome("order-1") is OrderConfirmed:
                break
        assert world.outcome("order-1") is OrderConfirmed
        assert paid.paid("order-1") == list(range(PARTS))
