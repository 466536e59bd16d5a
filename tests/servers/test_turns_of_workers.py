"""Workers begin at the two ends of the queue: three with what waits for servers or processes, all others with what
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
    "saga/messaging/envelope.py::saga.messaging.envelope",
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


def scheduler(root: Path, workers: int) -> tuple[ByModule, list[Hands]]:
    """One with that many workers, which have found all tests."""
    for name, text in TEXTS.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    config = SimpleNamespace(
        rootpath=root, option=SimpleNamespace(loadscopereorder=True), getvalue=lambda name: [f"{workers}*popen"]
    )
    made = ByModule(cast(pytest.Config, config))
    hands = [Hands(f"gw{n}") for n in range(workers)]
    for each in hands:
        made.add_node(each)
        made.add_node_collection(each, ALL)
    return made, hands


def played(root: Path, workers: int) -> list[list[str]]:
    """The tests that each worker was handed, while all take the same time for each."""
    made, hands = scheduler(root, workers)
    made.schedule()
    for turn in range(len(ALL)):
        for each in hands:
            if turn < len(each.handed):
                made.mark_test_complete(each, each.handed[turn])
    assert all(each.shutting_down for each in hands)
    assert not made.has_pending
    return [[ALL[index] for index in each.handed] for each in hands]


def test_three_begin_with_what_waits_for_servers_or_processes_and_the_others_with_what_computes(tmp_path: Path) -> None:
    first, second, third, *others = played(tmp_path, 5)
    assert {*first[:2], *second[:2], *third[:2]} >= set(WAIT_LONG)
    assert {*first[:3], *second[:3], *third[:3]}.isdisjoint(COMPUTE_LONG)
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


def test_an_idle_worker_takes_tests_of_other_workers(tmp_path: Path) -> None:
    [alone] = played(tmp_path, 1)
    assert set(alone[:6]) == {*WAIT_LONG, *WAIT}
    assert set(alone[-3:]) == set(COMPUTE_LONG)


def test_finished_tests_are_forgotten_so_that_later_tests_cost_no_more(tmp_path: Path) -> None:
    made, [alone] = scheduler(tmp_path, 1)
    made.schedule()
    done = 0
    while done < len(alone.handed):
        made.mark_test_complete(alone, alone.handed[done])
        done += 1
        kept = {test for unit in made.assigned_work[alone].values() for test in unit}
        left = {ALL[index] for index in alone.handed[done:]}
        assert left <= kept <= left | {ALL[index] for index in alone.handed[max(0, done - 2) : done]}
    assert (done, made.assigned_work[alone]) == (len(ALL), {})


def test_there_are_three_workers_more_than_cores() -> None:
    asked = pytest_xdist_auto_num_workers()
    next(asked)
    with pytest.raises(StopIteration) as raised:
        asked.send(4)
    assert raised.value.value == 7


def test_compiled_files_are_kept_for_other_workers_and_processes() -> None:
    assert not sys.dont_write_bytecode
    assert "PYTHONDONTWRITEBYTECODE" not in os.environ
