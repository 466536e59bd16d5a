"""Parking, deadlines, `Later`, replay, flags and a pause on Kafka and CouchbaseMock, while the process dies at one
boundary after the other: before or after a call of its ports. The next life goes on where the last one ended.
"""

import asyncio
import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import pytest

from saga.configuration import adapters
from saga.configuration.settings import Settings
from saga.errors import SagaError
from saga.messages import Outgoing, texts_of
from saga.messaging import controls, operator_commands
from saga.messaging.controls import Switch
from saga.ops.dead_letters import decode_dead_letter
from saga.ops.histories import SagaHistory, read_history
from saga.ops.sources import ServiceStore
from saga.progress.history import verify_history
from saga.store.port import Store
from saga.support.clock import iso
from saga.testing.servers.couchbase import BUCKET, CouchbaseMock
from tests import waiting
from tests.cli.conftest import Call
from tests.cli.dying import AT, DEATHS
from tests.cli.pottery_service import CLOCK, Pottery, the_broker
from tests.cli.test_parked import publish

EACH = int(os.environ.get("SAGA_TEST_EACH_BOUNDARY", "29"))
"""Boundaries between two deaths, counted from the start of each process. At every one:
SAGA_TEST_EACH_BOUNDARY=1 pytest --timeout 1800 tests/cli/test_each_boundary.py"""
CUPS = tuple(f"cup-{n}" for n in range(8))
COLD, CRACKED, SOLD = CUPS[:3], CUPS[3:5], CUPS[5:6]
"""Cups whose kiln is cold at first, those that crack until a person has mended it, and one that is sold at once."""
FLOWERS = 3
NEVER = 0
LIFE_S_MAX, LOOK_S = 90.0, 0.1
PAUSE_MS = 6000
SPARED = (COLD[0], CRACKED[0])
"""Time for which no cup is made, and cups that are ordered meanwhile in a life that is spared."""
SOURCE = """
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from {module} import CupMade, CupOrdered, CupSold

from saga import Later, Retry, Saga, Service


class Cracked(Exception):
    pass


@dataclass(frozen=True)
class Painted:
    flowers: int = 0


RETRY = Retry(delay_s_first=0.2, delay_s_max=0.4, in_place_s=0, never=(Cracked,))
potter = Service("{service}", state=Painted, retry=RETRY)


async def note(key: str, cup: str, what: str) -> str:
    with Path("noted").open("a") as file:
        file.write(f"{{key}} {{cup}} {{what}}\\n")
    return what


@potter.handler
async def make(ordered: CupOrdered, saga: Saga[Painted]) -> CupMade | Later:
    cup, flower = ordered.cup_id, saga.state.flowers
    if cup in {cold} and not Path(f"{{cup}}.warm").exists():
        Path(f"{{cup}}.warm").touch()
        raise ConnectionError("the kiln is cold")
    if cup in {cracked} and not Path("mended").exists():
        raise Cracked
    color = "gold" if await saga.flag("gold") else "blue"
    await saga.step(note, saga.idempotency_key(f"flower-{{flower}}"), cup, f"flower-{{flower}}-{{color}}")
    saga.state = Painted(flower + 1)
    return Later(after=timedelta(seconds=0.3)) if flower + 1 < {flowers} else CupMade(cup_id=cup)


@potter.deadline(within=timedelta(seconds=1), unless=(CupSold,))
async def remind(ordered: CupOrdered, saga: Saga[Painted]) -> None:
    await saga.step(note, saga.idempotency_key("remind"), ordered.cup_id, "reminder")
"""


@pytest.fixture
def painter(kafka_pottery: Pottery, couchbase_mock: CouchbaseMock, saga: Call, monkeypatch: pytest.MonkeyPatch) -> str:
    """Module of a potter, with its store on the mock. It keeps its place in the group while it is dead."""
    on_couchbase(kafka_pottery, couchbase_mock, monkeypatch)
    name = f"{kafka_pottery.module}_painter"
    values = {"module": kafka_pottery.module, "service": kafka_pottery.service, "flowers": FLOWERS}
    source = SOURCE.format(**values, cold=repr(COLD), cracked=repr(CRACKED))
    (kafka_pottery.folder / f"{name}.py").write_text(source)
    (kafka_pottery.folder / "noted").write_text("")
    applied = saga("topics", "apply", name)
    assert applied.exit_code == 0, applied.output
    return name


def on_couchbase(pottery: Pottery, mock: CouchbaseMock, patch: pytest.MonkeyPatch) -> None:
    """Settings for processes of `life`, in one place of the group."""
    for name, value in {
        "SAGA_STORE": f"{mock.address}/{BUCKET}",
        "SAGA_STORE_DURABILITY": "none",
        "SAGA_COUCHBASE_USERNAME": "saga",
        "SAGA_COUCHBASE_PASSWORD": "secret",
        "SAGA_KAFKA_INSTANCE": "potter-0",
        "SAGA_DEATHS_MAX": "1000",
        "SAGA_LOG": "json",
        "PYTHONPATH": f"{pottery.folder}:{Path(__file__).parents[2]}",
        DEATHS: str(pottery.folder / "deaths"),
    }.items():
        patch.setenv(name, value)


@contextmanager
def life(module: str, dies_at: int) -> Iterator["subprocess.Popen[bytes]"]:
    with Path("log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.cli.dying", module], env={**os.environ, AT: str(dies_at)}, stderr=log
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def noted() -> Mapping[str, set[tuple[str, str]]]:
    """What was done outside, by key: all its cups and things, which should be one of each."""
    found = defaultdict[str, set[tuple[str, str]]](set)
    for line in Path("noted").read_text().splitlines():
        key, cup, what = line.split()
        found[key].add((cup, what))
    return found


@asynccontextmanager
async def the_store(service: str) -> AsyncIterator[Store]:
    async with adapters.store_at(Settings.from_environment(), service, CLOCK) as store:
        yield store


async def cure(pottery: Pottery) -> None:
    """Have what cracked tried again, each dead letter once."""
    async with the_broker() as broker:
        letters = [decode_dead_letter(pottery.service, record) async for record in broker.scan(pottery.dead)]
        ended = {letter.ends for letter in letters if letter is not None}
        await broker.publish(
            [
                operator_commands.command_to_record(
                    pottery.service,
                    letter.saga or "",
                    "replay",
                    operator_commands.CommandValue(dead=letter.id, who="ada", why="mended"),
                    1,
                )
                for letter in letters
                if letter is not None and letter.what == "dead letter" and letter.id not in ended
            ]
        )


async def publish_records(*records: Outgoing) -> None:
    async with the_broker() as broker:
        await broker.publish(records)


async def histories(service: str, cups: Sequence[str] = CUPS) -> Mapping[str, SagaHistory | None]:
    async with the_store(service) as store:
        return {cup: await read_history(ServiceStore(service, store), cup) for cup in cups}


def until(holds: Callable[[], bool]) -> None:
    waiting.until(holds, LIFE_S_MAX, lambda: Path("log").read_text()[-3000:])


def is_settled(pottery: Pottery) -> bool:
    expected = FLOWERS * len(CUPS) + len(CUPS) - len(SOLD)
    if len(noted()) < expected or len(made_of(pottery)) < len(CUPS):
        return False
    with suppress(SagaError):
        return all(
            each is not None and not each.progress.is_open for each in asyncio.run(histories(pottery.service)).values()
        )
    return False


def deaths() -> list[str]:
    return Path("deaths").read_text().splitlines() if Path("deaths").exists() else []


@pytest.mark.slow
@pytest.mark.timeout(480)
def test_whichever_boundary_it_dies_at_all_is_done_once(painter: str, kafka_pottery: Pottery, saga: Call) -> None:
    service = kafka_pottery.service
    asyncio.run(
        publish_records(
            controls.control_to_record(service, Switch(flag="gold", percent=50), who="ada", why="to see", now_ms=1)
        )
    )
    publish(saga, "CupSold", *SOLD)
    with life(painter, NEVER):  # a sale that is read after the deadline is due would close nothing
        until(lambda: all(asyncio.run(histories(service))[cup] is not None for cup in SOLD))
        ends_ms = CLOCK.now_ms() + PAUSE_MS
        pause = Switch(kind="pause", handler="make", until=iso(ends_ms))
        asyncio.run(publish_records(controls.control_to_record(service, pause, who="ada", why="to see", now_ms=2)))
        until(lambda: '"event":"control_turned"' in Path("log").read_text())
        publish(saga, "CupOrdered", *SPARED)
        until(lambda: all(is_paused(history) for history in asyncio.run(histories(service, SPARED)).values()))
        until(lambda: {cup for things in noted().values() for cup, _ in things} == set(SPARED))  # they are reminded
    publish(saga, "CupOrdered", *sorted(set(CUPS) - set(SPARED)))
    dies_at = 1
    while not is_settled(kafka_pottery):
        with life(painter, dies_at) as process:
            end_s = CLOCK.monotonic_s() + LIFE_S_MAX
            while process.poll() is None and not is_settled(kafka_pottery):
                assert CLOCK.monotonic_s() < end_s, Path("log").read_text()[-3000:]
                asyncio.run(CLOCK.sleep(LOOK_S))
                if not Path("mended").exists() and dies_at > 5 * EACH:
                    Path("mended").touch()
                if Path("mended").exists():
                    asyncio.run(cure(kafka_pottery))
            assert process.poll() in (None, -9), Path("log").read_text()[-3000:]
        dies_at += EACH
    assert len(deaths()) > 4
    for key, things in noted().items():
        assert len(things) == 1, f"{key} was used for {things}"
    done = Counter(thing for things in noted().values() for thing in things)
    assert {cup: sum(what.startswith("flower") for (of, what) in done if of == cup) for cup in CUPS} == dict.fromkeys(
        CUPS, FLOWERS
    )
    assert {cup for cup, what in done if what == "reminder"} == set(CUPS) - set(SOLD)
    assert set(done.values()) == {1}
    made = made_of(kafka_pottery)
    assert {cup: len(ids) for cup, ids in made.items()} == dict.fromkeys(CUPS, 1)
    for cup, history in asyncio.run(histories(service)).items():
        assert history is not None
        assert verify_history(history.transitions, history.progress) is None, cup
        begun = [e.time for e in history.entries if e.handler == "make" and e.outcome in ("later", "dead", "handled")]
        assert min(begun) >= iso(ends_ms), f"{cup} was begun while that was paused"


def is_paused(history: SagaHistory | None) -> bool:
    return history is not None and "make is paused by ada" in str([each.reason for each in history.entries])


def made_of(pottery: Pottery) -> Mapping[str, set[str]]:
    """Ids of the events that say that a cup is made, by cup."""
    return asyncio.run(_made(pottery))


async def _made(pottery: Pottery) -> Mapping[str, set[str]]:
    found = defaultdict[str, set[str]](set)
    async with the_broker() as broker:
        async for record in broker.scan(pottery.made):
            found[(record.key or b"").decode()].add(texts_of(record.headers)["ce_id"])
    return found
