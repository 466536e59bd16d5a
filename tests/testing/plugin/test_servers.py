"""Servers in tests of a user's own repository: a world runs on them, the fixture has their addresses, and where there
are none the summary says what to install."""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar

import pytest

from saga.errors import SagaError
from saga.messaging.names import PROGRESS
from saga.progress.document import progress_key
from saga.support.clock import SystemClock
from saga.testing.processes.process_world import ProcessWorld
from saga.testing.processes.servers import ServerAddresses
from saga.testing.servers import containers, provider
from saga.testing.servers.couchbase import CouchbaseMock
from saga.testing.servers.given import find_given, given_servers
from saga.testing.servers.kafka import KafkaServer
from tests.compose.checked import compose_here, config_of, problems_in
from tests.docs.markdown import ROOT, blocks
from tests.servers.plain_clients import delete_topics
from tests.testing.plugin.buggy_service import Drawer, an_order, till
from tests.testing.plugin.conftest import Runs

pytest_plugins = ["pytester"]
PAGE = (ROOT / "docs/guides/testing/servers.md").read_text("utf-8")
ON_BOTH = """
def test_in_a_world(world: World) -> None:
    scenario(orders=1, asked_max=1)(world)

def test_in_another_world_with_the_same_ids(world: World) -> None:
    scenario(orders=1, asked_max=1)(world)

def test_orders_on_kafka_and_couchbase(saga_servers) -> None:
    assert saga_servers.settings["SAGA_BROKER"] == f"kafka://{saga_servers.kafka}"
    assert saga_servers.settings["SAGA_STORE"] == f"{saga_servers.couchbase}/{saga_servers.bucket}"
"""
MANY = """
@simulate(seeds=3)
def test_in_many_worlds(world: World) -> None:
    scenario(orders=1, asked_max=1)(world)
"""
ON_A_PROVIDER = """
from contextlib import contextmanager
from types import SimpleNamespace

@contextmanager
def mine(folder):
    yield SimpleNamespace(aside="the addresses of my servers")

def test_addresses(saga_servers) -> None:
    assert saga_servers == "the addresses of my servers"
"""
TESTCONTAINERS = """
import json, os, pathlib

class Container:
    def __init__(self, image=""):
        self.image = image
    def with_kraft(self):
        return self
    def with_exposed_ports(self, *ports):
        self.ports = ports
        return self
    def __enter__(self):
        note(f"start {type(self).__name__} {self.image}")
        return self
    def __exit__(self, *why):
        note(f"end {type(self).__name__}")
    def get_container_host_ip(self):
        return "127.0.0.1"
    def get_exposed_port(self, port):
        return os.environ["COUCHBASE_REST_PORT"] if port == 8091 else "31210"
    def get_bootstrap_server(self):
        return "127.0.0.1:31092"

def note(line):
    with open(os.environ["CONTAINERS"], "a") as file:
        file.write(line + "\\n")
"""


@pytest.fixture(scope="module")
def given(server_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Variables with the addresses of servers of this module's own: others have topics of the same names."""
    folder = tmp_path_factory.mktemp("given")
    kafka = KafkaServer.start(folder)
    try:
        mock = CouchbaseMock.start(folder)
        try:
            yield {"SAGA_TEST_KAFKA": kafka.address, "SAGA_TEST_COUCHBASE": mock.address}
        finally:
            mock.stop()
    finally:
        kafka.kill()


@pytest.fixture(autouse=True)
def no_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SAGA_TEST_KAFKA", "SAGA_TEST_COUCHBASE", "SAGA_SERVERS"):
        monkeypatch.delenv(name, raising=False)


def use(monkeypatch: pytest.MonkeyPatch, given: dict[str, str]) -> None:
    for name, value in given.items():
        monkeypatch.setenv(name, value)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_worlds_run_one_after_the_other_on_given_servers_and_leave_nothing(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, given: dict[str, str]
) -> None:
    use(monkeypatch, given)
    result = runs(ON_BOTH, "--saga-world=servers")
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["test_it.py::test_in_a_world: 1 run as real processes on servers; *"])


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_a_world_refuses_given_servers_that_have_its_topics_or_its_sagas(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str]
) -> None:
    use(monkeypatch, given)
    with ProcessWorld(servers=given_servers) as first:
        first.start(till, use=[Drawer()])
        with ProcessWorld(servers=given_servers) as second, pytest.raises(SagaError, match=r"has .*orders.* already"):
            second.start(till, use=[Drawer()])
        first.publish(an_order(1))
        first.run_until_quiet()
    place = find_given(given)
    assert place is not None
    asyncio.run(keep_progress(place))
    with ProcessWorld(servers=given_servers) as third:
        third.start(till, use=[Drawer()])
        third.publish(an_order(1))
        with pytest.raises(SagaError, match="has a progress of saga 'order-1' in 'till' already"):
            third.run_until_quiet()


async def keep_progress(place: ServerAddresses) -> None:
    """Insert a progress, which shows that the world before has removed its own."""
    async with place.store(SystemClock()) as store:
        await store.insert(PROGRESS, progress_key("till", "order-1"), b"{}")


def test_an_address_alone_is_a_mistake() -> None:
    with pytest.raises(SagaError, match="SAGA_TEST_COUCHBASE is not set"):
        find_given({"SAGA_TEST_KAFKA": "kafka:9092"})
    assert find_given({"SAGA_TEST_KAFKA": " "}) is None


def test_the_fixture_takes_an_own_provider(runs: Runs) -> None:
    runs(ON_A_PROVIDER, "--saga-servers=test_it:mine").assert_outcomes(passed=1)


@pytest.mark.timeout(120)
def test_the_page_about_servers_does_what_it_says(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, given: dict[str, str]
) -> None:
    use(monkeypatch, given)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    [code] = [block.body for block in blocks(PAGE) if block.language == "python"]
    project.makepyfile(test_mail=code)
    result = project.runpytest_inprocess("--saga-world=servers")
    asyncio.run(delete_topics(given["SAGA_TEST_KAFKA"]))  # what `saga topics apply` has created
    result.assert_outcomes(passed=2)


def test_the_compose_file_of_the_page_is_understood_and_has_the_addresses_that_it_names(tmp_path: Path) -> None:
    [file] = [block for block in blocks(PAGE) if block.language == "yaml"]
    assert file.title is not None
    (tmp_path / file.title).write_text(file.body)
    assert problems_in(tmp_path / file.title) == []
    exported = dict(re.findall(r"(SAGA_TEST_\w+)=(\S+)", PAGE.partition("$ export ")[2].partition("\n")[0]))
    place = find_given(exported)
    assert place is not None
    assert place.kafka in file.body
    assert f"--username {place.username} --password {place.password} " in file.body
    assert f"--bucket {place.bucket} " in file.body
    compose = compose_here()
    if compose is not None:
        assert "couchbase-init" in config_of(compose, tmp_path / file.title)


# -------------------------------------------------------------------- sources


def test_given_addresses_come_first_then_docker_then_jars(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    chosen = list[str]()
    for name in ("given_servers", "container_servers", "start_servers", "jars"):
        monkeypatch.setattr(provider, name, lambda folder=None, name=name: chosen.append(name))
    monkeypatch.setattr(provider, "explain_no_containers", lambda: "no docker on this machine")
    provider.servers(tmp_path)
    monkeypatch.setattr(provider, "explain_no_containers", lambda: None)
    provider.servers(tmp_path)
    use(monkeypatch, {"SAGA_TEST_KAFKA": "a:1", "SAGA_TEST_COUCHBASE": "couchbase://b"})
    provider.servers(tmp_path)
    assert chosen == ["jars", "start_servers", "container_servers", "given_servers"]


class CouchbaseRest(BaseHTTPRequestHandler):
    """The part of Couchbase's REST interface that sets up a node."""

    asked: ClassVar[list[str]] = []

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        self.asked.append(f"{self.command} {self.path} {body}".strip())
        healthy = b'[{"status":"healthy"}]' if self.path.endswith("/saga") else b"{}"
        self.send_response(200)
        self.send_header("Content-Length", str(len(healthy)))
        self.end_headers()
        self.wfile.write(healthy)

    do_GET = do_POST = do_PUT = answer

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@pytest.fixture
def docker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A docker that answers, and a package `testcontainers` whose containers are noted in the file."""
    programs, packages, notes = tmp_path / "bin", tmp_path / "packages", tmp_path / "containers"
    programs.mkdir()
    (programs / "docker").write_text("#!/bin/sh\nexit 0\n")
    (programs / "docker").chmod(0o755)
    core = packages / "testcontainers" / "core"
    core.mkdir(parents=True)
    (packages / "testcontainers" / "__init__.py").touch()
    (core / "__init__.py").touch()
    (core / "container.py").write_text(TESTCONTAINERS + "\nclass DockerContainer(Container): ...\n")
    (packages / "testcontainers" / "kafka.py").write_text(TESTCONTAINERS + "\nclass KafkaContainer(Container): ...\n")
    monkeypatch.syspath_prepend(packages)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("CONTAINERS", str(notes))
    CouchbaseRest.asked.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), CouchbaseRest) as rest:
        thread = Thread(target=rest.serve_forever)
        thread.start()
        monkeypatch.setenv("COUCHBASE_REST_PORT", str(rest.server_port))
        yield notes
        rest.shutdown()
        thread.join()
    for name in [name for name in sys.modules if name.partition(".")[0] == "testcontainers"]:
        del sys.modules[name]


def test_containers_are_started_set_up_and_ended(docker: Path, tmp_path: Path) -> None:
    with provider.servers(tmp_path) as servers:
        assert servers.place.kafka == "127.0.0.1:31092"
        assert servers.place.couchbase == "couchbase://127.0.0.1:31210"
        assert not servers.place.outlives_world
    assert docker.read_text().splitlines() == [
        "start KafkaContainer ",
        f"start DockerContainer {containers.COUCHBASE_IMAGE}",
        "end DockerContainer",
        "end KafkaContainer",
    ]
    rest = os.environ["COUCHBASE_REST_PORT"]
    assert [line for line in CouchbaseRest.asked if not line.startswith("GET")] == [
        "POST /clusterInit services=kv&memoryQuota=256&username=saga&password=secret-of-tests&port=SAME",
        f"PUT /node/controller/setupAlternateAddresses/external hostname=127.0.0.1&kv=31210&mgmt={rest}",
        "POST /pools/default/buckets name=saga&ramQuota=100&replicaNumber=0",
    ]


def test_a_daemon_that_does_not_answer_is_no_docker(docker: Path, tmp_path: Path) -> None:
    assert containers.explain_no_containers() is None
    (tmp_path / "bin" / "docker").write_text("#!/bin/sh\nexit 1\n")
    assert containers.explain_no_containers() == "the Docker daemon does not answer: docker info"


# -------------------------------------------------------------------- none


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine with neither Docker nor Java."""
    monkeypatch.setenv("PATH", str(tmp_path))


def test_without_servers_tests_are_skipped_and_the_summary_says_what_to_install(
    runs: Runs, nothing_installed: None
) -> None:
    result = runs(ON_BOTH + MANY, "--saga-world=servers")
    result.assert_outcomes(skipped=4)
    result.stdout.fnmatch_lines(
        [
            "*= skipped: servers are missing =*",
            "4 skipped: no java on this machine: apt-get install -y openjdk-17-jre-headless maven; or SAGA_TEST_KAFKA "
            "and SAGA_TEST_COUCHBASE with addresses; or Docker (no docker on this machine)",
            "With SAGA_SERVERS=required in the environment they fail instead.",
        ]
    )


def test_without_servers_the_command_says_what_to_install(tmp_path: Path) -> None:
    program = [sys.executable, "-m", "saga.testing.servers"]
    environment = {"PATH": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(program, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "\nsaga: no java on this machine: apt-get install -y openjdk-17-jre-headless maven; or " in done.stderr


def test_without_servers_tests_fail_where_servers_are_required(
    runs: Runs, nothing_installed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAGA_SERVERS", "required")
    result = runs(MANY, "--saga-world=servers")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*servers are missing: no java on this machine*"])


def test_a_run_that_skips_for_other_reasons_has_no_such_section(runs: Runs) -> None:
    result = runs("def test_it() -> None: pytest.skip('not today')")
    result.stdout.no_fnmatch_line("*servers are missing*")
