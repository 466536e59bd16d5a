"""Answers of a run: not asked for again when its write is refused, and never winning over what is recorded."""

from collections import Counter
from decimal import Decimal

from saga.testing.fault_plans import FaultPlan, PlannedFault, ScheduledPlan
from saga.testing.simulation.network import OperationRecord
from saga.testing.simulation.simulated_world import SimulatedWorld
from services.order import order
from services.payment import payment
from services.payment.bank import Bank
from services.simulate import an_order


class Counting(Bank):
    """Counts how often each key comes."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[str] = Counter()

    async def reserve(self, key: str, card: str, amount: Decimal) -> str:
        self.asked[key] += 1
        return await super().reserve(key, card, amount)


def reserved(plan: FaultPlan | None = None) -> tuple[Counter[str], list[OperationRecord]]:
    """One order, paid for under these faults: how often the bank was asked, and all operations."""
    bank = Counting()
    with SimulatedWorld(7, plan, guarded=False) as world:
        world.start(order, payment, use=[bank])
        world.publish(an_order("o-1"))
        world.run_until_quiet()
        return bank.asked, [line for line in world.trace.lines if isinstance(line, OperationRecord)]


def test_a_step_is_not_made_again_when_the_write_of_its_transition_was_ambiguous() -> None:
    asked, operations = reserved()
    assert list(asked.values()) == [1]
    transition = next(
        o.operation for o in operations if o.operation.service == "payment" and o.operation.what == "replace"
    )
    for kind in ("lost answer", "late answer"):
        asked, again = reserved(ScheduledPlan([PlannedFault(transition.process, transition.number, kind)]))
        assert list(asked.values()) == [1], kind
        assert len(again) > len(operations), "it was decided again"
