"""No record ends a worker or holds its partition; each is handled, or a dead letter that a person understands.

These are short; `make fuzz` runs 20,000 records on each log.
"""

from collections import Counter
from pathlib import Path

import pytest

from saga.commands import Command
from saga.messages import Record
from saga.runtime.intake import Letter, received
from saga.runtime.prepared import prepare
from tests.fuzz.logs import COMMANDS, InMemory, embedded, kafka
from tests.fuzz.records import records
from tests.fuzz.run import Figures, payment, run

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


def test_whatever_lies_among_commands_is_one_or_a_dead_letter_with_a_reason() -> None:
    service, found = prepare(payment.declared), Counter[str]()
    for offset, written in enumerate(records(SEED + 3, 3000, bytes_max=100_000)):
        headers = written.headers
        if offset % 2:
            headers = tuple((name, b"saga.replay" if name == "ce_type" else value) for name, value in headers)
        said = (written.value, b'{"dead":"d","who":"a","why":"b"}', b'{"dead":1}')[offset % 3]
        read = received(Record(COMMANDS, 0, offset, written.key, said, headers, written.time_ms), service)
        assert isinstance(read, Command | Letter)
        found[type(read).__name__] += 1
        assert isinstance(read, Command) or read.reason
    assert min(found["Command"], found["Letter"]) > 100, found


@pytest.mark.timeout(120)
async def test_a_worker_takes_whatever_lies_in_kafka(server_jars: Path, tmp_path: Path) -> None:
    async with kafka(tmp_path) as ground:
        check(await run(ground, list(records(SEED + 2, 1000, bytes_max=ground.bytes_max)), tmp_path))
