"""Limits of resources in a simulated world: with faults, several workers, and a bank that is away for minutes."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from decimal import Decimal

import pytest

from saga import Breaker, Retry, Service, limited
from saga.progress.document import decode_transition
from saga.testing.simulation.simulated_world import WORKERS, SimulatedWorld
from services.inventory import inventory
from services.inventory.stock import Stock
from services.order import order
from services.order.events import OrderConfirmed
from services.payment import capture, release, reserve
from services.payment.bank import Bank, Declined
from services.shipping import shipping
from services.shipping.carrier import Carrier
from tests.testing.faulty_worlds import seeds, simulated
from tests.testing.simulation.orders import an_order

SEEDS = seeds(2)
ORDERS = 6
OUTAGE = timedelta(minutes=7)
CALLS_AT_ONCE = 2


class AwayBank(Bank):
    """Bank that cannot be reached until it is mended."""

    def __init__(self) -> None:
        super().__init__()
        self.is_there = False
        self.asked = 0

    async def reserve(self, key: str, card: str, amount: Decimal) -> str:
        self.asked += 1
        if not self.is_there:
            raise ConnectionError("no answer from the bank")
        return await super().reserve(key, card, amount)


class SlowBank(Bank):
    """Bank that takes a second for a call, and counts how many are under way, and when each began."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self.began_s: list[float] = []

    async def reserve(self, key: str, card: str, amount: Decimal) -> str:
        self.now += 1
        self.most = max(self.most, self.now)
        self.began_s.append(asyncio.get_running_loop().time())
        try:
            await asyncio.sleep(1)  # noqa: TID251 - simulated
            return await super().reserve(key, card, amount)
        finally:
            self.now -= 1


class OneByOneBank(SlowBank):
    """Bank that sets money aside for one after the other, and takes it for all at once."""

    def __init__(self) -> None:
        super().__init__()
        self.capturing = self.most_capturing = 0

    @limited(at_once_max=1, rate_per_s=2, timeout_s=4)
    async def reserve(self, key: str, card: str, amount: Decimal) -> str:
        return await super().reserve(key, card, amount)

    async def capture(self, key: str, charge_id: str) -> None:
        self.capturing += 1
        self.most_capturing = max(self.most_capturing, self.capturing)
        try:
            await asyncio.sleep(3)  # noqa: TID251 - simulated
            await super().capture(key, charge_id)
        finally:
            self.capturing -= 1


def with_limits(
    breaker: Breaker | None = None,
    at_once_max: int | None = None,
    rate_per_s: float | None = None,
    timeout_s: float = 60,
    retry: Retry | None = None,
) -> Service:
    """The example's service, with limits."""
    payment = Service("payment", retry=retry)

    @payment.resource(
        timeout_s=5, expected_errors=(Declined,), breaker=breaker, at_once_max=at_once_max, rate_per_s=rate_per_s
    )
    async def bank() -> AsyncIterator[Bank]:
        yield Bank()

    payment.handler(timeout_s=timeout_s)(reserve)
    payment.handler(capture)
    payment.compensation(reserve)(release)
    return payment


FEW = Retry(attempts_max=30, delay_s_max=10)
"""More attempts than an outage takes whose breaker burns none, and fewer than one takes without."""
SPARING = with_limits(Breaker(failures=2, within_s=120, open_s=60), retry=FEW)


def started(world: SimulatedWorld, payment: Service, bank: Bank, *, left: int = 100) -> None:
    world.start(order, payment, inventory, shipping, use=[bank, Carrier()], documents={"tea": Stock(left=left)})


def attempts(world: SimulatedWorld, number: int) -> list[int]:
    """Numbers of the attempts of which the transitions of an order tell."""
    p = world.progress("payment", f"order-{number}")
    assert p is not None
    return [entry.attempt for entry in map(decode_transition, p.transitions) if entry.handler == "reserve"]


@pytest.mark.parametrize("seed", SEEDS)
def test_orders_outlive_a_bank_that_is_away_for_longer_than_their_attempts_would(seed: int) -> None:
    with simulated(seed) as world:
        bank = AwayBank()
        started(world, SPARING, bank)
        for number in range(ORDERS):
            world.publish(an_order(number))
        world.run_for(OUTAGE)
        bank.is_there = True
        world.run_until_quiet()
        assert {world.outcome(f"order-{number}") for number in range(ORDERS)} == {OrderConfirmed}
        assert (len(bank.taken), bank.held) == (ORDERS, {})
        world.verify(rerun=True)


def test_without_a_breaker_the_same_order_is_a_dead_letter() -> None:
    with simulated(0) as world:
        bank = AwayBank()
        started(world, with_limits(retry=FEW), bank)
        world.publish(an_order(0))
        world.run_for(OUTAGE)
        p = world.progress("payment", "order-0")
        assert p is not None
        assert [kept.dead is not None for kept in p.queue] == [True]
        assert (bank.asked, attempts(world, 0)[-1]) == (FEW.attempts_max, FEW.attempts_max)


def test_a_breaker_spares_the_resource_and_all_are_through_two_minutes_after_it_is_back() -> None:
    with simulated(0) as world:
        bank = AwayBank()
        started(world, SPARING, bank)
        for number in range(ORDERS):
            world.publish(an_order(number))
        world.run_for(OUTAGE)
        assert bank.asked <= WORKERS * (2 + ORDERS + OUTAGE / timedelta(seconds=60))
        assert max(max(attempts(world, number)) for number in range(ORDERS)) < 15
        bank.is_there = True
        world.run_for(timedelta(minutes=2))
        assert {world.outcome(f"order-{number}") for number in range(ORDERS)} == {OrderConfirmed}


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_never_more_calls_are_under_way_than_each_worker_may_make(seed: int) -> None:
    with simulated(seed) as world:
        bank = SlowBank()
        started(world, with_limits(at_once_max=CALLS_AT_ONCE), bank)
        if not seed:
            world.always("at most two a worker", lambda: bank.now <= CALLS_AT_ONCE * WORKERS)
        for number in range(20):
            world.publish(an_order(number))
        world.run_until_quiet()
        assert len(bank.taken) == 20
        if not seed:
            assert bank.most == CALLS_AT_ONCE * WORKERS
        world.verify(rerun=True)


def test_calls_that_have_no_turn_in_time_are_no_attempts_and_come_again() -> None:
    """Two calls a second at most, and handlers that may wait for one second."""
    with simulated(0) as world:
        bank = SlowBank()
        started(world, with_limits(at_once_max=1, timeout_s=4), bank)
        for number in range(30):
            world.publish(an_order(number))
        world.run_until_quiet()
        assert len(bank.taken) == 30
        runs = [attempts(world, number) for number in range(30)]
        assert {attempt for each in runs for attempt in each[:-1]} == {0}
        assert {each[-1] for each in runs} == {1}
        assert max(map(len, runs)) > 1, "some had to come again"


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_calls_begin_as_often_as_the_rate_allows(seed: int) -> None:
    with simulated(seed) as world:
        bank = SlowBank()
        started(world, with_limits(rate_per_s=2), bank)
        for number in range(20):
            world.publish(an_order(number))
        world.run_until_quiet()
        assert len(bank.taken) == 20
        if not seed:
            first, *_, last = bank.began_s
            assert 4.5 <= last - first <= 12, "two a second and worker"
        world.verify(rerun=True)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_limited_call_is_made_one_by_one_and_the_others_of_its_resource_are_not(seed: int) -> None:
    with simulated(seed) as world:
        bank = OneByOneBank()
        started(world, with_limits(), bank)
        if not seed:
            world.always("at most one a worker", lambda: bank.now <= WORKERS)
        for number in range(12):
            world.publish(an_order(number))
        world.run_until_quiet()
        assert {world.outcome(f"order-{number}") for number in range(12)} == {OrderConfirmed}
        assert len(bank.taken) == 12
        if not seed:
            assert (bank.most, bank.most_capturing > WORKERS) == (WORKERS, True)
            assert {attempts(world, number)[-1] for number in range(12)} == {1}, "nothing else is an attempt"
        world.verify(rerun=True)


def test_the_same_seed_gives_the_same_run() -> None:
    def ran() -> list[str]:
        with simulated(3) as world:
            bank = AwayBank()
            started(world, with_limits(Breaker(), at_once_max=2, rate_per_s=5), bank)
            for number in range(ORDERS):
                world.publish(an_order(number))
            world.run_for(timedelta(minutes=2))
            bank.is_there = True
            world.run_until_quiet()
            return [str(line) for line in world.trace.lines]

    assert ran() == ran()
