"""Scenarios of work that waits for a time: failed runs are parked, and timers make workers continue them."""

from collections.abc import Iterator

from verification.building_blocks import (
    NEXT_N,
    ORD,
    SAME,
    STEP,
    M,
    N,
    Q,
    X,
    hold,
    join_step,
    look_each,
    look_each_own,
    look_own,
    many,
    meet_undone,
    memo,
    note,
    of,
    on_own_step,
    pay,
    place,
    reserve,
    reserve_own,
    step_look,
    take,
    two_steps,
)
from verification.handlers import Reacts
from verification.scenario import Scenario, has_run
from verification.services import message


def strangers() -> Iterator[Scenario]:
    """Yield scenarios in which another project has a service with the same name on the same broker, and gets the
    timers."""
    yield Scenario(
        name="parked: the wake comes to another project's service of that name",
        service=of(reserve, parks=True),
        a=(ORD,),
        fail=1,
        stranger=True,
        wakes_at=1,
        move=1,
        crash=1,
        wakes_max=16,
    )


def parked() -> Iterator[Scenario]:  # a list: one scenario after another
    """Yield scenarios of a parked run, together with other things that may happen meanwhile."""
    reserved = has_run("reserve")
    yield Scenario(
        name="parked: a crash, a rebalance",
        service=of(reserve, parks=True),
        a=(ORD,),
        fail=1,
        crash=1,
        move=1,
        at_the_end=reserved,
    )
    yield Scenario(name="parked twice", service=of(reserve, parks=True), a=(ORD,), fail=2, crash=1, at_the_end=reserved)
    yield Scenario(
        name="parked: lost answers",
        service=of(reserve, parks=True),
        a=(ORD,),
        fail=1,
        lost=1,
        move=1,
        at_the_end=reserved,
    )
    yield Scenario(
        name="parked: lost answers, an old cache",
        service=of(reserve, parks=True),
        a=(ORD, ORD),
        fail=1,
        evict=1,
        lost=1,
        at_the_end=reserved,
    )
    yield Scenario(
        name="parked: failed behind its last step",
        service=of(step_look, parks=True),
        a=(ORD,),
        fail=1,
        crash=1,
        at_the_end=reserved,
    )
    yield Scenario(
        name="parked: others queue behind it",
        service=of(reserve, note, memo, parks=True),
        a=(ORD, N),
        b=(M,),
        fail=1,
        crash=1,
        at_the_end=has_run("reserve", "note", "memo"),
    )
    yield Scenario(
        name="parked: others queue behind it, two owners",
        service=of(reserve, note, parks=True),
        a=(ORD,),
        b=(N,),
        fail=1,
        move=1,
        owner=(0, 1),
        at_the_end=has_run("reserve", "note"),
    )
    yield Scenario(
        name="parked: wakes come to an owner with an old cache",
        service=of(reserve, note, parks=True),
        a=(ORD,),
        b=(N,),
        fail=1,
        owner=(0, 1),
        wakes_at=1,
        at_the_end=has_run("reserve", "note"),
    )
    yield Scenario(
        name="parked: two steps, with the answers it has",
        service=of(two_steps, note, parks=True),
        a=(ORD, N),
        fail=1,
        crash=1,
        at_the_end=has_run("two", "note"),
    )
    yield Scenario(
        name="parked: wakes come too early",
        service=of(reserve, parks=True),
        a=(ORD, SAME),
        fail=1,
        early=2,
        crash=1,
        at_the_end=reserved,
    )
    yield Scenario(
        name="parked: wakes come too early, a rebalance",
        service=of(reserve, parks=True),
        a=(ORD,),
        fail=1,
        early=1,
        move=1,
        at_the_end=reserved,
    )
    yield Scenario(
        name="parked: many wakes come too early",
        service=of(reserve, parks=True),
        a=(ORD,),
        fail=2,
        early=3,
        evict=3,
        wakes_max=5,
        at_the_end=reserved,
    )
    yield Scenario(
        name="parked: a clock that is ahead",
        service=of(reserve, note, parks=True),
        a=(ORD, N),
        fail=1,
        fast=1,
        crash=1,
        at_the_end=has_run("reserve", "note"),
    )
    yield Scenario(
        name="parked: on an own event",
        service=of(place, on_own_step, note, parks=True),
        a=(ORD,),
        b=(N,),
        fail=1,
        crash=1,
        at_the_end=has_run("place", "on_own", "note"),
    )
    yield Scenario(
        name="parked: a fan-in",
        service=of(place, join_step, note, parks=True),
        a=(ORD, N),
        b=(Q,),
        fail=1,
        crash=1,
        at_the_end=has_run("place", "join", "note"),
    )
    yield Scenario(
        name="parked: a handler for each message",
        service=of(many, parks=True),
        a=(ORD, message("o2", "O", "y")),
        fail=1,
        move=1,
        at_the_end=reserved,
    )
    yield Scenario(
        name="parked: it dies, and is a dead letter",
        service=of(reserve, note, attempts_max=2, parks=True),
        a=(ORD, N),
        fail=2,
        crash=1,
        may_die=True,
    )


def parked_and_undone() -> Iterator[Scenario]:  # a list, as above
    """Yield scenarios in which a failure outcome comes while a run or a compensation is parked."""
    yield Scenario(
        name="parked: an outcome, before and behind it",
        service=of(reserve, parks=True),
        a=(ORD,),
        b=(X,),
        fail=1,
        crash=1,
    )
    yield Scenario(name="parked: the undoing", service=of(reserve, parks=True), a=(ORD, X), fail=1, crash=1)
    yield Scenario(
        name="parked: the undoing, lost answers",
        service=of(reserve, parks=True),
        a=(ORD, X),
        fail=1,
        lost=1,
    )
    yield Scenario(
        name="parked: two undoings, one passes the other",
        service=of(reserve, hold, parks=True),
        a=(ORD, N),
        b=(X,),
        fail=1,
        crash=1,
    )
    yield Scenario(
        name="parked: two undoings of many",
        service=of(many, parks=True),
        a=(ORD, message("o2", "O", "y"), X),
        fail=1,
        crash=1,
    )
    yield Scenario(
        name="parked: a fan-in that is undone",
        crash=1,
        service=of(meet_undone, parks=True),
        a=(ORD, X),
        b=(Q,),
        fail=1,
    )
    yield Scenario(
        name="parked: an outcome behind another's run",
        service=of(reserve, pay, parks=True),
        a=(ORD, N),
        b=(X,),
        fail=1,
        crash=1,
        at_the_end=has_run("pay"),
    )
    yield Scenario(
        name="parked: an update, with a zombie in it",
        service=of(
            Reacts(name="take", to=(("O",),), does=("take", "step"), emits=("R",), undo=("give", "step")), parks=True
        ),
        a=(ORD,),
        stock=1,
        fail=1,
        move=1,
    )
    yield Scenario(
        name="parked: of two, the second before its turn",
        service=of(reserve, Reacts(name="pay", to=(("N",),), does=STEP, emits=("n",), many=True), parks=True),
        a=(N, ORD, NEXT_N),
        fail=2,
        at_the_end=has_run("reserve", "pay"),
    )
    yield Scenario(
        name="parked: one of many that waited for the beginning, others wait behind it",
        service=of(look_each, place, parks=True),
        a=(message("n1", "N", started=False), message("n2", "N", started=False)),
        b=(ORD,),
        fail=1,
        crash=1,
        at_the_end=has_run("look"),
    )
    yield Scenario(
        name="parked: one of many that waited for an own part, others wait behind it",
        service=of(look_each_own, place, parks=True),
        a=(N, NEXT_N),
        b=(ORD,),
        fail=2,
        at_the_end=has_run("look"),
    )
    yield Scenario(
        name="parked: on an own event that is withdrawn meanwhile",
        service=of(reserve_own, look_own, parks=True),
        a=(ORD, X),
        fail=2,
        crash=1,
    )
    yield Scenario(name="parked: an update", service=of(take, parks=True), a=(ORD,), b=(X,), stock=1, move=1, crash=1)
