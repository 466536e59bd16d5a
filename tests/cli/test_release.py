"""`saga dead release`: parked sagas are tried at once; who wants it, and why, is in their history."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Call
from tests.cli.pottery_service import Pottery
from tests.cli.test_dead import mend, until
from tests.cli.test_missing_topics import running
from tests.cli.test_parked import ends, order, parked, prepared

PATIENT = "Retry(attempts_max=1000, delay_s_first=900, delay_s_max=3600, in_place_s=0.3)"
BY = ("--who", "ada", "--why", "the kiln is warm")


@pytest.fixture
def kiln(pottery_on: Pottery, saga: Call) -> str:
    """Module of a potter who looks at a cold kiln every quarter of an hour."""
    name = prepared(pottery_on, saga)
    module = pottery_on.folder / f"{name}.py"
    source = module.read_text()
    at = source.index("Retry(attempts_max")
    module.write_text(source[:at] + PATIENT + source[source.index("))", at) + 1 :])
    return name


def test_a_long_parked_run_is_tried_when_an_operator_releases_it(kiln: str, pottery_on: Pottery, saga: Call) -> None:
    service = pottery_on.service
    with running(kiln):
        order(saga, service, "cup-1", "cup-2")
        result = saga("dead", "release", service, "--all", "--dry-run", *BY)
        assert result.exit_code == 0
        assert "cup-1  make  would be released: RuntimeError: the kiln is cold; tried again at 2" in result.stdout
        cut = saga("dead", "release", service, "--all", "--limit", "1", "--dry-run", *BY)
        assert (cut.exit_code, len(cut.stdout.splitlines())) == (1, 1)
        assert "there are more than 1 sagas: repeat the command for the rest, or raise --limit" in cut.stderr
        assert saga("dead", "release", service, "--handler", "nobody", *BY).exit_code == 1
        assert saga("dead", "release", service, *BY).exit_code == 2
        mend(pottery_on, "cup-1")
        released = saga("dead", "release", service, "--all", "--within", "30", "--json", *BY)
        assert released.exit_code == 1, "one has failed again"
        states = {line["saga"]: line["state"] for line in map(json.loads, released.stdout.splitlines())}
        assert states == {"cup-1": "released, then handled", "cup-2": "released, then retrying"}
        until(lambda: ends(saga, "cup-1") == [("make", "released"), ("make", "handled"), ("forget", "handled")])
        assert parked(saga, service) == {"cup-2"}
        shown = saga("sagas", "show", "cup-1", "--json").stdout
        assert "ada wants it: the kiln is warm" in shown
        audited = saga("audit", service, "--kind", "release")
        assert audited.exit_code == 0, audited.output
        assert audited.stdout.count("release of parked-") == 2
    assert len(Path("fired").read_text().splitlines()) == 1
    assert saga("sagas", "verify").exit_code == 0


def test_a_released_run_of_a_paused_handler_has_not_ended(kiln: str, pottery_on: Pottery, saga: Call) -> None:
    service = pottery_on.service
    with running(kiln):
        paused = saga("control", "pause", service, "--handler", "make", "--within", "30", *BY)
        assert paused.exit_code == 0, paused.output
        order(saga, service, "cup-1")
        released = saga("dead", "release", service, "--all", "--within", "3", *BY)
    assert released.exit_code == 1, released.output
    assert "cup-1  make  released, not ended yet: the run has not ended: saga explain cup-1 says" in released.stdout
