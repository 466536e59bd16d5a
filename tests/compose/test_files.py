"""The compose files and scripts contain what the services need, and no secret."""

import json
import os
import re
import shlex
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import pytest
import yaml
from click.testing import CliRunner

from saga.cli.main import main
from saga.configuration import wiring
from saga.configuration.settings import known_settings
from saga.engine.prepared_service import topics_of
from saga.messaging.names import ARCHIVES, PROGRESS
from services.audit.books import SERVICES
from tests.compose.checked import problems_in

ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))
STAND_INS = yaml.safe_load((ROOT / "docker-compose.stand-ins.yml").read_text("utf-8"))
CONNECT = ROOT / "deploy" / "connect"
INIT, SECRETS = ROOT / "deploy" / "couchbase" / "init.sh", ROOT / "deploy" / "secrets.sh"
FAKE = """#!/bin/bash
printf '%s\\n' "$(IFS='|'; echo "$*")" >> "$CALLS"
{ends}
"""
DRAIN_S = 20
BY_DOCUMENTS = ("intake", "intake-connector")
"""The service that takes orders as documents, and the connector that tells of them."""
PROFILE = "documents"
PEOPLE = ("client", "operator")
"""Containers for commands that people call, which read every store and write none."""


def services(file: Any) -> Any:
    return file["services"]


def couchbase_init(
    folder: Path, ends: str = "exit 0", without: str = ""
) -> tuple[subprocess.CompletedProcess[str], list[list[str]]]:
    """Run the script with the secrets that compose gives it, and a `couchbase-cli` that only records its calls."""
    bin_, secrets, calls = folder / "bin", folder / "secrets", folder / "calls"
    bin_.mkdir()
    secrets.mkdir()
    for name in {*services(COMPOSE)["couchbase-init"]["secrets"]} - {without}:
        (secrets / name).write_text(f"secret-of-{name}")
    fake = bin_ / "couchbase-cli"
    fake.write_text(FAKE.format(ends=ends))
    fake.chmod(0o755)
    calls.touch()
    environment = {"PATH": f"{bin_}:{os.environ['PATH']}", "CALLS": str(calls), "SECRETS": str(secrets)}
    done = subprocess.run(["bash", str(INIT)], env=environment, capture_output=True, text=True, timeout=30, check=False)
    return done, [line.split("|") for line in calls.read_text().splitlines()]


def after(option: str, call: list[str]) -> str:
    return call[call.index(option) + 1]


def test_couchbase_has_the_collections_that_the_services_use(tmp_path: Path) -> None:
    done, calls = couchbase_init(tmp_path)
    assert done.returncode == 0, done.stderr
    made = {after("--create-collection", call) for call in calls if "--create-collection" in call}
    used = {
        f"{declared.name}.{collection}"
        for declared in wiring.load_services([f"services.{service}" for service in (*SERVICES, "intake")])
        for collection in (PROGRESS, ARCHIVES, *(kind.collection for kind in declared.documents))
    }
    assert made == used


def test_a_service_may_read_and_write_its_own_scope_and_nothing_else(tmp_path: Path) -> None:
    _, calls = couchbase_init(tmp_path)
    users = {after("--rbac-username", call): call for call in calls if call[0] == "user-manage"}
    roles = {user: after("--roles", call) for user, call in users.items()}
    assert roles == {
        service: f"data_reader[saga:{service}],data_writer[saga:{service}]" for service in (*SERVICES, "intake")
    } | {
        **dict.fromkeys(PEOPLE, "data_reader[saga]"),
        "intake-connector": "data_dcp_reader[saga:intake:orders]",
    }
    assert {user: after("--rbac-password", call) for user, call in users.items()} == {
        user: f"secret-of-{user}" for user in users
    }


def test_couchbase_that_is_made_already_stays_as_it_is(tmp_path: Path) -> None:
    done, calls = couchbase_init(tmp_path, "echo 'ERROR: Scope with this name Already exists'; exit 1")
    assert done.returncode == 0, done.stderr
    assert calls[-1][0] == "user-manage"


def test_a_couchbase_that_refuses_ends_the_script_with_its_words(tmp_path: Path) -> None:
    done, calls = couchbase_init(tmp_path, "echo 'ERROR: not enough memory'; exit 1")
    assert done.returncode == 1
    assert "couchbase-cli cluster-init: ERROR: not enough memory" in done.stderr
    assert len(calls) == 1


def test_the_script_for_couchbase_stops_at_a_secret_that_it_does_not_get(tmp_path: Path) -> None:
    done, calls = couchbase_init(tmp_path, without="intake-connector")
    assert done.returncode == 1
    assert "no secret intake-connector" in done.stderr
    assert calls == []


def test_secrets_are_made_once_and_kept_from_other_people(tmp_path: Path) -> None:
    def make() -> dict[str, str]:
        folder = tmp_path / "secrets"
        subprocess.run(["sh", str(SECRETS)], env={**os.environ, "ORDERS_SECRETS": str(folder)}, check=True, timeout=30)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        return {file.name: file.read_text() for file in folder.iterdir()}

    made = make()
    assert made.keys() == COMPOSE["secrets"].keys()
    assert len(set(made.values())) == len(made)
    assert all(re.fullmatch(r"[0-9a-f]{32}", secret) for secret in made.values())
    assert make() == made


def test_no_secret_stands_in_a_compose_file() -> None:
    for file in (COMPOSE, STAND_INS):
        for service in services(file).values():
            for name, value in service.get("environment", {}).items():
                assert "PASSWORD" not in name or (name.endswith("_FILE") and value.startswith("/run/secrets/"))
    assert all(secret.keys() == {"file"} for secret in COMPOSE["secrets"].values())


@pytest.mark.parametrize("service", [*SERVICES, "intake"])
def test_a_service_is_restarted_waited_for_and_given_time_to_drain(service: str) -> None:
    given = services(COMPOSE)[service]
    assert given["command"] == f"run services.{service}"
    assert given["restart"] == "unless-stopped"
    assert "/health/ready" in given["healthcheck"]["test"][-1]
    assert int(given["stop_grace_period"].removesuffix("s")) > DRAIN_S + 5
    assert given["environment"]["SAGA_COUCHBASE_USERNAME"] == service
    assert given["environment"]["SAGA_COUCHBASE_PASSWORD_FILE"] == f"/run/secrets/{service}"
    assert given["secrets"] == [service]


def test_topics_are_made_for_all_services_before_the_first_one_starts() -> None:
    makes = services(COMPOSE)["topics"]
    command, modules = makes["command"].split()[:2], makes["command"].split()[2:]
    assert command == ["topics", "apply"]
    assert set(modules) == {f"services.{service}" for service in (*SERVICES, "intake")}
    assert makes["depends_on"] == {"kafka": {"condition": "service_healthy"}}
    for service in SERVICES:
        assert services(COMPOSE)[service]["depends_on"]["topics"] == {"condition": "service_completed_successfully"}
        # The same broker, asked for as many replicas.
        given = services(COMPOSE)[service]["environment"]
        assert given.items() >= makes["environment"].items()


@pytest.mark.parametrize("name", PEOPLE)
def test_people_call_commands_as_a_user_that_is_no_service(name: str) -> None:
    given = services(COMPOSE)[name]
    assert given["environment"]["SAGA_COUCHBASE_USERNAME"] == name
    assert given["environment"]["SAGA_COUCHBASE_PASSWORD_FILE"] == f"/run/secrets/{name}"
    assert given["secrets"] == [name]
    assert given["profiles"] == ["tools"]


def test_an_operator_reads_the_stores_of_all_services() -> None:
    operator = services(COMPOSE)["operator"]["environment"]["SAGA_STORE"]
    assert {operator.replace("{service}", service) for service in SERVICES} == {
        services(COMPOSE)[service]["environment"]["SAGA_STORE"] for service in SERVICES
    }


def test_settings_in_compose_files_are_settings() -> None:
    names = {
        name
        for file in (COMPOSE, STAND_INS)
        for service in services(file).values()
        for name in service.get("environment", {})
        if name.startswith("SAGA_")
    }
    assert names
    assert names <= known_settings().keys()


@pytest.mark.parametrize("name", ["docker-compose.yml", "docker-compose.stand-ins.yml"])
def test_compose_files_match_the_compose_specification(name: str) -> None:
    assert problems_in(ROOT / name) == []


def test_two_processes_of_payment_run() -> None:
    assert services(COMPOSE)["payment"]["scale"] == 2


def test_the_stand_ins_replace_servers_and_leave_the_services_as_they_are() -> None:
    replaced = services(STAND_INS)
    others = {name for name, given in services(COMPOSE).items() if given.get("profiles") == [PROFILE]}
    assert replaced.keys() == services(COMPOSE).keys() - {"topics"} - others
    for name in ("stock", *PEOPLE, *SERVICES):
        assert replaced[name] == {
            "environment": {"SAGA_STORE": "couchbase://couchbase:11210/saga", "SAGA_STORE_DURABILITY": "none"}
        }


def test_the_image_has_every_package_that_the_toolkit_is_tested_with() -> None:
    def pinned(name: str) -> set[str]:
        return set(re.findall(r"^([\w.-]+==[\w.]+)", (ROOT / name).read_text("utf-8"), re.MULTILINE))

    ours, tested = pinned("requirements-servers.lock"), pinned("requirements-dev.lock") | pinned("requirements.lock")
    versions = dict(package.split("==") for package in tested)
    assert pinned("requirements.lock") <= ours
    assert {"aiokafka", "couchbase", "aiohttp", "prometheus-client"} <= {package.split("==")[0] for package in ours}
    assert [p for p in ours if versions.get(p.split("==")[0], p.split("==")[1]) != p.split("==")[1]] == []


# -------------------------------------------------------------------- orders as documents


class Connect(BaseHTTPRequestHandler):
    """Kafka Connect as far as it is given connectors."""

    given: ClassVar[dict[str, object]] = {}
    answers: ClassVar[list[int]] = []
    """Status of each answer, in turn; the last one again for all that follow."""

    def do_PUT(self) -> None:  # the server calls it so
        body = self.rfile.read(int(self.headers["content-length"]))
        self.given[self.path] = json.loads(body)
        self.send_response(self.answers.pop(0) if self.answers[1:] else self.answers[0])
        self.end_headers()
        self.wfile.write(b"it is so\x1b[2J")

    def log_message(self, format: str, *args: object) -> None: ...


@contextmanager
def connecting(*answers: int) -> Iterator[tuple[str, dict[str, object]]]:
    class Once(Connect):
        given: ClassVar[dict[str, object]] = {}

    Once.answers = [*answers]
    with ThreadingHTTPServer(("127.0.0.1", 0), Once) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", Once.given
        finally:
            server.shutdown()
            thread.join()


def printed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """What `saga changes connector` prints in the container that gives it to Kafka Connect."""
    given = services(COMPOSE)["connector"]
    command, gives_to = given["command"][0].split(" | ")
    assert gives_to == "python /apply.py http://connect:8083"
    for name, value in given["environment"].items():
        monkeypatch.setenv(name, value)
    (tmp_path / "password").write_text("secret")
    monkeypatch.setenv("SAGA_COUCHBASE_PASSWORD_FILE", str(tmp_path / "password"))
    done = CliRunner().invoke(main, shlex.split(command)[1:])
    assert done.exit_code == 0, done.output
    return done.stdout


def applied(address: str, text: str) -> subprocess.CompletedProcess[str]:
    apply = [sys.executable, str(CONNECT / "apply.py"), address]
    return subprocess.run(apply, input=text, capture_output=True, text=True, timeout=60, check=False)


def test_kafka_connect_is_given_the_connector_that_the_service_declares(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = printed(monkeypatch, tmp_path)
    with connecting(201) as (address, given):
        done = applied(address, text)
    assert (done.returncode, done.stdout) == (0, "saga-changes-intake: 201\n"), done.stderr
    [(path, config)] = given.items()
    assert path == "/connectors/saga-changes-intake/config"
    assert isinstance(config, dict)
    assert config == json.loads(text)["config"]
    assert config["couchbase.username"] == "intake-connector"
    assert "secret" not in text
    _, calls = couchbase_init(tmp_path)
    made = {after("--create-collection", call) for call in calls if "--create-collection" in call}
    assert set(config["couchbase.collections"].split(",")) <= made
    topics = {topic.name for declared in wiring.load_services(["services.intake"]) for topic in topics_of(declared)}
    assert config["couchbase.topic"].replace("${collection}", "orders") in topics


def test_a_refused_or_unreachable_connector_ends_with_the_error_of_the_server() -> None:
    with connecting(400) as (address, _):
        done = applied(address, '{"name": "a", "config": {}} {"name": "b", "config": {}}')
    assert (done.returncode, done.stderr) == (1, "a is refused with 400: 'it is so\\x1b[2J'\n")
    away = applied("http://127.0.0.1:1", '{"name": "a", "config": {}}')
    assert away.returncode == 1
    assert away.stderr.startswith("http://127.0.0.1:1 does not answer: ")
    assert applied("http://127.0.0.1:1", "").returncode == 2


def test_a_connector_is_given_again_to_a_kafka_connect_that_rebalances() -> None:
    with connecting(409, 201) as (address, given):
        done = applied(address, '{"name": "a", "config": {}}')
    assert (done.returncode, done.stdout, done.stderr) == (0, "a: 201\n", "")
    assert list(given) == ["/connectors/a/config"]


def test_kafka_connect_has_the_password_of_its_user_from_a_file(tmp_path: Path) -> None:
    fake = tmp_path / "bin" / "connect-distributed.sh"
    fake.parent.mkdir()
    fake.write_text('#!/bin/bash\necho "$KAFKA_COUCHBASE_PASSWORD $1"\n')
    fake.chmod(0o755)
    (tmp_path / "intake-connector").write_text("secret-of-connector")
    environment = {"PATH": os.environ["PATH"], "SECRETS": str(tmp_path), "KAFKA_HOME": str(tmp_path)}
    run = ["bash", str(CONNECT / "run.sh")]
    done = subprocess.run(run, env=environment, capture_output=True, text=True, timeout=30, check=False)
    assert done.stdout == "secret-of-connector /opt/saga/connect.properties\n", done.stderr
    assert services(COMPOSE)["connect"]["secrets"] == ["intake-connector"]


def test_orders_as_documents_are_started_only_where_they_are_asked_for() -> None:
    asked = {name for name, given in services(COMPOSE).items() if given.get("profiles") == [PROFILE]}
    assert asked == {"intake", "connect", "connector"}
    assert services(COMPOSE)["connector"]["depends_on"] == {"connect": {"condition": "service_healthy"}}
    properties = dict(
        line.split("=", 1)
        for line in (CONNECT / "connect.properties").read_text("utf-8").splitlines()
        if line and not line.startswith("#")
    )
    settings = services(COMPOSE)["intake"]["environment"]
    assert f"kafka://{properties['bootstrap.servers']}" == settings["SAGA_BROKER"]
    assert settings["SAGA_CONNECT"].rpartition(":")[2] == properties["listeners"].rpartition(":")[2]
    image = re.findall(r"^ARG KAFKA=(.+)$", (CONNECT / "Dockerfile").read_text("utf-8"), re.MULTILINE)
    assert services(COMPOSE)["kafka"]["image"] == f"${{KAFKA_IMAGE:-{image[0]}}}"
    assert f"COPY --from=unpacked /plugins {properties['plugin.path']}\n" in (CONNECT / "Dockerfile").read_text("utf-8")
