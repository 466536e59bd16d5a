"""No record ends a worker or holds its partition; each is handled, or a dead letter that a person understands.

These are short; `make fuzz` runs 20,000 records on each log.
"""

from pathlib import Path

import pytest

from tests.fuzz.logs import InMemory, embedded, kafka
from tests.fuzz.records import records
from tests.fuzz.run import Figures, run

SEED = 7


def check(figures: Figures) -> None:
    assert figures.stops == []
    assert figures.losses == []
    assert figures.unclear == []
    assert figures.ends.total() == figures.inputs
    assert figures.ends["in the progress: handled"] > figures.inputs / 50, "the fuzz says something to handle"
    assert figures.ends["dead: cannot be read"] > figures.inputs / 10
    assert len(figures.reasons) > 10


async def test_a_worker_takes_whatever_lies_in_its_log(tmp_path: Path) -> None:
    ground = InMemory()
    check(await run(ground, list(records(SEED, 1000, bytes_max=ground.bytes_max)), tmp_path))


async def test_a_worker_takes_whatever_lies_in_the_embedded_log(tmp_path: Path) -> None:
    async with embedded(tmp_path) as ground:
        check(await run(ground, list(records(SEED + 1, 1000, bytes_max=ground.bytes_max)), tmp_path))


@pytest.mark.timeout(120)
async def test_a_worker_takes_whatever_lies_in_kafka(server_jars: Path, tmp_path: Path) -> None:
    async with kafka(tmp_path) as ground:
        check(await run(ground, list(records(SEED + 2, 1000, bytes_max=ground.bytes_max)), tmp_path))
