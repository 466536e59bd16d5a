"""Runs of a test as real processes, under pytest: few seeds, the faults that can be had there, and which cannot."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import pytest

from saga.testing.decorators import Crashes, Mode, Replayed, Seeds
from saga.testing.processes.process_world import ProcessWorld
from saga.testing.processes.servers import Giver, giver_of
from saga.testing.pytest_names import REPORTED
from saga.testing.simulation.reports import counted
from saga.testing.world import World

SEEDS_MAX = 2
"""Most seeds that are tried: a run of real processes takes seconds."""
SERVER_SEEDS_MAX = 1
"""Most seeds on servers, where a run takes half a minute."""


@contextmanager
def first_world(config: pytest.Config, mode: Mode | None) -> Iterator[World]:
    """World that the fixture gives; a test that is run once runs in this very one."""
    made = ProcessWorld(servers=_giver(config))
    if mode is not None:  # it is run in others: no servers are started for this one
        yield made
        return
    with made as world:
        yield world


def run_test(
    item: pytest.Function, scenario: Callable[[World], None], mode: Mode, failures: tuple[type[BaseException], ...]
) -> bool:
    """Run the test as its decorator says, as far as real processes can. Raises what a run raises."""
    if isinstance(mode, Replayed):
        pytest.skip("a schedule is one of the simulated world: it means nothing to real processes")
    kinds: dict[str, float] = {"crash": 0.05} if isinstance(mode, Crashes) else {}
    if isinstance(mode, Seeds):
        kinds = {rule.kind: max(rule.rate, kinds.get(rule.kind, 0)) for rule in mode.faults.rules}
    only = item.config.getoption("--saga-seed")
    giver = _giver(item.config)
    seeds_max = SEEDS_MAX if giver is None else SERVER_SEEDS_MAX
    seeds = [only] if only is not None else range(min(seeds_max, getattr(mode, "count", 1)))
    missing, world = dict[str, None](), None
    for seed in seeds:
        try:
            with ProcessWorld(seed, kinds, servers=giver) as world:
                missing |= dict.fromkeys(kind for kind in kinds if world.left_out([kind]))
                scenario(world)
                world.verify()
        except failures as why:
            why.add_note(
                f"again: {_asked(item.config)} --saga-seed={seed}, though no run of real processes is as another"
            )
            raise
    say_what_was_run(item, world, len(seeds), missing)
    return True


def say_what_was_run(item: pytest.Function, world: World | None, runs: int = 1, missing: Iterable[str] = ()) -> None:
    """Add a line for the terminal, with all that these runs could not have, and could not look at."""
    assert isinstance(world, ProcessWorld)
    said = [
        f"{counted(runs, 'run')} as real processes{' on servers' if item.config.getoption('--saga-servers') else ''}",
        *([f"left out there: {', '.join(missing)}"] if missing else []),
        f"not looked at there: {', '.join(world.unseen)}",
    ]
    item.user_properties.append((REPORTED, "; ".join(said)))


def _giver(config: pytest.Config) -> Giver | None:
    """Function that gives servers, if any. Raises `SagaError` for a name that nobody knows."""
    name: str | None = config.getoption("--saga-servers")
    return None if name is None else giver_of(name)


def _asked(config: pytest.Config) -> str:
    servers = config.getoption("--saga-servers")
    return f"--saga-world={config.getoption('--saga-world')}{f' --saga-servers={servers}' if servers else ''}"
