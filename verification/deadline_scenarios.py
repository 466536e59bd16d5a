"""Scenarios of deadlines that race with events that cancel them: no deadline runs twice or too late."""

from collections.abc import Iterator
from typing import Any

from verification.building_blocks import (
    ORD,
    OTHER,
    STEP,
    F,
    N,
    Q,
    S,
    X,
    cancel,
    cancel_by_step,
    confirm,
    meet_step,
    note,
    of,
    on_own,
    pay,
    place,
    reserve,
)
from verification.handlers import Reacts
from verification.scenario import Scenario, has_ended, has_run
from verification.services import message

expire = Reacts(name="expire", to=(("O",),), emits=("Cancelled",), within=1)
expire_unless = Reacts(name="expire", to=(("O",),), emits=("Cancelled",), within=1, unless=("S",))
expire_by_step = Reacts(name="expire", to=(("O",),), does=STEP, emits=("Cancelled",), within=1)
remind = Reacts(name="remind", to=(("O",),), does=STEP, emits=("r",), within=1, unless=("S",))
remind_early = Reacts(name="remind_early", to=(("O",),), emits=("r",), within=1)
remind_late = Reacts(name="remind_late", to=(("O",),), emits=("q",), within=3)
fail_late = Reacts(name="fail_late", to=(("O",),), emits=("X",), within=1)
remind_own = Reacts(name="remind_own", to=(("P",),), emits=("r",), within=1, unless=("S",))
remind_unless_q = Reacts(name="remind_unless_q", to=(("O",),), emits=("r",), within=1, unless=("Q",))
remind_after_q = Reacts(name="remind_after_q", to=(("Q",),), emits=("r",), within=1)
report_late = Reacts(name="report_late", to=(("O",),), emits=("P",), within=1)
place_by_step = Reacts(name="place", to=(("O",),), does=STEP, emits=("P",))
decide_by_step = Reacts(name="decide", to=(("N",),), does=STEP, emits=("Confirmed",))


def all_deadlines() -> Iterator[Scenario]:
    """Yield all scenarios about deadlines."""
    yield from deadlines()
    yield from deadlines_and_runs()
    yield from waits_for_log()
    yield from wrong_clocks()


def waits_for_log() -> Iterator[Scenario]:  # a list: one scenario after another
    """Yield scenarios in which logs grow while time passes: an answer that came in time counts, even if it is read late
    or by another worker."""
    in_time: dict[str, Any] = {"grows": True, "ticks_max": 2}
    yield Scenario(
        name="deadline: an answer that the log had in time",
        service=of(confirm, expire),
        a=(ORD,),
        b=(S,),
        crash=1,
        at_the_end=has_ended,
        **in_time,
    )
    yield Scenario(
        name="deadline: an answer that another worker has to read",
        service=of(confirm, expire),
        a=(ORD,),
        b=(S,),
        owner=(0, 1),
        move=1,
        at_the_end=has_ended,
        **in_time,
    )
    yield Scenario(
        name="deadline: an answer in the log, another message before it",
        service=of(note, confirm, expire),
        a=(ORD, N),
        b=(S,),
        at_the_end=has_ended,
        **in_time,
    )
    yield Scenario(
        name="deadline: nobody answers, and logs grow",
        service=of(note, expire),
        a=(ORD,),
        b=(N,),
        move=1,
        at_the_end=has_run("expire"),
        **in_time,
    )
    yield Scenario(
        name="deadline: an event closes it in time",
        service=of(place, expire_unless),
        a=(ORD,),
        b=(S,),
        crash=1,
        **in_time,
    )


def wrong_clocks() -> Iterator[Scenario]:  # a list: one scenario after another
    """Yield scenarios in which the date of a clock was ahead for a moment: no work waits until that date is really
    reached."""
    for name, service in (
        ("what is parked", of(place_by_step, parks=True)),
        ("a deadline", of(place_by_step, remind, parks=True)),
    ):
        yield Scenario(
            name=f"clock: ahead for a moment, {name}",
            service=service,
            a=(ORD,),
            fail=1,
            fast=1,
            steady=True,
            wakes_max=6,
            at_the_end=has_run("place"),
        )


def deadlines() -> Iterator[Scenario]:  # a list: one scenario after another
    """Yield scenarios of a deadline alone, and of a deadline in a race with other events."""
    expired = has_run("expire")
    yield Scenario(name="deadline: alone", service=of(expire), a=(ORD,), crash=2, move=1, at_the_end=expired)
    yield Scenario(name="deadline: lost answers", service=of(expire), a=(ORD,), lost=1, move=1, at_the_end=expired)
    yield Scenario(
        name="deadline: beside a handler", service=of(place, expire), a=(ORD,), crash=1, move=1, at_the_end=expired
    )
    yield Scenario(
        name="deadline: what closes it comes before or behind",
        service=of(place, expire_unless),
        a=(ORD,),
        b=(S,),
        crash=1,
    )
    yield Scenario(
        name="deadline: it races with two deciders",
        service=of(confirm, cancel, expire),
        a=(ORD, S),
        b=(F,),
        crash=1,
        at_the_end=has_ended,
    )
    yield Scenario(
        name="deadline: it races with a decider's step",
        service=of(cancel_by_step, expire),
        a=(ORD,),
        b=(F,),
        crash=1,
        at_the_end=has_ended,
    )
    yield Scenario(
        name="deadline: by a step, another queues behind it",
        service=of(expire_by_step, note),
        a=(ORD,),
        b=(N,),
        crash=1,
        at_the_end=has_run("expire", "note"),
    )
    yield Scenario(
        name="deadline: by a step that fails",
        crash=1,
        service=of(expire_by_step, note, parks=True),
        a=(ORD,),
        b=(N,),
        fail=1,
        at_the_end=has_run("expire", "note"),
    )
    yield Scenario(
        name="deadline: what opens it is parked",
        service=of(place_by_step, expire, parks=True),
        a=(ORD,),
        fail=1,
        crash=1,
        move=1,
        at_the_end=has_run("place", "expire"),
    )
    yield Scenario(
        name="deadline: behind a decider that is parked",
        service=of(decide_by_step, expire, parks=True),
        a=(ORD, N),
        fail=2,
        at_the_end=has_ended,
    )
    yield Scenario(
        name="deadline: it comes too early",
        service=of(place, expire),
        a=(ORD,),
        early=2,
        crash=1,
        at_the_end=expired,
    )
    yield Scenario(
        name="deadline: a clock that is ahead",
        service=of(place_by_step, remind, parks=True),
        a=(ORD,),
        fail=1,
        fast=1,
        crash=1,
        at_the_end=has_run("place", "remind"),
    )
    yield Scenario(
        name="deadline: opened twice", service=of(expire), a=(ORD, OTHER), b=(ORD,), crash=1, at_the_end=expired
    )
    yield Scenario(
        name="deadline: closed while it is under way", service=of(remind, place), a=(ORD,), b=(S,), crash=1, fail=1
    )
    yield Scenario(
        name="deadline: it makes the saga fail",
        service=of(reserve, fail_late, parks=True),
        a=(ORD,),
        fail=1,
        crash=1,
        at_the_end=has_run("fail_late"),
    )
    yield Scenario(
        name="deadline: beside what is parked",
        service=of(place_by_step, remind, parks=True),
        a=(ORD,),
        b=(S,),
        fail=2,
        at_the_end=has_run("place"),
    )
    yield Scenario(
        name="deadline: two of them, and what is parked",
        service=of(remind_early, remind_late, pay, parks=True),
        a=(ORD, N),
        fail=1,
        wakes_at=1,
        ticks_max=3,
        at_the_end=has_run("remind_late", "pay"),
    )
    yield Scenario(
        name="deadline: the saga fails before",
        service=of(reserve, remind),
        a=(ORD,),
        b=(X,),
        crash=1,
    )
    yield Scenario(
        name="deadline: it dies",
        service=of(expire_by_step, note, attempts_max=1, parks=True),
        a=(ORD, N),
        fail=1,
        crash=1,
        may_die=True,
    )


def deadlines_and_runs() -> Iterator[Scenario]:
    """Yield scenarios of deadlines that count from events of the service itself, or from events whose runs another
    worker ends."""
    yield Scenario(
        name="deadline: it counts from an own event that another handler takes",
        service=of(place, remind_own, on_own),
        a=(ORD,),
        crash=1,
        at_the_end=has_run("on_own", "remind_own"),
    )
    yield Scenario(
        name="deadline: another worker ends the run of the event that closes it",
        service=of(meet_step, remind_unless_q),
        a=(ORD, Q),
        wakes_at=1,
        at_the_end=has_run("meet"),
    )
    yield Scenario(
        name="deadline: another worker ends the run of the event that opens it",
        service=of(meet_step, note, remind_after_q),
        a=(ORD, Q),
        b=(N,),
        owner=(0, 1),
        at_the_end=has_run("meet", "remind_after_q"),
    )
    yield Scenario(
        name="deadline: the saga's start is known after it",
        service=of(report_late, on_own, pay),
        a=(message("o1", "O", started=False),),
        b=(N,),
        at_the_end=has_run("report_late", "on_own", "pay"),
    )
