"""Topics that are deleted and created again in a world: what was not finished is published again, at other offsets."""

from collections.abc import Iterable
from datetime import timedelta

import pytest

from saga.messaging.timers import tiers_of
from saga.testing.fault_plans import faults
from saga.testing.simulation.cluster import Cluster
from services.inventory import inventory
from services.inventory.stock import Stock
from services.order import order
from services.payment import payment
from services.payment.bank import Bank
from services.shipping import shipping
from services.shipping.carrier import Carrier
from tests.testing.faulty_worlds import seeds, simulated
from tests.testing.simulation.orders import an_order
from tests.testing.test_deadlines_in_worlds import SilentBank

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


def recreate(cluster: Cluster, topics: Iterable[str]) -> None:
    for topic in topics:
        cluster.recreate(topic, republish=False)


@pytest.mark.parametrize("seed", SEEDS)
def test_timed_runs_resume_although_their_timer_topics_are_recreated(seed: int) -> None:
    with simulated(seed) as world:
        bank = SilentBank()
        world.start(order, payment, inventory, shipping, use=[bank, Carrier()], documents={"tea": Stock(left=50)})
        for number in range(ORDERS):
            world.publish(an_order(number))
        world.run_for(timedelta(minutes=3))
        topics = [topic for service in ("order", "payment") for topic in tiers_of(service)]
        world._loop.run_inside(lambda: recreate(world.cluster, topics))
        bank.is_there = True
        world.run_until_quiet()
        assert None not in {world.outcome(f"order-{number}") for number in range(ORDERS)}
        world.verify(rerun=True)


@pytest.mark.parametrize("seed", SEEDS)
def test_timed_runs_resume_although_their_timers_are_removed(seed: int) -> None:
    with simulated(seed) as world:
        bank = SilentBank()
        world.start(order, payment, inventory, shipping, use=[bank, Carrier()], documents={"tea": Stock(left=50)})
        for number in range(ORDERS):
            world.publish(an_order(number))
        world.run_for(timedelta(minutes=3))
        topics = {topic for service in ("order", "payment") for topic in tiers_of(service)}
        world.cluster.remove({place: end for place, end in world.cluster.ends().items() if place.topic in topics})
        bank.is_there = True
        for name in ("order", "payment"):  # what a worker holds in memory is not lost with the log
            for number in (1, 2):
                world.disturb(f"{name}-{number}", "crash")
        world.run_until_quiet()
        assert None not in {world.outcome(f"order-{number}") for number in range(ORDERS)}
        world.verify(rerun=True)
