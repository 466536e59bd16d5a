"""An application whose partitioner is another one, in a world: orders and events about them lie in two partitions of
one topic, which two workers handle."""

import pytest

from saga.broker.port import partition_of
from saga.messaging.envelope import type_of
from saga.testing.fault_plans import Faults, faults
from services.inventory import inventory
from services.inventory.stock import Stock
from services.order import order
from services.payment import payment
from services.payment.bank import Bank
from services.shipping import shipping
from services.shipping.carrier import Carrier
from tests.testing.faulty_worlds import seeds, simulated
from tests.testing.simulation.orders import an_order

ORDERS = 6
ELSEWHERE = faults.of("other partitioner", rate=1)


@pytest.mark.parametrize("beside", [faults.of("duplicate"), faults.of("outage", "lag", "backlog", rate=0.003)])
@pytest.mark.parametrize("seed", [1 + seed for seed in seeds(3)])  # the world of seed 0 has no faults
def test_every_order_ends_in_time_though_it_lies_in_another_partition(seed: int, beside: Faults) -> None:
    with simulated(seed, beside | ELSEWHERE) as world:
        world.start(order, payment, inventory, shipping, use=[Bank(), Carrier()], documents={"tea": Stock(left=50)})
        for number in range(ORDERS):
            world.publish(an_order(number))
        world.run_until_quiet()
        assert None not in {world.outcome(f"order-{number}") for number in range(ORDERS)}
        world.verify(rerun=True)
        placed = [record for record in world.cluster.log if type_of(record) == "OrderPlaced"]
        partitions = world.cluster.partitions_of("orders")
        assert any(record.partition != partition_of(record.key or b"", partitions) for record in placed)
