"""A run that fails is parked: operators see it, other sagas continue, and it resumes by itself, whatever is killed
meanwhile."""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random  # noqa: TID251 - drawn from a seed
from typing import Any

import pytest

from saga.testing.servers.kafka import KafkaServer
from tests.cli.conftest import Call
from tests.cli.pottery_service import CLOCK, Pottery
from tests.cli.test_dead import mend, until
from tests.cli.test_missing_topics import running

SEED = 11
SOURCE = """
from pathlib import Path

from {module} import CupMade, CupOrdered, CupSold

from saga import Retry, Saga, Service

potter = Service("{service}")


async def fire(key: str, cup: str) -> str:
    if cup not in Path("mended").read_text().split():
        raise RuntimeError("the kiln is cold")
    with Path("fired").open("a") as file:
        file.write(f"{{key}} {{cup}}\\n")
    return "baked"


@potter.handler(retry=Retry(attempts_max=1000, delay_s_first=0.2, delay_s_max=0.5, in_place_s=0.3))
async def make(ordered: CupOrdered, saga: Saga) -> CupMade:
    await saga.step(fire, saga.idempotency_key("fire"), ordered.cup_id)
    return CupMade(cup_id=ordered.cup_id)


@potter.handler
async def forget(sold: CupSold) -> None:
    with Path("sold").open("a") as file:
        file.write(f"{{sold.cup_id}}\\n")
"""


@pytest.fixture
def kiln(pottery_on: Pottery, saga: Call) -> str:
    """Module of a potter whose kiln is cold for all cups that are not named in the file `mended`."""
    return prepared(pottery_on, saga)


def prepared(pottery: Pottery, saga: Call) -> str:
    name = f"{pottery.module}_kiln"
    (pottery.folder / f"{name}.py").write_text(SOURCE.format(module=pottery.module, service=pottery.service))
    for file in ("mended", "fired", "sold"):
        (pottery.folder / file).write_text("")
    assert saga("topics", "apply", name).exit_code == 0
    return name


def publish(saga: Call, event: str, *cups: str) -> None:
    lines = "\n".join(json.dumps({"cup_id": cup}) for cup in cups)
    assert saga("publish", event, stdin=lines).exit_code == 0


def order(saga: Call, service: str, *cups: str) -> None:
    """Order cups; when all are parked, sell them: what is to be handled behind them."""
    publish(saga, "CupOrdered", *cups)
    until(lambda: parked(saga, service) == set(cups))
    publish(saga, "CupSold", *cups)


def listed(saga: Call, service: str) -> dict[str, dict[str, Any]]:
    """Sagas as the service sees them."""
    result = saga("sagas", "list", "--json")
    if result.exit_code:
        return {}
    sagas = json.loads(result.stdout)["sagas"]
    return {each["saga"]: each["services"][service] for each in sagas if service in each["services"]}


def parked(saga: Call, service: str) -> set[str]:
    return {cup for cup, seen in listed(saga, service).items() if seen["state"] == "retrying"}


def ends(saga: Call, cup: str) -> list[tuple[str, str]]:
    """Ends of its messages, in order."""
    lines = json.loads(saga("sagas", "show", cup, "--json").stdout)["timeline"]
    return [(line["handler"], line["outcome"]) for line in lines if line["outcome"] not in ("retrying", "queued")]


def all_are_sold(cups: Sequence[str]) -> bool:
    return set(Path("sold").read_text().split()) == set(cups)


def check_each_once_and_in_order(saga: Call, cups: Sequence[str]) -> None:
    """Each effect was had under one key only, made cups were sold after they were made, and histories are whole."""
    expected = [("make", "handled"), ("forget", "handled")]
    until(lambda: all(ends(saga, cup) == expected for cup in cups), last=lambda: {cup: ends(saga, cup) for cup in cups})
    keys = {(line.split()[1], line.split()[0]) for line in Path("fired").read_text().splitlines()}
    assert Counter(cup for cup, _ in keys) == Counter(cups), "a repeat has the same key"
    verified = saga("sagas", "verify")
    assert verified.exit_code == 0, verified.output


def check_wakes_are_counted_apart(saga: Call, service: str) -> None:
    """All events are handled; of the timers some lie there, and most are committed. How many lie there depends on the
    machine: each attempt adds one, and commits and this look take their time."""
    outputs: list[str] = []

    def few_timers_are_pending() -> bool:
        answer = saga("offsets", "show", service, "--json")
        outputs.append(answer.output)
        if answer.exit_code:
            return False
        shown = json.loads(outputs[-1])["services"][0]
        all_wakes = sum(each["end"] for each in shown["partitions"] if ".wake." in each["topic"])
        return bool(shown["lag"] == 0 and 0 < shown["wakes"] <= all_wakes / 2)

    until(few_timers_are_pending, last=lambda: f"first:\n{outputs[0]}\nlast:\n{outputs[-1]}")
    assert re.search(r": 1 member, 0 not handled, [0-9]+ timers? pending\n", saga("offsets", "show", service).stdout)


def failing(saga: Call) -> list[tuple[str, ...]]:
    """All that `saga dead list` shows: what is tried again though the service's own code fails."""
    found = saga("dead", "list", "--json")
    letters = json.loads(found.stdout)["letters"]
    assert found.exit_code == bool(letters), found.output
    return [tuple(letter[name] for name in ("saga", "what", "class", "handler", "now")) for letter in letters]


def test_an_error_of_the_own_code_needs_an_operator_at_its_first_failure(pottery_on: Pottery, saga: Call) -> None:
    name, service = f"{pottery_on.module}_bad", pottery_on.service
    bad = SOURCE.replace('RuntimeError("the kiln is cold")', 'TypeError("fire() takes a key")')
    (pottery_on.folder / f"{name}.py").write_text(bad.format(module=pottery_on.module, service=service))
    (pottery_on.folder / "mended").write_text("")
    assert saga("topics", "apply", name).exit_code == 0
    with running(name):
        order(saga, service, "cup-1")
        until(
            lambda: failing(saga) == [("cup-1", "failing", "code", "make", "tried again")], last=lambda: failing(saga)
        )
        assert saga("dead", "list", "--class", "outside").exit_code == 0
        (pottery_on.folder / "mended").write_text("cup-1")
        until(lambda: failing(saga) == [], last=lambda: failing(saga))


def test_operators_see_what_is_parked_and_it_resumes_when_the_cause_is_mended(
    kiln: str, saga: Call, pottery_on: Pottery
) -> None:
    service = pottery_on.service
    with running(kiln):
        order(saga, service, "cup-1", "cup-2")
        until(lambda: all(seen["queue"] == 1 for seen in listed(saga, service).values()))
        mend(pottery_on, "cup-2")
        until(lambda: parked(saga, service) == {"cup-1"})
        seen = listed(saga, service)["cup-1"]
        assert (seen["parked"], seen["queue"], seen["dead"]) == (1, 1, 0)
        [retry] = seen["retries"]
        assert (retry["handler"], retry["undoes"], retry["error"]) == ("make", None, "RuntimeError: the kiln is cold")
        assert retry["attempts"] >= 2
        assert retry["since"] < retry["next"]
        line = next(line for line in saga("sagas", "list", "--open").stdout.splitlines() if line.startswith("cup-1"))
        assert "parked:1" in line
        assert "queue:1" in line
        assert f"{service}:retrying" in line
        shown = saga("sagas", "show", "cup-1").stdout
        assert "    attempt 1 failed at " in shown
        assert "ms on " in shown
        assert f"  {service}: make is tried again at " in shown
        assert ", 1 message waits behind it; last error: RuntimeError: the kiln is cold" in shown
        assert saga("sagas", "verify", "cup-1").exit_code == 0
        assert failing(saga) == [], "the outside fails, and waiting may mend it"
        check_wakes_are_counted_apart(saga, service)
        mend(pottery_on, "cup-1", "cup-2")
        until(lambda: all_are_sold(["cup-1", "cup-2"]))
        check_each_once_and_in_order(saga, ["cup-1", "cup-2"])


def test_a_worker_that_is_killed_again_and_again_loses_no_wake(
    kiln: str, saga: Call, pottery_on: Pottery, request: pytest.FixtureRequest
) -> None:
    """It dies while a timer waits, between the write of a parking and its timer, and wherever else chance has it."""
    cups, random = [f"cup-{n}" for n in range(8)], Random(SEED)
    with running(kiln):
        order(saga, pottery_on.service, *cups)
    on_kafka = "kafka" in request.node.callspec.params.values()  # there a place is empty for 10 s after each death
    for _ in range(0 if on_kafka else 6):
        with running(kiln):
            asyncio.run(CLOCK.sleep(0.6 + random.random()))
    mend(pottery_on, *cups)
    with running(kiln):
        until(lambda: all_are_sold(cups))
        check_each_once_and_in_order(saga, cups)


@pytest.mark.slow
def test_a_parked_saga_resumes_after_the_broker_was_away(
    embedded_pottery: Pottery, saga: Call, server_jars: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka = KafkaServer.start(tmp_path / "kafka")
    try:
        for name, value in (
            ("BROKER", f"kafka://{kafka.address}"),
            ("KAFKA_REPLICATION", "1"),
            ("KAFKA_MIN_INSYNC", "1"),
        ):
            monkeypatch.setenv(f"SAGA_{name}", value)
        module, cups = prepared(embedded_pottery, saga), ["cup-1", "cup-2", "cup-3"]
        with running(module):
            order(saga, embedded_pottery.service, *cups)
            kafka.stop()
            kafka.restart()
            mend(embedded_pottery, *cups)
            until(lambda: all_are_sold(cups))
            check_each_once_and_in_order(saga, cups)
    finally:
        kafka.stop()
