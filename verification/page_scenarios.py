"""Scenarios about overflow segments. The bounds are so tiny that nearly every write moves something to a segment."""

from collections.abc import Iterator
from dataclasses import replace

from saga.progress.overflow import OverflowBounds
from verification.building_blocks import (
    NEXT_N,
    ORD,
    OTHER,
    SAME,
    M,
    N,
    X,
    join_each,
    many,
    memo,
    note,
    of,
    place,
    reserve,
)
from verification.handlers import Reacts
from verification.scenario import Scenario, has_run
from verification.services import Explored, message

THIRD_N, FOURTH_N = message("n3", "N"), message("n4", "N")
TINY = OverflowBounds(inbox_max=1, inbox_kept=0, small_segments_max=2, head_max=1, segment_max=1, value_bytes_max=0)
each = Reacts(name="each", to=(("O",),), emits=("R",), many=True)
each_step = Reacts(name="each", to=(("O",),), does=("step",), emits=("R",), many=True)
join_own = Reacts(name="join", to=(("Q",), ("P",)), emits=("j",))
each_own = Reacts(name="own", to=(("P",),), emits=("P2",), many=True)
place_each = Reacts(name="place", to=(("O",),), emits=("P",), many=True)
join_undone = Reacts(name="join", to=(("N",), ("P",)), does=("step",), emits=("j",), undo=("step",), many=True)
hold_each = Reacts(name="hold", to=(("N",),), does=("step",), emits=("h",), undo=("step",), many=True)
two_each = Reacts(name="two", to=(("O",),), does=("step", "step"), emits=("P", "R"), undo=("step", "step"), many=True)
each_own_undone = Reacts(name="own", to=(("P",),), does=("step",), emits=("P2",), undo=("step",), many=True)
each_note = Reacts(name="note", to=(("N",),), emits=("n",), many=True)


PILED = OverflowBounds(head_max=1, segment_max=1)
PAIRED = OverflowBounds(head_max=1, segment_max=2)


def piled(service: Explored) -> Explored:
    """Return the service with tiny bounds for lists, such as pending messages and results, and the usual bounds for the
    inbox. This gives fewer states than `tiny`."""
    return replace(service, bounds=PILED)


def tiny(service: Explored) -> Explored:
    """Return the service with tiny bounds for the inbox and for all lists."""
    return replace(service, bounds=TINY)


def results_pages() -> Iterator[Scenario]:
    """Yield scenarios of results in overflow segments. Each is undone once, newest first, wherever a fault happens
    between segment and progress."""
    undone = piled(of(many))
    three, paired = (ORD, OTHER, SAME, X), replace(undone, bounds=PAIRED)
    yield Scenario(name="results pages: undone, crash", service=undone, a=three, crash=1)
    yield Scenario(name="results pages: with what they took", service=piled(of(replace(many, keeps=True))), a=three)
    yield Scenario(name="results pages: undone, rebalance", service=undone, a=three, move=1)
    yield Scenario(name="results pages: undone, lost answers", service=undone, a=three, lost=1)
    yield Scenario(name="results pages: undone, a step fails", service=undone, a=three, fail=1)
    yield Scenario(name="results pages: undone, two owners", service=undone, a=three, b=(X,), owner=(0, 1))
    yield Scenario(name="results pages: pages of two, history trimmed", service=replace(paired, tight=True), a=three)
    yield Scenario(
        name="results pages: of two handlers",
        service=piled(of(many, hold_each)),
        a=(ORD, OTHER, N, SAME, NEXT_N, THIRD_N, X),
        crash=1,
    )
    yield Scenario(
        name="results pages: two results of a run",
        service=piled(of(two_each, each_own_undone)),
        a=(ORD, OTHER, X),
        crash=1,
    )


def inbox_pages() -> Iterator[Scenario]:
    """Yield scenarios of inbox entries that were moved to overflow segments. Their messages arrive again, with crashes,
    rebalances, two owners and lost answers."""
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


def piles() -> Iterator[Scenario]:  # a list: one scenario after another
    """Yield scenarios of messages in segments: queued behind an intent or a dead letter, or pending for a fan-in."""
    yield Scenario(
        name="queue pages: behind the intent of another owner",
        service=piled(of(reserve, each_note)),
        a=(ORD,),
        b=(N, NEXT_N, THIRD_N),
        owner=(0, 1),
        fail=1,
        at_the_end=has_run("reserve", "note"),
    )
    dying = piled(of(reserve, each_note, attempts_max=1))
    behind = (ORD, N, NEXT_N, THIRD_N, NEXT_N, X)
    yield Scenario(
        name="queue pages: a dead letter that the outcome drops, crash",
        service=dying,
        a=behind,
        fail=1,
        crash=1,
        may_die=True,
    )
    yield Scenario(
        name="queue pages: a dead letter that the outcome drops, rebalance",
        service=dying,
        a=(ORD, N, NEXT_N, X),
        fail=1,
        move=1,
        may_die=True,
    )
    yield Scenario(
        name="queue pages: a dead letter that the outcome drops, lost answers",
        service=dying,
        a=behind,
        fail=1,
        lost=1,
        may_die=True,
    )
    yield Scenario(
        name="queue pages: pages between what was there before and what came since",
        service=replace(dying, bounds=PAIRED),
        a=(ORD, N, NEXT_N, THIRD_N, FOURTH_N, X),
        fail=1,
        may_die=True,
    )
    yield Scenario(
        name="queue pages: a dead letter of many, closed with its queue",
        service=tiny(of(many, each_note, attempts_max=1)),
        a=(ORD, N, OTHER, NEXT_N, SAME),
        b=(X,),
        fail=1,
        may_die=True,
    )
    yield Scenario(
        name="waiting pages: the other part comes",
        service=piled(of(place, join_each)),
        a=(N, NEXT_N, THIRD_N),
        b=(ORD,),
        owner=(0, 1),
        crash=1,
        at_the_end=has_run("place", "join"),
    )
    yield Scenario(
        name="waiting pages: duplicates",
        service=piled(of(place, join_each)),
        a=(N, NEXT_N, THIRD_N, NEXT_N, ORD),
        crash=1,
        at_the_end=has_run("place", "join"),
    )
    yield Scenario(
        name="waiting pages: an owner comes back with what it knew",
        service=piled(of(place, join_each)),
        a=(N, NEXT_N, THIRD_N, FOURTH_N),
        move=2,
    )
    yield Scenario(
        name="waiting pages: the outcome closes the handler",
        service=piled(of(place, join_undone)),
        a=(N, NEXT_N, THIRD_N, NEXT_N),
        b=(X,),
        crash=1,
    )
