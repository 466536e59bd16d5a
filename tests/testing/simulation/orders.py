"""Orders in a simulated world, for tests; as a program it prints the fingerprint of a run for each seed given."""

import sys
from decimal import Decimal

from saga.messages import Event
from saga.testing.fault_plans import Chance, FaultPlan, Faults, RandomPlan, faults
from saga.testing.simulation.simulated_world import SimulatedWorld
from services.inventory import inventory
from services.inventory.stock import Stock
from services.order import order
from services.order.events import OrderPlaced
from services.payment import payment
from services.payment.bank import Bank
from services.shipping import shipping
from services.shipping.carrier import Carrier

ORDERS = 5


def an_order(number: int, card: str = "4242", address: str = "Kiel") -> OrderPlaced:
    return OrderPlaced(
        order_id=f"order-{number}",
        customer_id="c-1",
        sku="tea",
        quantity=2,
        total=Decimal("9.80"),
        card=card,
        address=address,
    )


def begun(world: SimulatedWorld, *, left: int = 7) -> Bank:
    """All services in that world; the bank they share."""
    bank = Bank()
    world.start(order, payment, inventory, shipping, use=[bank, Carrier()], documents={"tea": Stock(left=left)})
    return bank


def ran(seed: int, plan: FaultPlan | None = None, *, left: int = 7) -> tuple[SimulatedWorld, list[type[Event] | None]]:
    """Some orders that go well and some that do not, until it is quiet; how each ended."""
    with SimulatedWorld(seed, plan, guarded=False) as world:
        begun(world, left=left)
        for number in range(ORDERS):
            card, address = "declined" if number == 1 else "4242", "Atlantis" if number == 2 else "Kiel"
            world.publish(an_order(number, card, address))
        world.run_until_quiet()
        return world, [world.outcome(f"order-{number}") for number in range(ORDERS)]


def drawn(seed: int, asked: Faults) -> FaultPlan:
    return RandomPlan(asked, Chance(seed))


def fingerprint(seed: int) -> str:
    """Fingerprint of a run with all kinds of faults."""
    world, outcomes = ran(seed, drawn(seed, faults.everything()))
    ends = ",".join("" if outcome is None else outcome.__name__ for outcome in outcomes)
    return f"{seed} {world.fingerprint()} {len(world.trace.faults)} faults {ends}"


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        print(fingerprint(int(argument)))  # noqa: T201 - for the process that started this one
