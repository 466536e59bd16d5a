"""Orders that wait for a quarter of an hour: a scenario of deadlines."""

from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal

from saga.telemetry.events import Escalated
from saga.testing.simulation.network import TraceNote
from saga.testing.simulation.simulated_world import SimulatedWorld
from services.inventory import inventory
from services.inventory.stock import Stock
from services.order import PATIENCE, order
from services.order.events import OrderCancelled, OrderConfirmed
from services.payment import payment
from services.payment.bank import Bank
from services.shipping import shipping
from services.shipping.carrier import Carrier
from services.simulate import an_order

ORDERS = 4
APART = timedelta(minutes=4)
"""Time between two orders: a run that waits for one may die of another."""
SILENT = "silent"


class SilentBank(Bank):
    """Bank that does not answer for some cards, before all orders with them have expired."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        super().__init__()
        self.now_s = now_s

    async def reserve(self, key: str, card: str, amount: Decimal) -> str:
        if card == SILENT and self.now_s() < (ORDERS * APART + 2 * PATIENCE).total_seconds():
            raise ConnectionError("no answer from the bank")
        return await super().reserve(key, card, amount)


def escalated(world: SimulatedWorld) -> set[str]:
    """The sagas for which a person is asked to correct effects by hand."""
    moments = [note.moment for note in world.trace.lines if isinstance(note, TraceNote)]
    return {moment.saga for moment in moments if isinstance(moment, Escalated)}


def orders_that_expire(world: SimulatedWorld) -> Callable[[], None]:
    """Every second order has no answer from the bank, and is cancelled once its time is over; the others are not.

    The bank's silence takes 15 of the 17 attempts, and faults may take the rest. Then the money may be reserved, and a
    person is asked to look.
    """
    bank, carrier = SilentBank(lambda: world.now_s), Carrier()
    world.start(order, payment, inventory, shipping, use=[bank, carrier], documents={"tea": Stock(left=100)})
    for number in range(ORDERS):
        world.publish(an_order(f"order-{number}", card="4242" if number % 2 else SILENT))
        world.run_for(APART)
    world.run_until_quiet()

    def judge() -> None:
        for number in range(ORDERS):
            id_, end = f"order-{number}", world.outcome(f"order-{number}")
            if number % 2:
                assert end is OrderConfirmed, f"{id_} was answered in time, and came to {end}"
            else:
                assert end is OrderCancelled, f"the deadline of {id_} has passed, and it came to {end}"
        assert len(bank.taken) == ORDERS // 2
        assert len(bank.held) <= len(escalated(world)), "money stays reserved, and no person is asked to release it"
        assert world.read(inventory, Stock, "tea") == Stock(left=100 - 2 * (ORDERS // 2))

    return judge
