"""Decorators of tests: run under many seeds with faults, with a crash at every point, or as a schedule says."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar, overload

from saga.errors import SagaError
from saga.testing.fault_kinds import Faults
from saga.testing.world import World

_Scenario = TypeVar("_Scenario", bound=Callable[..., None])
MARK = "__saga_scenario__"


@dataclass(frozen=True, slots=True)
class Seeds:
    """Mode of `simulate`: once for each seed."""

    count: int
    faults: Faults


@dataclass(frozen=True, slots=True)
class Crashes:
    """Mode of `crash_everywhere`: once for each point where the test touches the outside."""

    pairs: bool | None
    """True to try every two crashes, too; `None`: where the run is short."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """Mode of `replay`: once, as its schedule says."""

    seed: int
    faults: tuple[str, ...]
    without: tuple[int, ...]


Mode: TypeAlias = Seeds | Crashes | Replayed


def simulate(*, seeds: int, faults: Faults = Faults()) -> Callable[[_Scenario], _Scenario]:  # noqa: B008 - a frozen value
    """Run the test once for each of `seeds` seeds, with these faults (none by default). `--saga-seed=N` runs one."""
    if seeds < 1:
        raise SagaError(f"simulate(seeds={seeds}): at least one")
    return lambda scenario: _marked(scenario, Seeds(seeds, faults))


@overload
def crash_everywhere(scenario: _Scenario, /) -> _Scenario: ...
@overload
def crash_everywhere(*, pairs: bool | None = None) -> Callable[[_Scenario], _Scenario]: ...
def crash_everywhere(
    scenario: _Scenario | None = None, /, *, pairs: bool | None = None
) -> _Scenario | Callable[[_Scenario], _Scenario]:
    """Run the test once for each point where it touches store, broker or step, with the process dying there, before and
    after the operation takes effect; its report says how many points there were.

    `pairs`: also for every two such points, the second in what follows the first; by default where a run is short.
    """
    if scenario is not None:
        return _marked(scenario, Crashes(None))
    return lambda scenario: _marked(scenario, Crashes(pairs))


def replay(*, seed: int, faults: Sequence[str] = (), without: Sequence[int] = ()) -> Callable[[_Scenario], _Scenario]:
    """Run the test once, as a schedule says: what `World.save_schedule` writes.

    `faults`: what is planted, as `"payment-1#12 crash after"`: before or after the 12th operation of that process.
    `without`: of the events that the test publishes, the numbers (from 0) that are left out.
    """
    return lambda scenario: _marked(scenario, Replayed(seed, tuple(faults), tuple(without)))


def mode_of(scenario: Callable[..., object]) -> Mode | None:
    """Mode that a test was decorated with; `None` without a decorator."""
    mode: Mode | None = getattr(scenario, MARK, None)
    return mode


def _marked(scenario: _Scenario, mode: Mode) -> _Scenario:
    if mode_of(scenario) is not None:
        raise SagaError(
            f"{scenario.__name__} is to be run in two ways: keep one decorator, and call it from another test"
        )
    setattr(scenario, MARK, mode)
    return scenario


__all__ = ["World", "crash_everywhere", "replay", "simulate"]
