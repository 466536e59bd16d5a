"""A job with large results of steps, and more results to undo than fit into its document, on Kafka and CouchbaseMock:
killed at random it goes on, and is then undone in reverse, each effect once, while the document stays small.
"""

import asyncio
import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random  # noqa: TID251 - drawn from a seed

import pytest

from saga.messaging.names import PROGRESS
from saga.ops.histories import SagaHistory, read_history
from saga.ops.sources import ServiceStore
from saga.progress.history import verify_history
from saga.progress.overflow import BOUNDS, is_claim, is_segment
from saga.testing.servers.couchbase import CouchbaseMock
from tests.cli.conftest import Call
from tests.cli.dying import SIZES
from tests.cli.pottery_service import Pottery, the_broker
from tests.cli.test_each_boundary import LIFE_S_MAX, NEVER, deaths, life, on_couchbase, the_store, until
from tests.cli.test_parked import publish

SEED, CUP = 5, "cup-1"
COVERED, LEFT = 20, 2
"""Turns of the job that say an event, which can be undone, and those behind them, which say how to take them back."""
SCAN_BYTES, EVENT_BYTES = 3 * BOUNDS.value_bytes_max, 48 * 1024
DOCUMENT_BYTES_MAX = 800 * 1024
SOURCE = """
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import ClassVar

from saga import Event, Later, Saga, Service


@dataclass(frozen=True, kw_only=True, slots=True)
class CupOrdered(Event):
    __contract__: ClassVar[str] = "{topic}/CupOrdered.v1"
    cup_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CupMade(Event):
    __contract__: ClassVar[str] = "{topic}-made/CupMade.v1"
    cup_id: str
    number: int
    scan: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CupSold(Event):
    __contract__: ClassVar[str] = "{topic}-sold/CupSold.v1"
    cup_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CupBroken(Event):
    __contract__: ClassVar[str] = "{topic}-broken/CupBroken.v1"
    cup_id: str


@dataclass(frozen=True)
class Scanned:
    turns: int = 0


potter = Service("{service}", state=Scanned)


def note(key: str, what: str, number: int) -> None:
    with Path("noted").open("a") as file:
        file.write(f"{{key}} {{what}} {{number}}\\n")


async def scan(key: str, number: int) -> str:
    note(key, "scan", number)
    return str(number).rjust({scan_bytes}, ".")


async def stamp(key: str, number: int) -> None:
    note(key, "stamp", number)


async def forget(key: str, number: int) -> None:
    note(key, "forget", number)


async def undo(key: str, number: int) -> None:
    note(key, "undo", number)


@potter.handler
async def make(
    ordered: CupOrdered, sold: CupSold | None, saga: Saga[Scanned]
) -> Later | Later[CupSold] | tuple[CupMade, Later] | None:
    number = saga.state.turns
    scanned = await saga.step(scan, saga.idempotency_key("scan"), number)
    await saga.step(stamp, saga.idempotency_key("stamp"), int(scanned.lstrip(".")))
    saga.on_abort(forget, saga.idempotency_key("forget"), number)
    saga.state = Scanned(number + 1)
    if number < {covered}:
        return CupMade(cup_id=ordered.cup_id, number=number, scan=scanned[-{event_bytes}:]), Later()
    return Later() if number + 1 < {covered} + {left} else Later(until=CupSold, within=timedelta(days=1))


@potter.compensation(make)
async def unmake(broken: CupBroken, made: CupMade, saga: Saga[Scanned]) -> None:
    await saga.step(undo, saga.idempotency_key("undo"), made.number)
"""


@pytest.fixture
def scanner(kafka_pottery: Pottery, couchbase_mock: CouchbaseMock, saga: Call, monkeypatch: pytest.MonkeyPatch) -> str:
    """Module of a potter who scans each cup many times, with its store on the mock."""
    pottery = kafka_pottery
    broken = f"{pottery.topic}-broken"
    more = [("number", "int"), ("scan", "string")]
    agree(pottery, pottery.made, "CupMade", more, owner=pottery.service)
    agree(pottery, broken, "CupBroken", [], owner="shop", produced_by="external", outcome="failure")
    pottery.agree(broken, partitions=2, retention_days=7)
    name = f"{pottery.declare(30)}_scanner"
    sizes = {"scan_bytes": SCAN_BYTES, "event_bytes": EVENT_BYTES, "covered": COVERED, "left": LEFT}
    source = SOURCE.format(topic=pottery.topic, service=pottery.service, **sizes)
    (pottery.folder / f"{name}.py").write_text(source)
    (pottery.folder / "noted").write_text("")
    on_couchbase(pottery, couchbase_mock, monkeypatch)
    monkeypatch.setenv(SIZES, str(pottery.folder / "sizes"))
    applied = saga("topics", "apply", name)
    assert applied.exit_code == 0, applied.output
    return name


def agree(pottery: Pottery, topic: str, name: str, fields: Sequence[tuple[str, str]], **terms: str) -> None:
    """Write what an event is."""
    schema_fields = [{"name": field, "type": type_, "doc": "It."} for field, type_ in [("cup_id", "string"), *fields]]
    schema = {
        "type": "record",
        "name": name,
        "doc": "A cup.",
        "topic": topic,
        "key": "cup_id",
        **terms,
        "fields": schema_fields,
    }
    place = pottery.folder / "contracts" / topic
    place.mkdir(parents=True, exist_ok=True)
    (place / f"{name}.v1.avsc").write_text(json.dumps(schema))


def noted() -> list[tuple[str, int]]:
    """What was done outside, in order: each thing once, and under one key."""
    found = defaultdict[str, set[tuple[str, int]]](set)
    for line in Path("noted").read_text().splitlines():
        key, what, number = line.split()
        found[key].add((what, int(number)))
    for key, things in found.items():
        assert len(things) == 1, f"{key} was used for {things}"
    done = [thing for things in found.values() for thing in things]
    assert len(set(done)) == len(done), "one thing was done under two keys"
    return done


def numbers(what: str) -> list[int]:
    return [number for done, number in noted() if done == what]


def history(service: str) -> SagaHistory | None:
    async def read() -> SagaHistory | None:
        async with the_store(service) as store:
            return await read_history(ServiceStore(service, store), CUP)

    return asyncio.run(read())


def is_killed_and_goes_on(module: str, dies_at: Sequence[int], is_over: Callable[[], bool]) -> None:
    """Kill it at each of these boundaries, counted from its start, and let it come to its end."""
    for at in dies_at:
        with life(module, at) as process:
            process.wait(LIFE_S_MAX)
            assert process.returncode == -9, Path("log").read_text()[-3000:]
    assert not is_over(), "it was to be killed before"
    with life(module, NEVER):
        until(is_over)


@pytest.mark.slow
@pytest.mark.timeout(480)
def test_large_results_are_made_once_and_undone_in_reverse_whichever_process_is_killed(
    scanner: str, kafka_pottery: Pottery, saga: Call
) -> None:
    service, random = kafka_pottery.service, Random(SEED)
    publish(saga, "CupOrdered", CUP)

    def waits() -> bool:
        found = history(service) if len(numbers("stamp")) == COVERED + LEFT else None
        return (
            found is not None
            and bool(found.progress.suspended_runs)
            and found.progress.suspended_runs[0].turn == COVERED + LEFT
        )

    is_killed_and_goes_on(scanner, [random.randrange(40, 120) for _ in range(2)], waits)
    assert numbers("scan") == numbers("stamp") == list(range(COVERED + LEFT))
    publish(saga, "CupBroken", CUP)

    def is_undone() -> bool:
        found = history(service) if len(numbers("undo")) == COVERED else None
        return found is not None and not found.progress.is_open

    is_killed_and_goes_on(scanner, [random.randrange(20, 50) for _ in range(2)], is_undone)
    assert numbers("forget") == [*reversed(range(COVERED, COVERED + LEFT))], "what no result covers, newest first"
    assert numbers("undo") == [*reversed(range(COVERED))], "the newest result first"
    assert len(deaths()) == 4
    check_documents()
    found = history(service)
    assert found is not None
    assert verify_history(found.transitions, found.progress) is None
    assert asyncio.run(dead(kafka_pottery)) == 0


def check_documents() -> None:
    """The progress was never large, for what is large lies beside it: each claim once, and results on pages."""
    written = [line.split() for line in Path("sizes").read_text().splitlines()]
    assert max(int(size) for collection, _, size in written if collection == PROGRESS) < DOCUMENT_BYTES_MAX
    assert len({key for _, key, _ in written if is_claim(key)}) == COVERED + LEFT
    assert [size for _, key, size in written if is_segment(key)]


async def dead(pottery: Pottery) -> int:
    async with the_broker() as broker:
        return len([record async for record in broker.scan(pottery.dead)])
