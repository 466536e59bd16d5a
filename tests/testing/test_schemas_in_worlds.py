"""A producer that is deployed first, in a simulated world under faults: its events wait until their schema is here."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from saga import Service
from saga.contracts.library import Library
from saga.engine.known_schemas import KnownSchemas
from saga.testing.simulation.simulated_world import SimulatedWorld
from services.inventory import inventory
from services.inventory.stock import Stock
from services.order import cancel, confirm
from services.order.events import OrderConfirmed
from services.payment import payment
from services.payment.bank import Bank
from services.shipping import shipping
from services.shipping.carrier import Carrier
from tests.engine.deployed_contracts import Contracts, newer_order
from tests.testing.faulty_worlds import seeds, simulated

SEEDS = seeds(8)
SAGA = "order-17"
order = Service("order")
"""The example's service that decides, which waits for as long as it takes."""

order.handler(confirm)
order.handler(cancel)

SERVICES = (order, payment, inventory, shipping)


def started(world: SimulatedWorld, contracts: Contracts) -> Bank:
    """The example, whose workers have those contracts."""
    bank = Bank()
    world.start(*SERVICES, use=[bank, Carrier()], documents={"tea": Stock(left=5)})
    for release in world.workers.newest.values():
        release.prepared = replace(release.prepared, schemas=KnownSchemas(Library.load(contracts.here)))
    return bank


@pytest.mark.parametrize("seed", SEEDS)
def test_a_schema_that_is_deployed_later_costs_nothing_but_the_time(seed: int, tmp_path: Path) -> None:
    contracts = Contracts(tmp_path)
    placed = newer_order(contracts.newer_class("OrderPlaced"), SAGA)
    with simulated(seed) as world:
        bank = started(world, contracts)
        world.publish(placed)
        world.run_for(timedelta(minutes=10))
        assert world.outcome(SAGA) is None
        contracts.deploy()
        world.run_until_quiet()
        assert world.outcome(SAGA) is OrderConfirmed
        assert (len(bank.taken), bank.held) == (1, {})
        dead = [record for record in world.cluster.log if record.topic.endswith(".dead")]
        assert dead == []
        world.verify(rerun=True)


def test_one_that_is_never_deployed_is_a_dead_letter_that_can_be_replayed(tmp_path: Path) -> None:
    contracts = Contracts(tmp_path)
    placed = newer_order(contracts.newer_class("OrderPlaced"), SAGA)
    with simulated(0) as world:
        started(world, contracts)
        world.publish(placed)
        world.run_until_quiet()
        dying: list[Service[None]] = [payment, inventory]
        contracts.deploy()
        for service in dying:
            p = world.progress(service.declared.name, SAGA)
            assert p is not None
            assert p.queue[0].dead is not None
            world.replay(service, SAGA)
        world.run_until_quiet()
        assert world.outcome(SAGA) is None, "shipping has its dead letter yet"
        world.replay(shipping, SAGA)
        world.run_until_quiet()
        assert world.outcome(SAGA) is OrderConfirmed
