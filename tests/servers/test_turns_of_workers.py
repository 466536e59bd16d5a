"""Workers begin at the two ends of the queue: two with what waits for servers or processes, all others with what
computes."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tests.servers.fixtures import ByModule, pytest_xdist_auto_num_workers

WAIT_LONG = ["tests/torture/test_it.py::test_all", "tests/test_kafka_own.py::test_1", "tests/test_kafka_own.py::test_2"]
WAIT = [
    "tests/cli/test_dead.py::test_it[kafka]",
    "tests/cli/test_hook.py::test_it",
    "tests/store/couchbase/test_keys.py::test_it",
]
COMPUTE = [
    "tests/cli/test_dead.py::test_it[embedded]",
    "saga/envelope.py::saga.envelope",
    "tests/test_room.py::test_it",
]
COMPUTE_LONG = ["tests/failure/test_kills.py::test_all", "tests/test_wheel.py::test_1", "tests/test_wheel.py::test_2"]
ALL = [*COMPUTE, *WAIT, *COMPUTE_LONG, *WAIT_LONG]
TEXTS = {
    "tests/torture/test_it.py": "@pytest.mark.timeout(300)",
    "tests/failure/test_kills.py": "@pytest.mark.timeout(180)",
    "tests/test_kafka_own.py": '@pytest.fixture(scope="module")',
    "tests/test_wheel.py": '@pytest.fixture(scope="module")',
    "tests/cli/test_hook.py": "with running(module) as worker:",
}


class Hands:
    """A worker of xdist, and the tests that it was handed."""

    def __init__(self, name: str) -> None:
        self.gateway, self.shutting_down, self.handed = SimpleNamespace(id=name), False, list[int]()

    def send_runtest_some(self, indices: Sequence[int]) -> None:
        self.handed += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def played(root: Path, workers: int) -> list[list[str]]:
    """The tests that each worker was handed, while all take the same time for each."""
    for name, text in TEXTS.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    config = SimpleNamespace(
        rootpath=root, option=SimpleNamespace(loadscopereorder=True), getvalue=lambda name: [f"{workers}*popen"]
    )
    scheduler = ByModule(cast(pytest.Config, config))
    hands = [Hands(f"gw{n}") for n in range(workers)]
    for each in hands:
        scheduler.add_node(each)
        scheduler.add_node_collection(each, ALL)
    scheduler.schedule()
    for turn in range(len(ALL)):
        for each in hands:
            if turn < len(each.handed):
                scheduler.mark_test_complete(each, each.handed[turn])
    assert all(each.shutting_down for each in hands)
    return [[ALL[index] for index in each.handed] for each in hands]


def test_two_begin_with_what_waits_for_servers_or_processes_and_the_others_with_what_computes(tmp_path: Path) -> None:
    first, second, *others = played(tmp_path, 4)
    assert {*first[:2], *second[:2]} >= set(WAIT_LONG)
    assert {*first[:3], *second[:3]}.isdisjoint(COMPUTE_LONG)
    assert {test for hands in others for test in hands[:2]} >= set(COMPUTE_LONG)
    assert {test for hands in others for test in hands}.isdisjoint(WAIT_LONG)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_each_test_is_handed_to_one_worker_and_those_of_a_module_with_fixtures_to_the_same(
    tmp_path: Path, workers: int
) -> None:
    handed = played(tmp_path, workers)
    assert sorted(test for hands in handed for test in hands) == sorted(ALL)
    for module in ("test_kafka_own", "test_wheel"):
        assert len({n for n, hands in enumerate(handed) for test in hands if module in test}) == 1


def test_who_is_done_with_what_is_its_own_takes_of_the_others(tmp_path: Path) -> None:
    [alone] = played(tmp_path, 1)
    assert set(alone[:6]) == {*WAIT_LONG, *WAIT}
    assert set(alone[-3:]) == set(COMPUTE_LONG)


def test_there_are_two_workers_more_than_cores() -> None:
    asked = pytest_xdist_auto_num_workers()
    next(asked)
    with pytest.raises(StopIteration) as told:
        asked.send(4)
    assert told.value.value == 6


def test_what_is_compiled_is_kept_for_other_workers_and_processes() -> None:
    assert not sys.dont_write_bytecode
    assert "PYTHONDONTWRITEBYTECODE" not in os.environ
