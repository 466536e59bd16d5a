"""Decorators of tests: `simulate` runs one under many seeds with faults, `crash_everywhere` with a crash at every
point, `replay` from a schedule.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar, overload

from saga.errors import SagaError
from saga.testing.fault_plans import Faults
from saga.testing.world import World

_Scenario = TypeVar("_Scenario", bound=Callable[..., None])
MARK = "__saga_scenario__"


@dataclass(frozen=True, slots=True)
class Seeds:
    """Mode of `simulate`: one run for each seed."""

    count: int
    faults: Faults


@dataclass(frozen=True, slots=True)
class Crashes:
    """Mode of `crash_everywhere`: one run for each operation on the store, the broker or an external system."""

    pairs: bool | None
    """True to also try every pair of crashes; `None` does so only where the run is short."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """Mode of `replay`: one run, from its schedule."""

    seed: int
    faults: tuple[str, ...]
    without: tuple[int, ...]


Mode: TypeAlias = Seeds | Crashes | Replayed


def simulate(*, seeds: int, faults: Faults = Faults()) -> Callable[[_Scenario], _Scenario]:  # noqa: B008 - a frozen value
    """Run the test once for each of `seeds` seeds, with these faults (none by default). `--saga-seed=N` runs one seed
    alone.
    """
    if seeds < 1:
        raise SagaError(f"simulate(seeds={seeds}): at least one")
    return lambda scenario: _mark(scenario, Seeds(seeds, faults))


@overload
def crash_everywhere(scenario: _Scenario, /) -> _Scenario: ...
@overload
def crash_everywhere(*, pairs: bool | None = None) -> Callable[[_Scenario], _Scenario]: ...
def crash_everywhere(
    scenario: _Scenario | None = None, /, *, pairs: bool | None = None
) -> _Scenario | Callable[[_Scenario], _Scenario]:
    """Run the test once for each crash point: before and after each operation on the store, the broker or an external
    system takes effect. The report says how many points there were.

    `pairs`: also try every pair of such points, with the second crash in what follows the first; by default only where
    a run is short.
    """
    if scenario is not None:
        return _mark(scenario, Crashes(None))
    return lambda scenario: _mark(scenario, Crashes(pairs))


def replay(*, seed: int, faults: Sequence[str] = (), without: Sequence[int] = ()) -> Callable[[_Scenario], _Scenario]:
    """Run the test once from a schedule, as `World.save_schedule` writes it.

    Args:
        seed: decides everything that the schedule does not say.
        faults: the faults to inject, as `"payment-1#12 crash after"`: before or after the 12th operation of it.
        without: numbers (from 0) of the events published by the test that are left out.
    """
    return lambda scenario: _mark(scenario, Replayed(seed, tuple(faults), tuple(without)))


def mode_of(scenario: Callable[..., object]) -> Mode | None:
    """Return the mode that a test was decorated with; `None` without a decorator."""
    mode: Mode | None = getattr(scenario, MARK, None)
    return mode


def _mark(scenario: _Scenario, mode: Mode) -> _Scenario:
    if mode_of(scenario) is not None:
        raise SagaError(
            f"{scenario.__name__} is to be run in two ways: keep one decorator, and call it from another test"
        )
    setattr(scenario, MARK, mode)
    return scenario


__all__ = ["World", "crash_everywhere", "replay", "simulate"]
