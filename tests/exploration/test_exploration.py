"""The protocol holds: every interleaving of two workers with faults, on the shipped turn and progress."""

from collections.abc import Iterator
from zlib import crc32

import pytest
from _pytest.mark import ParameterSet

from verification.explore import explore
from verification.scenario import Scenario
from verification.scenarios import scenarios

EVERY = list(scenarios())
LONG = frozenset({"many: two owners", "deadline: two of them, and what is parked", "release: of a compensation"})
"""Scenarios of so many states that `make explore` alone goes through them."""
TWELFTH = 5
"""Which twelfth of the others is gone through by `make test`; `make test-slow` goes through all of them."""


def test_the_long_ones_are_among_the_scenarios() -> None:
    assert {scenario.name for scenario in EVERY} >= LONG


def explored() -> Iterator[ParameterSet]:
    """All but the long ones; together they take minutes, so most count as slow."""
    for scenario in EVERY:
        if scenario.name not in LONG:
            is_slow = crc32(scenario.name.encode()) % 12 != TWELFTH
            yield pytest.param(scenario, id=scenario.name, marks=[pytest.mark.slow] if is_slow else [])


@pytest.mark.timeout(600)  # the largest takes 20 s of a processor that is its own
@pytest.mark.parametrize("scenario", list(explored()))
def test_nothing_is_lost_doubled_or_left_standing(scenario: Scenario) -> None:
    report = explore(scenario)
    assert report.loss is None, str(report)
    assert report.exhausted
    assert report.ends > 0


def test_the_names_of_scenarios_differ() -> None:
    assert len({scenario.name for scenario in EVERY}) == len(EVERY)
