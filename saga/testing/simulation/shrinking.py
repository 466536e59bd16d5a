"""From a failing run to a small one that fails in the same way: fewer faults, fewer events, one after another."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from saga.testing.simulation.runs import Care, Run, Scenario, run

Item = TypeVar("Item")

RUNS_MAX = 300
"""Shrinking ends after so many runs, with the smallest that it has found."""


@dataclass(slots=True)
class Shrunk:
    """The smallest run found."""

    run: Run
    runs: int
    """How many it took."""


def shrink(scenario: Scenario, failing: Run, care: Care, runs_max: int = RUNS_MAX) -> Shrunk:
    """Leave out faults and events as long as the run fails in the same way."""
    found = Shrunk(failing, 0)

    def fails(**changes: object) -> bool:
        if found.runs >= runs_max:
            return False
        found.runs += 1
        smaller = run(scenario, replace(found.run.schedule, **changes), care)  # type: ignore[arg-type] # its own fields
        if smaller.failure is None or smaller.signature != failing.signature:
            return False
        found.run = smaller
        return True

    while True:
        before = found.run.schedule
        _without(lambda: found.run.schedule.planted, lambda kept: fails(planted=tuple(kept)))
        _without(
            lambda: [n for n in range(len(failing.world.published)) if n not in found.run.schedule.without],
            lambda kept: fails(without=frozenset(range(len(failing.world.published))) - set(kept)),
        )
        if found.run.schedule == before or found.runs >= runs_max:
            return found


def _without(items: Callable[[], Sequence[Item]], fails: Callable[[Sequence[Item]], bool]) -> None:
    """Leave out halves, quarters and so on, down to single ones. `items` gives what is left."""
    size = len(items())
    while size:
        at = 0
        while at < len(items()):
            left = [*items()[:at], *items()[at + size :]]
            if not fails(left):
                at += size
        size //= 2
