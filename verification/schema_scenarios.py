"""Scenarios of messages whose schema is unknown to the first release and known to the later one."""

from collections.abc import Iterator
from dataclasses import replace

from saga.messages import Message
from verification.building_blocks import (
    ORD,
    N,
    Q,
    X,
    meet,
    note,
    of,
    reserve,
)
from verification.handlers import Reacts
from verification.scenario import AtTheEnd, Scenario, has_run, nothing_more
from verification.services import Explored, message

NEW_ORD, NEW_Q = message("o9", "O", newer=True), message("q9", "Q", newer=True)
NEW_N, NEW_X = message("n9", "N", newer=True), message("x9", "X", newer=True)


def deployed(*handlers: Reacts) -> Explored:
    """Return a service whose later release knows newer schemas. Each worker is updated at a time of its own."""
    return replace(of(*handlers, parks=True), learns=True)


def schemas() -> Iterator[Scenario]:  # a list: one scenario after another
    """Yield scenarios in which a schema is deployed after its first message has come, on one worker before the
    other."""
    yield _scenario("deployed later", deployed(reserve, note), (NEW_ORD, N), has_run("reserve", "note"))
    yield replace(_scenario("deployed later, a rebalance", deployed(reserve), (NEW_ORD,), has_run("reserve")), move=1)
    yield replace(_scenario("deployed later, lost answers", deployed(note), (NEW_N,), has_run("note")), lost=1)
    yield replace(
        _scenario("begun by who knows it, gone on with by who does not", deployed(reserve), (NEW_ORD,)),
        fail=1,
        move=1,
        crash=0,
        at_the_end=has_run("reserve"),
    )
    yield replace(
        _scenario("of a part of several", deployed(meet), (NEW_Q,), has_run("meet")),
        b=(ORD,),
    )
    yield replace(_scenario("of a part, and another one in its place", deployed(meet), (NEW_Q, Q)), b=(ORD,), crash=0)
    yield _scenario("of a failure outcome", deployed(reserve), (ORD, NEW_X))
    yield _scenario("of what a failure outcome undoes", deployed(reserve), (NEW_ORD, X))


def _scenario(name: str, service: Explored, log: tuple[Message, ...], at_the_end: AtTheEnd = nothing_more) -> Scenario:
    """Make a scenario in which few ticks pass, because each look at the unknown schema is like the one before."""
    return Scenario(
        name=f"schema: {name}", service=service, a=log, ticks_max=3, crash=1, wakes_max=30, at_the_end=at_the_end
    )
