"""Scenarios of a release with another version of the state or of handlers, which one worker runs before the other."""

from collections.abc import Iterator
from dataclasses import replace

from verification.building_blocks import ORD, STEP, M, N, Q, X, hold, needs, note, of, reserve, two_steps
from verification.handlers import Reacts
from verification.scenario import Scenario, has_run
from verification.services import Explored

later = Reacts(name="wait", to=(("O",),), does=STEP, emits=("R",), turns=1, after=1)
step_needs = Reacts(name="needs", to=(("M",),), does=STEP, emits=("k",), needs="note")
memo_step = Reacts(name="memo", to=(("Q",),), does=("step if note", "step"), emits=("m",))


def migrating(*handlers: Reacts, parks: bool = False, tight: bool = False, starts: str = "") -> Explored:
    """Return a service whose later release has the same handlers and another version of the state."""
    return replace(of(*handlers, parks=parks, tight=tight, starts=frozenset(starts)), migrates=True)


two_ways = Reacts(name="two", to=(("O",),), does=("step if new", "step", "step if new"), emits=("R",))
turns_two_ways = Reacts(name="wait", to=(("O",),), does=("step if new", "step"), emits=("R",), turns=1, after=1)
undone_two_ways = replace(two_ways, name="hold", emits=("H",), undo=("step", "step", "step"))


def improving(*handlers: Reacts, starts: str = "") -> Explored:
    """Return a service whose later release has another version of its handlers, with other acts."""
    return replace(of(*handlers, parks=True, starts=frozenset(starts)), improves=True)


def improvements() -> Iterator[Scenario]:
    """Yield scenarios in which a handler acts differently from a version on, with workers of either release."""
    yield Scenario(
        name="improved: begun under either, gone on with by either",
        service=improving(two_ways),
        a=(ORD,),
        move=1,
        fail=1,
        ticks_max=3,
        at_the_end=has_run("two"),
    )
    yield Scenario(
        name="improved: a worker dies between two steps",
        service=improving(two_ways),
        a=(ORD,),
        crash=1,
        move=1,
        ticks_max=3,
        at_the_end=has_run("two"),
    )
    yield Scenario(
        name="improved: a turn under one, a turn under the other",
        service=improving(turns_two_ways),
        a=(ORD,),
        fail=1,
        ticks_max=4,
        at_the_end=has_run("wait"),
    )
    yield Scenario(
        name="improved: undone by either",
        service=improving(undone_two_ways),
        a=(ORD, X),
        fail=1,
        ticks_max=3,
    )


def versions() -> Iterator[Scenario]:  # a list: one scenario after another
    """Yield scenarios in which a state is migrated while its saga continues, with workers of either release."""
    needed = has_run("note", "needs")
    yield Scenario(
        name="version: one run before, one after",
        service=migrating(note, step_needs),
        a=(N, M),
        crash=1,
        move=1,
        at_the_end=needed,
    )
    yield Scenario(
        name="version: lost answers", service=migrating(note, needs), a=(N, M), lost=1, crash=1, at_the_end=needed
    )
    yield Scenario(
        name="version: begun before, gone on with after",
        service=migrating(two_steps, note),
        a=(N, ORD),
        move=1,
        at_the_end=has_run("two", "note"),
    )
    yield Scenario(
        name="version: begun before, and a step fails",
        service=migrating(two_steps, note),
        a=(N, ORD),
        fail=1,
        crash=1,
        at_the_end=has_run("two", "note"),
    )
    yield Scenario(
        name="version: two owners",
        service=migrating(two_steps, memo_step, note),
        a=(ORD, Q),
        b=(N,),
        owner=(0, 1),
        at_the_end=has_run("two", "note", "memo"),
    )
    yield Scenario(
        name="version: a saga begins on either",
        service=migrating(reserve, note, starts="O"),
        a=(ORD,),
        b=(N,),
        owner=(0, 1),
        crash=1,
        at_the_end=has_run("reserve", "note"),
    )
    yield Scenario(
        name="version: parked, and another undone meanwhile",
        service=migrating(hold, two_steps, parks=True),
        a=(N, ORD, X),
        fail=1,
        ticks_max=3,
        at_the_end=has_run("hold", "two"),
    )
    yield Scenario(
        name="version: undone after",
        service=migrating(reserve, note),
        a=(ORD, N, X),
        move=1,
    )
    yield Scenario(
        name="version: a turn before, a turn after",
        service=migrating(later, note),
        a=(ORD, N),
        ticks_max=3,
        at_the_end=has_run("wait", "note"),
    )
    yield Scenario(
        name="version: transitions in archives",
        service=migrating(note, needs, reserve, tight=True),
        a=(N, ORD, M),
        crash=1,
        at_the_end=needed,
    )


def renamings() -> Iterator[Scenario]:
    """Yield scenarios in which a service gets another name, with workers of either release."""
    both, alone = (replace(of(*each, parks=True), renamed=True) for each in ((reserve, note), (reserve,)))
    ran = has_run("reserve", "note")
    yield Scenario(
        name="renamed: a crash", service=both, a=(ORD,), b=(N,), fail=1, crash=1, ticks_max=3, at_the_end=ran
    )
    yield Scenario(
        name="renamed: lost answers", service=both, a=(ORD,), b=(N,), fail=1, lost=1, ticks_max=3, at_the_end=ran
    )
    yield Scenario(
        name="renamed: a rebalance",
        service=alone,
        a=(ORD,),
        fail=1,
        move=1,
        ticks_max=3,
        at_the_end=has_run("reserve"),
    )
    yield Scenario(
        name="renamed: undone under the other name",
        service=replace(of(hold, parks=True), renamed=True),
        a=(ORD, X),
        crash=1,
        ticks_max=3,
    )
