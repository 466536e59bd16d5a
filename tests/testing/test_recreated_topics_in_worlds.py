"""Topics that are deleted and created again in a world: what was not finished is published again, at other offsets."""

import pytest

from saga.testing.fault_kinds import faults
from services.inventory import inventory
from services.inventory.stock import Stock
from services.order import order
from services.payment import payment
from services.payment.bank import Bank
from services.shipping import shipping
from services.shipping.carrier import Carrier
from tests.testing.faulty_worlds import seeds, simulated
from tests.testing.simulation.orders import an_order

SEEDS = seeds(5)
ORDERS = 6


@pytest.mark.parametrize("seed", SEEDS)
def test_every_order_ends_though_topics_are_created_again_under_the_services(seed: int) -> None:
    with simulated(seed, faults.of("recreated topic", rate=0.05)) as world:
        world.start(order, payment, inventory, shipping, use=[Bank(), Carrier()], documents={"tea": Stock(left=50)})
        for number in range(ORDERS):
            world.publish(an_order(number))
        world.run_until_quiet()
        assert None not in {world.outcome(f"order-{number}") for number in range(ORDERS)}
        world.verify(rerun=True)
