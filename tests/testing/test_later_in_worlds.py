"""Runs that go on later, in a world: simulated under faults, in virtual time, and in real processes."""

from datetime import timedelta

import pytest

from saga.testing.processes import ProcessWorld
from services.order.events import OrderCancelled, OrderConfirmed
from tests.testing.faulty_worlds import CLOCKS, seeds, simulated
from tests.testing.instalments import PARTS, orders_in_instalments, started
from tests.testing.simulation.orders import an_order


@pytest.mark.parametrize("seed", seeds(8))
def test_a_long_job_resumes_and_waits_whatever_dies_meanwhile(seed: int) -> None:
    with simulated(seed) as world:
        judge = orders_in_instalments(world)
        judge()
        world.verify(rerun=True)


@pytest.mark.parametrize("seed", seeds(8))
def test_a_long_job_and_a_wait_come_to_their_end_though_clocks_are_wrong(seed: int) -> None:
    with simulated(seed, CLOCKS) as world:
        paid = started(world)
        world.publish(an_order(1), an_order(2), an_order(3, address="Atlantis"))
        world.run_until_quiet()
        ends = [world.outcome(f"order-{number}") for number in (1, 2, 3)]
        assert ends == [OrderConfirmed, OrderConfirmed, OrderCancelled]
        assert (paid.contradictions, paid.corrected) == ([], [])
        assert [paid.paid(f"order-{number}") for number in (1, 2, 3)] == [list(range(PARTS))] * 3
        assert (len(paid.taken), paid.held) == (2, {})
        world.verify(rerun=True)


@pytest.mark.slow
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
