"""`Choreography`: Hypothesis plays the order saga, finds what is wrong with a bank, and says it in a few steps."""

from collections.abc import Mapping, Sequence
from decimal import Decimal

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, run_state_machine_as_test

from saga.testing.stateful import SETTINGS, Choreography
from saga.testing.strategies import events
from services.inventory import inventory
from services.inventory.stock import Stock
from services.order import order
from services.order.events import OrderCancelled, OrderConfirmed, OrderPlaced
from services.payment import payment
from services.payment.bank import Bank
from services.shipping import shipping
from services.shipping.carrier import Carrier

LEFT = 5
ALIKE = settings(SETTINGS, derandomize=True, database=None, phases=[Phase.generate, Phase.shrink])
"""The same examples every time."""


class Shop(Choreography):
    """Its applications say an order once, or again as it was."""

    services = (order, payment, inventory, shipping)
    said = tuple(
        events(
            OrderPlaced, order_id=id_, customer_id="c", sku="tea", quantity=2, total=Decimal(9), card=card, address=to
        )
        for id_, card, to in (("o-1", "4242", "Kiel"), ("o-2", "declined-1", "Kiel"), ("o-3", "4242", "Atlantis"))
    )

    def resources(self) -> Sequence[object]:
        self.bank, self.carrier = Bank(), Carrier()
        return [self.bank, self.carrier]

    def documents(self) -> Mapping[str, Stock]:
        return {"tea": Stock(left=LEFT)}

    @invariant()
    def nobody_pays_twice(self) -> None:
        assert len(self.bank.held) + len(self.bank.taken) <= 2

    def check(self) -> None:
        assert not self.bank.held
        ends = [self.world.outcome(saga) for saga in self.world.sagas()]
        assert set(ends) <= {OrderConfirmed, OrderCancelled}
        confirmed = ends.count(OrderConfirmed)
        assert len(self.bank.taken) == len(self.carrier.dispatched) == confirmed
        assert self.world.read(inventory, Stock, "tea") == Stock(left=LEFT - 2 * confirmed)


TestShop = Shop.TestCase
TestShop.settings = settings(ALIKE, max_examples=40)
