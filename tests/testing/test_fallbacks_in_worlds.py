"""Fallbacks in a world under faults: each order is paid once, at the bank or at its branch, and what was remembered is
an answer that stays."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal

import pytest

from saga import Breaker, LastGood, Saga, Service, limited
from saga.progress.document import decode_transition
from saga.testing.simulation.simulated_world import SimulatedWorld
from services.inventory import inventory
from services.inventory.stock import Stock
from services.order import order
from services.payment.events import (
    OrderCancelled,
    OrderConfirmed,
    OrderPlaced,
    PaymentCaptured,
    PaymentReleased,
    PaymentReserved,
)
from services.shipping import shipping
from services.shipping.carrier import Carrier
from services.simulate import an_order
from tests.testing.faulty_worlds import seeds, simulated

SEEDS = seeds(6)
ORDERS, OUTAGE_S = 10, 60.0
BREAKER = Breaker(failures=1, within_s=120, part=0, open_s=20)


@dataclass
class House:
    """A bank that is not heard for a time, and its branch, which is."""

    now_s: Callable[[], float] = lambda: OUTAGE_S
    charged: dict[str, set[str]] = field(default_factory=dict)
    """Keys under which each card was charged, with where."""

    async def at_the_branch(self, key: str, card: str, amount: Decimal) -> str:
        self.charged.setdefault(card, set()).add(f"branch {key}")
        return key

    @limited(fallback=at_the_branch)
    async def charge(self, key: str, card: str, amount: Decimal) -> str:
        self.charged.setdefault(card, set()).add(f"bank {key}")
        if self.now_s() < OUTAGE_S:
            raise ConnectionError("no answer from the bank")
        return key

    @limited(fallback=LastGood(for_s=600))
    async def rate(self, currency: str) -> int:
        if 20 < self.now_s() < OUTAGE_S:
            raise ConnectionError("no answer from the bank")
        return 1


payment = Service("payment")


@payment.resource(timeout_s=5, breaker=BREAKER)
async def house() -> AsyncIterator[House]:
    yield House()


@payment.handler
async def reserve(placed: OrderPlaced, house: House, saga: Saga) -> PaymentReserved:
    rate = await saga.step(house.rate, "EUR")
    charge = await saga.step(house.charge, saga.idempotency_key("charge"), placed.card, placed.total * rate)
    return PaymentReserved(order_id=placed.order_id, charge_id=charge, amount=placed.total)


@payment.handler
async def capture(confirmed: OrderConfirmed, reserved: PaymentReserved) -> PaymentCaptured:
    return PaymentCaptured(order_id=confirmed.order_id, amount=reserved.amount)


@payment.compensation(reserve)
async def release(cancelled: OrderCancelled, reserved: PaymentReserved) -> PaymentReleased:
    return PaymentReleased(order_id=cancelled.order_id, charge_id=reserved.charge_id)


def ways(world: SimulatedWorld) -> set[str]:
    """Ways by which answers came."""
    found = set[str]()
    for number in range(ORDERS):
        p = world.progress("payment", f"order-{number}")
        found |= (
            set() if p is None else {call.instead for raw in p.transitions for call in decode_transition(raw).calls}
        )
    return found


def played(world: SimulatedWorld) -> House:
    house = House(lambda: world.now_s)
    world.start(order, payment, inventory, shipping, use=[house, Carrier()], documents={"tea": Stock(left=100)})
    for number in range(ORDERS):
        world.publish(an_order(f"order-{number}", card=f"card-{number}", address="Kiel"))
        world.run_for(timedelta(seconds=5))  # those that come together have all begun before the breaker opens
    world.run_until_quiet()
    return house


@pytest.mark.parametrize("seed", SEEDS)
def test_each_order_is_paid_at_one_place_whatever_breaks(seed: int) -> None:
    with simulated(seed) as world:
        house = played(world)
        world.verify()
        assert {card: len(places) for card, places in house.charged.items() if len(places) > 1} == {}


def test_both_ways_are_taken() -> None:
    found = set[str]()
    for seed in range(3):
        with simulated(seed) as world:
            played(world)
            found |= ways(world)
    assert found == {"", "remembered", "at_the_branch"}
