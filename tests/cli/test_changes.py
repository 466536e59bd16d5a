"""A plain application writes documents, with SQL and no library of ours, and each starts a saga, whatever is killed: on
files and on Kafka, and on Kafka by the records of Couchbase's connector, too."""

import asyncio
import json
import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from random import Random  # noqa: TID251 - drawn from a seed

import pytest

from saga.messages import Outgoing
from saga.messaging.names import change_topic
from saga.testing.simulation.connector import ConnectorRecord
from tests.cli.conftest import Call
from tests.cli.pottery_service import CLOCK, Pottery, the_broker
from tests.cli.test_missing_topics import Running, running

SEED, KILLS = 11, 3
DOCUMENTS = int(os.environ.get("SAGA_TEST_CHANGES", "300"))
"""Documents that are written. All of them: SAGA_TEST_CHANGES=100000 pytest --timeout 1800 tests/cli/test_changes.py"""
SOURCE = """
from dataclasses import dataclass

from {module} import CupOrdered, CupMade

from saga import Change, Service


@dataclass(frozen=True)
class Wish:
    colour: str
    number: int = 0


potter = Service("{service}")
potter.document(Wish, "wishes")


@potter.handler
async def make(wish: Change[Wish]) -> CupMade | None:
    if wish.document is None:
        return None
    return CupMade(cup_id=wish.key)
"""
INSERT = "INSERT INTO business_documents (collection, key, content) VALUES ('wishes', ?, ?)"
UPDATE = "UPDATE business_documents SET content = ? WHERE collection = 'wishes' AND key = ?"


def declared(pottery: Pottery) -> str:
    """Module of the potter who takes wishes."""
    module = f"{pottery.module}_wishes"
    source = SOURCE.format(module=pottery.module, service=pottery.service)
    (pottery.folder / f"{module}.py").write_text(source)
    return module


@pytest.fixture
def wisher(pottery_on: Pottery, saga: Call) -> Pottery:
    """Potter who makes a cup for each wish that was written down."""
    applied = saga("topics", "apply", declared(pottery_on))
    assert applied.exit_code == 0, applied.output
    return pottery_on


def store_of(pottery: Pottery) -> Path:
    return pottery.folder / ".saga" / f"{pottery.service}.db"


def write(pottery: Pottery, statement: str, rows: Sequence[tuple[str, str]]) -> None:
    """Write as an application does that knows SQL and nothing of us."""
    with closing(sqlite3.connect(store_of(pottery), timeout=60)) as connection, connection:
        connection.executemany(statement, rows)


def pending(pottery: Pottery) -> int:
    with closing(sqlite3.connect(store_of(pottery), timeout=60)) as connection:
        count: int = connection.execute("SELECT count(*) FROM changes").fetchone()[0]
        return count


def known(pottery: Pottery) -> int:
    """Number of sagas of which the potter knows."""
    with closing(sqlite3.connect(store_of(pottery), timeout=60)) as connection:
        count: int = connection.execute("SELECT count(*) FROM documents WHERE collection = 'saga'").fetchone()[0]
        return count


def finished(pottery: Pottery) -> Iterator[tuple[str, list[str]]]:
    """Sagas that the potter knows, each with what became of its messages."""
    with closing(sqlite3.connect(store_of(pottery), timeout=60)) as connection:
        rows = connection.execute("SELECT key, content FROM documents WHERE collection = 'saga'").fetchall()
    for key, content in rows:
        progress = json.loads(content)
        yield key.partition("::")[2], [each["outcome"] for each in progress["transitions"]]


def until(holds: Callable[[], bool], worker: Running) -> None:
    end_s = CLOCK.monotonic_s() + 60 + DOCUMENTS / 20
    while not holds():
        assert CLOCK.monotonic_s() < end_s, worker.read_log()[-5000:]
        asyncio.run(CLOCK.sleep(0.05))


def test_each_document_starts_one_saga_whichever_process_is_killed(wisher: Pottery, saga: Call) -> None:
    module, chance = f"{wisher.module}_wishes", Random(SEED)
    with running(module) as worker:
        until(lambda: store_of(wisher).exists() and "started" in worker.read_log(), worker)
    part = DOCUMENTS // (KILLS + 1)
    for number in range(KILLS + 1):
        with running(module) as worker:
            names = [f"cup-{n}" for n in range(number * part, DOCUMENTS if number == KILLS else (number + 1) * part)]
            for at in range(0, len(names), 50):
                some = names[at : at + 50]
                write(wisher, INSERT, [(name, '{"colour":"blue"}') for name in some])
                write(wisher, UPDATE, [('{"colour":"red"}', name) for name in some])
            if number < KILLS:
                until(lambda: "started" in worker.read_log(), worker)
                asyncio.run(CLOCK.sleep(chance.random() / 2))
                continue
            until(lambda: not pending(wisher), worker)
            until(lambda: known(wisher) == DOCUMENTS, worker)
            until(lambda: not lag(saga, wisher), worker)
    sagas = dict(finished(wisher))
    assert len(sagas) == DOCUMENTS
    assert Counter(map(tuple, sagas.values())) == {("handled", "ignored"): DOCUMENTS}
    made = cups(wisher)
    assert made.keys() == {f"cup-{n}" for n in range(DOCUMENTS)}
    assert {len(ids) for ids in made.values()} == {1}


@pytest.mark.slow
def test_each_document_that_a_connector_publishes_starts_one_saga_whichever_process_is_killed(
    kafka_pottery: Pottery, saga: Call
) -> None:
    module, chance = declared(kafka_pottery), Random(SEED)
    applied = saga("topics", "apply", module)
    assert applied.exit_code == 0, applied.output
    names, part = [f"cup-{n}" for n in range(DOCUMENTS)], DOCUMENTS // (KILLS + 1)
    for number in range(KILLS + 1):
        with running(module) as worker:
            batch = names[number * part :] if number == KILLS else names[number * part : (number + 1) * part]
            asyncio.run(publish_changes(kafka_pottery, batch, chance))
            if number < KILLS:
                until(lambda: "started" in worker.read_log(), worker)
                asyncio.run(CLOCK.sleep(chance.random() / 2))
                continue
            until(lambda: not lag(saga, kafka_pottery), worker)
    sagas = dict(finished(kafka_pottery))
    assert sagas.keys() == set(names)
    assert Counter(map(tuple, sagas.values())).keys() == {("handled",), ("handled", "ignored")}, "some were merged"
    made = cups(kafka_pottery)
    assert made.keys() == set(names)
    assert {len(ids) for ids in made.values()} == {1}


async def publish_changes(pottery: Pottery, names: Sequence[str], chance: Random) -> None:
    """Publish changes of documents that were written twice, as Couchbase's connector documents it: of some
    the last alone, and after its deaths a stretch again."""
    topic, now = change_topic(pottery.service, "wishes"), CLOCK.now_ms() * 1_000_000
    async with the_broker() as broker:
        for at in range(0, len(names), 50):
            some = [
                Outgoing(topic, name.encode(), wish(name, revision, now).encode_raw(), ())
                for revision in (1, 2)
                for name in names[at : at + 50]
                if revision == 2 or chance.random() < 0.7
            ]
            await broker.publish(some)
            if chance.random() < 0.3:
                await broker.publish(some[chance.randrange(len(some)) :])


def wish(name: str, revision: int, now: int) -> ConnectorRecord:
    content = b'{"colour":"blue"}' if revision == 1 else b'{"colour":"red"}'
    return ConnectorRecord(key=name, cas=now + revision, number=revision, revision=revision, content=content)


@pytest.mark.parametrize(("begins", "cups"), [("beginning", {"early", "late"}), ("now", {"late"})])
def test_documents_that_are_there_before_count_from_the_beginning_alone(
    embedded_pottery: Pottery, monkeypatch: pytest.MonkeyPatch, begins: str, cups: set[str]
) -> None:
    monkeypatch.setenv("SAGA_CHANGES_FROM", begins)
    module = declared(embedded_pottery)
    with running(embedded_pottery.module) as worker:  # the same service before it takes changes: it makes the store
        until(lambda: "started" in worker.read_log(), worker)
    write(embedded_pottery, INSERT, [("early", '{"colour":"blue"}')])
    with running(module) as worker:
        until(lambda: "started" in worker.read_log(), worker)
        write(embedded_pottery, INSERT, [("late", '{"colour":"blue"}')])
        until(lambda: "late" in dict(finished(embedded_pottery)), worker)
        until(lambda: not pending(embedded_pottery), worker)
        until(lambda: cups <= dict(finished(embedded_pottery)).keys(), worker)
    assert dict(finished(embedded_pottery)).keys() == cups


def lag(saga: Call, pottery: Pottery) -> int:
    result = saga("offsets", "show", pottery.service, "--json")
    if result.exit_code == 1:  # it has not come to its first commit
        return 1
    assert result.exit_code == 0, result.output
    (shown,) = json.loads(result.stdout)["services"]
    return int(shown["lag"])


def cups(pottery: Pottery) -> dict[str, set[bytes]]:
    """Cups in the log, each with the ids of its events: a repetition has the same id."""

    async def scanned() -> dict[str, set[bytes]]:
        found: dict[str, set[bytes]] = {}
        async with the_broker() as broker:
            async for record in broker.scan(pottery.made):
                found.setdefault((record.key or b"").decode(), set()).add(dict(record.headers)["ce_id"] or b"")
        return found

    return asyncio.run(scanned())
