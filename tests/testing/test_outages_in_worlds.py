"""After any outage of what some sagas need, their messages are handled once and in order; other sagas wait for none of
them."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, event, example, given, settings
from hypothesis import strategies as st

from saga import Saga, Service
from saga.testing.simulation.simulated_world import SimulatedWorld
from tests.mutants.events import MenuChosen, PartyPlanned
from tests.testing.faulty_worlds import CLOCKS, NO_FAULTS, seeds, simulated

EXAMPLES = 20 * len(seeds(3))
PARTIES = 6
AWAY_S_MAX = 600.0
SETTLED = timedelta(minutes=2)
"""Time in which the messages of a saga that does not fail are handled, whatever the faults beside the outage."""


class Dish(NamedTuple):
    """A dish that a party chooses, and the pause after it."""

    party: int
    pause_s: float


LONG_QUEUE = [
    (5, 0), (1, 10), (2, 0), (5, 0), (5, 0), (2, 2), (5, 2), (5, 2),
    (5, 10), (2, 10), (5, 10), (1, 0), (3, 10), (2, 0), (2, 0), (0, 0.1),
]  # fmt: skip


class Kitchen:
    """Cooks once for each key, and for some parties not while it is away."""

    def __init__(self, fails: frozenset[int], away_s: float, back_s: float, *, is_asked_first: bool) -> None:
        self.fails = {f"party-{party}" for party in fails}
        self.away_s, self.back_s, self.is_asked_first = away_s, back_s, is_asked_first
        self.cooked: dict[str, tuple[str, str]] = {}
        self.failed = 0

    async def ask(self, party: str) -> None:
        if party in self.fails and self.away_s <= asyncio.get_running_loop().time() < self.back_s:
            self.failed += 1
            raise ConnectionError("nobody is in the kitchen")

    async def cook(self, key: str, party: str, dish: str) -> None:
        await self.ask(party)
        assert self.cooked.setdefault(key, (party, dish)) == (party, dish)

    def served(self) -> dict[str, list[str]]:
        """Dishes of each party, in the order in which they were cooked."""
        of = defaultdict[str, list[str]](list)
        for party, dish in self.cooked.values():
            of[party].append(dish)
        return of


@dataclass(frozen=True, kw_only=True)
class Card:
    """State of the cook's saga."""

    dishes: tuple[str, ...] = ()
    """Those of the party, in the order in which they were written down."""


cook = Service("cook", state=Card)


@cook.resource(timeout_s=5)
async def kitchen() -> AsyncIterator[Kitchen]:
    yield Kitchen(frozenset(), 0, 0, is_asked_first=False)


@cook.handler
async def lay_the_table(planned: PartyPlanned) -> None:
    """Needs no cook in the kitchen."""


@cook.handler(repeats=MenuChosen)
async def serve(chosen: MenuChosen, kitchen: Kitchen, saga: Saga[Card]) -> None:
    """With an intent or without any, it keeps its place."""
    if kitchen.is_asked_first:
        await kitchen.ask(chosen.party_id)
    await saga.step(kitchen.cook, saga.idempotency_key("cook"), chosen.party_id, chosen.dish)
    saga.state = replace(saga.state, dishes=(*saga.state.dishes, chosen.dish))


def chosen_by(dishes: Sequence[Dish]) -> dict[str, list[str]]:
    """What each party is to be served, in order."""
    of = defaultdict[str, list[str]](list)
    for number, dish in enumerate(dishes):
        of[f"party-{dish.party}"].append(f"dish {number}")
    return of


def publish_parties(world: SimulatedWorld, dishes: Sequence[Dish]) -> None:
    for party in range(PARTIES):
        id_ = f"party-{party}"
        world.publish(PartyPlanned(party_id=id_, guests=0, notes=0, flour=0, hall="small", menu=""))
    for number, dish in enumerate(dishes):
        world.publish(MenuChosen(party_id=f"party-{dish.party}", dish=f"dish {number}"))
        world.run_for(timedelta(seconds=dish.pause_s))


def written(world: SimulatedWorld, party: str) -> list[str]:
    """Dishes in the state of its saga."""
    p = world.progress("cook", party)
    assert p is not None
    return list(p.state["dishes"])


@pytest.mark.slow
@settings(
    max_examples=EXAMPLES,
    phases=[Phase.explicit, Phase.generate],  # a schedule that is shrunk for minutes tells no more than its seed
    suppress_health_check=[HealthCheck.too_slow],
)
@given(
    seed=st.integers(0, 1000),
    dishes=st.lists(
        st.builds(Dish, party=st.integers(0, PARTIES - 1), pause_s=st.sampled_from([0, 0, 0.1, 2, 10])),
        min_size=4,
        max_size=20,
    ),
    fails=st.frozensets(st.integers(0, PARTIES - 1), min_size=1, max_size=2),
    away_s=st.floats(0, 5),
    for_s=st.floats(5, AWAY_S_MAX),
    asks=st.booleans(),
    clocks=st.booleans(),
)
@example(  # a clock is set back while one wake, that is the current one no more, has the turn go through many messages
    seed=874,
    dishes=[Dish(*each) for each in LONG_QUEUE],
    fails=frozenset([5]),
    away_s=0.0,
    for_s=65.65095949787789,
    asks=False,
    clocks=True,
)
def test_sagas_that_fail_for_a_while_keep_their_order_and_hold_up_no_other(
    seed: int, dishes: list[Dish], fails: frozenset[int], away_s: float, for_s: float, asks: bool, clocks: bool
) -> None:
    with simulated(seed, CLOCKS if clocks else NO_FAULTS) as world:
        outside, chosen = Kitchen(fails, away_s, away_s + for_s, is_asked_first=asks), chosen_by(dishes)
        world.start(cook, use=[outside])
        publish_parties(world, dishes)
        world.run_for(SETTLED)
        there = outside.served()
        others = chosen.keys() - outside.fails
        # What another fault has parked waits by clocks, and for as long as these are wrong.
        assert clocks or {party: there[party] for party in others} == {party: chosen[party] for party in others}
        event("fails" if outside.failed else "does not fail")
        event("still away when the others are served" if world.now_s < outside.back_s else "back before")
        world.run_until_quiet()
        assert outside.served() == chosen
        assert {party: written(world, party) for party in chosen} == chosen
        world.verify(rerun=not asks)  # an outage that is met outside a step ends a run where a later rerun goes on
