"""Shrinking: from a failing run to a small one that fails in the same way, with fewer faults and fewer events."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from saga.testing.simulation.plan import POSSIBLE, Operation, Plan, Planned
from saga.testing.simulation.run import Care, Run, Scenario, run
from saga.testing.simulation.schedules import Schedule
from saga.testing.simulation.simulated_world import Broken
from saga.testing.simulation.trace import Injected, Noted

Item = TypeVar("Item")
Sought: TypeAlias = tuple[str, str, str]
"""Identity of an operation whatever its number: its service, what it does, to what."""

RUNS_MAX = 300
"""Most runs for shrinking; it ends then with the smallest that it has found."""


@dataclass(slots=True)
class Shrunk:
    """The smallest run found."""

    run: Run
    runs: int
    """Number of runs that it took."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved(Schedule):
    """Schedule whose planted faults happen to the same operations as before, though these may have other numbers now.

    Whatever is left out of a run gives other numbers to all that follows it.
    """

    places: tuple[tuple[Sought, int], ...]
    """Identity of the operation that each planted fault meets, and how many such operations come before."""

    def plan(self) -> Plan:
        return _Recognising(dict(zip(self.places, self.planted, strict=True)))


class _Recognising:
    def __init__(self, sought: dict[tuple[Sought, int], Planned]) -> None:
        self._sought = sought
        self._seen: Counter[Sought] = Counter()

    def at(self, operation: Operation, now_s: float) -> Planned | None:
        sought = _sought(operation)
        planned = self._sought.get((sought, self._seen[sought]))
        self._seen[sought] += 1
        if planned is None or operation.what not in POSSIBLE[planned.kind]:
            return None
        return planned._replace(process=operation.process, number=operation.number)


def shrink(scenario: Scenario, failing: Run, care: Care, runs_max: int = RUNS_MAX) -> Shrunk:
    """Leave out faults and events as long as the run fails in the same way."""
    found = Shrunk(failing, 0)
    events = range(len(failing.world.published))

    calm: dict[frozenset[int], bool] = {frozenset(): True}

    def is_calm(without: frozenset[int]) -> bool:
        """True if all is well without these events, and without faults. A scenario that says what becomes of an event
        fails without it, whatever else is the matter: such a run would explain nothing."""
        if without not in calm:
            if found.runs >= runs_max:
                return False
            found.runs += 1
            calm[without] = run(scenario, Schedule(seed=failing.schedule.seed, without=without), care).failure is None
        return calm[without]

    def fails(planted: Sequence[Planned], without: frozenset[int]) -> bool:
        """True if it fails with the faults at the same numbers, or at the same operations."""
        if not isinstance(failing.failure, Broken) and not is_calm(without):
            return False
        by_number = Schedule(seed=failing.schedule.seed, planted=tuple(planted), without=without)
        return tried(by_number) or bool(planted and tried(_moved(found.run, by_number)))

    def tried(schedule: Schedule) -> bool:
        if found.runs >= runs_max:
            return False
        found.runs += 1
        smaller = run(scenario, schedule, care)
        if smaller.failure is None or smaller.signature != failing.signature:
            return False
        found.run = smaller
        return True

    while True:
        before = found.run.schedule
        _without(lambda: found.run.schedule.planted, lambda kept: fails(kept, found.run.schedule.without))
        _without(
            lambda: [n for n in events if n not in found.run.schedule.without],
            lambda kept: fails(found.run.schedule.planted, frozenset(events) - set(kept)),
        )
        if found.run.schedule == before or found.runs >= runs_max:
            return found


def _moved(of: Run, schedule: Schedule) -> Moved:
    """A schedule whose faults are some of this run's."""
    places = _places(of)
    return Moved(
        seed=schedule.seed,
        planted=schedule.planted,
        without=schedule.without,
        places=tuple(places[planted] for planted in schedule.planted),
    )


def _places(of: Run) -> dict[Planned, tuple[Sought, int]]:
    """Operation that each fault of a run meets."""
    numbers: dict[tuple[str, int], int] = {}
    seen: Counter[Sought] = Counter()
    places: dict[Planned, tuple[Sought, int]] = {}
    for line in of.world.trace.lines:
        if isinstance(line, Noted):
            continue
        operation = line.operation
        asked, sought = (operation.process, operation.number), _sought(operation)
        if asked not in numbers:
            numbers[asked] = seen[sought]
            seen[sought] += 1
        if isinstance(line, Injected):
            places[line.planned] = sought, numbers[asked]
    return places


def _sought(operation: Operation) -> Sought:
    return operation.service, operation.what, operation.where


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
