"""Orders while people pause and route the service that reserves money: a scenario of controls."""

from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal

from saga.progress.document import decode_transition
from saga.testing.simulation.simulated_world import SimulatedWorld
from services.inventory import inventory
from services.inventory.stock import Stock
from services.order.events import OrderCancelled, OrderConfirmed, OrderPlaced
from services.shipping import shipping
from services.shipping.carrier import Carrier
from tests.services.waiting_order import order
from tests.testing.test_flags_in_worlds import SlowBank, payment

TOO_MANY = 1000
SEEN = timedelta(seconds=40)
"""Time after which each worker goes by what was switched, even if it stood still meanwhile."""


class WatchedBank(SlowBank):
    """Bank that remembers when it was asked."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        super().__init__(fails=6)
        self.now_s, self.asked_s = now_s, list[float]()

    async def reserve(self, key: str, card: str, amount: Decimal) -> str:
        self.asked_s.append(self.now_s())
        return await super().reserve(key, card, amount)


def paused_orders(world: SimulatedWorld) -> Callable[[], None]:
    """An order that cannot be delivered is routed while its money is being reserved; two others come during a pause."""
    bank = WatchedBank(lambda: world.now_s)
    world.start(order, payment, inventory, shipping, use=[bank, Carrier()], documents={"tea": Stock(left=100)})
    world.publish(_order(0, TOO_MANY))
    world.run_for(timedelta(seconds=1))
    world.route(payment, "reserve", to="dead")
    world.run_for(SEEN)
    world.route(payment, "reserve", to=None)
    world.run_for(timedelta(seconds=1))
    world.pause(payment, "reserve")
    world.run_for(SEEN)
    from_s = world.now_s
    world.publish(_order(1, 2), _order(2, 2))
    world.run_for(timedelta(seconds=65))
    until_s = world.now_s
    world.resume(payment, "reserve")
    world.run_until_quiet()

    def judge() -> None:
        ends = [world.outcome(f"order-{number}") for number in range(3)]
        assert ends == [OrderCancelled, OrderConfirmed, OrderConfirmed], ends
        assert not bank.held, f"money is set aside for ever: {bank.held}"
        assert len(bank.taken) == 2, bank.taken
        asked = [s for s in bank.asked_s if from_s < s < until_s]
        assert not asked, f"asked while it was paused: {asked}"
        for number in range(3):
            p = world.progress("payment", f"order-{number}")
            entries = [decode_transition(raw) for raw in (p.transitions if p is not None else ())]
            waited = [e for e in entries if e.outcome == "retrying"]
            failures = sum(len(e.failures) for e in waited)
            assert not waited or waited[-1].attempt <= failures, f"a pause counts as an attempt: {waited}"

    return judge


def _order(number: int, quantity: int) -> OrderPlaced:
    return OrderPlaced(
        order_id=f"order-{number}",
        customer_id="c-1",
        sku="tea",
        quantity=quantity,
        total=Decimal("9.80"),
        card="4242",
        address="Kiel",
    )
