"""Scenarios about pages: bounds so tiny that nearly every write puts something aside."""

from collections.abc import Iterator
from dataclasses import replace

from saga.progress.spill import Bounds
from saga.testing.exploration.cast import NEXT_N, ORD, OTHER, SAME, M, N, memo, note, of, place
from saga.testing.exploration.handlers import Reacts
from saga.testing.exploration.scenario import Scenario, has_run
from saga.testing.exploration.services import Explored

TINY = Bounds(inbox_max=1, inbox_kept=0, small_pages_max=2)
each = Reacts(name="each", to=(("O",),), emits=("R",), many=True)
each_step = Reacts(name="each", to=(("O",),), does=("step",), emits=("R",), many=True)
join_own = Reacts(name="join", to=(("Q",), ("P",)), emits=("j",))
each_own = Reacts(name="own", to=(("P",),), emits=("P2",), many=True)
place_each = Reacts(name="place", to=(("O",),), emits=("P",), many=True)
each_note = Reacts(name="note", to=(("N",),), emits=("n",), many=True)


def tiny(service: Explored) -> Explored:
    """The same with tiny bounds."""
    return replace(service, bounds=TINY)


def inbox_pages() -> Iterator[Scenario]:
    """Entries in pages: duplicates of them, crashes around each page, two workers, lost answers."""
    ran = has_run("each")
    yield Scenario(
        name="inbox pages: duplicates, crash, rebalance",
        service=tiny(of(each)),
        a=(ORD, OTHER, SAME, ORD),
        crash=1,
        move=1,
        at_the_end=ran,
    )
    yield Scenario(
        name="inbox pages: two owners",
        service=tiny(of(each, each_note)),
        a=(ORD, OTHER, ORD),
        b=(N, NEXT_N, N),
        owner=(0, 1),
        crash=1,
        at_the_end=has_run("each", "note"),
    )
    yield Scenario(
        name="inbox pages: lost answers",
        service=tiny(of(each)),
        a=(ORD, OTHER, SAME, OTHER),
        lost=1,
        crash=1,
        at_the_end=ran,
    )
    yield Scenario(
        name="inbox pages: a step fails",
        service=tiny(of(each_step)),
        a=(ORD, OTHER),
        b=(ORD, SAME),
        owner=(0, 1),
        fail=1,
        at_the_end=ran,
    )
    yield Scenario(
        name="inbox pages: an own event for two",
        service=tiny(of(place, each_own, join_own, note, memo)),
        a=(ORD, M),
        b=(N,),
        owner=(0, 1),
        crash=1,
        at_the_end=has_run("place", "own"),
    )
    yield Scenario(
        name="inbox pages: two put aside different entries",
        service=tiny(of(place_each, each_own, each_note)),
        a=(ORD,),
        b=(N,),
        owner=(0, 1),
        crash=1,
        at_the_end=has_run("place", "own", "note"),
    )
    yield Scenario(
        name="inbox pages: a stray duplicate, no cache",
        service=tiny(of(each, note, memo)),
        a=(ORD, N, M, ORD),
        b=(ORD,),
        evict=1,
        move=1,
        at_the_end=has_run("each", "note", "memo"),
    )
