"""Simulated worlds in which sagas come to their end in spite of faults of many kinds."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from saga.testing.fault_plans import Chance, Faults, RandomPlan, faults
from saga.testing.simulation.simulated_world import SimulatedWorld

EVERYTHING = (
    faults.of("crash", rate=0.03)
    | faults.of("lost answer", rate=0.03)
    | faults.of("late answer", rate=0.03)
    | faults.of("duplicate", rate=0.05)
    | faults.of("delay", rate=0.03)
    | faults.of("freeze", rate=0.01)
    | faults.of("rebalance", rate=0.02)
)
"""All but what lets the memory pass while the dead letter stands: the other services have forgotten the saga then."""

CLOCKS = faults.of("clock", rate=0.01)
"""Steps of a process's clock: it is wrong from then on. For worlds of which no moment has to be met to the minute."""
CLOCK_OFF_MAX = timedelta(minutes=10)
"""Most by which such a clock is wrong, either way."""
NO_FAULTS = Faults()


def seeds(count: int) -> range:
    """Seeds of a test: so many, unless SAGA_TEST_SEEDS says how many each such test plays."""
    return range(int(os.environ.get("SAGA_TEST_SEEDS") or count))


@contextmanager
def simulated(seed: int, more: Faults = NO_FAULTS) -> Iterator[SimulatedWorld]:
    """A world with every fault, and `more`; the one of seed 0 has none."""
    asked = EVERYTHING | more if seed else faults.of("crash", rate=0.0)
    with SimulatedWorld(seed, RandomPlan(asked, Chance(seed)), guarded=False) as world:
        yield world
