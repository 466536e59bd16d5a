"""Generated scenarios are free of losses: a few hundred small ones here, thousands in `make explore`."""

from hashlib import blake2b

import pytest

from tests.exploration import test_rules as rules
from verification.generated_scenarios import scenario_of
from verification.parallel import searched
from verification.shrinking import as_code, kind_of

TOGETHER = 30
SLOW = (pytest.param(first, marks=pytest.mark.slow) for first in range(31, 121, TOGETHER))


@pytest.mark.parametrize("first", [1, *SLOW])
def test_nothing_is_lost_in_services_and_logs_made_by_chance(first: int) -> None:
    for seed in range(first, first + TOGETHER):
        report, code = searched(seed, states_max=300, walks=3)
        assert report.loss is None, f"{report}\n{code}"


def test_a_seed_gives_the_same_scenario_on_every_version_of_python() -> None:
    made = "\n".join(as_code(scenario_of(seed, ())) for seed in range(100))
    assert blake2b(made.encode(), digest_size=8).hexdigest() == "822e17769f76fadd"


@pytest.mark.slow
def test_a_loss_is_reported_as_a_minimised_scenario_with_its_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    rules.nothing_is_settled(monkeypatch)
    for seed in range(1, 20):
        report, code = searched(seed, states_max=300, walks=3)
        if code:
            break
    assert report.loss is not None
    assert kind_of(report.loss).isupper()
    assert report.trace
    assert 0 < len(code) < len(as_code(scenario_of(seed)))
