"""List all scenarios, and define those about steps and stale caches."""

from collections.abc import Iterator

from verification.answer_scenarios import answers
from verification.building_blocks import (
    ORD,
    M,
    N,
    needs,
    note,
    of,
    reserve,
    two_steps,
)
from verification.claim_scenarios import claims
from verification.control_scenarios import paused, paused_later, routed
from verification.deadline_scenarios import all_deadlines
from verification.discard_scenarios import all_discards
from verification.document_scenarios import dead_letters, documents
from verification.edge_scenarios import edges
from verification.fan_in_scenarios import fan_ins, repetitions, several_events
from verification.handlers import Reacts
from verification.later_scenarios import later
from verification.operator_scenarios import operators
from verification.outcome_scenarios import deciding, outcomes
from verification.own_page_scenarios import own_pages, shelves
from verification.page_scenarios import inbox_pages, piles, results_pages
from verification.rebalance_scenarios import rebalances
from verification.release_scenarios import releases
from verification.scenario import Scenario, has_run
from verification.schema_scenarios import schemas
from verification.services import message
from verification.taking_back_scenarios import taking_back
from verification.version_scenarios import improvements, renamings, versions
from verification.wake_scenarios import parked, parked_and_undone, strangers


def scenarios() -> Iterator[Scenario]:  # a list: one scenario after another
    """Yield all scenarios, the shortest ones of each kind first."""
    two = of(two_steps, note)
    ran = has_run("two", "note")
    yield Scenario(
        name="two steps, another message between: crash",
        service=two,
        a=(ORD,),
        b=(N,),
        crash=1,
        move=1,
        at_the_end=ran,
    )
    yield Scenario(name="two steps: a step fails", service=two, a=(ORD,), b=(N,), crash=1, fail=1, at_the_end=ran)
    yield Scenario(name="two steps: lost answers", service=two, a=(ORD,), b=(N,), move=1, lost=1, at_the_end=ran)
    yield Scenario(
        name="two steps: insert without a read",
        service=of(two_steps, note, starts=frozenset({"O"})),
        a=(ORD,),
        b=(N,),
        crash=1,
        owner=(0, 1),
        at_the_end=ran,
    )
    noted = has_run("reserve", "note")
    yield Scenario(
        name="a step fails, a rebalance",
        service=of(reserve, note),
        a=(ORD,),
        b=(N,),
        fail=1,
        move=1,
        crash=1,
        at_the_end=noted,
    )
    yield Scenario(
        name="a step fails, lost answers",
        service=of(reserve, note),
        a=(ORD,),
        b=(N,),
        fail=1,
        lost=1,
        crash=1,
        at_the_end=noted,
    )
    yield Scenario(
        name="stale cache: moves to and fro", service=of(reserve, note), a=(N, ORD), fail=1, move=2, at_the_end=noted
    )
    yield Scenario(
        name="stale cache: an exception",
        service=of(note, needs),
        a=(N, M),
        move=2,
        crash=1,
        at_the_end=has_run("note", "needs"),
    )
    yield Scenario(
        name="stale cache: an exception, two owners",
        service=of(note, needs, Reacts(name="third", to=(("K",),), emits=("kk",)), attempts_max=1),
        a=(message("k1", "K"), M),
        b=(N,),
        owner=(0, 1),
        may_die=True,
    )
    yield from rebalances()
    yield from deciding()
    yield from outcomes()
    yield from fan_ins()
    yield from several_events()
    yield from documents()
    yield from repetitions()
    yield from dead_letters()
    yield from inbox_pages()
    yield from piles()
    yield from results_pages()
    yield from own_pages()
    yield from shelves()
    yield from claims()
    yield from edges()
    yield from operators()
    yield from all_discards()
    yield from answers()
    yield from all_deadlines()
    yield from later()
    yield from taking_back()
    yield from parked()
    yield from strangers()
    yield from releases()
    yield from parked_and_undone()
    yield from schemas()
    yield from versions()
    yield from improvements()
    yield from renamings()
    yield from paused()
    yield from paused_later()
    yield from routed()
