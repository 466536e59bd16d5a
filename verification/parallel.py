"""Explore several scenarios in parallel, with one process for each core."""

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

from verification.explore import Report, explore
from verification.generated_scenarios import scenario_of
from verification.random_walks import search
from verification.scenario import Scenario
from verification.scenarios import scenarios
from verification.shrinking import as_code, shrunk

DEEP_STATES_MAX = 1_000_000
"""Largest number of states of a scenario with additional faults. Most scenarios have fewer."""
SEED_STATES_MAX = 2_000
"""Largest number of states of a random scenario that are visited. In larger scenarios, random walks visit some more."""
SEED_WALKS = 20
TOGETHER = 8
"""Number of seeds that a process takes at a time."""


def chosen(part: str, *, deep: bool) -> list[Scenario]:
    """Return the scenarios whose name contains `part`. If `deep`, each may have one more fault of each of its kinds."""
    return [s.deeper() if deep else s for s in scenarios() if part in s.name]


def _explored(part: str, deep: bool, number: int) -> Report:
    return explore(chosen(part, deep=deep)[number], states_max=DEEP_STATES_MAX if deep else 10_000_000)


def explore_all(part: str = "", *, deep: bool = False) -> Iterator[Report]:
    """Explore each chosen scenario to its end; if `deep`, up to a number of states."""
    count = len(chosen(part, deep=deep))
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        yield from pool.map(_explored, [part] * count, [deep] * count, range(count))


def searched(seed: int, *, states_max: int = SEED_STATES_MAX, walks: int = SEED_WALKS) -> tuple[Report, str]:
    """Explore the scenario of a seed. Return its report, and an empty string.

    If there is a violation, return the report and the code of the smallest scenario found with a violation of the same
    kind.
    """

    def look(scenario: Scenario) -> Report:
        return search(scenario, seed=seed, states_max=states_max, walks=walks)

    scenario = scenario_of(seed)
    report = look(scenario)
    if report.loss is None:
        return report, ""
    scenario, report = shrunk(scenario, report, look)
    return report, as_code(scenario)


def search_seeds(first: int, count: int) -> Iterator[tuple[Report, str]]:
    """Explore the scenarios of `count` seeds, from `first` on."""
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        yield from pool.map(searched, range(first, first + count), chunksize=TOGETHER)
