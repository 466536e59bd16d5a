"""An order at a bank that is away for hours, while every second wake lies in the log twice."""

from collections.abc import Callable
from decimal import Decimal

from saga.testing.simulation.simulated_world import SimulatedWorld
from services.inventory import inventory
from services.inventory.stock import Stock
from services.order.events import OrderConfirmed
from services.payment import payment
from services.payment.bank import Bank
from services.shipping import shipping
from services.shipping.carrier import Carrier
from services.simulate import an_order
from tests.services.waiting_order import order

AWAY_S = 5400
WAKES_MAX = 150
"""Three times those of some fifteen attempts, with their ways through the tiers and a copy of every second one."""


class LateBank(Bank):
    """It does not answer for an hour and a half."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        super().__init__()
        self.now_s = now_s

    async def reserve(self, key: str, card: str, amount: Decimal) -> str:
        if self.now_s() < AWAY_S:
            raise ConnectionError("no answer from the bank")
        return await super().reserve(key, card, amount)


def an_order_at_a_bank_that_is_away_for_hours(world: SimulatedWorld) -> Callable[[], None]:
    """It is paid when the bank is back, and copies of wakes have no copies."""
    world.start(
        order,
        payment,
        inventory,
        shipping,
        use=[LateBank(lambda: world.now_s), Carrier()],
        documents={"tea": Stock(left=2)},
    )
    world.publish(an_order("order-1"))
    world.run_until_quiet()

    def judge() -> None:
        assert world.outcome("order-1") is OrderConfirmed
        wakes = [record for record in world.cluster.log if record.topic.startswith("payment.wake.")]
        assert len(wakes) <= WAKES_MAX, f"{len(wakes)} wakes"

    return judge
