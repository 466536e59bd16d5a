"""Scenarios about self-consumed events in overflow segments, and about segments that list other segments. The bounds
are so tiny that nearly every write moves something to a segment."""

from collections.abc import Iterator
from dataclasses import replace

from saga.progress.document import SagaProgress, Transition
from saga.progress.overflow import OverflowBounds
from verification.building_blocks import NEXT_N, ORD, OTHER, SAME, STEP, M, N, X, join_each, of, place, reserve
from verification.handlers import Reacts
from verification.page_scenarios import FOURTH_N, PAIRED, THIRD_N, each_note, piled, place_each, tiny
from verification.scenario import AtTheEnd, Scenario
from verification.services import message

SHELVED = OverflowBounds(head_max=1, segment_max=1, index_max=1)
FOURTH = message("o4", "O", "z")
join_own = Reacts(name="join", to=(("P",), ("N",)), emits=("j",), many=True)
meet_own = Reacts(name="meet", to=(("P",), ("M",)), emits=("k",), many=True)
meet_once = Reacts(name="meet", to=(("P",), ("M",)), emits=("k",))
each_own = Reacts(name="own", to=(("P",),), emits=("P2",), many=True)
hold_own = Reacts(name="hold", to=(("O",),), does=STEP, emits=("P",), undo=STEP, many=True)


def in_order(p: SagaProgress, entries: tuple[Transition, ...]) -> str | None:
    """Check that self-consumed events were taken in the order in which they were emitted, and that no withdrawn event
    was taken."""
    published = [e.id for entry in entries for e in entry.events if e.type == "P"]
    withdrawn, taken = set[str](), dict[str, list[int]]()
    for entry in entries:
        if entry.outcome == "compensated":
            withdrawn.add(entry.cause)
        elif entry.outcome == "handled" and entry.handler in ("join", "meet", "own"):
            mine = [id for id in published if id in (entry.cause or entry.message)]
            if not withdrawn.isdisjoint(mine):
                return f"WITHDRAWN, AND TAKEN BY {entry.handler}"
            taken.setdefault(entry.handler, []).extend(map(published.index, mine))
    wrong = next((name for name, places in taken.items() if places != sorted(set(places))), None)
    return f"NOT IN ORDER FOR {wrong}" if wrong else None


def all_taken(*names: str) -> AtTheEnd:
    """Check that self-consumed events were taken in order, and that these handlers have taken all of them."""

    def check(p: SagaProgress, entries: tuple[Transition, ...]) -> str | None:
        published = sum(e.type == "P" for entry in entries for e in entry.events)
        for name in names:
            if sum(entry.outcome == "handled" and entry.handler == name for entry in entries) != published:
                return f"NOT ALL TAKEN BY {name}"
        return in_order(p, entries)

    return check


def own_pages() -> Iterator[Scenario]:
    """Yield scenarios of self-consumed events in overflow segments. Each is taken once and in order, or withdrawn,
    wherever a fault happens."""
    joined, three = piled(of(place_each, join_own)), (ORD, OTHER, SAME)
    yield Scenario(
        name="own pages: the other part comes, crash",
        service=joined,
        a=three,
        b=(N,),
        crash=1,
        at_the_end=all_taken("join"),
    )
    yield Scenario(
        name="own pages: the other part comes, lost answers",
        service=joined,
        a=(*three, N),
        lost=1,
        at_the_end=all_taken("join"),
    )
    yield Scenario(
        name="own pages: the other part comes, rebalance",
        service=joined,
        a=(*three, N),
        move=1,
        at_the_end=all_taken("join"),
    )
    yield Scenario(
        name="own pages: two handlers wait, one takes each at once",
        service=piled(of(place_each, each_own, join_own, meet_own)),
        a=three,
        b=(N, M),
        at_the_end=all_taken("own", "join", "meet"),
    )
    yield Scenario(
        name="own pages: two handlers, and an inbox in pages",
        service=tiny(of(place_each, each_own, join_own)),
        a=(*three, N),
        at_the_end=all_taken("own", "join"),
    )
    yield Scenario(
        name="own pages: between the first and what came since",
        service=replace(joined, bounds=PAIRED),
        a=(*three, FOURTH, N),
        crash=1,
        at_the_end=all_taken("join"),
    )
    yield Scenario(
        name="own pages: one takes the first and no other",
        service=piled(of(place_each, meet_once, join_own)),
        a=(*three, M, N),
        crash=1,
        at_the_end=all_taken("join"),
    )
    yield Scenario(
        name="own pages: withdrawn, crash",
        service=piled(of(hold_own, join_own)),
        a=(*three, X),
        b=(N,),
        crash=1,
        at_the_end=in_order,
    )
    yield Scenario(
        name="own pages: withdrawn, two owners",
        service=piled(of(hold_own, join_own)),
        a=three,
        b=(X, N),
        owner=(0, 1),
        at_the_end=in_order,
    )


def shelves() -> Iterator[Scenario]:
    """Yield scenarios of overflow segments that are listed by other segments, up to two levels deep."""
    yield Scenario(
        name="shelves: of a queue",
        service=replace(of(reserve, each_note, attempts_max=1), bounds=SHELVED),
        a=(ORD, N, NEXT_N, THIRD_N, FOURTH_N, NEXT_N, FOURTH_N, X),
        fail=1,
        crash=1,
        may_die=True,
    )
    yield Scenario(
        name="shelves: of what waits",
        service=replace(of(place, join_each), bounds=SHELVED),
        a=(N, NEXT_N, THIRD_N, FOURTH_N, THIRD_N, ORD),
        crash=1,
    )
    yield Scenario(
        name="shelves: of what waits, lost answers",
        service=replace(of(place, join_each), bounds=SHELVED),
        a=(N, NEXT_N, THIRD_N, FOURTH_N, ORD),
        lost=1,
    )
    yield Scenario(
        name="shelves: of own events, withdrawn",
        service=replace(of(hold_own, join_own), bounds=SHELVED),
        a=(ORD, OTHER, SAME, FOURTH, X),
        b=(N,),
        at_the_end=in_order,
    )
