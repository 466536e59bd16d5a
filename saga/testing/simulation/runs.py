"""One run of a scenario in a simulated world, from its beginning to the invariants at its end."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from traceback import extract_tb
from typing import TypeAlias

from saga.errors import SagaError
from saga.testing.simulation.schedules import Schedule
from saga.testing.simulation.world import Broken, SimulatedWorld

Scenario: TypeAlias = Callable[[SimulatedWorld], None]
FAILURES: tuple[type[BaseException], ...] = (Exception,)


@dataclass(frozen=True, slots=True)
class Run:
    """What came of it."""

    schedule: Schedule
    """With the faults that happened, planted: the same run again."""
    failure: BaseException | None
    world: SimulatedWorld

    @property
    def signature(self) -> tuple[type, str]:
        """What tells one failure from another, while a run is shrunk: its kind, and the invariant or the line."""
        assert self.failure is not None
        if isinstance(self.failure, Broken):
            return Broken, self.failure.invariant
        raised = extract_tb(self.failure.__traceback__)[-1]
        return type(self.failure), f"{raised.filename}:{raised.lineno}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Care:
    """How closely a run is watched: each costs time."""

    guarded: bool = False
    """Stray real time, chance, threads and network are noticed."""
    rerun: bool = False
    """Each transition is made again and must have the same bytes."""
    failures: tuple[type[BaseException], ...] = FAILURES
    """What counts as a failure of the scenario, beside a broken invariant."""


def run(scenario: Scenario, schedule: Schedule, care: Care) -> Run:
    """Run it once. Whatever fails it is in the answer, not raised."""
    failure: BaseException | None = None
    with _no_collector(), SimulatedWorld(schedule.seed, schedule.plan(), guarded=care.guarded) as world:
        world.left_out = schedule.without
        try:
            scenario(world)
            world.verify(rerun=care.rerun)
        except care.failures as why:
            failure = why
    return Run(world.schedule(), failure, world)


@contextmanager
def _no_collector() -> Iterator[None]:
    """Python's cyclic collector takes a sixth of a run's time, and finds little before the world has ended."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def check_repeatable(scenario: Scenario, schedule: Schedule, first: Run) -> None:
    """The same run again. Raises `SagaError` if it goes another way."""
    again = run(scenario, schedule, Care())
    if first.failure is not None or again.failure is not None:
        return  # told as what it is
    if first.world.fingerprint() == again.world.fingerprint():
        return
    for one, two in zip(first.world.trace.lines, again.world.trace.lines, strict=False):
        if one != two:
            raise SagaError(
                f"seed {schedule.seed} runs another way the second time, from {one.time_s:.4f} s on:\n"
                f"  {one}\n  {two}\n"
                "something in a service or its fakes takes its answer from elsewhere: a global that the test does not "
                "make anew, the order of a set, an id() or a hash()"
            )
    raise SagaError(f"seed {schedule.seed} goes on longer the second time: {two}")
