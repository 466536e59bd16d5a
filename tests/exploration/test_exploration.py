"""The protocol holds: every interleaving of two workers with faults, on the shipped turn and progress."""

from zlib import crc32

import pytest

from verification.explore import explore
from verification.scenario import Scenario
from verification.scenarios import scenarios

EVERY = list(scenarios())
LONG = frozenset({"many: two owners", "deadline: two of them, and what is parked", "release: of a compensation"})
"""Scenarios of so many states that `make explore` alone goes through them."""
QUARTER = [each for each in EVERY if each.name not in LONG and crc32(each.name.encode()) % 4 == 1]
"""A quarter of the others: `make explore` goes through all."""


def test_the_long_ones_are_among_the_scenarios() -> None:
    assert {scenario.name for scenario in EVERY} >= LONG


@pytest.mark.parametrize("scenario", QUARTER, ids=lambda scenario: scenario.name)
def test_nothing_is_lost_doubled_or_left_standing(scenario: Scenario) -> None:
    report = explore(scenario)
    assert report.loss is None, str(report)
    assert report.exhausted
    assert report.ends > 0


def test_the_names_of_scenarios_differ() -> None:
    assert len({scenario.name for scenario in EVERY}) == len(EVERY)
