"""Scenarios of runs that outlive the assignment of their partition. No worker waits for such a run to end, and yet it
ends."""

from collections.abc import Iterator
from dataclasses import replace

from verification.building_blocks import ORD, N, X, note, of, reserve, two_steps
from verification.scenario import Scenario, has_run


def rebalances() -> Iterator[Scenario]:  # a list: one scenario after another
    """Yield scenarios in which the partition of a slow handler goes to another worker and comes back, once or several
    times."""
    ran = has_run("two", "note")
    slow = Scenario(
        name="a slow handler: its partition goes and comes back",
        service=of(two_steps, note),
        a=(ORD,),
        b=(N,),
        move=3,
        counts_calls=True,
        at_the_end=ran,
    )
    yield slow
    yield replace(
        slow, name="a slow handler: rebalances, lost answers", b=(), move=2, lost=1, at_the_end=has_run("two")
    )
    yield replace(slow, name="a slow handler: rebalances, a crash", b=(), move=2, crash=1, at_the_end=has_run("two"))
    yield Scenario(
        name="a slow handler that is undone: its partition goes and comes back",
        service=of(reserve),
        a=(ORD,),
        b=(X,),
        move=2,
        counts_calls=True,
    )
