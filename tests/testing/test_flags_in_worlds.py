"""Flags that people switch in a world: simulated under faults, and of real processes."""

from collections.abc import AsyncIterator
from datetime import timedelta
from decimal import Decimal

import pytest

from saga import Retry, Saga, Service
from saga.testing import a_saga, trial
from saga.testing.processes import ProcessWorld
from saga.testing.world import World
from services.inventory import inventory
from services.inventory.stock import Stock
from services.order.events import OrderConfirmed
from services.payment import capture, release
from services.payment.bank import Bank, Declined
from services.payment.events import OrderPlaced, PaymentReserved
from services.shipping import shipping
from services.shipping.carrier import Carrier
from tests.services.waiting_order import order
from tests.testing.faulty_worlds import seeds, simulated
from tests.testing.simulation.orders import an_order

SEEDS = seeds(12)
SAGA = "order-17"

payment = Service("payment")


@payment.resource(timeout_s=5, expected_errors=(Declined,))
async def bank() -> AsyncIterator[Bank]:
    yield Bank()


@payment.handler(retry=Retry(attempts_max=40, delay_s_max=2))
async def reserve(order: OrderPlaced, bank: Bank, saga: Saga) -> PaymentReserved:
    name = "new" if await saga.flag("new_account") else "old"
    charge = await saga.step(bank.reserve, saga.idempotency_key(name), name, order.total)
    return PaymentReserved(order_id=order.order_id, charge_id=charge, amount=order.total)


payment.handler(capture)
payment.compensation(reserve)(release)


class SlowBank(Bank):
    """Bank that reserves at once, and answers after some attempts."""

    def __init__(self, fails: int) -> None:
        super().__init__()
        self.fails, self.asked = fails, list[str]()

    async def reserve(self, key: str, card: str, amount: Decimal) -> str:
        charge = await super().reserve(key, card, amount)
        self.asked.append(card)
        if self.fails:
            self.fails -= 1
            raise ConnectionError("no answer")
        return charge


def begun(world: World, fails: int) -> SlowBank:
    bank = SlowBank(fails)
    world.start(order, payment, inventory, shipping, use=[bank, Carrier()], documents={"tea": Stock(left=5)})
    return bank


@pytest.mark.parametrize("seed", SEEDS)
def test_a_run_keeps_the_path_that_it_began_on_whatever_is_switched(seed: int) -> None:
    with simulated(seed) as world:
        bank = begun(world, fails=8)
        world.publish(an_order(17))
        for percent in (100, 0, 100, 0):
            world.run_for(timedelta(seconds=3))
            world.switch(payment, "new_account", percent=percent)
        world.run_until_quiet()
        assert world.outcome(SAGA) is OrderConfirmed
        assert (len(bank.taken), bank.held) == (1, {})
        assert len(set(bank.asked)) == 1, bank.asked
        world.verify()


def switched(world: World) -> None:
    bank = begun(world, fails=0)
    world.switch(payment, "new_account", saga=SAGA)
    world.run_until_quiet()
    world.publish(an_order(17), an_order(18))
    world.run_until_quiet()
    assert {card: bank.asked.count(card) > 0 for card in ("new", "old")} == {"new": True, "old": True}
    world.verify()


def test_a_flag_that_is_set_for_one_saga_is_on_for_it_alone() -> None:
    with simulated(0) as world:
        switched(world)


@pytest.mark.slow
def test_a_flag_that_is_set_is_on_in_real_processes() -> None:
    with ProcessWorld() as world:
        switched(world)


async def test_a_handler_called_plainly_has_the_flags_it_is_given() -> None:
    bank = SlowBank(0)
    placed = OrderPlaced(
        order_id=SAGA, customer_id="c", sku="tea", quantity=1, total=Decimal("9.80"), card="4242", address="Kiel"
    )
    await reserve(placed, bank, a_saga())
    await reserve(placed, bank, a_saga(flags=["new_account"]))
    assert bank.asked == ["old", "new"]


async def test_a_trial_has_the_flags_it_is_given_however_long_it_lasts() -> None:
    placed = OrderPlaced(
        order_id=SAGA, customer_id="c", sku="tea", quantity=1, total=Decimal("9.80"), card="4242", address="Kiel"
    )
    for flags, asked in (((), "old"), (("new_account", "another"), "new")):
        bank = SlowBank(1)
        done = await trial(payment, timedelta(hours=1), placed, use=[bank], flags=flags)
        assert [type(event) for event in done.emitted] == [PaymentReserved]
        assert bank.asked == [asked, asked]
