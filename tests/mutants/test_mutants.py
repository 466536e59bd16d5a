"""Planted bugs: the simulation finds each of them within 300 seeds, and nothing where there is none.

`python -m tests.mutants` prints which seed finds which, and plays all 300 seeds without a mutant.
"""

from collections.abc import Iterator, Sequence

import pytest
from _pytest.mark import ParameterSet

from tests.mutants.catalogue import FOUND_BY, MUTANTS, SURVIVORS, Mutant
from tests.mutants.planted import planted
from tests.mutants.runtime_mutants import Plant
from tests.mutants.scenarios import CLUMSY, SCENARIOS, SEEDS, Scenario, first_failing

CLEAN_SEEDS = 3
"""Played without a mutant in `make test-slow`, with the seeds that are known to find one; `make test` plays the first,
and `python -m tests.mutants` all."""
RESTLESS = "parties, restless"


def clean_seeds(name: str) -> set[int]:
    """Seeds under which a scenario is played without a mutant, once for all mutants that they find."""
    found_by = {FOUND_BY[mutant.plant] for mutant in MUTANTS if mutant.scenario == name and mutant.plant in FOUND_BY}
    return {*range(CLEAN_SEEDS), *found_by}


def in_shares(mutants: Sequence[Mutant]) -> Iterator[ParameterSet]:
    """Of six mutants, `make test` plays one, and `make test-slow` the others."""
    for number, mutant in enumerate(mutants):
        yield pytest.param(mutant, id=mutant.plant.__name__, marks=[pytest.mark.slow] if number % 6 else [])


@pytest.mark.parametrize("mutant", [*in_shares(MUTANTS)])
def test_a_mutant_is_found_and_nothing_else_is(mutant: Mutant) -> None:
    scenario = SCENARIOS[mutant.scenario]
    with planted() as (patch, calls):
        mutant.plant(patch)
        found = first_failing(scenario, begin=FOUND_BY.get(mutant.plant, 0))
    assert calls.never_called() == []
    assert found is not None, f"not within {SEEDS} seeds of {scenario.name}"
    if found[0] not in clean_seeds(scenario.name):
        scenario.run(found[0])  # without the mutant the same seed is well


@pytest.mark.parametrize("name", [*SCENARIOS][::2])  # the next test plays the others
def test_without_a_mutant_all_is_well(name: str) -> None:
    SCENARIOS[name].run(0)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_without_a_mutant_all_is_well_under_each_seed_that_finds_one(name: str) -> None:
    for seed in sorted(clean_seeds(name)):
        SCENARIOS[name].run(seed)


@pytest.mark.parametrize("survivor", SURVIVORS, ids=lambda survivor: survivor.__name__)
@pytest.mark.parametrize("seeds", [1, pytest.param(CLEAN_SEEDS, marks=pytest.mark.slow)])
def test_a_mutant_without_effect_is_not_found(survivor: Plant, seeds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    survivor(monkeypatch)
    assert first_failing(SCENARIOS[RESTLESS], seeds) is None


def test_there_are_enough_mutants_and_each_is_counted_once() -> None:
    names = [mutant.plant.__name__ for mutant in MUTANTS]
    assert len(set(names)) == len(names) >= 26
    assert set(FOUND_BY) <= {mutant.plant for mutant in MUTANTS}
    assert max(FOUND_BY.values()) < SEEDS


def test_a_search_starts_at_the_given_seed_and_wraps_around() -> None:
    played = list[int]()

    class Noted(Scenario):
        def run(self, seed: int) -> None:
            played.append(seed)

    noted = Noted(name="nothing fails", play=lambda world: lambda: None, faults=CLUMSY)
    assert first_failing(noted, 5, begin=3) is None
    assert played == [3, 4, 0, 1, 2]
