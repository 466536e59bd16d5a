"""Sealed values in a world full of faults: the books are as ever, and no one can read what is sealed."""

from datetime import timedelta

import pytest

from saga.errors import SagaError
from saga.messages import texts_of
from saga.testing.simulation.simulated_world import SimulatedWorld
from services.inventory import inventory
from services.inventory.stock import Stock
from services.order import order
from services.order.events import OrderCancelled, OrderConfirmed
from services.payment import payment
from services.payment.bank import Bank
from services.shipping import shipping
from services.shipping.carrier import Carrier
from tests.encryption.readable import can_be_read
from tests.testing.faulty_worlds import seeds, simulated
from tests.testing.simulation.orders import an_order

SEEDS = seeds(4)
CARD = "4711-SECRET"


class NotingBank(Bank):
    """Bank that notes which cards it is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.shown = set[str]()

    async def reserve(self, key: str, card: str, amount: object) -> str:
        self.shown.add(card)
        return await super().reserve(key, card, amount)  # type: ignore[arg-type]  # whatever it is


def started(world: SimulatedWorld) -> NotingBank:
    bank = NotingBank()
    world.seal()
    world.start(order, payment, inventory, shipping, use=[bank, Carrier()], documents={"tea": Stock(left=9)})
    return bank


def stored_bytes(world: SimulatedWorld) -> list[bytes]:
    """All that the services have ever written or published."""
    evidence = world.evidence()
    values = [record.value or b"" for record in evidence.log]
    kept = [content for w in evidence.services.values() for contents in w.versions.values() for content in contents]
    return values + kept


@pytest.mark.parametrize("seed", SEEDS)
def test_sagas_with_sealed_values_end_as_others_do_and_nothing_of_them_can_be_read(seed: int) -> None:
    with simulated(seed) as world:
        bank = started(world)
        world.publish(an_order(1, card=CARD), an_order(2, card=CARD, address="Atlantis"), an_order(3, card=CARD))
        world.run_until_quiet()
        outcomes = [world.outcome(f"order-{n}") for n in (1, 2, 3)]
        assert outcomes == [OrderConfirmed, OrderCancelled, OrderConfirmed]
        assert bank.shown == {CARD}
        contents = stored_bytes(world)
        assert sum(b"sealed:1:" in content for content in contents) >= 3
        assert not can_be_read(CARD.encode(), *contents)
        world.verify(rerun=True)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_customer_who_is_forgotten_on_the_way_blocks_nothing(seed: int) -> None:
    with simulated(seed) as world:
        bank = started(world)
        orders = [an_order(n, card=CARD) for n in (1, 2, 3)]
        world.publish(*orders)
        world.run_for(timedelta(seconds=0.05 * (seed + 1)))
        for each in orders:
            world.forget(each.order_id)
        world.run_until_quiet()
        assert {world.outcome(each.order_id) for each in orders} <= {OrderConfirmed, OrderCancelled}
        assert bank.shown <= {CARD, "erased"}
        dead = [texts_of(r.headers) for r in world.evidence().log if r.topic.endswith(".dead")]
        reasons = {letter["dead_reason"].partition(":")[0] for letter in dead if letter["dead_what"] == "dead letter"}
        # A charge whose answer was lost before: the same card cannot be sent again, and the bank takes no other one.
        assert reasons <= {"Contradiction", "ConnectionError"}
        world.verify(rerun=True)


def test_a_world_reports_when_it_cannot_seal_or_forget() -> None:
    with simulated(0) as world:
        with pytest.raises(SagaError, match=r"call world\.seal\(\) first"):
            world.forget("order-1")
        world.start(order)
        with pytest.raises(SagaError, match=r"comes before world\.start"):
            world.seal()


def test_an_event_about_an_erased_subject_is_refused_where_it_is_emitted() -> None:
    with simulated(0) as world:
        started(world)
        world.forget("order-1")
        world.publish(an_order(1))
        with pytest.raises(SagaError, match="the key of its order_id was erased"):
            world.run_until_quiet()
