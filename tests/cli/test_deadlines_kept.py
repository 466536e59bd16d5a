"""A deadline is kept by a worker that runs when its time comes, once, whatever dies meanwhile."""

import asyncio
from pathlib import Path

import pytest

from tests.cli.conftest import Call
from tests.cli.pottery_service import CLOCK, Pottery
from tests.cli.test_dead import until
from tests.cli.test_missing_topics import running
from tests.cli.test_parked import ends, listed, publish

CUPS = [f"cup-{n}" for n in range(1, 5)]
SOLD, FORGOTTEN = CUPS[0], set(CUPS[1:])
SOURCE = """
from datetime import timedelta
from pathlib import Path

from {module} import CupMade, CupOrdered, CupSold

from saga import Saga, Service

potter = Service("{service}")


async def ring(key: str, cup: str) -> str:
    with Path("rung").open("a") as file:
        file.write(f"{{key}} {{cup}}\\n")
    return "rung"


@potter.deadline(within=timedelta(seconds=12), unless=(CupSold,))
async def remind(ordered: CupOrdered, saga: Saga) -> CupMade:
    await saga.step(ring, saga.idempotency_key("ring"), ordered.cup_id)
    return CupMade(cup_id=ordered.cup_id)
"""


@pytest.fixture
def bell(pottery_on: Pottery, saga: Call) -> str:
    """Module of a potter who rings twelve seconds after an order, unless the cup is sold before."""
    name = f"{pottery_on.module}_bell"
    (pottery_on.folder / f"{name}.py").write_text(SOURCE.format(module=pottery_on.module, service=pottery_on.service))
    (pottery_on.folder / "rung").write_text("")
    applied = saga("topics", "apply", name)
    assert applied.exit_code == 0, applied.output
    return name


def open_deadlines(saga: Call, service: str) -> set[str]:
    return {cup for cup, seen in listed(saga, service).items() if seen["deadlines"]}


def rung() -> set[str]:
    return {line.split()[1] for line in Path("rung").read_text().splitlines()}


def test_a_deadline_that_became_due_without_a_worker_runs_once_on_the_next(
    bell: str, saga: Call, pottery_on: Pottery
) -> None:
    service = pottery_on.service
    with running(bell):
        publish(saga, "CupOrdered", *CUPS)
        publish(saga, "CupSold", SOLD)
        until(lambda: open_deadlines(saga, service) == FORGOTTEN)
        assert f"  {service}: remind runs at " in saga("sagas", "show", CUPS[1]).stdout
    asyncio.run(CLOCK.sleep(12))
    assert rung() <= FORGOTTEN
    with running(bell):
        until(lambda: rung() == FORGOTTEN)
        until(lambda: open_deadlines(saga, service) == set())
        keys = {tuple(line.split()) for line in Path("rung").read_text().splitlines()}
        assert len(keys) == len(FORGOTTEN), "a repeat has the same key"
        assert all(ends(saga, cup) == [("", "noted"), ("remind", "handled")] for cup in FORGOTTEN)
        verified = saga("sagas", "verify")
        assert verified.exit_code == 0, verified.output
