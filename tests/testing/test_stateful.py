"""`Choreography`: Hypothesis runs the order saga, finds the fault of a bank, and reports it in a few steps."""

import importlib
import re
import sys
from collections.abc import Mapping, Sequence
from decimal import Decimal

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import invariant, run_state_machine_as_test

from saga.errors import SagaError
from saga.testing import faults
from saga.testing.fault_plans import STORE, Faults
from saga.testing.simulation.network import OperationRecord, TraceNote
from saga.testing.simulation.simulated_world import SimulatedWorld
from saga.testing.stateful import OPERATION_MAX, SETTINGS, Choreography, possible_accidents, possible_faults
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


class Orders(Choreography):
    """Its applications say an order once, or again as it was."""

    services = (order, payment, inventory, shipping)
    published = tuple(
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

    def check(self) -> None:
        assert not self.bank.held
        ends = [self.world.outcome(saga) for saga in self.world.sagas()]
        assert set(ends) <= {OrderConfirmed, OrderCancelled}
        confirmed = ends.count(OrderConfirmed)
        assert len(self.bank.taken) == len(self.carrier.dispatched) == confirmed
        assert self.world.read(inventory, Stock, "tea") == Stock(left=LEFT - 2 * confirmed)


class Shop(Orders):
    """With an invariant as Hypothesis has them."""

    @invariant()
    def a_charge_is_made_at_most_once(self) -> None:
        assert len(self.bank.held) + len(self.bank.taken) <= 2


class Forgetful(Bank):
    """Takes a call that is made again for another one."""

    async def reserve(self, key: str, card: str, amount: Decimal) -> str:
        return await super().reserve(f"{key} {len(self.calls)}", card, amount)


class Careless(Orders):
    """The bank forgets, and its answers may get lost."""

    faults = faults.of("lost answer", "throttle", target="payment")

    def resources(self) -> Sequence[object]:
        self.bank, self.carrier = Forgetful(), Carrier()
        return [self.bank, self.carrier]

    def check(self) -> None:
        assert not self.bank.held, "money is held for ever"


TestShop = Shop.TestCase
TestShop.settings = settings(ALIKE, max_examples=40)


def failure_of(machine: type[Choreography], examples: int = 150) -> tuple[Exception, list[str], list[str]]:
    """Report of Hypothesis: what is raised, the steps of the falsifying example, and all lines of its notes."""
    with pytest.raises(AssertionError) as raised:
        run_state_machine_as_test(machine, settings=settings(ALIKE, max_examples=examples))
    notes = "\n".join(raised.value.__notes__).splitlines()
    first = next(n for n, line in enumerate(notes) if line.startswith("state = "))
    steps = [line for line in notes[first:] if line.startswith("state")]
    return raised.value, steps, notes


@pytest.fixture(scope="module")
def careless() -> tuple[Exception, list[str], list[str]]:
    return failure_of(Careless)


@pytest.mark.slow
def test_a_bank_that_forgets_its_keys_is_found_with_few_faults_and_few_steps(
    careless: tuple[Exception, list[str], list[str]],
) -> None:
    """How far Hypothesis shrinks depends on what it draws, and `make explore` draws other values."""
    failure, steps, _ = careless
    assert steps[1].startswith("state.begin(seed=0, event=OrderPlaced(")
    assert len(steps) <= 8  # the machine, its beginning, its end: the least are four
    planted = re.findall(r"'payment#\d+ (.*?)'", "".join(steps))
    assert "lost answer" in planted
    assert "money is held for ever" in str(failure)


@pytest.mark.slow
def test_a_failure_has_its_timeline_with_the_fault_marked(careless: tuple[Exception, list[str], list[str]]) -> None:
    _, _, notes = careless
    assert any(line.startswith("timeline") for line in notes)
    assert sum("lost answer ***" in line for line in notes) >= 1
    assert sum("calls reserve by payment.reserve of o-1" in line for line in notes) >= 2


@pytest.mark.slow
def test_the_printed_example_fails_in_the_same_way_when_it_is_run(
    careless: tuple[Exception, list[str], list[str]],
) -> None:
    failure, steps, notes = careless
    with pytest.raises(AssertionError, match="money is held for ever") as again:
        exec("\n".join(steps), globals())
    assert type(again.value) is type(failure)
    (timeline,) = again.value.__notes__
    assert timeline.splitlines() == notes[: len(timeline.splitlines())]


def test_a_broken_invariant_of_the_users_own_has_its_timeline() -> None:
    class Suspicious(Orders):
        faults = Faults()

        @invariant()
        def nothing_is_dispatched(self) -> None:
            assert not self.carrier.dispatched, "it is on its way"

    failure, steps, notes = failure_of(Suspicious)
    assert "it is on its way" in str(failure)
    assert any(line.startswith("timeline") for line in notes)
    assert any("dispatch(OrderConfirmed) handled" in line for line in notes)
    assert not any("plant" in step or "disturb" in step for step in steps)


def an_order() -> OrderPlaced:
    return OrderPlaced(
        order_id="o-1", customer_id="c", sku="tea", quantity=2, total=Decimal(9), card="4242", address="Kiel"
    )


def ended(shop: Orders) -> str:
    """End the world; what happened in it."""
    shop.teardown()
    return shop.world.trace.fingerprint()


@pytest.mark.parametrize(
    ("accident", "expected"),
    [("crash", "dies"), ("freeze", "stands still"), ("rebalance", "partitions of payment move")],
)
def test_a_worker_meets_an_accident_at_this_moment(accident: str, expected: str) -> None:
    for moment_ms in range(1, 21):
        shop = Shop()
        shop.begin(seed=2, event=an_order())
        shop.run_for(seconds=moment_ms / 1000)
        shop.disturb(accident=f"payment-1 {accident}")
        shop.disturb(accident=f"payment-1 {accident}")
        (noted, *_) = [line for line in shop.world.trace.lines if isinstance(line, TraceNote) and "***" in line.what]
        assert noted.time_s == pytest.approx(moment_ms / 1000)
        assert expected in noted.what or "restarted" in noted.what
        shop.teardown()
        assert shop.world.outcome("o-1") is OrderConfirmed


def test_nothing_happens_to_a_worker_that_is_dead_or_has_stopped() -> None:
    shop = Shop()
    shop.begin(seed=0, event=None)
    shop.disturb(accident="order-1 crash")
    for accident in ("crash", "freeze", "rebalance"):
        shop.disturb(accident=f"order-1 {accident}")
    accidents = [line for line in shop.world.trace.lines if isinstance(line, TraceNote) and "***" in line.what]
    assert len(accidents) == 1
    shop.teardown()
    begun = [line for line in shop.world.trace.lines if isinstance(line, TraceNote) and line.what == "begins again"]
    assert len(begun) == 1


def test_an_accident_of_an_unknown_worker_is_refused() -> None:
    with SimulatedWorld() as world:
        world.start(order)
        with pytest.raises(SagaError, match="no worker 'order-3': order-1, order-2"):
            world.disturb("order-3", "crash")


def test_a_fault_meets_the_operation_it_is_planted_for_and_that_once() -> None:
    shop = Shop()
    shop.begin(seed=0, event=an_order())
    shop.plant(fault="payment#2 throttle")
    shop.teardown()
    (fault,) = shop.world.trace.faults
    asked = [
        line.operation
        for line in shop.world.trace.lines
        if isinstance(line, OperationRecord) and line.operation.service == "payment" and line.operation.what in STORE
    ]
    asked.sort(key=lambda operation: operation.number)
    assert fault.operation == asked[1]


def test_only_the_faults_that_are_asked_for_can_be_planted() -> None:
    class Targeted(Shop):
        faults = faults.of("lost answer", target="payment.reserve") | faults.of("crash", rate=0)

    assert set(possible_faults(Targeted())) == {f"payment#{n} lost answer" for n in range(1, OPERATION_MAX + 1)}
    assert not possible_accidents(Targeted())
    shop = Targeted()
    shop.begin(seed=0, event=an_order())
    shop.plant(fault="payment#1 lost answer")
    shop.teardown()
    (fault,) = shop.world.trace.faults
    assert fault.operation.what == "step"


def test_the_same_steps_give_the_same_run() -> None:
    runs = []
    for _ in range(2):
        shop = Shop()
        shop.begin(seed=7, event=an_order())
        shop.plant(fault="payment#2 crash after")
        shop.run_for(seconds=0.003)
        shop.disturb(accident="shipping-1 freeze")
        runs.append(ended(shop))
    assert runs[0] == runs[1]


def test_there_is_no_world_before_it_begins_and_none_to_end() -> None:
    shop = Shop()
    with pytest.raises(SagaError, match="no world before `begin`"):
        shop.run_until_quiet()
    shop.teardown()


def test_the_world_is_ended_whatever_happens() -> None:
    shop = Orders()
    shop.begin(seed=0, event=an_order())
    shop.bank.held["left over"] = Decimal(1)
    with pytest.raises(AssertionError):
        shop.teardown()
    assert shop.world._loop.is_closed()


def test_settings_are_few_examples_unless_the_user_sets_others() -> None:
    class Plain(Shop):
        pass

    assert Plain.TestCase.settings is SETTINGS
    assert settings(SETTINGS, max_examples=7)(Plain).TestCase.settings.max_examples == 7


def test_without_hypothesis_the_import_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    monkeypatch.delitem(sys.modules, "saga.testing.stateful")
    with pytest.raises(ImportError, match=r"stateful needs hypothesis: pip install saga-choreography\[testing\]"):
        importlib.import_module("saga.testing.stateful")
