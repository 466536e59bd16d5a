"""Orders at a bank that is away for minutes, and takes few calls at once: a scenario of limits."""

from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from decimal import Decimal

from saga import Breaker, Retry, Service
from saga.testing.simulation.simulated_world import WORKERS, SimulatedWorld
from services.inventory import inventory
from services.inventory.stock import Stock
from services.order import order
from services.order.events import OrderConfirmed
from services.payment import capture, release, reserve
from services.payment.bank import Bank, Declined
from services.shipping import shipping
from services.shipping.carrier import Carrier
from services.simulate import an_order

ORDERS = 5
OUTAGE_S = 420.0
BREAKER = Breaker(failures=2, within_s=120, open_s=60)
FEW = Retry(attempts_max=30, delay_s_max=10)
"""More attempts than an outage takes whose breaker burns none, and fewer than one takes without."""
AGAIN_MAX = 12
"""Calls that one order may cost in addition for each disturbance: who dies forgets the breaker, and whether a call was
answered."""

limited = Service("payment", retry=FEW)
"""The example's service, with a bank that is spared."""


@limited.resource(timeout_s=5, expected_errors=(Declined,), breaker=BREAKER, at_once_max=1, rate_per_s=20)
async def bank() -> AsyncIterator[Bank]:
    yield Bank()


limited.handler(reserve)
limited.handler(capture)
limited.compensation(reserve)(release)


class AwayBank(Bank):
    """Bank that cannot be reached for a time."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        super().__init__()
        self.now_s, self.in_vain = now_s, 0

    async def reserve(self, key: str, card: str, amount: Decimal) -> str:
        if self.now_s() < OUTAGE_S:
            self.in_vain += 1
            raise ConnectionError("no answer from the bank")
        return await super().reserve(key, card, amount)


def orders_at_a_bank_that_is_away(world: SimulatedWorld) -> Callable[[], None]:
    """Every order is paid once the bank is back, and it is asked seldom until then."""
    away, carrier = AwayBank(lambda: world.now_s), Carrier()
    world.start(order, limited, inventory, shipping, use=[away, carrier], documents={"tea": Stock(left=100)})
    for number in range(ORDERS):
        world.publish(an_order(f"order-{number}"))
    world.run_for(timedelta(seconds=OUTAGE_S + 1))
    world.run_until_quiet()

    def judge() -> None:
        outcomes = [world.outcome(f"order-{number}") for number in range(ORDERS)]
        assert outcomes == [OrderConfirmed] * ORDERS, outcomes
        assert (len(away.taken), away.held) == (ORDERS, {})
        turns = OUTAGE_S / BREAKER.open_s + BREAKER.failures + ORDERS
        most = WORKERS * turns + AGAIN_MAX * len(world.trace.faults)
        assert away.in_vain <= most, f"{away.in_vain} calls while the bank was away, and {most} may be"

    return judge
