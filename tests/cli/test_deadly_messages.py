"""A message that ends the process is a dead letter after some deaths: others go on, and it is replayed when mended."""

import asyncio
import itertools
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from saga.broker.port import partition_of
from saga.messaging.names import PROGRESS
from saga.progress.document import progress_key
from saga.store.sqlite.store import SqliteStore
from tests.cli.conftest import Call
from tests.cli.pottery_service import CLOCK, Pottery
from tests.cli.test_dead import BY, mend, until
from tests.cli.test_missing_topics import running
from tests.cli.test_parked import ends, publish

CUPS = [f"cup-{n}" for n in range(1, 9)]
DEADLY = "cup-4"
OTHERS = set(CUPS) - {DEADLY}
PARTITIONS = 2
GUARDED = 8
"""Number of messages that a worker may have been handling when it died, in the test of messages that come again."""
SOURCE = """
import os
import signal
from pathlib import Path

from {module} import CupMade, CupOrdered

from saga import Service

potter = Service("{service}")


@potter.handler
async def make(ordered: CupOrdered) -> CupMade:
    if ordered.cup_id == "{deadly}" and ordered.cup_id not in Path("mended").read_text().split():
        {dies}
    return CupMade(cup_id=ordered.cup_id)
"""
DIES = {"exits": "os._exit(3)", "is killed": "os.kill(os.getpid(), signal.SIGKILL)"}


def prepared(pottery: Pottery, saga: Call, dies: str) -> str:
    """Module of a potter whom one cup kills."""
    name = f"{pottery.module}_deadly"
    source = SOURCE.format(module=pottery.module, service=pottery.service, deadly=DEADLY, dies=DIES[dies])
    (pottery.folder / f"{name}.py").write_text(source)
    (pottery.folder / "mended").write_text("")
    assert saga("topics", "apply", name).exit_code == 0
    return name


def handled(saga: Call, cups: set[str]) -> set[str]:
    """Those of the cups that are made."""
    known = {
        each["saga"] for each in json.loads(saga("sagas", "list", "--json").stdout or '{"sagas": []}').get("sagas", [])
    }
    return {cup for cup in known & cups if ends(saga, cup) == [("make", "handled")]}


def dead_letters(saga: Call) -> list[dict[str, str]]:
    result = saga("dead", "list", "--json")
    letters: list[dict[str, str]] = json.loads(result.stdout)["letters"] if result.stdout else []
    return letters


def lives_until_it_is_given_up(name: str, saga: Call, others: set[str], lives_max: int) -> int:
    """Number of deaths until the message is a dead letter, and all others are handled."""
    deaths = 0
    while True:
        with running(name) as process:
            while process.poll() is None:
                if handled(saga, others) == others and dead_letters(saga):
                    return deaths
                asyncio.run(CLOCK.sleep(0.1))
        deaths += 1
        assert deaths <= lives_max


@pytest.mark.parametrize("dies", ["is killed", pytest.param("exits", marks=pytest.mark.slow)])
def test_a_message_that_ends_the_process_is_a_dead_letter_after_some_deaths(
    embedded_pottery: Pottery, saga: Call, dies: str
) -> None:
    name = prepared(embedded_pottery, saga, dies)
    publish(saga, "CupOrdered", *CUPS)
    assert lives_until_it_is_given_up(name, saga, OTHERS, lives_max=6) in (3, 4)
    (letter,) = dead_letters(saga)
    assert letter["saga"] == DEADLY
    assert "the process died 3 times while it processed this message" in str(letter)
    mend(embedded_pottery, DEADLY)
    with running(name):
        assert saga("dead", "replay", embedded_pottery.service, "--saga", DEADLY, *BY).exit_code == 0
        until(lambda: ends(saga, DEADLY)[-1] == ("make", "handled"))
    verified = saga("sagas", "verify")
    assert verified.exit_code == 0, verified.output


def test_a_deadly_message_is_counted_although_many_before_it_are_delivered_again(
    embedded_pottery: Pottery, saga: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAGA_INFLIGHT_MAX", str(GUARDED))
    name = prepared(embedded_pottery, saga, "is killed")
    place = partition_of(DEADLY.encode(), PARTITIONS)
    stuck, *finished = itertools.islice(
        (cup for n in itertools.count(10) if partition_of((cup := f"cup-{n}").encode(), PARTITIONS) == place),
        GUARDED + 5,
    )
    asyncio.run(damage_progress(embedded_pottery, stuck))
    publish(saga, "CupOrdered", stuck)
    publish(saga, "CupOrdered", *finished)
    with running(name) as process:
        until(lambda: handled(saga, {*finished}) == {*finished})
        publish(saga, "CupOrdered", DEADLY)
        until(lambda: process.poll() is not None)
    assert lives_until_it_is_given_up(name, saga, {*finished}, lives_max=6) == 3
    assert [letter["saga"] for letter in dead_letters(saga)] == [DEADLY]


async def damage_progress(pottery: Pottery, cup: str) -> None:
    """Have a saga whose messages cannot be decided, so that no offset after them is committed."""
    async with SqliteStore(Path(f".saga/{pottery.service}.db"), clock=CLOCK) as store:
        await store.insert(PROGRESS, progress_key(pottery.service, cup), b"{damaged")


@pytest.mark.slow
def test_a_replayed_poison_message_is_a_dead_letter_again(embedded_pottery: Pottery, saga: Call) -> None:
    name = prepared(embedded_pottery, saga, "exits")
    publish(saga, "CupOrdered", *CUPS)
    lives_until_it_is_given_up(name, saga, OTHERS, lives_max=6)
    with running(name) as process:
        saga("dead", "replay", embedded_pottery.service, "--saga", DEADLY, *BY, "--within", "1")
        until(lambda: process.poll() is not None)
    assert lives_until_it_is_given_up(name, saga, OTHERS, lives_max=6) <= 4


@pytest.mark.slow
def test_on_kafka_too(kafka_pottery: Pottery, saga: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAGA_DEATHS_MAX", "2")  # a place in the group is empty for ten seconds after each
    name = prepared(kafka_pottery, saga, "is killed")
    publish(saga, "CupOrdered", *CUPS)
    assert lives_until_it_is_given_up(name, saga, OTHERS, lives_max=4) in (2, 3)
    (letter,) = dead_letters(saga)
    assert letter["saga"] == DEADLY


def test_a_process_that_is_stopped_in_good_order_counts_nothing(embedded_pottery: Pottery, saga: Call) -> None:
    name = prepared(embedded_pottery, saga, "exits")
    mend(embedded_pottery, DEADLY)
    publish(saga, "CupOrdered", *CUPS[:4])
    with running(name) as process:
        until(lambda: handled(saga, {*CUPS}) == set(CUPS[:4]))
        process.terminate()
        assert process.wait(60) == 0
    publish(saga, "CupOrdered", *CUPS[4:])
    with running(name) as process:
        until(lambda: handled(saga, {*CUPS}) == set(CUPS))
        assert guarded(embedded_pottery) == []
        process.terminate()
        process.wait(60)


def guarded(pottery: Pottery) -> list[str]:
    """Keys of counts in the store."""
    with closing(sqlite3.connect(f".saga/{pottery.service}.db")) as store:
        return [key for (key,) in store.execute("SELECT key FROM documents") if str(key).startswith("guard::")]
