"""Scenarios with claim checks: every result of a step, and every document that is read, is stored in a document of its
own."""

from collections.abc import Iterator
from dataclasses import replace

from saga.progress.overflow import OverflowBounds
from verification.building_blocks import ORD, OTHER, N, X, many, note, of, step_look, two_steps
from verification.edge_scenarios import looks, looks_first
from verification.scenario import Scenario, has_run
from verification.services import Explored

APART = OverflowBounds(value_bytes_max=0)


def apart(service: Explored) -> Explored:
    """Return the same service with limits so small that it stores every value outside of the progress."""
    return replace(service, bounds=APART)


def claims() -> Iterator[Scenario]:
    """Yield scenarios of reruns that read stored values: after a crash before or after a claim check is written, after
    lost answers, and with other owners."""
    two, noted = apart(of(two_steps, note)), has_run("two", "note")
    yield Scenario(name="claims: two steps, crash", service=two, a=(ORD,), b=(N,), crash=1, move=1, at_the_end=noted)
    yield Scenario(name="claims: two steps, a step fails", service=two, a=(ORD,), crash=1, fail=1)
    yield Scenario(name="claims: two steps, lost answers", service=two, a=(ORD,), b=(N,), lost=1, move=1)
    yield Scenario(name="claims: two steps, parked", service=apart(of(two_steps, parks=True)), a=(ORD,), fail=1)
    yield Scenario(
        name="claims: undone, an attempt fails behind the step",
        service=apart(of(step_look)),
        a=(ORD,),
        b=(X,),
        fail=1,
        move=1,
    )
    yield Scenario(name="claims: undone, and one of many", service=apart(of(many)), a=(ORD, OTHER, X), crash=1, fail=1)
    for name, handler in (("a step", looks_first), ("a step if left", looks)):
        yield Scenario(
            name=f"claims: a read, then {name}, two owners",
            service=apart(of(handler, note)),
            a=(ORD,),
            b=(N,),
            stock=1,
            crash=1,
            owner=(0, 1),
            at_the_end=has_run("reserve", "note"),
        )
