"""Goods that are counted while a worker sets some aside: a scenario of runs that have begun, are given up, and are
still under way somewhere."""

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import timedelta

from saga import Saga, Service
from saga.errors import Permanent
from saga.testing.fault_plans import Chance
from saga.testing.simulation.simulated_world import SimulatedWorld
from services.inventory import hand_out, put_back
from services.inventory import set_aside as take_off_the_shelf
from services.inventory.events import InventoryRejected, InventoryReserved, OrderPlaced
from services.inventory.stock import OutOfStock, Stock
from services.order import order
from services.order.events import OrderCancelled, OrderConfirmed
from services.payment import payment
from services.payment.bank import Bank
from services.shipping import shipping
from services.shipping.carrier import Carrier
from services.simulate import an_order

ORDERS, LEFT, EACH = 6, 100, 2
APPLIED = "update set_aside on stock/{} was applied"
"""Report about goods that were set aside by a run that came to no end."""
BEGUN_S = 0.5
"""Longest time after which the goods are counted: the orders are just being handled."""


class Warehouse:
    """Place where nothing may be set aside while it is counted."""

    def __init__(self) -> None:
        self.is_counted = False

    def check_open(self) -> None:
        if self.is_counted:
            raise Permanent("the goods are being counted")


inventory = Service("inventory")
"""The example's service, which sets nothing aside while goods are counted."""
inventory.document(Stock, "stock", expected_errors=(OutOfStock,))


@inventory.resource(timeout_s=5)
async def warehouse() -> AsyncIterator[Warehouse]:
    yield Warehouse()


@inventory.handler
async def set_aside(order: OrderPlaced, warehouse: Warehouse, saga: Saga) -> InventoryReserved | InventoryRejected:
    warehouse.check_open()
    return await take_off_the_shelf(order, saga)


inventory.handler(hand_out)
inventory.compensation(set_aside)(put_back)


def goods_that_are_counted(world: SimulatedWorld) -> Callable[[], None]:
    """A worker stands still while it sets goods aside, and the worker that continues finds them being counted: a dead
    letter, which goes when the order is cancelled, as most are. In the end nothing is set aside for any of these, but
    for what was reported."""
    bank, place, chance = Bank(), Warehouse(), Chance(world.seed)
    goods = [f"tea {number}" for number in range(ORDERS)]
    shelved = {sku: Stock(left=LEFT) for sku in goods}
    world.start(order, payment, inventory, shipping, use=[bank, Carrier(), place], documents=shelved)
    for number, sku in enumerate(goods):
        placed = an_order(f"order-{number}", card="declined-1" if number else "4242")
        world.publish(replace(placed, sku=sku))
    world.run_for(timedelta(seconds=BEGUN_S * chance.draw("when")))
    world.disturb("inventory-1" if chance.draw("who") < 0.5 else "inventory-2", "freeze")
    place.is_counted = True
    world.run_until_quiet()
    place.is_counted = False

    def judge() -> None:
        reported = {call for record in world.cluster.log for name, call in record.headers if name == "dead_call"}
        for number, sku in enumerate(goods):
            end, stock = world.outcome(f"order-{number}"), world.read(inventory, Stock, sku)
            sent, aside = EACH if end is OrderConfirmed else 0, EACH if APPLIED.format(sku).encode() in reported else 0
            assert end in (OrderConfirmed, OrderCancelled), f"order-{number}: {end}"
            assert stock == Stock(left=LEFT - sent - aside, aside=aside), f"{stock} of {sku}, {reported} were reported"

    return judge
