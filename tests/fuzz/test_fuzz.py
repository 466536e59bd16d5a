"""No record ends a worker or holds its partition; each is handled, or a dead letter that a person understands.

These are short; `make fuzz` runs 20,000 records on each log.
"""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from saga.engine.consumer.record_router import BadRecord, route_record
from saga.engine.prepared_service import prepare
from saga.messages import Record, texts_of
from saga.messaging.operator_commands import OperatorCommand
from saga.messaging.timers import SagaTimer
from tests.fuzz.logs import COMMANDS, DEAD, WAKES, BehindRegistry, InMemory, embedded, kafka
from tests.fuzz.records import records, wakes
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
    ground = BehindRegistry()
    check(await run(ground, list(records(SEED, 1000, bytes_max=ground.bytes_max)), tmp_path))


async def test_a_worker_takes_whatever_lies_in_the_embedded_log(tmp_path: Path) -> None:
    async with embedded(tmp_path) as ground:
        check(await run(ground, list(records(SEED + 1, 1000, bytes_max=ground.bytes_max)), tmp_path))


def test_every_record_among_commands_is_a_command_or_a_dead_letter_with_a_reason() -> None:
    service, found = prepare(payment.declared), Counter[str]()
    for offset, written in enumerate(records(SEED + 3, 3000, bytes_max=100_000)):
        headers = written.headers
        if offset % 2:
            headers = tuple((name, b"saga.replay" if name == "ce_type" else value) for name, value in headers)
        content = (written.value, b'{"dead":"d","who":"a","why":"b"}', b'{"dead":1}')[offset % 3]
        read = route_record(Record(COMMANDS, 0, offset, written.key, content, headers, written.time_ms), service)
        assert isinstance(read, OperatorCommand | BadRecord)
        found[type(read).__name__] += 1
        assert isinstance(read, OperatorCommand) or read.reason
    assert min(found["OperatorCommand"], found["BadRecord"]) > 100, found


async def test_every_record_among_timers_is_a_timer_or_a_dead_letter_with_a_reason(tmp_path: Path) -> None:
    ground, service, found = InMemory(), prepare(payment.declared), Counter[str]()
    for number, written in enumerate(wakes(SEED + 4, 2000)):
        topic = WAKES[number % len(WAKES)]
        latest_ms = written.time_ms if topic == WAKES[0] else 0  # else it lies there for the time of its tier
        await ground.put([replace(written, time_ms=min(written.time_ms, latest_ms))], topic)
    for record in (record for topic in WAKES for log in ground.logs[topic] for record in log):
        read = route_record(record, service)
        assert isinstance(read, SagaTimer | BadRecord)
        assert isinstance(read, SagaTimer) or read.reason
        found[type(read).__name__] += 1
    assert min(found["SagaTimer"], found["BadRecord"]) > 100, found
    orders = list(records(SEED, 100, bytes_max=ground.bytes_max))
    figures = await run(ground, orders, tmp_path, also=WAKES)
    assert (figures.stops, figures.losses, figures.unclear) == ([], [], [])
    positions = [texts_of(record.headers).get("dead_position", "") for log in ground.logs[DEAD] for record in log]
    assert sum(position.startswith(WAKES) for position in positions) == found["BadRecord"], (
        "each emitted once, no timer emitted"
    )


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_a_worker_takes_whatever_lies_in_kafka(server_jars: Path, tmp_path: Path) -> None:
    async with kafka(tmp_path) as ground:
        check(await run(ground, list(records(SEED + 2, 1000, bytes_max=ground.bytes_max)), tmp_path))
