"""Scenarios of the simulated world in which mutants are looked for: each with its faults, and what must be true after
it.

The invariants of the kit are asked after each run; the asserts here are about the outside and about documents, of which
the kit knows nothing.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from math import log2
from types import SimpleNamespace

import pytest

from saga import Event
from saga.contracts.library import contract_of
from saga.declarations.values import Declared
from saga.engine.execution.document_updates import PRUNE_FROM
from saga.messages import texts_of
from saga.messaging import envelope
from saga.messaging.names import timer_topic
from saga.progress import overflow
from saga.progress.document import SagaProgress, decode_transition
from saga.progress.overflow import BOUNDS, OverflowBounds
from saga.testing.fault_plans import Chance, Faults, RandomPlan, faults
from saga.testing.simulation.simulated_world import SimulatedWorld
from services.inventory import inventory
from services.inventory.stock import Stock
from services.order import order
from services.order.events import OrderCancelled, OrderConfirmed, OrderPlaced
from services.payment import payment
from services.payment.bank import Bank
from services.shipping import shipping
from services.shipping.carrier import Carrier
from tests.mutants import large_orders
from tests.mutants.changed_parcels import changed_parcels, connected_parcels
from tests.mutants.closed_rooms import ClosedRooms
from tests.mutants.counted_goods import goods_that_are_counted
from tests.mutants.cured_orders import cured_orders, late_cure
from tests.mutants.duplicate_timers import an_order_at_a_bank_that_is_away_for_hours
from tests.mutants.events import MenuChosen, PartyHeld, PartyPlanned, PartyWithdrawn
from tests.mutants.expiring_orders import orders_that_expire
from tests.mutants.fake_rooms import Rooms
from tests.mutants.large_orders import orders_in_many_parts
from tests.mutants.limited_orders import orders_at_a_bank_that_is_away
from tests.mutants.party_services import LARDER, PAD, Larder, Pad, hall, host, kitchen
from tests.mutants.paused_orders import paused_orders
from tests.mutants.released_orders import released_orders
from tests.mutants.switched_orders import switched_orders
from tests.mutants.two_banks import orders_with_two_banks
from tests.mutants.versioned_baskets import versioned_baskets
from tests.testing.instalments import orders_in_instalments

SEEDS = 300
"""So many seeds a mutant may hide from."""
LINES_MAX = 6_000
"""A run with so many operations goes round in circles: the longest without a mutant has 1,000. A scenario with longer
runs has a bound of its own."""
REPLAYS_MAX = 60
"""Replays of one saga: nearly all chairs are had by then."""
OTHER_CONTENT = "already handled with other content"

shop = SimpleNamespace(order=order, payment=payment, inventory=inventory, shipping=shipping)
"""The services of the shop; a mutant puts another one in the place of one of them."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A scenario, and the faults meanwhile."""

    name: str
    play: Callable[[SimulatedWorld], Callable[[], None]]
    """Runs the world until it is quiet; gives what then looks at outside and documents."""
    faults: Faults
    lines_max: int = LINES_MAX
    bounds: OverflowBounds = BOUNDS
    """Bounds of what stays in a progress."""

    def run(self, seed: int) -> None:
        """Raises `AssertionError` for whatever does not hold."""
        with (
            pytest.MonkeyPatch.context() as patch,
            SimulatedWorld(seed, RandomPlan(self.faults, Chance(seed)), guarded=False) as world,
        ):
            patch.setattr(overflow, "BOUNDS", self.bounds)
            world.always("it comes to rest", lambda: len(world.trace.lines) < self.lines_max)
            judge = self.play(world)
            world.verify()
            judge()


def first_failing(scenario: Scenario, seeds: int = SEEDS, *, begin: int = 0) -> tuple[int, AssertionError] | None:
    """The first seed under which something does not hold, and what. Whatever else is raised is a mistake here.

    Looks at all `seeds` before it gives up, from `begin` on.
    """
    for seed in (*range(begin, seeds), *range(begin)):
        try:
            scenario.run(seed)
        except AssertionError as why:
            return seed, why
    return None


def dead_letters_of(world: SimulatedWorld) -> list[tuple[str, str]]:
    """Saga and reason of all dead letters."""
    dead = [record for record in world.cluster.log if record.topic.endswith(".dead")]
    return [((record.key or b"").decode(), texts_of(record.headers)["dead_reason"]) for record in dead]


def outcomes_of(world: SimulatedWorld) -> dict[str, str]:
    """The outcome of each saga as the log has it: what a service remembers of it may be wrong."""
    types = {name for declared in world.declared.values() for name in outcomes_among(declared)}
    published = [((record.key or b"").decode(), (envelope.type_of(record) or "")) for record in world.cluster.log]
    return {saga: type_ for saga, type_ in published if type_ in types}


def outcomes_among(declared: Declared) -> set[str]:
    """The types of the outcomes that a service may emit."""
    emitted = {event for handler in declared.handlers for event in handler.emits}
    return {event.__name__ for event in emitted if contract_of(event).outcome}


def chance_of(world: SimulatedWorld, what: str) -> float:
    """Chance of the scenario's own, from the world's seed."""
    return Chance(world.seed).draw(what)


# -------------------------------------------------------------------- orders

ORDERS, LEFT, EACH = 6, 9, 2
PRICE = Decimal("9.80")


def an_order(number: int, *, card: str = "4242", address: str = "Kiel") -> OrderPlaced:
    return OrderPlaced(
        order_id=f"order-{number}",
        customer_id="c-1",
        sku="tea",
        quantity=EACH,
        total=PRICE,
        card=card,
        address=address,
    )


def orders(world: SimulatedWorld) -> Callable[[], None]:
    """Several orders share a stock that is too small: one card is blocked, one address is nowhere, one is both."""
    bank, carrier = Bank(), Carrier()
    world.start(
        shop.order,
        shop.payment,
        shop.inventory,
        shop.shipping,
        use=[bank, carrier],
        documents={"tea": Stock(left=LEFT)},
    )
    for number in range(ORDERS):
        card = "declined-1" if number in (1, 4) else "4242"
        address = "Atlantis" if number in (2, 4) else "Kiel"
        world.publish(an_order(number, card=card, address=address))
    world.run_until_quiet()
    return lambda: books_agree(world, bank, carrier)


def books_agree(world: SimulatedWorld, bank: Bank, carrier: Carrier) -> None:
    """Check that bank, carrier and stock have what the outcomes say."""
    letters = dead_letters_of(world)
    assert not letters, letters
    ends = list(outcomes_of(world).values())
    confirmed, cancelled = ends.count(OrderConfirmed.__name__), ends.count(OrderCancelled.__name__)
    assert confirmed + cancelled == ORDERS, ends
    assert not bank.held, f"money is set aside for ever: {bank.held}"
    assert len(bank.taken) == confirmed, f"{confirmed} orders confirmed, {len(bank.taken)} paid"
    assert not carrier.booked, f"bookings stand for ever: {carrier.booked}"
    assert len(carrier.dispatched) == confirmed, f"{confirmed} orders confirmed, {len(carrier.dispatched)} sent"
    stock = world.read(shop.inventory, Stock, "tea")
    assert stock == Stock(left=LEFT - EACH * confirmed), f"{confirmed} orders confirmed, {stock}"


# -------------------------------------------------------------------- parties

FLOUR = 10


def a_party(
    id_: str, *, guests: int = 3, notes: int = 4, flour: int = 3, room: str = "ball", menu: str = "soup"
) -> Event:
    return PartyPlanned(party_id=id_, guests=guests, notes=notes, flour=flour, hall=room, menu=menu)


def parties(world: SimulatedWorld) -> Callable[[], None]:
    """One is held, one has no hall, one neither hall nor flour, one is withdrawn, one has two menus."""
    places = open_rooms(world)
    world.publish(
        a_party("held"),
        a_party("no-hall", room="taken"),
        a_party("nothing", room="taken", flour=99),
        a_party("withdrawn", guests=4),
        a_party("two-menus", menu="", notes=2),
    )
    world.run_for(timedelta(seconds=0.25 * chance_of(world, "withdrawn") ** 2))
    world.publish(PartyWithdrawn(party_id="withdrawn", reason="rain"), PartyWithdrawn(party_id="nothing", reason="sun"))
    world.publish(MenuChosen(party_id="two-menus", dish="fish"), MenuChosen(party_id="two-menus", dish="meat"))
    world.run_until_quiet()
    return lambda: check_parties(world, places, {"held": 3, "no-hall": 3, "nothing": 3, "withdrawn": 4, "two-menus": 3})


def one_party(world: SimulatedWorld) -> Callable[[], None]:
    """Without anybody outside who has a say later."""
    places = open_rooms(world)
    world.publish(a_party("held"), a_party("no-hall", room="taken", guests=4), a_party("no-flour", flour=99, notes=6))
    world.run_until_quiet()
    return lambda: check_parties(world, places, {"held": 3, "no-hall": 4, "no-flour": 3})


def a_long_party(world: SimulatedWorld) -> Callable[[], None]:
    """More notes than an inbox and a progress hold."""
    places = open_rooms(world)
    world.publish(a_party("held", notes=100, guests=1))
    world.run_until_quiet()
    return lambda: check_parties(world, places, {"held": 1})


def a_full_pad(world: SimulatedWorld) -> Callable[[], None]:
    """So many updates of one document that markers go, while a worker stands still inside one of them."""
    places = open_rooms(world)
    notes = PRUNE_FROM + 16
    world.publish(a_party("held", notes=notes, guests=0))
    world.run_for(timedelta(seconds=0.3 + chance_of(world, "when")))
    world.disturb("kitchen-1" if chance_of(world, "who") < 0.5 else "kitchen-2", "freeze")
    world.run_until_quiet()
    return lambda: check_parties(world, places, {"held": 0}, lines=notes)


def mortal_parties(world: SimulatedWorld) -> Callable[[], None]:
    """Chairs can hardly be had: some guests become dead letters, and their parties stand still, or end all the same."""
    places = open_rooms(world)
    world.publish(a_party("held", notes=6), a_party("no-hall", room="taken", guests=4), a_party("no-flour", flour=99))
    world.run_for(timedelta(seconds=300 * chance_of(world, "withdrawn")))
    world.publish(PartyWithdrawn(party_id="held", reason="rain"))
    world.run_until_quiet()

    def judge() -> None:
        assert not places.contradictions, places.contradictions
        for saga in ("held", "no-hall", "no-flour"):
            _in_order(world, saga)

    return judge


def cured_parties(world: SimulatedWorld) -> Callable[[], None]:
    """Chairs can hardly be had, and each time that a run dies of it a person has it tried again, now and then twice:
    in the end every party has all its chairs."""
    places = open_rooms(world)
    guests = {"held": 3, "no-hall": 4}
    world.publish(a_party("held", notes=6), a_party("no-hall", room="taken", guests=4))
    for _ in range(REPLAYS_MAX):
        world.run_until_quiet()
        dead = [saga for saga in guests if blocks(world.progress("hall", saga))]
        if not dead:
            break
        for saga in dead:
            world.replay(hall, saga)
            if chance_of(world, f"twice {saga}") < 0.3:
                world.replay(hall, saga)
    else:
        world.run_until_quiet()

    def judge() -> None:
        assert not places.contradictions, places.contradictions
        assert not any(blocks(world.progress("hall", saga)) for saga in guests), "a dead letter stands after its replay"
        for saga in guests:
            _in_order(world, saga)
        ends = outcomes_of(world)
        assert ends.keys() == guests.keys(), ends
        held = [saga for saga, end in ends.items() if end == PartyHeld.__name__]
        due, reported = sum(guests[saga] + 1 for saga in held), len(reported_calls(world))
        assert due <= len(places.held) <= due + reported, f"{places.held} stand, {reported} calls were reported, {ends}"

    return judge


OPENS_S_MAX, TAKES_BACK_S_MAX = 90, 400
"""The rooms open before any handler has made its twelve attempts; a compensation is retried without limit."""


def parties_at_closed_doors(world: SimulatedWorld) -> Callable[[], None]:
    """The rooms are closed for a while, and take nothing back for longer: every party has its end all the same, but for
    the one that wants a haunted hall."""
    opens_s, takes_back_s = OPENS_S_MAX * chance_of(world, "opens"), TAKES_BACK_S_MAX * chance_of(world, "back")
    places = ClosedRooms(lambda: world.now_s, opens_s, takes_back_s)
    world.start(host, hall, kitchen, use=[places], documents={LARDER: Larder(flour=FLOUR), PAD: Pad()})
    guests = {"held": 3, "no-hall": 4, "withdrawn": 2}
    world.publish(a_party("held", notes=6), a_party("no-hall", room="taken", guests=4), a_party("withdrawn", guests=2))
    world.publish(a_party("ghosts", room="haunted", guests=1, notes=6, flour=1))
    world.run_for(timedelta(seconds=opens_s * chance_of(world, "withdrawn")))
    world.publish(PartyWithdrawn(party_id="withdrawn", reason="rain"))
    world.run_until_quiet()

    def judge() -> None:
        assert not places.contradictions, places.contradictions
        dead = set(dead_letters_of(world))  # each may be published twice
        if any(fault.planned.kind == "clock" for fault in world.trace.faults):
            # A clock that is ahead of the retention takes a message for one of a forgotten saga
            # (docs/concepts/protocol.md).
            dead = {(saga, why) for saga, why in dead if not why.startswith("older than the retention")}
        assert [saga for saga, _ in dead] == ["ghosts"], dead
        ends = outcomes_of(world)
        assert ends.keys() == guests.keys(), ends
        held = [saga for saga, end in ends.items() if end == PartyHeld.__name__]
        chairs = sum(guests[saga] + 1 for saga in held)
        assert chairs <= len(places.held) <= chairs + 1, (
            f"{places.held} stand, with the chair of a ghost or not, {ends}"
        )
        for saga in (*guests, "ghosts"):
            _in_order(world, saga)
        _patient(world, places)

    return judge


def _patient(world: SimulatedWorld, places: ClosedRooms) -> None:
    """Check that attempts are spaced, and wakes few."""
    disturbances = len(world.trace.faults)
    for key, times in places.turned_away.items():
        lasted_s = times[-1] - times[0]
        most = 6 + 2 * log2(1 + lasted_s / 0.2) + disturbances
        assert len(times) <= most, f"{len(times)} attempts of {key} within {lasted_s} s"
    wakes = Counter(
        (record.topic.split(".")[0], record.key) for record in world.cluster.log if ".wake." in record.topic
    )
    for (service, saga), count in wakes.items():
        p = world.progress(service, (saga or b"").decode())
        named = 0 if p is None else sum(decode_transition(raw).timer is not None for raw in p.transitions)
        assert count <= 3 * named + disturbances, f"{count} wakes of {saga!r} in {service}, and {named} were named"


def reported_calls(world: SimulatedWorld) -> list[str]:
    """Calls that were reported for a person to correct."""
    headers = [header for record in world.cluster.log if record.topic.endswith(".dead") for header in record.headers]
    return [(value or b"").decode() for name, value in headers if name == "dead_call"]


def blocks(p: SagaProgress | None) -> bool:
    """True if a dead letter blocks the saga."""
    return p is not None and p.is_quarantined


def open_rooms(world: SimulatedWorld) -> Rooms:
    places = Rooms()
    world.start(host, hall, kitchen, use=[places], documents={LARDER: Larder(flour=FLOUR), PAD: Pad()})
    return places


def check_parties(world: SimulatedWorld, places: Rooms, guests: dict[str, int], *, lines: int = 0) -> None:
    """Check that what is held outside is what the outcomes say. `guests`: how many come to each party. `lines`: of the
    pad, if not 0."""
    assert not places.contradictions, places.contradictions
    dead = [(saga, why) for saga, why in dead_letters_of(world) if not (saga == "two-menus" and OTHER_CONTENT in why)]
    assert not dead, dead
    ends = outcomes_of(world)
    assert ends.keys() == guests.keys(), ends
    held = sum(end == PartyHeld.__name__ for end in ends.values())
    chairs = sum(guests[saga] for saga, end in ends.items() if end == PartyHeld.__name__)
    assert len(places.held) == chairs + held, f"{places.held} stand, {ends}"
    larder = world.read(kitchen, Larder, LARDER)
    assert larder is not None
    assert (larder.flour, larder.used) == (FLOUR - 3 * held, 3 * held), f"{larder}, {ends}"
    assert larder.drinks <= len(guests), larder
    pad = world.read(kitchen, Pad, PAD)
    assert not lines or pad == Pad(lines=lines), f"{lines} notes were left, {pad}"
    for saga in guests:
        _in_order(world, saga)


def _in_order(world: SimulatedWorld, saga: str) -> None:
    p = world.progress("hall", saga)
    state = {} if p is None else p.state
    for heard in ("notes", "places"):
        notes = [int(number) for number in state.get(heard, "").split()]
        assert notes == sorted(set(notes)), f"the {heard} of {saga} came as {notes}"
    if p is not None and not p.first:
        entries = [decode_transition(raw) for raw in p.transitions]
        taken = sum(e.handler == "seat" and e.outcome == "handled" for e in entries)
        freed = sum(e.handler == "unseat" and bool(e.cause) for e in entries)
        chairs = (state.get("taken", 0), state.get("freed", 0))
        assert chairs == (taken - freed, freed), f"{taken} chairs were rented and {freed} are back, {state}"


CLUMSY = faults.of("lost answer", rate=0.03) | faults.of("late answer", rate=0.02) | faults.of("crash", rate=0.02)
"""Answers get lost, and processes die."""
RESTLESS = (
    faults.of("rebalance", rate=0.02)
    | faults.of("crash", rate=0.02)
    | faults.of("freeze", rate=0.005)
    | faults.of("delay", rate=0.02)
    | faults.of("duplicate", rate=0.03)
)
"""Partitions move, zombies go on, messages come twice or late."""

FAILING = faults.of("partition", "clock", "full disk", "slow store", rate=0.002) | faults.of("throttle", rate=0.01)
"""Store, log and clocks have their bad days."""

COPIED_WAKES = (
    faults.of("duplicate", rate=0.5, target=timer_topic("payment", "1m"))
    | faults.of("duplicate", rate=0.5, target=timer_topic("payment", "4m"))
    | faults.of("duplicate", rate=0.5, target=timer_topic("payment", "16m"))
)
"""Half of the wakes lie in the log twice."""

SLOW_GOODS = (
    faults.of("delay", rate=0.1, target="inventory")
    | faults.of("crash", "lost answer", "late answer", rate=0.005)
    | faults.of("duplicate", rate=0.01)
)
"""Much is on its way when a worker of the inventory stands still."""

SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario(name="orders, clumsy", play=orders, faults=CLUMSY),
        Scenario(name="orders, restless", play=orders, faults=RESTLESS),
        Scenario(name="parties, clumsy", play=parties, faults=CLUMSY),
        Scenario(name="parties, restless", play=parties, faults=RESTLESS),
        Scenario(name="one party, clumsy", play=one_party, faults=CLUMSY),
        Scenario(name="one party, restless", play=one_party, faults=RESTLESS),
        Scenario(
            name="mortal parties",
            play=mortal_parties,
            faults=faults.of("lost answer", rate=0.8, target="hall.seat") | RESTLESS,
        ),
        Scenario(
            name="cured parties",
            play=cured_parties,
            faults=faults.of("lost answer", rate=0.95, target="hall.seat") | RESTLESS,
            lines_max=10_000,  # of 300 seeds the longest has 8,636
        ),
        Scenario(name="paused orders", play=paused_orders, faults=CLUMSY | RESTLESS, lines_max=5_000),
        Scenario(name="changed parcels", play=changed_parcels, faults=CLUMSY | RESTLESS),
        Scenario(name="parcels behind a connector", play=connected_parcels, faults=CLUMSY | RESTLESS),
        Scenario(name="switched orders", play=switched_orders, faults=CLUMSY | RESTLESS, lines_max=10_000),
        Scenario(
            name="released orders",
            play=released_orders,
            faults=CLUMSY | RESTLESS | faults.of("deploy", rate=0.04, target="payment"),
            lines_max=5_000,
        ),
        Scenario(name="versioned baskets", play=versioned_baskets, faults=CLUMSY | RESTLESS, lines_max=3_000),
        Scenario(name="cured orders", play=cured_orders, faults=CLUMSY | RESTLESS, lines_max=10_000),
        Scenario(name="an order that is cured late", play=late_cure, faults=CLUMSY | RESTLESS),
        Scenario(
            name="parties at closed doors",
            play=parties_at_closed_doors,
            faults=CLUMSY | RESTLESS | FAILING,
            lines_max=24_000,
        ),
        Scenario(
            name="an order at a bank that is away for hours",
            play=an_order_at_a_bank_that_is_away_for_hours,
            faults=COPIED_WAKES,
        ),
        Scenario(
            name="orders at a bank that is away", play=orders_at_a_bank_that_is_away, faults=CLUMSY, lines_max=5_000
        ),
        Scenario(name="orders with two banks", play=orders_with_two_banks, faults=CLUMSY),
        Scenario(name="orders that expire", play=orders_that_expire, faults=CLUMSY | RESTLESS, lines_max=6_000),
        Scenario(name="goods that are counted", play=goods_that_are_counted, faults=SLOW_GOODS),
        Scenario(name="orders in instalments", play=orders_in_instalments, faults=CLUMSY | RESTLESS, lines_max=5_000),
        Scenario(
            name="orders in many parts",
            play=orders_in_many_parts,
            faults=CLUMSY | RESTLESS,
            lines_max=3_000,
            bounds=large_orders.BOUNDS,
        ),
        Scenario(
            name="a long party",
            play=a_long_party,
            faults=faults.of("duplicate", rate=0.5) | faults.of("crash", rate=0.002),
        ),
        Scenario(name="a full pad", play=a_full_pad, faults=faults.of("lost answer", rate=0.01)),
    )
}
