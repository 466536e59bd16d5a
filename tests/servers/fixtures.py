"""Fixtures of tests: the servers of this test run. Where none can be started, these tests are left out, and the plugin
says so.

`SAGA_SERVERS=required` has them fail instead. Tests keep apart by names: topics, groups and keys of their own.
"""

import os
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator
from functools import cache
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

from saga.testing.servers.couchbase import CouchbaseMock
from saga.testing.servers.jars import jars
from saga.testing.servers.missing import ServersMissing, skip_without_servers
from tests.servers.debian import program
from tests.servers.registry import RegistryServer, registry_files
from tests.servers.shared_servers import shared_couchbase, shared_kafka, shared_registry


@pytest.fixture(scope="session")
def server_jars() -> Path:
    """The folder with the servers' jars; a test that takes it is skipped where there are none."""
    return or_left_out(jars)


def or_left_out(fetched: Callable[[], Path]) -> Path:
    """The folder that `fetched` gives; a test that asks is skipped where it cannot be had."""
    try:
        return fetched()
    except ServersMissing as why:
        skip_without_servers(why)


@pytest.fixture(scope="session")
def promtool() -> Path:
    """Prometheus' own checker of pages, rules and what rules say of series."""
    return or_left_out(lambda: program("prometheus", "promtool"))


@pytest.fixture(scope="session")
def amtool() -> Path:
    """Alertmanager's checker of configurations."""
    return or_left_out(lambda: program("prometheus-alertmanager", "amtool"))


@pytest.fixture(scope="session")
def kafka_address(server_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`127.0.0.1:PORT` of the Kafka that all tests share."""
    with shared_kafka(_of_this_run(tmp_path_factory)) as address:
        yield address


@pytest.fixture(scope="session")
def kafka_data(kafka_address: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder in which that Kafka has its logs: a folder for each partition."""
    *_, newest = sorted(_of_this_run(tmp_path_factory).glob("kafka-*"))
    return newest / "data"


@pytest.fixture(scope="session")
def couchbase_mock(server_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CouchbaseMock]:
    """The mock that all tests share. Tests that break something start one of their own."""
    with shared_couchbase(_of_this_run(tmp_path_factory)) as mock:
        yield mock


@pytest.fixture(scope="session")
def schema_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    """The schema registry that all tests share. Tests that break something start one of their own."""
    or_left_out(registry_files)
    with shared_registry(_of_this_run(tmp_path_factory)) as registry:
        yield registry


WAITING = ("kafka", "couchbase", "registry", "servers", "torture", "runbooks")
"""Words in the names of tests that wait for a server most of the time."""
STARTING = ("running(", "Fleet(", "subprocess.", "ProcessWorld(")
"""Words in the text of tests that wait for processes of ours."""
FRONT = 3
"""Workers that begin with the tests that wait."""


class ByModule(LoadScopeScheduling):  # type: ignore[misc]  # xdist says no types
    """Gives tests to workers one by one, but those of a module that has fixtures of its own to one worker.

    Such fixtures are servers, and each worker would start its own.

    The first workers begin with the tests that wait, for servers or for processes, all others with those that compute:
    so no core is idle. What takes long comes first, so that at the end no core waits for it.
    """

    workqueue: OrderedDict[str, dict[str, bool]]
    assigned_work: dict[object, dict[str, dict[str, bool]]]
    _is_in_order = False

    def mark_test_complete(self, node: object, item_index: int, duration: float = 0) -> None:
        """Forget what is done: xdist counts with each test what is left of all that the worker ever got."""
        test = self.registered_collections[node][item_index]
        scope = self._split_scope(test)
        unit = self.assigned_work[node][scope]
        unit[test] = True
        if all(unit.values()):
            del self.assigned_work[node][scope]
        self._reschedule(node)

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return file if _has_own_fixtures(self.config.rootpath / file) else nodeid

    def _assign_work_unit(self, node: object) -> None:
        """Hand out tests from the front of the queue to the first workers, from the back to all others."""
        if not self._is_in_order:
            self.workqueue = OrderedDict(sorted(self.workqueue.items(), key=lambda unit: self._place(unit[0])))
            self._is_in_order = True
        if node not in self.nodes[:FRONT]:
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)

    def _place(self, scope: str) -> int:
        """Place in the queue: tests that wait in front, those that compute at the back, the long ones at both ends."""
        file = self.config.rootpath / scope.partition("::")[0]
        takes_long = _has_own_fixtures(file) or "mark.timeout(" in _text_of(file)
        if any(word in scope for word in WAITING) or any(word in _text_of(file) for word in STARTING):
            return 0 if takes_long else 1
        return 3 if takes_long else 2


@cache
def _has_own_fixtures(module: Path) -> bool:
    """True if a fixture lives as long as the module, by what it or the folder says."""
    return any('scope="module"' in _text_of(path) for path in (module, module.with_name("conftest.py")))


@cache
def _text_of(file: Path) -> str:
    return file.read_text("utf-8") if file.exists() else ""


@pytest.hookimpl(optionalhook=True, wrapper=True)
def pytest_xdist_auto_num_workers() -> Generator[None, int, int]:
    """Number of workers for `-n auto`: as many more than there are cores as wait most of the time."""
    return (yield) + FRONT


@pytest.hookimpl(optionalhook=True)  # xdist may be turned off
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByModule | None:
    """Scheduler that hands tests to workers, unless the command line says otherwise."""
    return ByModule(config, log) if config.getvalue("dist") == "load" else None


def _of_this_run(factory: pytest.TempPathFactory) -> Path:
    base = factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "servers"
