"""A long job resumes from its last saved turn, whichever process is killed meanwhile: each item has one effect."""

import asyncio
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random  # noqa: TID251 - drawn from a seed

import pytest

from tests import waiting
from tests.cli.conftest import Call
from tests.cli.pottery_service import CLOCK, Pottery
from tests.cli.test_missing_topics import Running, running
from tests.cli.test_parked import listed, publish

SEED, CUPS, KILLS = 5, ("cup-1", "cup-2"), 2
ITEMS = int(os.environ.get("SAGA_TEST_JOB_ITEMS", "150"))
"""Items of each job. For 10,000: SAGA_TEST_JOB_ITEMS=10000 pytest --timeout 900 tests/cli/test_jobs.py -k embedded"""
SOURCE = """
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from {module} import CupMade, CupOrdered, CupSold

from saga import Later, Saga, Service

ITEMS, A_TURN = {items}, 5


@dataclass(frozen=True)
class Painted:
    flowers: int = 0


potter = Service("{service}", state=Painted)


async def paint(key: str, cup: str, flower: int) -> str:
    with Path("painted").open("a") as file:
        file.write(f"{{key}} {{cup}} {{flower}}\\n")
    return "painted"


@potter.handler
async def make(
    ordered: CupOrdered, sold: CupSold | None, saga: Saga[Painted]
) -> CupMade | Later | Later[CupSold]:
    if saga.state.flowers == ITEMS:
        if sold is None and saga.elapsed < timedelta(days=1):
            return Later(until=CupSold, within=timedelta(days=1))
        return CupMade(cup_id=ordered.cup_id)
    for flower in range(saga.state.flowers, saga.state.flowers + A_TURN):
        await saga.step(paint, saga.idempotency_key(f"flower-{{flower}}"), ordered.cup_id, flower)
    saga.state = Painted(saga.state.flowers + A_TURN)
    return Later()
"""


def until(holds: Callable[[], bool], worker: Running) -> None:
    waiting.until(holds, 60 + ITEMS / 20, lambda: worker.read_log()[-5000:])


@pytest.fixture
def painter(pottery_on: Pottery, saga: Call) -> str:
    """Module of a potter who paints flowers on each cup, a few at a time, and then waits until it is sold."""
    name = f"{pottery_on.module}_painter"
    source = SOURCE.format(module=pottery_on.module, service=pottery_on.service, items=ITEMS)
    (pottery_on.folder / f"{name}.py").write_text(source)
    (pottery_on.folder / "painted").write_text("")
    applied = saga("topics", "apply", name)
    assert applied.exit_code == 0, applied.output
    return name


def painted() -> list[tuple[str, str, str]]:
    lines = [line.split() for line in Path("painted").read_text().splitlines() if line.count(" ") == 2]
    return [(key, cup, flower) for key, cup, flower in lines]


def are_painted(more_than: int) -> bool:
    return len({(cup, flower) for _, cup, flower in painted()}) > more_than


def waits_to_be_sold(saga: Call, cup: str) -> bool:
    return ", or with CupSold" in saga("sagas", "show", cup).stdout


def test_a_job_that_is_killed_at_random_does_each_item_once_and_waits_for_its_event(
    painter: str, saga: Call, pottery_on: Pottery
) -> None:
    service, chance = pottery_on.service, Random(SEED)
    publish(saga, "CupOrdered", *CUPS)
    for part in range(1, KILLS + 1):
        with running(painter) as worker:
            wanted = part * ITEMS * len(CUPS) // (KILLS + 1)
            until(partial(are_painted, wanted), worker)
            asyncio.run(CLOCK.sleep(chance.random() / 20))
    with running(painter) as worker:
        until(lambda: all(len({f for _, c, f in painted() if c == cup}) == ITEMS for cup in CUPS), worker)
        until(
            lambda: all(each["later"] == 1 and each["state"] == "later" for each in listed(saga, service).values()),
            worker,
        )
        for cup in CUPS:
            until(partial(waits_to_be_sold, saga, cup), worker)
            assert f"  {service}: make goes on with CupOrdered at " in saga("sagas", "show", cup).stdout
        publish(saga, "CupSold", *CUPS)
        until(lambda: all(not each["later"] for each in listed(saga, service).values()), worker)
        effects = set(painted())
        assert len(effects) == len({key for key, _, _ in effects}) == ITEMS * len(CUPS), "a repeat has the same key"
        for cup in CUPS:
            lines = json.loads(saga("sagas", "show", cup, "--json").stdout)["timeline"]
            outcomes = [line["outcome"] for line in lines if line["outcome"] != "waiting"]
            assert outcomes == ["later"] * (ITEMS // 5 + 1) + ["handled"]
        verified = saga("sagas", "verify")
        assert verified.exit_code == 0, verified.output
