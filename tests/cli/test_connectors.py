"""`saga changes connector` prints what Couchbase's Kafka connector needs, and `saga doctor` looks at one that runs."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, cast

import pytest

from saga.configuration.settings import Settings
from saga.errors import ConfigurationError
from saga.ops import connectors
from saga.ops.connectors import check_connectors, make_connector, make_query
from saga.store.port import Store
from saga.store.sqlite.store import SqliteStore
from saga.support.clock import SystemClock
from saga.support.settings import Finding
from tests.cli.conftest import Call
from tests.servers.listening import listening
from tests.service.documents import intake

STORE, BROKER = "couchbase://db1:11210,db2/shop/{service}", "kafka://k1:9092"
SETTINGS = Settings(store=STORE, broker=BROKER, connect="http://connect:8083")
MODULE = "tests.service.documents"
WANTED = make_connector(intake.declared, SETTINGS)
RUNS: dict[str, Any] = {"connector": {"state": "RUNNING"}, "tasks": [{"id": 0, "state": "RUNNING"}]}


@dataclass
class Connect:
    """Kafka Connect as far as it is asked: answers by path."""

    answers: dict[str, Any] = field(default_factory=dict)

    async def __call__(self, path: str) -> Any:
        return self.answers.get(path)


def connect_with(config: object, status: object) -> Connect:
    path = f"/connectors/{WANTED.name}"
    return Connect({f"{path}/config": config, f"{path}/status": status})


async def looked(connect: Connect | None, settings: Settings = SETTINGS) -> list[Finding]:
    return list(await check_connectors([intake.declared], settings, connect))


@pytest.fixture
def on_couchbase(saga: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("STORE", STORE), ("BROKER", BROKER), ("COUCHBASE_USERNAME", "u"), ("COUCHBASE_PASSWORD", "p")):
        monkeypatch.setenv(f"SAGA_{name}", value)


def test_the_configuration_brings_the_collections_of_the_service_to_its_topic(saga: Call, on_couchbase: None) -> None:
    printed = saga("changes", "connector", MODULE)
    assert printed.exit_code == 0, printed.output
    report = json.loads(printed.stdout)
    assert report["name"] == "saga-changes-intake"
    config = report["config"]
    assert config["couchbase.seed.nodes"] == "db1,db2"
    assert config["couchbase.bucket"] == "shop"
    assert config["couchbase.collections"] == "intake.orders"
    assert config["couchbase.topic"] == "intake.changes.${collection}"
    assert config["couchbase.source.handler"].endswith(".RawJsonWithMetadataSourceHandler")
    assert config["value.converter"] == "org.apache.kafka.connect.converters.ByteArrayConverter"
    assert config["couchbase.stream.from"] == "SAVED_OFFSET_OR_BEGINNING"
    assert config["couchbase.username"] == "intake"
    assert not [name for name in config if "password" in name or "tls" in name]


def test_user_tls_and_start_are_as_they_are_asked_for(
    saga: Call, on_couchbase: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAGA_CHANGES_FROM", "now")
    store = STORE.replace("couchbase:", "couchbases:")
    printed = saga("changes", "connector", MODULE, "--user", "mover", "--store", store)
    config = json.loads(printed.stdout)["config"]
    assert config["couchbase.username"] == "mover"
    assert config["couchbase.enable.tls"] == "true"
    assert config["couchbase.stream.from"] == "SAVED_OFFSET_OR_NOW"


@pytest.mark.parametrize(
    ("store", "broker", "message"),
    [
        ("sqlite:///s.db", BROKER, "which notes changes itself: a connector is for couchbase://"),
        (STORE, "embedded:///b.db", "Couchbase's connector writes to Kafka alone"),
        ("couchbase://db1/shop", BROKER, "with all documents in one collection of Couchbase"),
        ("couchbase://db1/shop/s/all", BROKER, "with all documents in one collection of Couchbase"),
    ],
)
async def test_a_collection_that_no_connector_can_read_is_refused_and_reported_by_the_doctor(
    store: str, broker: str, message: str
) -> None:
    settings = Settings(store=store, broker=broker)
    with pytest.raises(ConfigurationError) as refused:
        make_connector(intake.declared, settings)
    assert any(message in problem for problem in refused.value.problems)
    (found,) = await looked(None, settings)
    if store.startswith("sqlite"):
        assert (found.severity, found.what) == ("ok", "the store notes them, and the service takes them on")
    else:
        assert found.severity == "error"
        assert message in found.what


def test_a_service_that_takes_no_changes_needs_no_connector(saga: Call, on_couchbase: None) -> None:
    refused = saga("changes", "connector", "services.payment")
    assert refused.exit_code == 2
    assert "'payment' takes no Change" in refused.stderr


async def test_a_connector_that_is_as_wanted_and_runs_is_sound() -> None:
    (found,) = await looked(connect_with({**WANTED.config, "tasks.max": "4", "name": "x"}, RUNS))
    assert (found.severity, found.what) == ("ok", "the connector saga-changes-intake runs, and is as it should be")


async def test_a_connector_with_another_handler_is_an_error() -> None:
    other = {**WANTED.config, "couchbase.source.handler": "RawJsonSourceHandler"}
    (found,) = await looked(connect_with(other, RUNS))
    assert found.severity == "error"
    assert "couchbase.source.handler = 'RawJsonSourceHandler', wanted is 'com.couchbase" in found.what


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ({**RUNS, "connector": {"state": "PAUSED"}}, "it is PAUSED"),
        ({**RUNS, "tasks": [{"id": 3, "state": "FAILED", "trace": "at..."}]}, "task 3 is FAILED"),
        ({**RUNS, "tasks": []}, "its task is missing"),
        ({}, "it is None, its task is missing"),
        ({"connector": 1, "tasks": [7]}, "it is None, its task is missing"),
    ],
)
async def test_a_connector_that_does_not_run_is_an_error(status: object, reason: str) -> None:
    (found,) = await looked(connect_with(dict(WANTED.config), status))
    assert (found.severity, found.what) == ("error", f"the connector saga-changes-intake does not run: {reason}")


async def test_a_connector_that_is_missing_is_an_error_with_the_command() -> None:
    (found,) = await looked(Connect())
    assert (found.severity, found.what) == ("error", "there is no connector saga-changes-intake")
    assert "saga changes connector MODULES" in found.remedy


async def test_no_connector_is_checked_where_no_address_is_set() -> None:
    (found,) = await looked(None)
    assert (found.severity, found.what) == ("warning", "SAGA_CONNECT does not say where the Kafka Connect is")
    assert make_query("") is None


# -------------------------------------------------------------------- over HTTP


@contextmanager
def a_connect(answers: dict[str, tuple[int, bytes]]) -> Iterator[str]:
    """Kafka Connect's REST interface, on a port of its own; its address."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            code, body = answers.get(self.path, (404, b'{"error_code":404}'))
            self.send_response(code)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


async def test_it_is_asked_over_http() -> None:
    path = f"/connectors/{WANTED.name}"
    answers = {f"{path}/config": (200, json.dumps(WANTED.config).encode()), f"{path}/status": (200, b"{}")}
    with a_connect(answers) as address:
        ask = make_query(address)
        assert ask is not None
        assert await ask(f"{path}/config") == WANTED.config
        assert await ask("/connectors/other/config") is None
        (found,) = await check_connectors([intake.declared], SETTINGS, ask)
        assert "does not run" in found.what
        answers[f"{path}/status"] = (200, json.dumps(RUNS).encode())
        (found,) = await check_connectors([intake.declared], SETTINGS, ask)
        assert found.severity == "ok"


@pytest.mark.parametrize(
    ("code", "body", "message"), [(500, b"", "it answers 500"), (200, b"<html>", "cannot be asked")]
)
async def test_an_unreachable_connector_is_reported(code: int, body: bytes, message: str) -> None:
    with a_connect({f"/connectors/{WANTED.name}/config": (code, body)}) as address:
        (found,) = await check_connectors([intake.declared], SETTINGS, make_query(address))
        assert found.severity == "error"
        assert message in found.what
    (found,) = await check_connectors([intake.declared], SETTINGS, make_query(address))
    assert "it cannot be asked" in found.what


async def test_a_server_that_does_not_speak_http_is_reported_as_no_connect() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"\0\0\0\5" + 1000 * b"hello" + b"\r\n")

    async with listening(serve) as port:
        (found,) = await check_connectors([intake.declared], SETTINGS, make_query(f"http://127.0.0.1:{port}"))
    assert found.severity == "error"
    assert "it cannot be asked" in found.what
    assert "\0" not in found.what
    assert len(found.what) < 500


def test_the_doctor_looks_at_changes(saga: Call, folder: Path) -> None:
    printed = saga("doctor", MODULE)
    assert printed.exit_code == 0, printed.output
    assert (
        "ok       changes of orders for intake: the store notes them, and the service takes them on" in printed.stdout
    )


def test_an_address_with_a_password_is_refused(saga: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAGA_CONNECT", "http://ada:sesame@connect:8083")
    refused = saga("doctor", MODULE)
    assert refused.exit_code == 2
    assert "SAGA_CONNECT" in refused.stderr
    assert "sesame" not in refused.stderr


# -------------------------------------------------------------------- stores that note changes themselves


@pytest.fixture
async def watched_too(saga: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Store that notes changes of a collection that the service, as it is declared, does not take."""
    file = tmp_path / "intake.db"
    monkeypatch.setenv("SAGA_STORE", f"sqlite:///{tmp_path}/{{service}}.db")
    monkeypatch.setenv("SAGA_BROKER", f"embedded:///{tmp_path}/broker.db")
    async with SqliteStore(file, clock=SystemClock()) as store:
        await store.watch("intake", ["orders", "returns"], from_beginning=False)
        await store.insert("returns", "r-1", b"{}")
    return file


def found_about(saga: Call, collection: str) -> list[Finding]:
    report = json.loads(saga("doctor", MODULE, "--json").stdout)
    return [
        f for f in (Finding(**each) for each in report["findings"]) if f.about == f"changes of {collection} for intake"
    ]


def test_a_collection_that_no_release_takes_is_named_by_the_doctor_and_dropped_by_a_person(
    saga: Call, watched_too: Path
) -> None:
    (finding,) = found_about(saga, "returns")
    assert (finding.severity, finding.remedy) == (
        "warning",
        "once no release takes them: saga changes drop MODULE --collection returns",
    )
    dropped = saga("changes", "drop", MODULE, "--collection", "returns")
    assert dropped.exit_code == 0, dropped.output
    assert dropped.stdout == "changes of returns are no longer recorded for intake\n"
    assert not found_about(saga, "returns")
    again = saga("changes", "drop", MODULE, "--collection", "returns", "--collection", "orders")
    assert again.exit_code == 2
    assert "no changes of 'returns' are noted for 'intake'; they are of: orders" in again.output
    assert "'intake' takes changes of 'orders': deploy a release first that does not" in again.output


def test_ending_a_watch_needs_a_store_that_records_changes(saga: Call, watched_too: Path) -> None:
    class Plain:
        """Store that notes no changes."""

    with pytest.raises(ConfigurationError, match="this store notes no changes: take the collection out of the conn"):
        asyncio.run(connectors.stop_watching(intake.declared, ["returns"], cast(Store, Plain())))
    assert not list(connectors.check_watched_collections(intake.declared, cast(Store, Plain())))


def test_a_module_with_several_services_needs_the_name_of_one(saga: Call, watched_too: Path, tmp_path: Path) -> None:
    (tmp_path / "several.py").write_text("from services.order import order\nfrom services.payment import payment\n")
    refused = saga("changes", "drop", "several", "--collection", "returns")
    assert refused.exit_code == 2
    assert "several declares more than one service" in refused.output
