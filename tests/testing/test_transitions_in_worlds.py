"""Published transitions in a world full of faults: exactly those that the services have written."""

from collections import Counter
from hashlib import sha256

import msgspec
import pytest

from saga.messages import Record
from saga.messaging.names import TRANSITIONS
from saga.messaging.transition_events import TransitionEvent, parse_transitions
from saga.progress.document import SagaProgress, Transition, decode_progress
from saga.testing.fault_plans import Chance, RandomPlan, faults
from saga.testing.simulation.simulated_world import SimulatedWorld
from services.inventory import inventory
from services.inventory.stock import Stock
from services.order import order
from services.payment import payment
from services.payment.bank import Bank
from services.shipping import shipping
from services.shipping.carrier import Carrier
from tests.testing.faulty_worlds import EVERYTHING, seeds
from tests.testing.simulation.orders import an_order

SEEDS = seeds(6)


def world_of(seed: int, *, tells: bool = True) -> SimulatedWorld:
    asked = EVERYTHING if seed else faults.of("crash", rate=0.0)
    return SimulatedWorld(seed, RandomPlan(asked, Chance(seed)), guarded=False, publishes_transitions=tells)


def play(world: SimulatedWorld) -> None:
    world.start(order, payment, inventory, shipping, use=[Bank(), Carrier()], documents={"tea": Stock(left=9)})
    world.publish(an_order(17), an_order(18, address="Atlantis"), an_order(19, card="declined-1"))
    world.run_until_quiet()


def read_transition_events(world: SimulatedWorld) -> list[TransitionEvent]:
    log = [record for record in world.evidence().log if record.topic == TRANSITIONS]
    records = [Record(TRANSITIONS, 0, n, r.key, r.value, r.headers, 0) for n, r in enumerate(log)]
    return [transition for record in records for transition in parse_transitions(record)]


def written_in(world: SimulatedWorld) -> dict[tuple[str, str, int], Transition]:
    """Every transition of every progress."""
    progresses: list[SagaProgress] = []
    for found in world.evidence().services.values():
        progresses += [decode_progress(contents[-1]) for contents in found.versions.values()]
    assert progresses
    assert all(p.first == 0 for p in progresses)
    return {
        (p.service, p.saga, n): msgspec.json.decode(raw, type=Transition)
        for p in progresses
        for n, raw in enumerate(p.transitions)
    }


def hash_of(entry: Transition) -> str:
    return sha256(msgspec.json.encode(entry)).hexdigest()


@pytest.mark.parametrize("seed", SEEDS)
def test_exactly_what_was_written_is_published_through_crashes_and_lost_answers(seed: int) -> None:
    with world_of(seed) as world:
        play(world)
        transitions, written = read_transition_events(world), written_in(world)
        world.verify()
    assert {(t.service, t.saga, t.number, t.hash) for t in transitions} == {
        (*where, hash_of(entry)) for where, entry in written.items()
    }
    for each in transitions:
        entry = written[each.service, each.saga, each.number]
        assert (each.previous, each.outcome, each.handler) == (entry.previous, entry.outcome, entry.handler)
        assert tuple(emitted.id for emitted in each.emitted) == tuple(event.id for event in entry.events)


def test_without_faults_a_transition_is_published_again_only_by_workers_that_load_its_progress() -> None:
    with world_of(0) as world:
        play(world)
        counts = Counter((t.service, t.saga, t.number) for t in read_transition_events(world))
        again = [t for t in read_transition_events(world) if t.handler_ms is None]
    assert sum(counts.values()) - len(counts) == len(again)
    assert set(counts.values()) == {1, 2}


def test_deadlines_waits_and_outcomes_are_published_with_the_transition_that_brings_them() -> None:
    with world_of(0) as world:
        play(world)
        transitions = [t for t in read_transition_events(world) if t.handler_ms is not None]
    decided = {(t.saga, t.result) for t in transitions if t.result is not None}
    assert decided == {("order-17", "success"), ("order-18", "failure"), ("order-19", "failure")}
    assert {t.service for t in transitions if t.result or t.due} == {"order"}
    assert all((t.open or t.due is None) and (t.kept_s is None) == t.open for t in transitions)
    (first,) = [t for t in transitions if (t.service, t.saga, t.number) == ("shipping", "order-17", 0)]
    (waits,) = first.awaits
    parts = {"OrderPlaced", "PaymentReserved", "InventoryReserved"}
    assert (first.outcome, waits.handler, set(waits.types)) == ("waiting", "book", parts - {first.message.type})


def test_a_world_publishes_no_transitions_unless_asked() -> None:
    with world_of(0, tells=False) as world:
        play(world)
        assert read_transition_events(world) == []
