"""Documents that an application writes in a world: simulated under faults, noted by the store or read by a connector,
and in real processes."""

import json
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal

import pytest

from saga import Change, Saga, Service
from saga.errors import SagaError
from saga.messages import Record
from saga.messaging import envelope
from saga.testing.decorators import Crashes, Seeds
from saga.testing.fault_plans import Faults, Schedule, faults
from saga.testing.processes import ProcessWorld
from saga.testing.simulation.reports import report, summary, timeline
from saga.testing.simulation.runs import RunOptions, Tally, run_all
from saga.testing.simulation.simulated_world import SimulatedWorld
from saga.testing.world import World
from services.inventory import inventory
from services.inventory.stock import Stock
from services.order import order
from services.order.events import OrderConfirmed, OrderPlaced
from services.payment import payment
from services.payment.bank import Bank
from services.shipping import shipping
from services.shipping.carrier import Carrier
from tests.service.documents import OrderDocument, intake
from tests.testing.faulty_worlds import seeds, simulated
from tests.testing.parcels import GONE, Parcel, Seen, watcher, watching, wrong_with

SEEDS = seeds(4)
VERSIONS = (1, 2, 3, GONE)
SOURCES = pytest.mark.parametrize("connector", [False, True], ids=["noted by the store", "published by a connector"])


deaf = Service("watching", state=Seen)
"""Release of `watching` before it took changes."""
deaf.document(Parcel, "parcels")


@deaf.handler
async def take(placed: OrderPlaced) -> None: ...


@dataclass(frozen=True)
class Crate:
    """Document of which a field names the saga."""

    number: str
    version: int


numbering = Service("numbering", state=Seen)
numbering.document(Crate, "crates", saga="number")


@numbering.handler(repeats=Change[Crate])
async def count(change: Change[Crate], saga: Saga[Seen]) -> None:
    version = GONE if change.document is None else change.document.version
    saga.state = Seen((*saga.state.versions, version))


stamping = Service("stamping", state=Seen)
stamping.document(Parcel, "parcels")


def stamped(parcel: Parcel) -> Parcel:
    return parcel


@stamping.handler(repeats=Change[Parcel])
async def stamp(change: Change[Parcel], saga: Saga[Seen]) -> OrderPlaced | None:
    """Leaves its mark in the document, and nothing else: that is no change."""
    version = GONE if change.document is None else change.document.version
    await saga.update(Parcel, change.key, stamped)
    saga.state = Seen((*saga.state.versions, version))
    return None


def parcels_are_written(world: World) -> None:
    """Three parcels, each written and removed: some quickly, some with time between."""
    world.start(watching)
    for version in (1, 2):
        for key in "abc":
            world.write(watching, key, Parcel(version))
        world.run_for(timedelta(seconds=2 * (version - 1)))
    for key in "abc":
        world.write(watching, key, Parcel(3))
        world.remove(watching, Parcel, key)
    world.run_until_quiet()


def seen(world: SimulatedWorld) -> dict[str, tuple[int, ...]]:
    """Versions that each parcel's saga was shown."""
    progresses = {key: world.progress("watching", key) for key in "abc"}
    return {key: tuple(p.state["versions"]) for key, p in progresses.items() if p is not None}


def published_changes(world: SimulatedWorld) -> list[Record]:
    return [record for record in world.cluster.log if record.topic == "watching.changes.parcels"]


@SOURCES
@pytest.mark.parametrize("seed", SEEDS)
def test_each_version_is_shown_once_in_order_and_the_last_surely_whatever_happens(seed: int, connector: bool) -> None:
    with simulated(seed) as world:
        if connector:
            world.use_connector()
        parcels_are_written(world)
        world.verify()
        assert {key: wrong_with(v, VERSIONS, merges=connector) for key, v in seen(world).items()} == dict.fromkeys(
            "abc"
        )


def test_a_store_provides_the_version_before_and_a_connector_does_not() -> None:
    for connector, before in ((False, (None, 1, 2, 3)), (True, (None,))):
        with simulated(0) as world:
            if connector:
                world.use_connector()
            parcels_are_written(world)
            p = world.progress("watching", "a")
            assert p is not None
            shown = tuple(p.state["before"])
            assert shown == (before if not connector else before * len(shown))
            if not connector:
                assert p.state["kinds"] == ["Insert", "Update", "Update", "Delete"]


def test_a_connector_publishes_only_the_last_of_quick_writes() -> None:
    merged = []
    for seed in range(5):
        with SimulatedWorld(seed, guarded=False) as world:
            world.use_connector()
            parcels_are_written(world)
            merged += [key for key, versions in seen(world).items() if len(versions) < len(VERSIONS)]
    assert merged


def test_a_connector_that_died_publishes_a_stretch_again_and_no_saga_sees_it_twice() -> None:
    again = 0
    for seed in range(8):
        with simulated_with(seed, faults.of("crash", rate=0.2, target="watching-connector")) as world:
            world.use_connector()
            parcels_are_written(world)
            world.verify()
            versions = [(record.key, json.loads(record.value or b"")["cas"]) for record in published_changes(world)]
            again += len(versions) - len(set(versions))
            assert all(wrong_with(v, VERSIONS, merges=True) is None for v in seen(world).values())
    assert again


def test_after_a_gap_removals_are_never_published_and_existing_documents_are() -> None:
    lost = 0
    for seed in range(10):
        with simulated_with(seed, faults.of("gap", rate=0.3)) as world:
            world.use_connector()
            world.start(watching)
            for version in (1, 2):
                for key in "abc":
                    world.write(watching, key, Parcel(version))
                world.run_for(timedelta(seconds=1))
            world.remove(watching, Parcel, "a")
            world.run_until_quiet()
            world.verify()
            shown = seen(world)
            assert [shown[key][-1] for key in "bc"] == [2, 2]
            lost += shown.get("a", ())[-1:] != (GONE,)
    assert lost


def test_after_a_gap_a_document_that_is_gone_is_not_published_at_all() -> None:
    silent = 0
    for seed in range(8):
        with simulated_with(seed, faults.of("gap", rate=1.0)) as world:
            world.use_connector()
            world.start(watching)
            world.write(watching, "a", Parcel(1))
            world.remove(watching, Parcel, "a")
            world.run_until_quiet()
            silent += not published_changes(world)
    assert silent


def simulated_with(seed: int, asked: Faults) -> SimulatedWorld:
    return SimulatedWorld(seed, Schedule(seed=seed, drawn=asked).plan(), guarded=False)


@SOURCES
def test_a_document_past_its_expiry_is_noted_as_expired(connector: bool) -> None:
    with simulated(0) as world:
        if connector:
            world.use_connector()
        world.start(watching)
        world.write(watching, "a", Parcel(1), expires=timedelta(hours=1))
        world.run_for(timedelta(minutes=59))
        assert world.read(watching, Parcel, "a") == Parcel(1)
        world.run_until_quiet()
        p = world.progress("watching", "a")
        assert p is not None
        assert (p.state["versions"], p.state["kinds"][-1]) == ([1, GONE], "Expiry")
        assert world.read(watching, Parcel, "a") is None
        assert timedelta(hours=1) <= timedelta(seconds=world.now_s) <= timedelta(hours=1, minutes=2)


@SOURCES
def test_documents_that_are_there_from_the_beginning_are_insertions(connector: bool) -> None:
    with simulated(0) as world:
        if connector:
            world.use_connector()
        world.start(watching, documents={"a": Parcel(1), "b": Parcel(1)})
        world.run_until_quiet()
        assert seen(world) == {"a": (1,), "b": (1,)}
        world.verify()


@SOURCES
def test_a_release_that_handles_changes_gets_the_documents_that_existed_before(connector: bool) -> None:
    with simulated(3) as world:
        if connector:
            world.use_connector()
        world.start(deaf)
        world.write(deaf, "a", Parcel(1))
        world.run_for(timedelta(seconds=1))
        world.deploy(watching)
        world.write(deaf, "b", Parcel(1))
        world.run_until_quiet()
        world.verify()
        assert seen(world) == {"a": (1,), "b": (1,)}


@SOURCES
@pytest.mark.parametrize("seed", SEEDS[:3])
def test_documents_whose_field_names_the_saga_are_shown_to_it(seed: int, connector: bool) -> None:
    with simulated_with(seed, faults.everything()) as world:
        if connector:
            world.use_connector()
        world.start(numbering)
        for version in (1, 2):
            world.write(numbering, "crate", Crate("n-7", version))
            world.run_for(timedelta(seconds=1))
        world.run_until_quiet()
        world.verify()
        p = world.progress("numbering", "n-7")
        assert p is not None
        assert p.state["versions"][-1] == 2
        assert "writes crates/crate of numbering" in "\n".join(timeline(world, ["n-7"]))


def test_a_change_that_comes_again_after_the_memory_breaks_no_invariant() -> None:
    for seed in range(12):
        with simulated_with(seed, faults.of("expiry", rate=0.4, target="numbering")) as world:
            world.start(numbering)
            for version in (1, 2):
                world.write(numbering, "crate", Crate("n-7", version))
                world.run_for(timedelta(seconds=1))
            world.run_until_quiet()
            world.verify()


@SOURCES
def test_services_with_collections_of_one_name_are_shown_their_own(connector: bool) -> None:
    with simulated(2) as world:
        if connector:
            world.use_connector()
        world.start(watching, watcher("second"))
        world.write(watching, "a", Parcel(1))
        world.run_until_quiet()
        world.verify()
        assert world.progress("watching", "a") is not None
        assert world.progress("second", "a") is None


@pytest.mark.parametrize("seed", SEEDS[:3])
def test_markers_in_a_document_survive_a_write_of_the_application(seed: int) -> None:
    with simulated(seed) as world:
        world.start(stamping)
        for version in (1, 2, 3):
            world.write(stamping, "a", Parcel(version))
            world.run_for(timedelta(seconds=1))
        world.run_until_quiet()
        world.verify()
        assert world.read(stamping, Parcel, "a") == Parcel(3)
        p = world.progress("stamping", "a")
        assert p is not None
        assert p.state["versions"] == [1, 2, 3], "its own marks are no change"


# -------------------------------------------------------------------- whole choreographies


def an_order(sku: str = "tea") -> OrderDocument:
    return OrderDocument(customer_id="c-1", sku=sku, total=Decimal("9.80"), quantity=2)


def ordered_by_documents(world: World) -> Bank:
    bank = Bank()
    world.start(intake, order, payment, inventory, shipping, use=[bank, Carrier()], documents={"tea": Stock(left=9)})
    for number in (1, 2):
        world.write(intake, f"order-{number}", an_order())
        world.write(intake, f"order-{number}", an_order())
    world.remove(intake, OrderDocument, "order-2")
    world.run_until_quiet()
    return bank


@SOURCES
@pytest.mark.parametrize("seed", SEEDS[:2])
def test_each_document_is_one_order_whatever_happens(seed: int, connector: bool) -> None:
    with simulated(seed) as world:
        if connector:
            world.use_connector()
        bank = ordered_by_documents(world)
        world.verify()
        placed = {r.key for r in world.cluster.log if r.topic == "orders" and envelope.type_of(r) == "OrderPlaced"}
        ended = [world.outcome(saga.decode()) for saga in placed if saga]
        assert b"order-1" in placed
        assert ended == [OrderConfirmed] * len(placed), "a document that is gone before it is published is no order"
        assert (len(bank.taken), bank.held) == (len(placed), {})


def test_a_document_that_is_gone_before_it_is_published_starts_no_saga_that_would_have_to_end() -> None:
    unplaced = 0
    for seed in range(6):
        with SimulatedWorld(seed, guarded=False) as world:
            world.use_connector()
            world.start(intake, order, payment, inventory, shipping, use=[Bank(), Carrier()])
            world.write(intake, "order-1", an_order())
            world.remove(intake, OrderDocument, "order-1")
            world.run_until_quiet()
            world.verify()
            unplaced += world.outcome("order-1") is None
    assert unplaced


def test_documents_of_real_processes_are_shown_whichever_process_is_killed() -> None:
    with ProcessWorld(1, {"crash": 0.01}) as world:
        parcels_are_written(world)
        for key in "abc":
            p = world._find_progress(watching, key)
            assert p is not None
            # What is written before the service first runs comes as it is then.
            assert wrong_with(p.state["versions"], VERSIONS, merges=True) is None
        world.verify()
        assert "killed" in " ".join(world.happened)
        with pytest.raises(SagaError, match="up to an hour after its time"):
            world.write(watching, "d", Parcel(1), expires=timedelta(seconds=1))
        with pytest.raises(SagaError, match="'intake' was not started in this world"):
            world.write(intake, "order-1", an_order())


@SOURCES
def test_a_crash_at_every_point_changes_nothing(connector: bool) -> None:
    def scenario(world: SimulatedWorld) -> None:
        if connector:
            world.use_connector()
        world.start(watching)
        for version in (1, 2):
            world.write(watching, "a", Parcel(version))
        world.remove(watching, Parcel, "a")
        world.run_until_quiet()
        assert wrong_with(seen(world)["a"], (1, 2, GONE), merges=connector) is None

    tally = Tally()
    failed = run_all(scenario, Crashes(pairs=False), tally, RunOptions())
    assert failed is None, report(failed, "it")
    assert tally.points >= 12
    assert f"{3 * tally.runs} documents written or removed; a crash at each of" in summary(tally)


# -------------------------------------------------------------------- what a test reports


def test_a_run_that_fails_is_shrunk_to_the_documents_that_matter() -> None:
    def scenario(world: SimulatedWorld) -> None:
        world.start(watching)
        world.always("no parcel is sent twice", lambda: "b" not in seen(world) or seen(world)["b"] != (1, 2))
        for key in "abc":
            world.write(watching, key, Parcel(1))
            world.write(watching, key, Parcel(2))
        world.run_until_quiet()

    failed = run_all(scenario, Seeds(1, Faults()), Tally(), RunOptions())
    assert failed is not None
    text = report(failed, "it")
    assert "shrunk from 6 documents to 2 in" in text
    assert "application    writes parcels/b of watching" in text
    assert "parcels/a" not in text


def test_the_timeline_of_a_saga_has_its_documents_alone() -> None:
    with simulated(0) as world:
        parcels_are_written(world)
        lines = "\n".join(timeline(world, ["b"]))
        assert lines.count("writes parcels/b of watching") == 3
        assert lines.count("removes parcels/b of watching") == 1
        assert "parcels/a" not in lines


def test_the_same_seed_gives_the_same_run() -> None:
    prints = []
    for _ in range(2):
        with simulated(3) as world:
            world.use_connector()
            parcels_are_written(world)
            prints.append(world.fingerprint())
    assert prints[0] == prints[1]


def test_an_invalid_document_write_in_a_world_is_refused() -> None:
    with simulated(0) as world:
        with pytest.raises(SagaError, match="'watching' was not started in this world"):
            world.write(watching, "a", Parcel(1))
        world.start(watching)
        with pytest.raises(SagaError, match="'watching' declares no document OrderDocument"):
            world.write(watching, "a", an_order())
        with pytest.raises(SagaError, match="'watching' declares no document OrderDocument"):
            world.remove(watching, OrderDocument, "a")
        with pytest.raises(SagaError, match=r"world.use_connector\(\) comes before world.start"):
            world.use_connector()
    with ProcessWorld() as processes, pytest.raises(SagaError, match="no connector of its own"):
        processes.use_connector()
