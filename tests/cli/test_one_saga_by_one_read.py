"""Commands about sagas on a Couchbase that cannot list documents: what is asked about one saga is read by its key."""

import json
from collections.abc import Iterator

import pytest

from saga.testing.servers.couchbase import CouchbaseMock
from tests.cli.conftest import Call
from tests.cli.pottery_service import Pottery
from tests.cli.test_dead import BY, letters, until
from tests.cli.test_dead_resolve import SOURCE
from tests.cli.test_each_boundary import on_couchbase
from tests.cli.test_missing_topics import Running, running

DIES = "@potter.handler(retry=Retry(attempts_max=1))"
PARKS = "@potter.handler(retry=Retry(attempts_max=99, delay_s_first=3600, in_place_s=0, never=(RuntimeError,)))"
BEGINS = "    try:\n"
CLOSED = '    if ordered.cup_id[-1] in "34":\n        raise ConnectionError("the shop is closed")\n'


@pytest.fixture
def baking(
    kafka_pottery: Pottery, couchbase_mock: CouchbaseMock, saga: Call, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Running]:
    """A potter runs on Kafka and CouchbaseMock, two cups have died in the kiln, and two are parked."""
    on_couchbase(kafka_pottery, couchbase_mock, monkeypatch)
    name = f"{kafka_pottery.module}_baking"
    source = (
        SOURCE.replace(DIES, PARKS)
        .replace(BEGINS, f"{CLOSED}{BEGINS}")
        .format(module=kafka_pottery.module, service=kafka_pottery.service)
    )
    (kafka_pottery.folder / f"{name}.py").write_text(source)
    assert saga("topics", "apply", name).exit_code == 0
    with running(name) as process:
        lines = "\n".join(json.dumps({"cup_id": f"cup-{kafka_pottery.service}-{n}"}) for n in (3, 4, 1, 2))
        assert saga("publish", "CupOrdered", stdin=lines).exit_code == 0
        until(
            lambda: len(dead_in(saga, kafka_pottery.service)) == 2,
            last=lambda: saga("dead", "list", "--service", kafka_pottery.service).output,
        )
        yield process


def dead_in(saga: Call, service: str) -> set[str]:
    """Sagas that a dead letter blocks there: others have services on the same Kafka, more and more of them."""
    return {letter["saga"] for letter in letters(saga, "--service", service) if letter["now"] == "blocks"}


@pytest.mark.slow
def test_commands_about_one_saga_list_no_keys(baking: Running, saga: Call, kafka_pottery: Pottery) -> None:
    service = kafka_pottery.service
    first, second, third = (f"cup-{service}-{n}" for n in (1, 2, 3))
    shown = saga("sagas", "show", first)
    assert (shown.exit_code, "RuntimeError: nobody knows what became of it" in shown.stdout) == (0, True), shown.output
    assert saga("sagas", "show", first, "--service", service).exit_code == 0
    one = json.loads(saga("dead", "list", "--saga", first, "--json").stdout)["letters"]
    assert [(letter["saga"], letter["now"]) for letter in one] == [(first, "blocks")]
    assert dead_in(saga, service) == {first, second}, "of all sagas, too: each of these has a letter"
    assert "make" in saga("dead", "show", first).stdout
    whole = saga("sagas", "verify", first)
    assert (whole.exit_code, "all unchanged" in whole.stdout) == (0, True), whole.output

    baked = (kafka_pottery.folder / "baked").read_text()
    resolved = saga("dead", "resolve", first, "--step", "bake", "--answered", '"blue"', *BY, "--within", "30")
    assert (resolved.exit_code, "resolved, then handled" in resolved.stdout) == (0, True), resolved.output
    assert (kafka_pottery.folder / "baked").read_text() == baked
    again = saga("dead", "replay", service, "--saga", second, *BY, "--within", "30")
    assert (again.exit_code, "replayed, then dead" in again.stdout) == (1, True), again.output
    gone = saga("dead", "discard", service, "--all", *BY, "--within", "30")
    assert (gone.exit_code, f"{second}  make  discarded" in gone.stdout) == (0, True), gone.output

    released = saga("dead", "release", service, "--saga", third, *BY, "--within", "30")
    assert (released.exit_code, f"{third}  make  released, then retrying" in released.stdout) == (1, True), (
        released.output
    )
    every = saga("dead", "release", service, "--all", "--dry-run", *BY)
    assert every.exit_code == 0, every.output
    assert sorted(line.split("  ")[1] for line in every.stdout.splitlines()) == [third, f"cup-{service}-4"]

    repaired = saga("sagas", "repair", f"{kafka_pottery.module}_baking", "--saga", first)
    assert repaired.exit_code == 0, repaired.output
    assert saga("control", "show", service).exit_code == 0
    assert saga("audit", service).exit_code == 0


def test_commands_that_need_a_list_fail_with_what_to_do(baking: Running, saga: Call, kafka_pottery: Pottery) -> None:
    for command in (("sagas", "list"), ("sagas", "verify")):
        refused = saga(*command)
        assert refused.exit_code == 2
        assert "use Couchbase Server 7.6 or later; 7.2 does all but list documents" in refused.stderr
    unknown = saga("sagas", "list", "--service", "nobody")
    assert (unknown.exit_code, "no service nobody is known here, there are: " in unknown.stderr) == (2, True)


def test_a_store_for_each_service_is_found_by_the_names_that_the_broker_has(
    baking: Running, saga: Call, kafka_pottery: Pottery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAGA_STORE", "couchbase://127.0.0.1:1/{service}")
    refused = saga("sagas", "show", "cup-1", "--service", kafka_pottery.service)
    assert refused.exit_code == 2
    assert f"couchbase://127.0.0.1:1/{kafka_pottery.service}" in refused.stderr, refused.stderr
