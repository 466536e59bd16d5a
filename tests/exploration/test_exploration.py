"""The protocol holds: every interleaving of two workers with faults, on the shipped turn and progress."""

import pytest

from verification.explore import explore
from verification.scenario import Scenario
from verification.scenarios import scenarios

EVERY = list(scenarios())


@pytest.mark.parametrize("scenario", EVERY, ids=lambda scenario: scenario.name)
def test_nothing_is_lost_doubled_or_left_standing(scenario: Scenario) -> None:
    report = explore(scenario)
    assert report.loss is None, str(report)
    assert report.exhausted
    assert report.ends > 0


def test_the_names_of_scenarios_differ() -> None:
    assert len({scenario.name for scenario in EVERY}) == len(EVERY)
