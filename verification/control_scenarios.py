"""Scenarios in which operators pause and route handlers: nothing is lost, a paused run counts no attempt, and no run
that has begun becomes a dead letter."""

from collections.abc import Iterator

from saga.messaging import controls
from saga.messaging.controls import Control, ControlLog, Switch
from saga.progress.document import SagaProgress, Transition
from saga.support.clock import iso
from verification.answer_scenarios import answers_stay
from verification.building_blocks import (
    BAD_Q,
    ORD,
    N,
    Q,
    S,
    X,
    confirm,
    hold,
    meet_step,
    note,
    of,
    on_own_step,
    place,
    reserve,
    two_steps,
)
from verification.deadline_scenarios import expire, expire_by_step
from verification.handlers import SERVICE, Reacts
from verification.later_scenarios import job, look_by_step
from verification.operations import NOW_MS, TICK_MS
from verification.operator_scenarios import at_last, command
from verification.scenario import AtTheEnd, Scenario, has_ended, has_run
from verification.services import time_after

step_step_look = Reacts(name="two", to=(("O",),), does=("step", "step", "look"), emits=("R",))
SOON = iso(NOW_MS + 2 * TICK_MS)
"""Time at which a pause ends by itself."""


def pause(handler: str | None = None, until: str | None = SOON) -> Switch:
    """Return the control that pauses a handler, or the whole service, until a time."""
    return Switch(kind="pause", handler=handler, until=until)


def resume(handler: str | None = None) -> Switch:
    """Return the control that ends a pause."""
    return Switch(kind="pause", handler=handler, off=True)


def route(handler: str) -> Switch:
    """Return the control that routes a handler's messages to the dead letters."""
    return Switch(kind="route", handler=handler)


def end_route(handler: str) -> Switch:
    """Return the control that ends a route."""
    return Switch(kind="route", handler=handler, off=True)


def books(*switches: Switch, begun: int = 1) -> tuple[ControlLog, ...]:
    """Return the control logs that result when operators set one control after the other. The first log has `begun` of
    them."""
    every, book = [ControlLog(service=SERVICE)], ControlLog(service=SERVICE)
    for n, switch in enumerate(switches):
        wish = Control(
            id=f"c{n}", type=controls.TYPE, schema="", saga=SERVICE, source="ada", time=time_after(0), value=b"",
            switch=switch, who="ada", why="to see",
        )  # fmt: skip
        book = controls.append_control(book, wish) or book
        every.append(book)
    return tuple(every[begun:])


def whole(*names: str) -> AtTheEnd:
    """Check that these handlers have run, each in its first attempt."""
    ran = has_run(*names)

    def check(p: SagaProgress, entries: tuple[Transition, ...]) -> str | None:
        counted = [t.handler for t in entries if t.attempt > 1 or (t.outcome == "retrying" and t.attempt)]
        return f"COUNTED {counted[0]}" if counted else ran(p, entries)

    return check


def paused() -> Iterator[Scenario]:  # a list: one scenario after another
    """Yield scenarios of runs that are paused, until the pause ends by itself or an operator ends it."""
    for name, crash, lost, early in (("a crash", 1, 0, 0), ("lost answers", 0, 1, 0), ("an early wake", 0, 0, 1)):
        yield Scenario(
            name=f"paused: {name}",
            service=of(reserve, note),
            a=(ORD, N),
            books=books(pause("reserve"), *([resume("reserve")] if early else ())),
            crash=crash,
            lost=lost,
            early=early,
            at_the_end=whole("reserve", "note"),
        )
    yield Scenario(
        name="paused: an answer that came in time, beside a deadline",
        service=of(confirm, expire),
        a=(ORD,),
        b=(S,),
        books=books(pause("confirm")),
        grows=True,
        ticks_max=4,
        at_the_end=has_ended,
    )
    yield Scenario(
        name="paused: a rebalance",
        service=of(reserve),
        a=(ORD,),
        books=books(pause("reserve")),
        move=1,
        at_the_end=whole("reserve"),
    )
    yield Scenario(
        name="paused: while it is under way",
        service=of(two_steps),
        a=(ORD,),
        books=books(pause("two"), begun=0),
        crash=1,
        at_the_end=whole("two"),
    )
    yield Scenario(
        name="paused: the whole service, with what undoes",
        service=of(reserve),
        a=(ORD,),
        b=(X,),
        books=books(pause(), resume(), begun=0),
        crash=1,
    )
    yield Scenario(
        name="paused: what undoes alone",
        service=of(reserve, hold),
        a=(ORD, N),
        b=(X,),
        books=books(pause("undo_reserve")),
    )
    yield Scenario(
        name="paused: a fan-in",
        service=of(meet_step),
        a=(ORD,),
        b=(Q,),
        books=books(pause("meet")),
        at_the_end=whole("meet"),
    )
    yield Scenario(
        name="paused: on an own event",
        service=of(place, on_own_step),
        a=(ORD,),
        books=books(pause("on_own")),
        crash=1,
        at_the_end=whole("place", "on_own"),
    )
    yield Scenario(
        name="paused: a deadline",
        service=of(expire_by_step),
        a=(ORD,),
        books=books(pause("expire")),
        crash=1,
        at_the_end=whole("expire"),
    )
    yield Scenario(
        name="paused: a failed run",
        service=of(reserve, note, parks=True),
        a=(ORD, N),
        books=books(pause("reserve"), begun=0),
        fail=1,
        at_the_end=has_run("reserve", "note"),
    )


def paused_later() -> Iterator[Scenario]:  # a list, as above
    """Yield scenarios of runs that are paused between two turns or two attempts, and of a message for a fan-in that
    nobody can decode."""
    yield Scenario(
        name="paused: a run that failed behind the answer of an operator",
        service=of(step_step_look, attempts_max=2),
        a=(ORD,),
        b=(command("resolve", "two", ORD, answers=1),),
        books=books(pause("two"), begun=0),
        fail=3,
        counts_calls=True,
        may_die=True,
        at_the_end=answers_stay,
    )
    yield Scenario(
        name="paused: between two turns",
        service=of(job, note),
        a=(ORD,),
        b=(N,),
        books=books(pause("job"), begun=0),
        wakes_max=16,
        at_the_end=whole("job", "note"),
    )
    yield Scenario(
        name="paused: a turn whose event comes",
        service=of(look_by_step),
        a=(ORD,),
        b=(Q,),
        books=books(pause("look"), begun=0),
        wakes_max=16,
        at_the_end=whole("look"),
    )
    yield Scenario(
        name="paused: a fan-in, and a part that nobody can decode",
        service=of(meet_step),
        a=(BAD_Q,),
        b=(ORD,),
        books=books(pause("meet")),
    )


def routed() -> Iterator[Scenario]:  # a list, as above
    """Yield scenarios of messages that an operator routes to the dead letters, and replays after the route has
    ended."""
    again = command("replay", "reserve", ORD)
    for name, crash, move, lost in (("a crash", 1, 0, 0), ("a rebalance", 0, 1, 0), ("lost answers", 0, 0, 1)):
        yield Scenario(
            name=f"routed: {name}",
            service=of(reserve, note),
            a=(ORD, N),
            b=(again,),
            books=books(route("reserve"), end_route("reserve")),
            may_die=True,
            crash=crash,
            move=move,
            lost=lost,
            at_the_end=at_last("reserve", "note"),
        )
    yield Scenario(
        name="routed: while it is under way",
        service=of(two_steps),
        a=(ORD,),
        books=books(route("two"), begun=0),
        crash=1,
        move=1,
        may_die=True,
        at_the_end=never_half,
    )
    yield Scenario(
        name="routed: the outcome beside it",
        service=of(reserve),
        a=(ORD,),
        b=(X, again),
        books=books(route("reserve"), end_route("reserve"), begun=0),
        crash=1,
        may_die=True,
    )


def never_half(p: SagaProgress, entries: tuple[Transition, ...]) -> str | None:
    """Check that no run that has begun has become a dead letter."""
    return f"HALF DONE {p.intents[0].handler}" if p.intents and any(k.dead for k in p.queue) else None
