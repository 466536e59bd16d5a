"""One run of a scenario in a simulated world, from its beginning to the invariants at its end."""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from traceback import extract_tb
from typing import TypeAlias

from saga.errors import SagaError
from saga.testing.simulation.schedules import Schedule
from saga.testing.simulation.simulated_world import Broken, SimulatedWorld
from saga.testing.simulation.trace import Asked, Injected, Noted

Scenario: TypeAlias = Callable[[SimulatedWorld], None]
Line: TypeAlias = Asked | Injected | Noted
ELSEWHERE = (
    "something in a service, its fakes or the test takes its answer from elsewhere: a global that the test does not "
    "make anew, the order of a set, an id() or a hash()"
)
FAILURES: tuple[type[BaseException], ...] = (Exception,)


@dataclass(frozen=True, slots=True)
class Run:
    """Result of one run."""

    schedule: Schedule
    """Schedule of the same run again: the faults that happened are planted in it."""
    failure: BaseException | None
    world: SimulatedWorld

    @property
    def signature(self) -> tuple[type, str]:
        """Signature that tells one failure from another while a run is shrunk: its kind, and the invariant or the
        line."""
        assert self.failure is not None
        if isinstance(self.failure, Broken):
            return Broken, self.failure.invariant
        raised = extract_tb(self.failure.__traceback__)[-1]
        return type(self.failure), f"{raised.filename}:{raised.lineno}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Care:
    """Care with which a run is watched: each part costs time."""

    guarded: bool = False
    """True to notice stray real time, chance, threads and network."""
    rerun: bool = False
    """True to make each transition again, which must have the same bytes."""
    failures: tuple[type[BaseException], ...] = FAILURES
    """Exceptions that count as a failure of the scenario, beside a broken invariant."""


def run(scenario: Scenario, schedule: Schedule, care: Care) -> Run:
    """Run the scenario once. An exception that fails it is in the result, not raised."""
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
    """Block without Python's cyclic collector, which takes a sixth of a run's time, and finds little before the world
    has ended."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def check_repeatable(scenario: Scenario, schedule: Schedule, first: Run) -> None:
    """Make the same run again. Raises `SagaError` if it goes another way, or fails only the second time."""
    if first.failure is not None:
        return  # told as what it is
    again = run(scenario, schedule, Care())
    if first.world.fingerprint() != again.world.fingerprint():
        said = _parted(schedule.seed, first.world.trace.lines, again.world.trace.lines)
        raise SagaError(f"{said}\n{ELSEWHERE}") from again.failure
    if again.failure is not None:
        said = f"seed {schedule.seed} fails the second time only: {again.failure}"
        raise SagaError(f"{said}\n{ELSEWHERE}") from again.failure


def _parted(seed: int, ones: Sequence[Line], twos: Sequence[Line]) -> str:
    """Place where two runs of one seed part, in words."""
    for one, two in zip(ones, twos, strict=False):
        if one != two:
            return f"seed {seed} runs another way the second time, from {one.time_s:.4f} s on:\n  {one}\n  {two}"
    if len(ones) == len(twos):
        return f"seed {seed} does the same the second time, and writes or says something else"
    longer, which = (ones, "first") if len(ones) > len(twos) else (twos, "second")
    return f"seed {seed} goes on longer the {which} time:\n  {longer[min(len(ones), len(twos))]}"
