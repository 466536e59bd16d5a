"""Pauses, limits and routes in a simulated world, with faults of many kinds: what waits is done once, and nothing is
lost or burnt."""

from datetime import timedelta
from decimal import Decimal

import pytest

from saga import Service
from saga.progress.document import decode_transition
from saga.testing.simulation.simulated_world import WORKERS, SimulatedWorld
from services.inventory import inventory
from services.inventory.stock import Stock
from services.order.events import OrderCancelled, OrderConfirmed
from services.payment.bank import Bank
from services.shipping import shipping
from services.shipping.carrier import Carrier
from tests.services.waiting_order import order
from tests.testing.faulty_worlds import simulated
from tests.testing.simulation.orders import an_order
from tests.testing.test_limits_in_worlds import SlowBank, with_limits

SEEDS = 6
ORDERS = (17, 18, 19)
AT_LATEST = timedelta(seconds=70)
"""Time in which what was paused resumes: a look into the control log, and a timer."""


class WatchedBank(Bank):
    """Bank that remembers when it was asked."""

    def __init__(self, world: SimulatedWorld) -> None:
        super().__init__()
        self.world, self.asked_s = world, list[float]()

    async def reserve(self, key: str, card: str, amount: Decimal) -> str:
        self.asked_s.append(self.world.now_s)
        return await super().reserve(key, card, amount)

    async def release(self, key: str, charge: str) -> None:
        self.asked_s.append(self.world.now_s)
        await super().release(key, charge)


def begun(world: SimulatedWorld, bank: Bank, payment: Service) -> None:
    world.start(order, payment, inventory, shipping, use=[bank, Carrier()], documents={"tea": Stock(left=500)})


def burnt(world: SimulatedWorld) -> list[str]:
    """Attempts that were counted at the payment service."""
    return [
        f"{entry.handler} {entry.attempt}: {entry.reason}"
        for number in ORDERS
        if (p := world.progress("payment", f"order-{number}")) is not None
        for entry in map(decode_transition, p.transitions)
        if entry.outcome == "retrying" and entry.attempt and not entry.failures
    ]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_paused_handler_calls_nothing_and_then_all_is_done_once(seed: int) -> None:
    with simulated(seed) as world:
        bank, payment = WatchedBank(world), with_limits()
        begun(world, bank, payment)
        for number in ORDERS:
            world.publish(an_order(number))
            world.run_for(timedelta(seconds=seed % 4))
        world.pause(payment, "reserve")
        world.run_for(timedelta(seconds=12))
        paused_s = world.now_s
        world.publish(an_order(20))
        world.run_for(timedelta(seconds=80))
        if not seed:
            assert not [s for s in bank.asked_s if s > paused_s]
        assert world.outcome("order-20") is None
        world.resume(payment, "reserve")
        world.run_until_quiet()
        assert {world.outcome(f"order-{number}") for number in (*ORDERS, 20)} == {OrderConfirmed}
        assert (len(bank.taken), bank.held, burnt(world)) == (4, {}, [])
        world.verify()


@pytest.mark.parametrize("seed", range(4))
def test_a_paused_service_undoes_nothing_either_until_it_is_resumed(seed: int) -> None:
    with simulated(seed) as world:
        bank, payment = WatchedBank(world), with_limits()
        world.start(order, payment, inventory, shipping, use=[bank, Carrier()], documents={"tea": Stock(left=0)})
        world.publish(*map(an_order, ORDERS))
        world.run_for(timedelta(milliseconds=100 * seed))
        world.pause(payment, time=timedelta(minutes=3))
        world.run_until_quiet()
        assert (bank.taken, bank.held, burnt(world)) == ({}, {}, [])
        assert {world.outcome(f"order-{number}") for number in ORDERS} == {OrderCancelled}
        world.verify()


def test_a_pause_writes_nothing_more_however_long_it_lasts() -> None:
    with simulated(0) as world:
        payment = with_limits()
        begun(world, WatchedBank(world), payment)
        world.pause(payment, "reserve")
        world.run_for(timedelta(seconds=6))
        world.publish(an_order(17))
        world.run_for(timedelta(minutes=40))
        p = world.progress("payment", "order-17")
        assert p is not None
        assert [decode_transition(raw).reason for raw in p.transitions] == ["reserve is paused by a test: to see"]
        assert p.timer is not None
        world.resume(payment, "reserve")
        world.run_for(AT_LATEST)
        assert world.outcome("order-17") is OrderConfirmed


@pytest.mark.parametrize("seed", range(3))
def test_routed_messages_are_dead_letters_and_replayed_after_the_route(seed: int) -> None:
    with simulated(seed) as world:
        bank, payment = WatchedBank(world), with_limits()
        begun(world, bank, payment)
        world.route(payment, "reserve", to="dead")
        world.run_for(timedelta(seconds=6 + seed))
        world.publish(*map(an_order, ORDERS))
        world.run_until_quiet()
        assert bank.asked_s == []
        world.route(payment, "reserve", to=None)
        world.run_for(timedelta(seconds=12))
        while dead := [n for n in ORDERS if (p := world.progress("payment", f"order-{n}")) and p.queue]:
            for number in dead:  # one that a frozen worker routed by what it knew is dead once more
                world.replay(payment, f"order-{number}")
            world.run_until_quiet()
        assert {world.outcome(f"order-{number}") for number in ORDERS} == {OrderConfirmed}
        assert (len(bank.taken), bank.held) == (len(ORDERS), {})
        world.verify()


@pytest.mark.parametrize(("resource", "handler"), [("bank", None), (None, "reserve")])
def test_limits_in_force_take_the_place_of_those_declared_until_they_are_ended(
    resource: str | None, handler: str | None
) -> None:
    with simulated(0) as world:
        bank, payment = SlowBank(), with_limits(at_once_max=4)
        begun(world, bank, payment)
        world.limit(payment, resource=resource, handler=handler, at_once_max=1)
        world.run_for(timedelta(seconds=6))
        world.publish(*map(an_order, range(20, 32)))
        world.run_until_quiet()
        assert (bank.most, len(bank.taken)) == (WORKERS, 12)
        world.limit(payment, resource=resource, handler=handler)
        world.run_for(timedelta(seconds=6))
        world.publish(*map(an_order, range(40, 60)))
        world.run_until_quiet()
        assert (bank.most, len(bank.taken)) == (4 * WORKERS, 32)
