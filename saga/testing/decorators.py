"""Decorators for tests: `simulate` runs a test under many seeds with faults, `crash_everywhere` runs it with a crash at
every point, and `replay` runs it from a recorded schedule.
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
    """Mode of a test decorated with `simulate`: the test runs once for each seed."""

    count: int
    faults: Faults
    unreached: tuple[Callable[..., object], ...] | None = None
    """Handlers that need not run. Every other handler fails the test if no run reaches it. With `None`, no handler
    fails the test.
    """


@dataclass(frozen=True, slots=True)
class Crashes:
    """Mode of a test decorated with `crash_everywhere`: the test runs once for each crash point."""

    pairs: bool | None
    """True to also try pairs of crashes; `None` to try them only if a run is short."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """Mode of a test decorated with `replay`: the test runs once, from a recorded schedule."""

    seed: int
    faults: tuple[str, ...]
    without: tuple[int, ...]


Mode: TypeAlias = Seeds | Crashes | Replayed


def simulate(
    *,
    seeds: int,
    faults: Faults = Faults(),  # noqa: B008 - a frozen value
    unreached: Sequence[Callable[..., object]] | None = None,
) -> Callable[[_Scenario], _Scenario]:
    """Run the test once for each of `seeds` seeds, with these faults (none by default). The option `--saga-seed=N` runs
    only that seed.

    pytest's output names, for each test, the handlers, compensations and deadlines that no run has reached. By default
    they do not fail the test.

    `unreached`: functions that need not run. If it is given, the test fails for every other handler, compensation or
    deadline that no run has reached; `unreached=[]` requires all those of the services in the world. It has no effect
    in a pytest run with `--saga-seed`, or with `--saga-seeds` less than `seeds`.
    """
    if seeds < 1:
        raise SagaError(f"simulate(seeds={seeds}): at least one")
    allowed = None if unreached is None else tuple(unreached)
    return lambda scenario: _mark(scenario, Seeds(seeds, faults, allowed))


@overload
def crash_everywhere(scenario: _Scenario, /) -> _Scenario: ...
@overload
def crash_everywhere(*, pairs: bool | None = None) -> Callable[[_Scenario], _Scenario]: ...
def crash_everywhere(
    scenario: _Scenario | None = None, /, *, pairs: bool | None = None
) -> _Scenario | Callable[[_Scenario], _Scenario]:
    """Run the test once for each crash point. There is one before and one after each operation on the store, the broker
    or an external system. The report says how many there were.

    `pairs`: True to also try pairs of crashes, in which the second crash happens after the first. By default pairs are
    tried only if a run is short.
    """
    if scenario is not None:
        return _mark(scenario, Crashes(None))
    return lambda scenario: _mark(scenario, Crashes(pairs))


def replay(*, seed: int, faults: Sequence[str] = (), without: Sequence[int] = ()) -> Callable[[_Scenario], _Scenario]:
    """Run the test once from a schedule, as written by `World.save_schedule`.

    Args:
        seed: decides everything that the schedule does not fix.
        faults: the faults to inject. `"payment-1#12 crash after"` means a crash after the 12th operation of
            `payment-1`.
        without: numbers (from 0) of events and documents that this run leaves out, in the order in which the test
            publishes or writes them.
    """
    return lambda scenario: _mark(scenario, Replayed(seed, tuple(faults), tuple(without)))


def mode_of(scenario: Callable[..., object]) -> Mode | None:
    """Return the mode that a decorator gave to the test; `None` if it has none."""
    mode: Mode | None = getattr(scenario, MARK, None)
    return mode


def _mark(scenario: _Scenario, mode: Mode) -> _Scenario:
    if isinstance(scenario, type):
        raise SagaError(f"{scenario.__name__} is a class, and only a test is run in many worlds: decorate its tests")
    if mode_of(scenario) is not None:
        raise SagaError(
            f"{scenario.__name__} is to be run in two ways: keep one decorator, and call it from another test"
        )
    setattr(scenario, MARK, mode)
    return scenario


__all__ = ["World", "crash_everywhere", "replay", "simulate"]
