"""Slow handlers in worlds in which partitions move: they end, and no worker makes a call twice for it."""

from collections import Counter

import pytest

from saga.testing.fault_plans import faults
from saga.testing.simulation.network import InjectedFault
from services.order.events import OrderCancelled, OrderConfirmed
from tests.testing.simulation.orders import drawn, ran


@pytest.mark.parametrize("seed", range(20))
def test_slow_handlers_end_however_partitions_move_and_no_worker_begins_a_call_twice(seed: int) -> None:
    world, outcomes = ran(seed, drawn(seed, faults.of("slow handler", rate=1.0)))
    assert set(outcomes) <= {OrderConfirmed, OrderCancelled}
    slow = [line.operation for line in world.trace.lines if isinstance(line, InjectedFault)]
    calls = Counter((operation.process, operation.where) for operation in slow)
    assert len(calls) > 10
    assert {call: count for call, count in calls.items() if count > 1} == {}
