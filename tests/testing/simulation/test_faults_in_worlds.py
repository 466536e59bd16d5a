"""One fault planted in an order's way: what it does to the services, and that the order ends as it would have."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import pytest

from saga.messages import Event, texts_of
from saga.telemetry.events import Lost
from saga.testing.fault_plans import (
    APPLICATION,
    EVERYTHING_RATES,
    POSSIBLE,
    VARIANTS,
    FaultKind,
    Operation,
    PlannedFault,
    ScheduledPlan,
)
from saga.testing.simulation.network import OperationRecord, TraceNote
from saga.testing.simulation.simulated_world import SimulatedWorld
from services.inventory import inventory
from services.inventory.stock import Stock
from services.order.events import OrderConfirmed
from services.payment.bank import Bank
from tests.testing.simulation.orders import an_order, begun

SEED = 3
DAY_S = 86_400.0


@dataclass
class Order:
    """One order, after everything has come to rest."""

    world: SimulatedWorld
    bank: Bank

    @property
    def outcome(self) -> type[Event] | None:
        return self.world.outcome("order-0")

    @property
    def details(self) -> list[str]:
        """Details of the planted fault."""
        return [line.details for line in self.world.trace.faults]

    def noted(self, what: str) -> list[str]:
        """The processes of which that is noted."""
        return [line.process for line in self.world.trace.lines if isinstance(line, TraceNote) and line.what == what]

    def reasons(self) -> list[str]:
        """Reasons of the dead letters."""
        dead = [texts_of(record.headers) for record in self.world.cluster.log if record.topic.endswith(".dead")]
        return [headers["dead_reason"] for headers in dead]

    def lost(self) -> bool:
        """True if a worker was taken for dead, and found out."""
        return any(isinstance(line, TraceNote) and isinstance(line.moment, Lost) for line in self.world.trace.lines)


def ordered(*planned: PlannedFault, seed: int = SEED) -> Order:
    with SimulatedWorld(seed, ScheduledPlan(planned), guarded=False) as world:
        bank = begun(world)
        world.publish(an_order(0))
        world.run_until_quiet()
        return Order(world, bank)


@cache
def operations(seed: int = SEED) -> tuple[Operation, ...]:
    """Operations of the services where nothing goes wrong: the same, up to the first fault, where something does."""
    lines = ordered(seed=seed).world.trace.lines
    return tuple({line.operation: None for line in lines if isinstance(line, OperationRecord)})


def operation(service: str, what: str, seed: int = SEED) -> Operation:
    """The first of that kind."""
    return next(each for each in operations(seed) if (each.service, each.what) == (service, what))


def fault(met: Operation, kind: FaultKind, after: bool = False) -> PlannedFault:
    return PlannedFault(met.process, met.number, kind, after)


def some_of(kind: FaultKind) -> Iterator[PlannedFault]:
    """The kind on every eighth operation that it can happen to, in each of its ways."""
    possible = [o for o in operations() if o.what in POSSIBLE[kind] and (o.service != APPLICATION or kind == "expiry")]
    for met in possible[::8]:
        yield from (fault(met, kind, bool(after)) for after in range(len(VARIANTS.get(kind, ("",)))))


def any_seed(met: Callable[[Order], bool], service: str, what: str, kind: FaultKind, after: bool = False) -> Order:
    """The fault on the first operation of that kind, with the first seed that makes it what is asked for."""
    for seed in range(60):
        found = ordered(fault(operation(service, what, seed), kind, after), seed=seed)
        if met(found):
            return found
    raise AssertionError("it does not happen with any of these seeds")


@pytest.mark.parametrize("kind", [kind for kind in EVERYTHING_RATES if kind != "outage"])  # after that it has expired
def test_an_order_ends_as_without_the_fault_and_its_money_is_taken_once(kind: FaultKind) -> None:
    planted = list(some_of(kind))
    assert planted
    for planned in planted:
        found = ordered(planned)
        assert [line.planned for line in found.world.trace.faults] == [planned]
        assert found.outcome is OrderConfirmed, planned
        assert (len(found.bank.taken), found.bank.held) == (1, {}), planned
        assert found.world.read(inventory, Stock, "tea") == Stock(left=5), planned


# -------------------------------------------------------------------- processes


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("what", ["get", "insert", "replace", "publish", "poll", "commit", "step"])
def test_after_a_crash_another_process_begins(what: str, after: bool) -> None:
    met = next(each for each in operations() if each.what == what and each.service != APPLICATION)
    found = ordered(fault(met, "crash", after))
    assert found.noted("begins again") == [met.process]
    assert found.outcome is OrderConfirmed


def test_a_crash_before_a_step_makes_no_call_and_one_after_it_repeats_the_call() -> None:
    met = operation("payment", "step")
    calls: dict[bool, int] = {}
    for after in (False, True):
        found = ordered(fault(met, "crash", after))
        asked = [
            line for line in found.world.trace.lines if isinstance(line, OperationRecord) and line.result == "done"
        ]
        calls[after] = sum(line.operation.where == met.where for line in asked)
        assert found.outcome is OrderConfirmed
    assert calls == {False: 1, True: 2}


def test_a_worker_frozen_for_long_is_taken_for_dead_and_notices_it() -> None:
    found = any_seed(Order.lost, "payment", "insert", "freeze")
    assert found.noted("goes on") == [found.world.trace.faults[0].operation.process]
    assert found.outcome is OrderConfirmed
    assert len(found.bank.taken) == 1


def test_a_worker_cut_off_for_long_is_taken_for_dead_and_notices_it() -> None:
    found = any_seed(Order.lost, "payment", "publish", "partition", after=True)
    assert found.outcome is OrderConfirmed
    assert len(found.bank.taken) == 1


def test_a_worker_is_restarted_in_good_order() -> None:
    found = any_seed(lambda o: "good order" in o.details[0], "payment", "insert", "rebalance")
    assert found.noted("begins again") == [found.world.trace.faults[0].operation.process]
    assert found.outcome is OrderConfirmed


def test_partitions_move() -> None:
    found = any_seed(lambda o: "move" in o.details[0], "payment", "insert", "rebalance")
    assert found.noted("begins again") == []
    assert found.world.cluster.group("payment").rotation > 0
    assert found.outcome is OrderConfirmed


# -------------------------------------------------------------------- messages


def test_an_unreadable_message_is_a_dead_letter() -> None:
    found = ordered(fault(operation(APPLICATION, "publish"), "poison"))
    assert any("BadInput" in reason for reason in found.reasons())
    assert found.world.cluster.spoiled == {"order-0"}


def test_a_message_of_a_schema_that_is_not_known_yet_is_a_dead_letter() -> None:
    found = ordered(fault(operation(APPLICATION, "publish"), "newer schema"))
    assert any("get the newest contracts" in reason for reason in found.reasons())
    assert found.world.cluster.spoiled == {"order-0"}


def test_a_message_that_comes_again_when_its_saga_is_forgotten_does_nothing() -> None:
    found = ordered(fault(operation(APPLICATION, "publish"), "expiry"))
    assert found.world.now_s > 30 * DAY_S
    assert len(found.reasons()) == 4
    assert all("older than the retention" in reason for reason in found.reasons())
    assert found.outcome is OrderConfirmed
    assert len(found.bank.taken) == 1
