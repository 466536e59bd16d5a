"""Scenarios about deciding an outcome, and about undoing work after a failure outcome."""

from collections.abc import Iterator
from dataclasses import replace

from verification.building_blocks import (
    FAILURE,
    ORD,
    OTHER,
    SAME,
    F,
    G,
    N,
    Q,
    S,
    X,
    cancel,
    cancel_by_step,
    confirm,
    give_up,
    hold,
    join,
    many,
    meet_undone,
    note,
    of,
    pay,
    place,
    reserve,
    reserve_own,
    two_undone,
)
from verification.scenario import Scenario, has_ended, has_run
from verification.services import Explored


def deciding() -> Iterator[Scenario]:
    """Yield scenarios of the service that decides, and of a service with a failure outcome of its own."""
    decider = of(place, confirm, cancel)
    for name, crash, move, lost in (("crash", 1, 0, 0), ("rebalance", 0, 1, 0), ("lost answers", 0, 1, 1)):
        yield Scenario(
            name=f"the decider's race: {name}",
            service=decider,
            a=(ORD, S),
            b=(F,),
            crash=crash,
            move=move,
            lost=lost,
            at_the_end=has_ended,
        )
    by_step = of(place, cancel_by_step)
    yield Scenario(
        name="the decider's race: by a step", service=by_step, a=(ORD,), b=(F,), move=1, fail=1, at_the_end=has_ended
    )
    yield Scenario(
        name="the decider's race: crash and lost",
        service=decider,
        a=(ORD, S),
        b=(F,),
        lost=1,
        crash=1,
        at_the_end=has_ended,
    )
    yield Scenario(
        name="two kinds of failure",
        service=of(place, cancel),
        a=(ORD, F),
        b=(G,),
        crash=1,
        move=1,
        at_the_end=has_ended,
    )
    yield Scenario(
        name="two kinds of failure: by a step",
        service=by_step,
        a=(ORD, F),
        b=(G,),
        crash=1,
        fail=1,
        at_the_end=has_ended,
    )
    own = Explored(handlers=(reserve, give_up), outcomes=FAILURE, failures=FAILURE)
    yield Scenario(name="an own failure outcome", service=own, a=(ORD,), b=(F,), crash=1, fail=1)
    yield Scenario(name="an own failure outcome: rebalance", service=own, a=(ORD,), b=(F,), crash=1, move=1)


def outcomes() -> Iterator[Scenario]:
    """Yield scenarios in which a failure outcome comes before, during or after the runs that it undoes."""
    for name, crash, move, fail, lost in (
        ("crash, rebalance", 1, 1, 0, 0),
        ("a step fails, zombie", 0, 1, 2, 0),
        ("lost answers, zombie", 0, 1, 0, 1),
        ("lost answers, crash", 1, 1, 0, 1),
    ):
        yield Scenario(
            name=f"the outcome, at any time: {name}",
            service=of(reserve),
            a=(ORD,),
            b=(X,),
            crash=crash,
            move=move,
            fail=fail,
            lost=lost,
        )
    yield Scenario(name="the outcome: two steps to undo", service=of(two_undone), a=(ORD,), b=(X,), crash=1, move=1)
    yield Scenario(
        name="the outcome: with a note",
        service=of(reserve, note),
        a=(ORD, N),
        b=(X,),
        crash=1,
        fail=1,
        at_the_end=has_run("note"),
    )
    yield Scenario(
        name="the outcome: another's intent",
        service=of(reserve, pay),
        a=(ORD, N),
        b=(X,),
        crash=1,
        fail=1,
        owner=(0, 1),
        at_the_end=has_run("pay"),
    )
    yield Scenario(
        name="the outcome: an own part withdrawn", service=of(reserve_own, join), a=(ORD, Q), b=(X,), crash=1, fail=1
    )
    yield Scenario(name="the outcome: two originals", service=of(reserve), a=(ORD, SAME), b=(X,), crash=1, move=1)
    yield Scenario(name="the outcome: a fan-in undone", service=of(meet_undone), a=(ORD, X), b=(Q,), crash=1, move=1)
    yield Scenario(
        name="the outcome: two handlers undone", service=of(reserve, hold), a=(ORD, N), b=(X,), crash=1, fail=1
    )
    yield Scenario(name="many: undone one by one", service=of(many), a=(ORD, OTHER), b=(X,), crash=1, move=1)
    yield Scenario(name="many: a step fails", service=of(many), a=(ORD, OTHER), b=(X,), fail=1, move=1)
    yield Scenario(name="many: two owners", service=of(many), a=(ORD,), b=(OTHER, X), crash=1, lost=1, owner=(0, 1))
    yield Scenario(
        name="undone with what it took: several results",
        service=of(replace(many, keeps=True)),
        a=(ORD, OTHER, X),
        move=1,
        fail=1,
    )
    yield Scenario(
        name="undone with what it took: several events",
        service=of(replace(meet_undone, keeps=True)),
        a=(ORD, Q, X),
        crash=1,
        move=1,
    )
