"""Scenarios about special cases: reads, several results, other senders and versions, expiry, releases, batches."""

from collections.abc import Iterator
from dataclasses import replace

from verification.building_blocks import (
    ORD,
    OTHER,
    STEP,
    M,
    N,
    Q,
    X,
    join,
    meet,
    note,
    of,
    place,
    reserve,
    take,
)
from verification.handlers import Reacts
from verification.page_scenarios import TINY
from verification.scenario import Scenario, check_other_content_reported, has_run, runs_once
from verification.services import message

looks = Reacts(name="reserve", to=(("O",),), does=("read unless note", "step if left"), emits=("R if left",), undo=None)
looks_first = Reacts(name="reserve", to=(("O",),), does=("read unless note", "step"), emits=("R",))
looks_then_takes = Reacts(name="reserve", to=(("O",),), does=("read unless note", "take if left"), emits=("R",))
two_results = Reacts(name="two", to=(("O",),), does=("step", "step"), emits=("R", "R"), undo=("step", "step"))
many_results = Reacts(
    name="two", to=(("O",),), does=("step", "step"), emits=("R", "R2"), undo=("step", "step"), many=True
)
plain_results = Reacts(name="two", to=(("O",),), emits=("R", "R2"), undo=(), many=True)
takes_two = Reacts(name="two", to=(("O",),), does=("take", "step"), emits=("R", "R"), undo=("give", "step"))
many_notes = Reacts(name="note", to=(("N",),), emits=("n",), many=True)
many_steps = Reacts(name="pay", to=(("N",),), does=STEP, emits=("n",), many=True)
many_places = Reacts(name="place", to=(("N",),), emits=("P",), many=True)
many_on_own = Reacts(name="each", to=(("P",),), does=STEP, many=True)
with_own = Reacts(name="log", to=(("O",), ("P",)))
Z = message("z1", "Z")
"""A message that no handler takes."""
held = Reacts(name="hold", to=(("Q",),), emits=("H",), undo=())


def edges() -> Iterator[Scenario]:
    """Yield all scenarios about special cases."""
    yield from reads()
    yield from several_results()
    yield from senders()
    yield from age()
    yield from releases()
    yield from batches()
    yield from logs()


def logs() -> Iterator[Scenario]:
    """Yield scenarios of a topic that is deleted and created again, with other messages at the same offsets."""
    yield Scenario(
        name="a topic is created again: what nobody names takes the offset of what was written",
        service=of(place, note),
        a=(N,),
        b=(ORD, Z),
        crash=1,
        again=1,
        at_the_end=has_run("place", "note"),
    )


def reads() -> Iterator[Scenario]:
    """Yield scenarios of handlers that read before they act, and act according to what they read."""
    for name, handler in (("a step", looks_first), ("a step if left", looks), ("an update if left", looks_then_takes)):
        yield Scenario(
            name=f"a read, then {name}, and another state: two owners",
            service=of(handler, note),
            a=(ORD,),
            b=(N,),
            stock=1,
            crash=1,
            owner=(0, 1),
            at_the_end=has_run("reserve", "note"),
        )
    yield Scenario(
        name="a read, then a step, while another saga gives",
        service=of(looks, note),
        a=(ORD,),
        b=(N,),
        stock=0,
        other=1,
        fail=1,
        move=1,
    )


def several_results() -> Iterator[Scenario]:
    """Yield scenarios of runs with two results, each of which is undone separately."""
    yield Scenario(name="two results, undone: crash", service=of(two_results), a=(ORD,), b=(X,), crash=1, move=1)
    yield Scenario(name="two results, undone: a step fails", service=of(two_results), a=(ORD,), b=(X,), fail=1, move=1)
    yield Scenario(name="two results, one of an update", service=of(takes_two), a=(ORD,), b=(X,), stock=1, crash=1)
    yield Scenario(
        name="two results of many: an original comes between", service=of(many_results), a=(ORD, X), b=(OTHER,), crash=1
    )
    yield Scenario(
        name="two results of many, two owners", service=of(plain_results), a=(ORD, X), b=(OTHER,), owner=(0, 1)
    )


def senders() -> Iterator[Scenario]:
    """Yield scenarios of more than two messages of one type, of two senders, of two versions of a schema, and of a
    message that one handler cannot decode."""
    notes = tuple(message(f"n{i}", "N") for i in range(1, 5))
    yield Scenario(name="four messages of many", service=of(many_notes), a=notes[:3], b=notes[3:], move=1)
    yield Scenario(
        name="three messages of many, by a step",
        service=of(many_steps),
        a=notes[:2],
        b=notes[2:3],
        fail=1,
        owner=(0, 1),
    )
    yield Scenario(
        name="two senders use one id",
        service=of(many_notes, pay_for_o),
        a=(message("n1", "N", "x"), message("o1", "O", source="somebody else")),
        b=(message("n1", "N", "y", source="somebody else"), ORD),
        owner=(0, 1),
        at_the_end=check_other_content_reported,
    )
    yield Scenario(
        name="a relay says the same again, without an id of ours",
        service=of(many_steps),
        a=(message("u1", "N", at=0), message("u1", "N", at=1)),
        crash=1,
        owner=(0, 1),
        at_the_end=runs_once,
    )
    yield Scenario(
        name="two versions of one event",
        service=of(reserve, note),
        a=(ORD, message("o4", "O", "x", version=2)),
        b=(N,),
        crash=1,
        move=1,
        at_the_end=has_run("reserve", "note"),
    )
    others_send_it = replace(of(place, join), sent_by_others=frozenset({"P"}))
    yield Scenario(
        name="an own event that others say too",
        service=others_send_it,
        a=(ORD, Q),
        b=(message("p1", "P"),),
        crash=1,
        at_the_end=has_run("join"),
    )
    bad_for_meet = message("q3", "Q", bad=("meet",))
    pair = Reacts(name="pair", to=(("Q",), ("M",)), emits=("k",))
    yield Scenario(
        name="a part that one handler cannot decode",
        service=of(pair, meet),
        a=(bad_for_meet, ORD),
        b=(M,),
        crash=1,
        may_die=True,
    )
    yield Scenario(
        name="a part of many that one handler cannot decode",
        service=of(Reacts(name="pair", to=(("Q",), ("M",)), emits=("k",), many=True), meet),
        a=(bad_for_meet, Q),
        b=(M,),
        move=1,
        may_die=True,
    )


def age() -> Iterator[Scenario]:
    """Yield scenarios in which time passes until some data have expired, and others have not."""
    yield Scenario(name="a failure outcome after the memory", service=of(reserve), a=(ORD, X), crash=1, age=2)
    yield Scenario(
        name="a failure outcome without a start, after the memory",
        service=of(reserve),
        a=(ORD, message("x1", "X", started=False)),
        crash=1,
        age=2,
    )
    yield Scenario(
        name="a failure outcome that waits, for two handlers: two owners",
        service=of(reserve, held),
        a=(message("x1", "X", started=False),),
        b=(Q, ORD),
        move=1,
        crash=1,
    )
    yield Scenario(
        name="a failure outcome that waits, and a later release",
        service=of(reserve, added=(held,)),
        a=(message("x1", "X", started=False), ORD),
        b=(Q,),
    )
    for name, log in (("ahead", (ORD, N)), ("ahead, of many", (N, message("n2", "N"), N))):
        yield Scenario(
            name=f"a clock that is {name}",
            service=of(reserve, many_steps, tight=True),
            a=log,
            b=(X,),
            ahead=1,
            crash=1,
        )
    notes = tuple(message(f"n{i}", "N") for i in range(3))
    yield Scenario(
        name="a clock that is ahead, and pages",
        service=replace(of(many_steps), bounds=TINY),
        a=(*notes, notes[0]),
        ahead=1,
    )
    yield Scenario(
        name="an own event, taken long ago and still wanted",
        service=of(many_places, many_on_own, with_own, tight=True),
        a=(N, message("n2", "N", after=1), message("n3", "N", after=2)),
        age=2,
        crash=1,
    )
    yield Scenario(
        name="a part that waits long, taken by another long ago",
        service=of(many_steps, Reacts(name="log", to=(("N",), ("Q",)), many=True), tight=True),
        a=(N, message("n2", "N", after=1), message("n3", "N", after=2), N),
        b=(Q,),
        age=2,
    )


def releases() -> Iterator[Scenario]:
    """Yield scenarios in which a later release adds a handler for a self-consumed event that an earlier release has
    emitted."""
    for tight in (False, True):
        where = "archived" if tight else "a transition"
        later = of(place, note, added=(join,), tight=tight)
        yield Scenario(name=f"a later release takes an own event, {where}", service=later, a=(ORD, N), b=(Q,), crash=1)
    yield Scenario(
        name="a later release has another compensation, after the failure outcome",
        service=of(reserve, added=(hold_later,)),
        a=(X, Q),
        b=(ORD,),
    )
    yield Scenario(
        name="a later release takes an own event of many",
        service=of(many_places, note_of_o, added=(many_on_own,), tight=True),
        a=(N, message("n2", "N")),
        b=(ORD,),
    )


hold_later = Reacts(name="hold", to=(("Q",),), does=STEP, emits=("h",), undo=STEP)
pay_for_o = Reacts(name="pay", to=(("O",),), does=STEP, emits=("R",))
note_of_o = Reacts(name="log", to=(("O",),), emits=("g",))


def batches() -> Iterator[Scenario]:
    """Yield scenarios of updates of two sagas in one replace, where either update may come from a zombie."""
    yield Scenario(name="two lanes' updates at once", service=of(take), a=(ORD,), b=(X,), stock=2, batch=1, prune=1)
    yield Scenario(
        name="two lanes' updates at once, one refused", service=of(take), a=(ORD,), stock=1, batch=1, fail=1, prune=1
    )
