"""A short torture: every kind of fault once, under load, and then the books of all services, bank and carrier."""

from pathlib import Path

import pytest

from tests.torture.accidents import KINDS
from tests.torture.story import Plan, Torture

SEED = 20261122


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_the_books_balance_though_everything_was_killed_frozen_or_failed_once(
    server_jars: Path, tmp_path: Path
) -> None:
    output = list[str]()
    plan = Plan(seed=SEED, faults_s=0, least=len(KINDS), per_s=2)
    torture = Torture(tmp_path, plan, output.append)
    assert await torture.run(), "\n".join(output)
    assert torture.kinds == set(KINDS)
    assert not any("; 0 times a breaker opened" in line for line in output)
    assert {check.name: check.differences for check in torture.checks if check.differences} == {}
