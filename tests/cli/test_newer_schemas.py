"""A producer that is deployed first: its events in a newer schema wait until the schema is deployed here, too."""

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Call
from tests.cli.pottery_service import Pottery
from tests.cli.test_dead import until
from tests.cli.test_missing_topics import running
from tests.cli.test_parked import ends, listed, parked, publish

NEW, OLD = ["cup-1", "cup-2"], ["cup-3", "cup-4"]


def order_with_newer_schema(pottery: Pottery, saga: Call, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Order cups as a producer that has its contracts already; the path of the schema that only it has."""
    here = Path(os.environ["SAGA_CONTRACTS"])
    producers = shutil.copytree(here, pottery.folder / "newer")
    schema = json.loads((producers / pottery.topic / "CupOrdered.v1.avsc").read_text())
    schema["fields"].append({"name": "glaze", "type": "string", "default": "", "doc": "Its colour."})
    newer = producers / pottery.topic / "CupOrdered.v2.avsc"
    newer.write_text(json.dumps(schema))
    with monkeypatch.context() as there:
        there.setenv("SAGA_CONTRACTS", str(producers))
        lines = "\n".join(json.dumps({"cup_id": cup, "glaze": "blue"}) for cup in NEW)
        assert saga("publish", "CupOrdered", stdin=lines).exit_code == 0
    return newer


def made(saga: Call, cups: list[str]) -> bool:
    return all(ends(saga, cup) == [("make", "handled")] for cup in cups if cup in listed_any(saga))


def listed_any(saga: Call) -> set[str]:
    return {each["saga"] for each in json.loads(saga("sagas", "list", "--json").stdout)["sagas"]}


def test_a_schema_that_is_deployed_while_the_service_runs_is_enough(
    pottery_on: Pottery, saga: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert saga("topics", "apply", pottery_on.module).exit_code == 0
    newer = order_with_newer_schema(pottery_on, saga, monkeypatch)
    with running(pottery_on.module):
        publish(saga, "CupOrdered", *OLD)
        until(lambda: parked(saga, pottery_on.service) == set(NEW))
        until(lambda: set(OLD) <= listed_any(saga) and made(saga, OLD))
        (retry,) = listed(saga, pottery_on.service)[NEW[0]]["retries"]
        assert retry["error"].startswith("UnknownSchema: no schema in ")
        shutil.copy(newer, Path(os.environ["SAGA_CONTRACTS"]) / pottery_on.topic / newer.name)
        until(lambda: parked(saga, pottery_on.service) == set())
        assert made(saga, NEW)
    assert json.loads(saga("dead", "list", "--json").stdout)["letters"] == []
    verified = saga("sagas", "verify")
    assert verified.exit_code == 0, verified.output


def test_a_service_that_is_started_with_the_schema_resumes_what_another_one_parked(
    pottery_on: Pottery, saga: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert saga("topics", "apply", pottery_on.module).exit_code == 0
    newer = order_with_newer_schema(pottery_on, saga, monkeypatch)
    with running(pottery_on.module):
        until(lambda: parked(saga, pottery_on.service) == set(NEW))
    shutil.copy(newer, Path(os.environ["SAGA_CONTRACTS"]) / pottery_on.topic / newer.name)
    with running(pottery_on.module):
        until(lambda: parked(saga, pottery_on.service) == set())
        assert made(saga, NEW)
    assert json.loads(saga("dead", "list", "--json").stdout)["letters"] == []
