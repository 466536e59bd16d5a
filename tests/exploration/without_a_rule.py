"""Taking a rule of the protocol away: what each test of one does, and expects."""

from collections.abc import Callable
from typing import TypeAlias

import pytest

from tests.mutants.planted import planted
from verification.explore import explore
from verification.scenarios import scenarios

Take: TypeAlias = Callable[[pytest.MonkeyPatch], None]
"""Function that takes one rule away."""


def check_loss(take_away: Take, name: str) -> None:
    """Check that without the rule the exploration of this scenario finds a loss, and the way to it.

    What takes the rule away has to be called: a patch of a function that nothing calls any more proves nothing.
    """
    with planted() as (patch, calls):
        take_away(patch)
        scenario = next(s for s in scenarios() if s.name == name)  # now: its messages may have other ids
        report = explore(scenario, states_max=100_000)
    assert report.loss is not None
    assert report.trace
    assert calls.never_called() == []
