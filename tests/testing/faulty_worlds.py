"""Simulated worlds in which sagas come to their end in spite of faults of many kinds."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from saga.testing.fault_kinds import faults
from saga.testing.simulation.chance import Chance
from saga.testing.simulation.plan import Drawn
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


def seeds(count: int) -> range:
    """Seeds of a test: so many, unless SAGA_TEST_SEEDS says how many each such test plays."""
    return range(int(os.environ.get("SAGA_TEST_SEEDS") or count))


@contextmanager
def simulated(seed: int) -> Iterator[SimulatedWorld]:
    asked = EVERYTHING if seed else faults.of("crash", rate=0.0)
    with SimulatedWorld(seed, Drawn(asked, Chance(seed)), guarded=False) as world:
        yield world
