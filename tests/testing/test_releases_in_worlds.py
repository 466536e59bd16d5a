"""Releases of a service that run side by side in a world, and go back and forth: nothing is lost, nothing done twice,
and what must wait waits for the release that can go on with it."""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from saga import SagaError, Service
from saga.errors import DeclarationError
from saga.messages import texts_of
from saga.progress.document import decode_transition
from saga.telemetry.events import Parked, Stuck
from saga.testing.fault_plans import Chance, RandomPlan, faults
from saga.testing.invariants.checks import find_violations
from saga.testing.processes import ProcessWorld
from saga.testing.simulation.network import InjectedFault, TraceNote
from saga.testing.simulation.simulated_world import SimulatedWorld
from services.inventory import inventory
from services.inventory.stock import Stock
from services.order.events import OrderCancelled, OrderConfirmed
from services.shipping import shipping
from services.shipping.carrier import Carrier
from tests.services.waiting_order import order
from tests.testing.faulty_worlds import EVERYTHING, seeds
from tests.testing.released_payments import Till, after, before, improved
from tests.testing.simulation.orders import an_order

SEEDS = seeds(4)
TOTAL = "9.80"
DEPLOYS = faults.of("deploy", rate=0.04)


@contextmanager
def world_of(seed: int, *, calm: bool = False) -> Iterator[SimulatedWorld]:
    """A world in which workers go back and forth between releases. `calm`: nothing else goes wrong."""
    with SimulatedWorld(
        seed, RandomPlan(DEPLOYS if calm else EVERYTHING | DEPLOYS, Chance(seed)), guarded=False
    ) as world:
        yield world


def began(world: SimulatedWorld, payment: Service[Any], till: Till) -> None:
    """The example with this payment, and three orders: the last one goes nowhere."""
    world.start(order, payment, inventory, shipping, use=[till, Carrier()], documents={"tea": Stock(left=9)})
    world.publish(an_order(1), an_order(2), an_order(3, address="Atlantis"))


def check_whole(world: SimulatedWorld, till: Till, *, died: bool = False) -> None:
    """Each order has its outcome, and its money is where that says. `died`: of some a rerun asked for something else,
    and people have put that right."""
    ends = [world.outcome(f"order-{number}") for number in (1, 2, 3)]
    assert ends == [OrderConfirmed, OrderConfirmed, OrderCancelled]
    assert till.taken == [TOTAL, TOTAL]
    assert till.open == []
    if died:
        assert [found for found in find_violations(world.evidence()) if found.invariant != "rerun"] == []
    else:
        world.verify(rerun=True)


def versions(world: SimulatedWorld, saga: str) -> list[int]:
    """Version of the state in each transition of payment's."""
    p = world.progress("payment", saga)
    return [] if p is None else [decode_transition(raw).version for raw in p.transitions]


def stuck(world: SimulatedWorld) -> list[str]:
    """Reasons of lanes that could not decide."""
    notes = [line.moment for line in world.trace.lines if isinstance(line, TraceNote)]
    return [moment.error for moment in notes if isinstance(moment, Stuck)]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_migration_is_rolled_out_and_nothing_is_lost_or_taken_twice(seed: int) -> None:
    till = Till(fails=6)
    with world_of(seed) as world:
        began(world, before(), till)
        world.deploy(after())
        world.run_until_quiet()
        check_whole(world, till)


def test_runs_of_both_releases_have_met_in_these_worlds() -> None:
    met, waited = set[tuple[int, ...]](), 0
    for seed in range(12):
        if (1, 2) in met and waited:
            break
        with world_of(seed) as world:
            began(world, before(), Till(fails=6))
            world.deploy(after())
            world.run_until_quiet()
            met |= {tuple(sorted(set(versions(world, f"order-{number}")))) for number in (1, 2, 3)}
            waited += any("has version 2, and this version of 'payment' knows 1" in why for why in stuck(world))
            assert any(isinstance(line, InjectedFault) and line.planned.kind == "deploy" for line in world.trace.lines)
    assert (1, 2) in met
    assert waited


# -------------------------------------------------------------------- another way under a run that has begun


@pytest.mark.parametrize("seed", SEEDS)
def test_a_release_that_goes_another_way_behind_a_flag_disturbs_no_run(seed: int) -> None:
    till = Till(fails=6)
    with world_of(seed) as world:
        switched_on(world, till)
        assert looks(till) in (3, 4)  # a worker may have gone back to the release that does not ask
        assert letters(world) == []


def test_all_go_the_new_way_when_it_is_switched_on_after_the_rollout() -> None:
    till = Till(fails=6)
    with SimulatedWorld(0, guarded=False) as world:
        switched_on(world, till)
        assert looks(till) == 4


def switched_on(world: SimulatedWorld, till: Till) -> None:
    """Roll out a release with a new way behind a flag, then switch it on; one more order comes after that."""
    payment = after(looks_first=True, flagged=True)
    began(world, before(), till)
    world.deploy(payment)
    world.run_until_quiet()
    check_whole(world, till)
    assert looks(till) == 2  # of the orders that are taken
    world.switch(payment, "looks_first")
    world.run_until_quiet()
    world.publish(an_order(4))
    world.run_until_quiet()
    assert world.outcome("order-4") is OrderConfirmed


def looks(till: Till) -> int:
    return [call[0] for call in till.calls.values()].count("look")


def letters(world: SimulatedWorld) -> list[tuple[str, str]]:
    """Saga and reason of each dead letter."""
    dead = [record for record in world.cluster.log if record.topic.endswith(".dead")]
    return [((record.key or b"").decode(), texts_of(record.headers).get("dead_reason", "")) for record in dead]


# -------------------------------------------------------------------- another way from a version of the handler on


@pytest.mark.parametrize("seed", SEEDS)
def test_a_release_that_goes_another_way_in_a_new_version_disturbs_no_run(seed: int) -> None:
    till, payment = Till(fails=6), improved()
    with world_of(seed) as world:
        began(world, improved(looks_first=False), till)
        world.deploy(payment)
        world.run_until_quiet()
        check_whole(world, till)
        assert letters(world) == []
        assert looks(till) <= 3


@pytest.mark.parametrize("seed", SEEDS)
def test_what_a_newer_version_began_waits_through_a_roll_back_for_the_release_that_has_it(seed: int) -> None:
    till, before_it = Till(), improved(looks_first=False)
    with world_of(seed) as world:
        began(world, improved(), till)
        till.fails = 5
        world.run_for(timedelta(seconds=0.5))
        world.deploy(before_it)
        world.run_for(timedelta(minutes=2))
        world.deploy(improved())
        world.run_until_quiet()
        check_whole(world, till)
        assert letters(world) == []


def test_runs_have_met_a_release_that_had_not_got_their_version_in_these_worlds() -> None:
    def waited(seed: int) -> bool:
        with world_of(seed) as world:
            began(world, improved(looks_first=False), Till(fails=6))
            world.deploy(improved())
            world.run_until_quiet()
            notes = [line.moment for line in world.trace.lines if isinstance(line, TraceNote)]
            return any(isinstance(m, Parked) and m.error.startswith("NewerHandler") for m in notes)

    assert any(map(waited, range(24)))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_run_that_the_new_release_cannot_resume_is_replayed_under_the_old_one(seed: int) -> None:
    """A release without a flag. The run is a dead letter with what it has got, its state is not migrated, and after a
    roll back it goes on."""
    till, payment = Till(fails=4), before()
    with world_of(seed) as world:
        began(world, payment, till)
        world.deploy(after(looks_first=True))
        world.run_until_quiet()
        stopped = [number for number in (1, 2, 3) if is_dead(world, f"order-{number}")]
        assert all("not deterministic" in reason for _, reason in letters(world) if reason)
        assert all(set(versions(world, f"order-{number}")) <= {1} for number in stopped)
        world.deploy(payment)
        while dead := [number for number in stopped if is_dead(world, f"order-{number}")]:
            for number in dead:  # a worker may have gone back to the new release for a while
                world.replay(payment, f"order-{number}")
            world.run_for(timedelta(minutes=1))
        world.deploy(after())  # what the new release had brought further waits for it
        world.run_until_quiet()
        check_whole(world, till, died=True)


def is_dead(world: SimulatedWorld, saga: str) -> bool:
    """True if a dead letter of payment blocks the saga."""
    p = world.progress("payment", saga)
    return p is not None and any(kept.dead for kept in p.queue)


def test_there_are_runs_that_the_new_release_cannot_resume() -> None:
    def dead(seed: int) -> bool:
        with world_of(seed) as world:
            began(world, before(), Till(fails=4))
            world.deploy(after(looks_first=True))
            world.run_until_quiet()
            return any(is_dead(world, f"order-{number}") for number in (1, 2, 3))

    assert any(map(dead, range(12)))


# -------------------------------------------------------------------- a handler that is gone


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_open_of_a_handler_that_is_gone_waits_until_a_release_has_it_again(seed: int) -> None:
    till, payment = Till(fails=3), before()
    with world_of(seed, calm=True) as world:
        began(world, payment, till)
        world.run_for(timedelta(seconds=0.05 * seed))
        world.deploy(after(keeps=False))
        world.run_for(timedelta(minutes=3))
        world.deploy(payment)
        world.run_for(timedelta(minutes=3))
        world.deploy(after())  # what has begun with the state of the other one waits for one that knows it
        world.run_until_quiet()
        ends = [world.outcome(f"order-{number}") for number in (1, 2, 3)]
        assert None not in ends
        assert len(till.taken) == ends.count(OrderConfirmed)
        world.verify(rerun=True)


# -------------------------------------------------------------------- what is refused


def test_a_release_is_of_a_service_that_was_started_and_has_fakes_for_all_it_uses() -> None:
    needs_more = after()

    class Drawer:
        """Thing outside of which the till knows nothing."""

    @needs_more.resource
    async def drawer() -> AsyncIterator[Drawer]:
        yield Drawer()

    with SimulatedWorld(0) as world:
        with pytest.raises(SagaError, match="'payment' was not started in this world"):
            world.deploy(after())
        began(world, before(), Till())
        with pytest.raises(DeclarationError, match=r"payment\.drawer gives a Drawer, and nothing in use"):
            world.deploy(needs_more)
        with pytest.raises(DeclarationError, match="the service 'payment' has no handler"):
            world.deploy(Service("payment"))
        world.deploy(needs_more, use=[Drawer()])
        world.run_until_quiet()


@pytest.mark.parametrize("seed", range(4))
def test_a_release_that_is_rolled_back_at_once_runs_nowhere_in_the_end(seed: int) -> None:
    till, payment = Till(), before()
    with SimulatedWorld(seed, guarded=False) as world:
        began(world, payment, till)
        world.deploy(after())
        world.run_for(timedelta(seconds=0.001))
        world.deploy(payment)
        world.run_until_quiet()
        notes = [line for line in world.trace.lines if isinstance(line, TraceNote) and "is restarted as" in line.what]
        assert {line.process: line.what for line in notes}.items() <= dict.fromkeys(PROCESSES, LAST).items()
        for process in PROCESSES:
            lines = [line.what for line in notes if line.process == process]
            assert not [one for one, two in pairwise(["is restarted as release 1", *lines]) if one == two]
        check_whole(world, till)


PROCESSES, LAST = ("payment-1", "payment-2"), "is restarted as release 1"


def test_real_processes_have_one_release() -> None:
    with pytest.raises(SagaError, match="deploy others in the simulated world"), ProcessWorld() as world:
        world.deploy(before())


def test_a_schedule_records_workers_that_went_back_and_forth_and_gives_the_same_run() -> None:
    def play(world: SimulatedWorld) -> None:
        began(world, before(), Till())
        world.deploy(after())
        world.run_until_quiet()

    with world_of(3) as first:
        play(first)
        schedule = first.schedule()
    assert any(planned.kind == "deploy" for planned in schedule.planted)
    with SimulatedWorld(schedule.seed, schedule.plan(), guarded=False) as again:
        play(again)
        assert again.fingerprint() == first.fingerprint()


def test_a_release_that_was_deployed_after_the_last_run_fails_the_world() -> None:
    with world_of(0, calm=True) as world:
        began(world, before(), Till())
        world.run_until_quiet()
        world.deploy(after())
        with pytest.raises(
            SagaError, match=r"^a release of payment was deployed in this world, which has not run since"
        ):
            world.verify()
        world.run_for(timedelta(seconds=1))
        world.verify()
