"""Releases of two services that know other versions of their events, side by side over the same topics: in each order
of deployment, and back, nothing is lost, dead or taken for what it does not mean."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import permutations
from typing import Any

import pytest

from saga import Event, Service
from saga.messages import name_of, texts_of
from saga.telemetry.events import Parked
from saga.testing.fault_plans import Chance, RandomPlan, faults
from saga.testing.simulation.network import TraceNote
from saga.testing.simulation.simulated_world import SimulatedWorld
from tests.testing.baskets.events import BasketFilled, BasketFilledV1
from tests.testing.baskets.releases import LIMIT_CENTS, Drawer, shop, till
from tests.testing.faulty_worlds import EVERYTHING, seeds

DEPLOYS = faults.of("deploy", rate=0.04)
EACH_WAY = bool(os.environ.get("SAGA_TEST_SEEDS"))
"""True to play each order of deployment; else some of them are."""
ORDERS = list(permutations(["clients", "till", "shop"]))[:: 1 if EACH_WAY else 3]
"""Orders in which those who say the new versions and those who read them are deployed."""
CENTS = (980, LIMIT_CENTS + 1)
"""Sums of the baskets; the last one is more than the till takes."""


@contextmanager
def world_of(seed: int) -> Iterator[SimulatedWorld]:
    """A world in which all kinds of things go wrong, and workers go back and forth between releases."""
    with SimulatedWorld(seed, RandomPlan(EVERYTHING | DEPLOYS, Chance(seed)), guarded=False) as world:
        yield world


def filled(*, by: int, release: int) -> list[Event]:
    """Baskets that the client number `by` fills, as the first version of its schema has them, or the second."""
    if release == 1:
        return [BasketFilledV1(basket_id=f"b-{by}-{n}", amount=cents) for n, cents in enumerate(CENTS)]
    return [BasketFilled(basket_id=f"b-{by}-{n}", amount=cents * 10) for n, cents in enumerate(CENTS)]


def check_whole(world: SimulatedWorld, drawer: Drawer, clients: int) -> None:
    """Each basket has come to the end that its sum says, and nothing of it is open, dead or misread."""
    ends = [world.outcome(f"b-{by}-{n}") for by in range(clients) for n in range(len(CENTS))]
    assert [end and name_of(end) for end in ends] == ["BasketDone", "BasketDropped"] * clients
    assert sorted(drawer.handed_over.values()) == [CENTS[0]] * clients
    assert drawer.taken == drawer.handed_over
    assert drawer.given_back == {}
    assert letters(world) == []
    world.verify(rerun=True)


def letters(world: SimulatedWorld) -> list[str]:
    """Reason of each dead letter."""
    dead = [record for record in world.cluster.log if record.topic.endswith(".dead")]
    return [texts_of(record.headers).get("dead_reason", "") for record in dead]


def rolled_out(world: SimulatedWorld, steps: Sequence[Service[Any]], drawer: Drawer, *, newer_clients: int) -> int:
    """Deploy one after the other, with baskets before, between and after; the number of clients. `newer_clients`: step
    from which on clients know the second version."""
    world.start(shop(1), till(1), use=[drawer])
    for number, step in enumerate([None, *steps]):
        if step is not None:
            world.deploy(step)
        world.publish(*filled(by=number, release=2 if number >= newer_clients else 1))
        world.run_for(timedelta(seconds=5))
    world.run_until_quiet()
    return len(steps) + 1


# -------------------------------------------------------------------- the safe order


@pytest.mark.parametrize("seed", seeds(1))
@pytest.mark.parametrize("first", ["shop", "till"] if EACH_WAY else ["shop"])
def test_releases_that_read_both_versions_first_and_emit_the_new_one_then_lose_nothing(first: str, seed: int) -> None:
    services = (shop, till) if first == "shop" else (till, shop)
    steps = [service(release) for release in (2, 3) for service in services]
    drawer = Drawer(fails=6)
    with world_of(seed) as world:
        clients = rolled_out(world, steps, drawer, newer_clients=2)
        check_whole(world, drawer, clients)


@pytest.mark.parametrize("seed", seeds(1))
@pytest.mark.parametrize("back", ["shop", "till"] if EACH_WAY else ["till"])
def test_a_release_that_emits_the_new_version_is_rolled_back_to_one_that_reads_it(back: str, seed: int) -> None:
    service = {"shop": shop, "till": till}[back]
    steps = [shop(2), till(2), till(3), shop(3), service(2), service(3)]
    drawer = Drawer(fails=6)
    with world_of(seed) as world:
        clients = rolled_out(world, steps, drawer, newer_clients=2)
        check_whole(world, drawer, clients)


# -------------------------------------------------------------------- any other order


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_in_any_other_order_what_is_too_new_waits_for_the_release_that_reads_it(order: Sequence[str]) -> None:
    newer = {"shop": shop(3), "till": till(3)}
    steps = [newer[name] for name in order if name in newer]
    drawer = Drawer(fails=6)
    with world_of(order.index("shop")) as world:
        clients = rolled_out(world, steps, drawer, newer_clients=order.index("clients"))
        check_whole(world, drawer, clients)


@pytest.mark.parametrize(
    ("newer_clients", "schema"), [(0, "baskets/BasketFilled.v2"), (9, "tills/BasketPaid.v2")], ids=["filled", "paid"]
)
def test_in_these_worlds_messages_were_too_new_for_a_release(newer_clients: int, schema: str) -> None:
    with SimulatedWorld(0, guarded=False) as world:
        rolled_out(world, [till(3), shop(3)], Drawer(), newer_clients=newer_clients)
        moments = [line.moment for line in world.trace.lines if isinstance(line, TraceNote)]
        reasons = {moment.error for moment in moments if isinstance(moment, Parked)}
    assert any(reason.startswith(f"NewerVersion: it is of {schema}, and this release") for reason in reasons)
