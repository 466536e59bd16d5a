"""Parcels that an application writes and removes, while a service is shown each of their changes."""

from collections.abc import Callable
from datetime import timedelta

from saga.testing.simulation.simulated_world import SimulatedWorld
from tests.testing.parcels import GONE, Parcel, watching, wrong_with

PARCELS = ("p-1", "p-2", "p-3")
VERSIONS = (1, 2, 3, 4, GONE)


def changed_parcels(world: SimulatedWorld) -> Callable[[], None]:
    """Each change is shown once and in order: the store notes them all."""
    return _written(world, merges=False)


def connected_parcels(world: SimulatedWorld) -> Callable[[], None]:
    """Changes are shown once and in order, and the last surely: the connector may leave out all others."""
    world.use_connector()
    return _written(world, merges=True)


def _written(world: SimulatedWorld, *, merges: bool) -> Callable[[], None]:
    world.start(watching)
    for version in VERSIONS:
        for key in PARCELS:
            if version == GONE:
                world.remove(watching, Parcel, key)
            else:
                world.write(watching, key, Parcel(version))
        if version != VERSIONS[-2]:  # a removal follows quickly
            world.run_for(timedelta(milliseconds=300))
    world.run_until_quiet()

    def judge() -> None:
        for key in PARCELS:
            p = world.progress("watching", key)
            assert p is not None, f"{key} was not shown at all"
            wrong = wrong_with(p.state["versions"], VERSIONS, merges=merges)
            assert wrong is None, f"{key} {wrong}"

    return judge
