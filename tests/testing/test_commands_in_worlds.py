"""A person who replays, discards and resolves in a world: simulated under faults, and of real processes."""

from decimal import Decimal

import pytest

from saga.errors import Permanent, SagaError
from saga.testing.processes import ProcessWorld
from saga.testing.world import World
from services.inventory import inventory
from services.inventory.stock import Stock
from services.order.events import OrderCancelled, OrderConfirmed
from services.payment import payment
from services.payment.bank import Bank, Declined
from services.shipping import shipping
from services.shipping.carrier import Carrier
from tests.services.waiting_order import order
from tests.testing.faulty_worlds import seeds, simulated
from tests.testing.simulation.orders import an_order

SEEDS = seeds(12)
SAGA = "order-17"


class ClosedBank(Bank):
    """Bank that is closed until it is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.is_open = False

    async def reserve(self, key: str, card: str, amount: Decimal) -> str:
        if not self.is_open:
            raise Permanent("the bank is closed")
        return await super().reserve(key, card, amount)


def closed(world: World) -> ClosedBank:
    """Everything runs, an order has come, and the bank is closed."""
    bank = ClosedBank()
    world.start(order, payment, inventory, shipping, use=[bank, Carrier()], documents={"tea": Stock(left=5)})
    world.publish(an_order(17))
    world.run_until_quiet()
    assert world.outcome(SAGA) is None
    return bank


def replayed(world: World) -> None:
    bank = closed(world)
    bank.is_open = True
    world.replay(payment, SAGA)
    world.run_until_quiet()
    assert world.outcome(SAGA) is OrderConfirmed
    assert (len(bank.taken), bank.held) == (1, {})
    world.verify()
    with pytest.raises(SagaError, match="no dead letter blocks this saga"):
        world.replay(payment, SAGA)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_replayed_run_resumes_whatever_happens(seed: int) -> None:
    with simulated(seed) as world:
        replayed(world)


@pytest.mark.slow
def test_a_replayed_run_resumes_in_real_processes() -> None:
    with ProcessWorld() as world:
        replayed(world)


def test_two_people_who_replay_the_same_do_no_harm() -> None:
    with simulated(0) as world:
        bank = closed(world)
        bank.is_open = True
        world.replay(payment, SAGA)
        world.replay(payment, SAGA)
        world.run_until_quiet()
        assert (world.outcome(SAGA), len(bank.taken)) == (OrderConfirmed, 1)
        world.verify()


def test_a_replay_that_dies_again_can_be_replayed_again() -> None:
    with simulated(0) as world:
        bank = closed(world)
        for _ in range(3):
            world.replay(payment, SAGA)
            world.run_until_quiet()
        bank.is_open = True
        world.replay(payment, SAGA)
        world.run_until_quiet()
        assert world.outcome(SAGA) is OrderConfirmed
        world.verify(rerun=True)


def test_a_discarded_message_is_finished_in_its_service() -> None:
    with simulated(0) as world:
        bank = closed(world)
        bank.is_open = True
        world.discard(payment, SAGA)
        world.run_until_quiet()
        p = world.progress("payment", SAGA)
        assert p is not None
        assert (p.queue, p.intents) == ((), ())
        assert (bank.held, bank.taken) == ({}, {})
        world.verify()


class DeafBank(Bank):
    """Bank that reserves, and whose answer is lost."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    async def reserve(self, key: str, card: str, amount: Decimal) -> str:
        self.asked += 1
        await super().reserve(key, card, amount)
        raise Permanent("no answer")


def resolved(world: World) -> None:
    bank = DeafBank()
    world.start(order, payment, inventory, shipping, use=[bank, Carrier()], documents={"tea": Stock(left=5)})
    world.publish(an_order(17))
    world.run_until_quiet()
    asked = bank.asked
    assert (world.outcome(SAGA), asked > 0) == (None, True)
    (charge,) = bank.held
    world.resolve(payment, SAGA, step="reserve", answered=charge)
    world.run_until_quiet()
    assert world.outcome(SAGA) is OrderConfirmed
    assert (len(bank.taken), bank.held, bank.asked) == (1, {}, asked)
    world.verify()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_run_with_an_entered_answer_resumes_and_its_step_is_not_repeated(seed: int) -> None:
    with simulated(seed) as world:
        resolved(world)


@pytest.mark.slow
def test_a_run_with_an_entered_answer_resumes_in_real_processes() -> None:
    with ProcessWorld() as world:
        resolved(world)


def test_a_person_may_say_by_which_exception_the_outside_answered() -> None:
    with simulated(0) as world:
        bank = closed(world)
        world.resolve(payment, SAGA, step="reserve", raised=Declined("no money"))
        world.run_until_quiet()
        assert world.outcome(SAGA) is OrderCancelled
        assert (bank.held, bank.taken) == ({}, {})
        world.verify(rerun=True)


def test_a_command_about_a_saga_or_a_service_that_is_unknown_is_an_error() -> None:
    with simulated(0) as world:
        closed(world)
        with pytest.raises(SagaError, match="no dead letter blocks this saga"):
            world.discard(payment, "order-18")
    with simulated(0) as world, pytest.raises(SagaError, match="was not started in this world"):
        world.replay(payment, SAGA)
