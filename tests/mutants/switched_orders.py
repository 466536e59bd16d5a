"""Orders of which some are paid by a new way, while people switch it on and off."""

from collections.abc import Callable
from datetime import timedelta

from saga.testing.simulation.simulated_world import SimulatedWorld
from services.inventory import inventory
from services.inventory.stock import Stock
from services.order.events import OrderConfirmed
from services.shipping import shipping
from services.shipping.carrier import Carrier
from services.simulate import an_order
from tests.services.waiting_order import order
from tests.testing.test_flags_in_worlds import SlowBank, payment

ORDERS = 3


def switched_orders(world: SimulatedWorld) -> Callable[[], None]:
    """Every order is paid once, by the way on which it began."""
    bank = SlowBank(fails=10)
    world.start(order, payment, inventory, shipping, use=[bank, Carrier()], documents={"tea": Stock(left=100)})
    for number in range(ORDERS):
        world.publish(an_order(f"order-{number}"))
        world.run_for(timedelta(seconds=3))
        world.switch(payment, "new_account", percent=100 * (1 - number % 2))
    world.run_until_quiet()

    def judge() -> None:
        ends = [world.outcome(f"order-{number}") for number in range(ORDERS)]
        assert ends == [OrderConfirmed] * ORDERS, ends
        assert not bank.held, f"money is set aside for ever: {bank.held}"
        assert len(bank.taken) == ORDERS, bank.taken

    return judge
