"""What is played in the simulated world to find mutants: each scenario with its faults, and what must be true after it.

The invariants of the kit are asked after each run; the asserts here are about the outside and about documents, of which
the kit knows nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from types import SimpleNamespace

from saga import Event
from saga.progress.history import TRANSITIONS_MAX
from saga.testing.faults import Faults, faults
from saga.testing.simulation.chance import Chance
from saga.testing.simulation.plan import Drawn
from saga.testing.simulation.world import SimulatedWorld
from services.inventory import inventory
from services.inventory.stock import Stock
from services.order import order
from services.order.events import OrderCancelled, OrderConfirmed, OrderPlaced
from services.payment import payment
from services.payment.bank import Bank
from services.shipping import shipping
from services.shipping.carrier import Carrier
from tests.mutants.events import MenuChosen, PartyCalledOff, PartyHeld, PartyPlanned, PartyWithdrawn
from tests.mutants.outside import Rooms
from tests.mutants.party import LARDER, Larder, hall, host, kitchen

SEEDS = 300
"""So many seeds a mutant may hide from."""
OTHER_CONTENT = "already handled with other content"

shop = SimpleNamespace(order=order, payment=payment, inventory=inventory, shipping=shipping)
"""The services of the shop; a mutant puts another one in the place of one of them."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What is played, and what goes wrong meanwhile."""

    name: str
    play: Callable[[SimulatedWorld], None]
    faults: Faults

    def run(self, seed: int) -> None:
        """Raises `AssertionError` or `SagaError` for whatever does not hold."""
        with SimulatedWorld(seed, Drawn(self.faults, Chance(seed)), guarded=False) as world:
            self.play(world)
            world.verify()


def first_failing(scenario: Scenario, seeds: int = SEEDS) -> tuple[int, Exception] | None:
    """The first seed under which the scenario fails, and with what."""
    for seed in range(seeds):
        try:
            scenario.run(seed)
        except Exception as why:  # noqa: BLE001 - a mutant may fail in any way
            return seed, why
    return None


def letters_of(world: SimulatedWorld) -> list[tuple[str, str]]:
    """Saga and reason of all dead letters."""
    dead = [record for record in world.cluster.log if record.topic.endswith(".dead")]
    return [((record.key or b"").decode(), dict(record.headers)["dead_reason"].decode()) for record in dead]


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


def orders(world: SimulatedWorld) -> None:
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
    letters = [letter for letter in letters_of(world) if letter[0] not in world.cluster.spoiled]
    assert not letters, letters
    ends = [world.outcome(f"order-{number}") for number in range(ORDERS)]
    confirmed = sum(end is not None and end.__name__ == OrderConfirmed.__name__ for end in ends)
    cancelled = sum(end is not None and end.__name__ == OrderCancelled.__name__ for end in ends)
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


def parties(world: SimulatedWorld) -> None:
    """One is held, one has no hall, one neither hall nor flour, one is withdrawn, one has two menus."""
    places = opened(world)
    world.publish(
        a_party("held"),
        a_party("no-hall", room="taken"),
        a_party("nothing", room="taken", flour=99),
        a_party("withdrawn", guests=4),
        a_party("two-menus", menu="", notes=2),
    )
    world.run_for(timedelta(seconds=0.25 * chance_of(world, "withdrawn") ** 2))
    world.publish(PartyWithdrawn(party_id="withdrawn", reason="rain"))
    world.publish(MenuChosen(party_id="two-menus", dish="fish"), MenuChosen(party_id="two-menus", dish="meat"))
    world.run_until_quiet()
    judged(world, places, {"held": 3, "no-hall": 3, "nothing": 3, "withdrawn": 4, "two-menus": 3})


def one_party(world: SimulatedWorld) -> None:
    """Without anybody outside who has a say later."""
    places = opened(world)
    world.publish(a_party("held"), a_party("no-hall", room="taken", guests=4), a_party("no-flour", flour=99, notes=6))
    world.run_until_quiet()
    judged(world, places, {"held": 3, "no-hall": 4, "no-flour": 3})


def a_long_party(world: SimulatedWorld) -> None:
    """More notes than an inbox and a progress hold."""
    places = opened(world)
    world.publish(a_party("held", notes=100, guests=1))
    world.run_until_quiet()
    judged(world, places, {"held": 1})
    p = world.progress("hall", "held")
    assert p is not None
    assert len(p.transitions) <= TRANSITIONS_MAX + 1, f"{len(p.transitions)} transitions are in one document"


def opened(world: SimulatedWorld) -> Rooms:
    places = Rooms()
    world.start(host, hall, kitchen, use=[places], documents={LARDER: Larder(flour=FLOUR)})
    return places


def judged(world: SimulatedWorld, places: Rooms, guests: dict[str, int]) -> None:
    """What stands outside is what the outcomes say, as far as nobody was told otherwise."""
    assert not places.contradictions, places.contradictions
    letters = [letter for letter in letters_of(world) if letter[0] not in world.cluster.spoiled]
    wrong = [letter for letter in letters if OTHER_CONTENT in letter[1] and letter[0] != "two-menus"]
    assert not wrong, wrong
    dead = [letter for letter in letters if OTHER_CONTENT not in letter[1]]
    assert not dead, dead
    ends = {saga: world.outcome(saga) for saga in guests}
    assert None not in ends.values(), ends
    assert {end.__name__ for end in ends.values() if end} <= {PartyHeld.__name__, PartyCalledOff.__name__}
    chairs = sum(guests[saga] for saga, end in ends.items() if end is PartyHeld)
    held = sum(end is PartyHeld for end in ends.values())
    assert len(places.held) == chairs + held, f"{places.held} stand, {ends}"
    larder = world.read(kitchen, Larder, LARDER)
    assert larder is not None
    assert (larder.flour, larder.used) == (FLOUR - 3 * held, 3 * held), f"{larder}, {ends}"
    assert larder.drinks <= len(guests), larder
    for saga in guests:
        _in_order(world, saga)


def _in_order(world: SimulatedWorld, saga: str) -> None:
    p = world.progress("hall", saga)
    notes = [] if p is None else [int(number) for number in p.state.get("notes", "").split()]
    assert notes == sorted(set(notes)), f"the notes of {saga} came as {notes}"


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

SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario(name="orders, clumsy", play=orders, faults=CLUMSY),
        Scenario(name="orders, restless", play=orders, faults=RESTLESS),
        Scenario(name="orders, everything", play=orders, faults=faults.everything()),
        Scenario(name="parties, clumsy", play=parties, faults=CLUMSY),
        Scenario(name="parties, restless", play=parties, faults=RESTLESS),
        Scenario(name="parties, everything", play=parties, faults=faults.everything()),
        Scenario(name="one party, clumsy", play=one_party, faults=CLUMSY),
        Scenario(name="one party, restless", play=one_party, faults=RESTLESS),
        Scenario(
            name="a long party",
            play=a_long_party,
            faults=faults.of("duplicate", rate=0.05) | faults.of("crash", rate=0.002),
        ),
    )
}
