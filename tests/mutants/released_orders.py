"""Orders while another release of payment is rolled out, with a migration and with a new way behind a flag; and bugs in
how releases get on with each other."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from saga.engine.execution import step_replay
from saga.testing.simulation.simulated_world import SimulatedWorld
from services.inventory import inventory
from services.inventory.stock import Stock
from services.order.events import OrderConfirmed
from services.shipping import shipping
from services.shipping.carrier import Carrier
from services.simulate import an_order
from tests.services.waiting_order import order
from tests.testing.released_payments import Till, after, before

ORDERS = 4


def released_orders(world: SimulatedWorld) -> Callable[[], None]:
    """Every order is paid once, with the sum that it was placed with, whichever release had what part of it."""
    till, payment = Till(fails=10), after(looks_first=True, flagged=True)
    world.start(order, before(), inventory, shipping, use=[till, Carrier()], documents={"tea": Stock(left=100)})
    for number in range(ORDERS):
        world.publish(an_order(f"order-{number}"))
    world.deploy(payment)
    world.run_for(timedelta(minutes=1))
    world.switch(payment, "looks_first")
    world.run_until_quiet()

    def judge() -> None:
        ends = [world.outcome(f"order-{number}") for number in range(ORDERS)]
        assert ends == [OrderConfirmed] * ORDERS, ends
        assert till.taken == ["9.80"] * ORDERS, till.taken
        assert not till.open, f"money is set aside for ever: {till.open}"

    return judge


def a_flag_counts_as_any_other_call(patch: pytest.MonkeyPatch) -> None:
    """A run that began before its code asked for the flag cannot go on; nor can one that asked, under the other."""
    patch.setattr(step_replay, "is_flag", lambda call: False)
