"""Shared monitor on Kafka: two workers answer as one monitor that reads everything, also when one is killed, and when
all have been restarted and the topic was deleted and created again, with other records at its offsets."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from saga.broker.kafka.adapter import KafkaOptions
from saga.cli.monitor import MonitorClient
from saga.configuration.settings import Settings
from saga.configuration.wiring import open_broker
from saga.errors import SagaError
from saga.messages import Topic
from saga.messaging.transition_events import TransitionEvent, make_line, transitions_to_records
from saga.monitor import reader as reader_module
from saga.monitor.queries import Queries
from saga.monitor.read_model import ReadModel
from saga.monitor.reader import TransitionReader
from saga.monitor.shared.partitions import POSITION
from saga.monitor.shared.worker import changelog_topic
from saga.ops.sources import open_administration
from saga.support.clock import SystemClock
from saga.testing.servers.server import free_ports
from tests.cli.conftest import Call
from tests.monitor.transition_events import MINUTE, S, make_transition
from tests.servers.plain_clients import recreate_topic

CLOCK = SystemClock()
WITHIN_S = 180.0
ROUNDS = int(os.environ.get("SAGA_TEST_SHARED", "1"))
"""Rounds in which a worker is killed while transitions are published."""
SAGAS = tuple(f"order-{n}" for n in range(60))


class Ground:
    """Topic on Kafka, and a shared monitor of its own."""

    def __init__(self, address: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.topic, self.name, self.address = f"transitions-{name}", f"monitor-{name}", address
        self.settings = Settings(
            broker=f"kafka://{address}", options=(KafkaOptions(kafka_replication=1, kafka_min_insync=1),)
        )
        monkeypatch.setattr(reader_module, "TRANSITIONS", self.topic)

    def publish(self, transitions: Sequence[TransitionEvent]) -> None:
        """Publish these, as services do."""

        async def publish_all() -> None:
            async with open_broker(None, CLOCK, self.settings) as broker:
                if self.topic not in await broker.count_partitions([self.topic]):
                    await broker.ensure_topics([Topic(self.topic, 12)])
                await broker.publish(
                    [each._replace(topic=self.topic) for each in transitions_to_records(map(make_line, transitions))]
                )

        asyncio.run(publish_all())

    def answers(self) -> list[object]:
        """Answers of a monitor that reads everything."""
        reader = TransitionReader(ReadModel(), CLOCK, print)
        asyncio.run(reader.read_all(self.settings))
        views = Queries(reader.folds)
        traces = [views.saga(saga, CLOCK.now_ms()) for saga in SAGAS[::9]]
        return [views.rates(), views.errors(), views.hot(), views.stuck(CLOCK.now_ms()), *traces]

    def kept(self) -> int:
        """Count the transitions that are in the table."""

        async def kept() -> int:
            async with open_administration(self.settings, CLOCK) as broker:
                return len({record.key async for record in broker.scan(changelog_topic(self.name))} - {POSITION})

        return asyncio.run(kept())

    def recreate(self) -> None:
        """Have the topic deleted and created again, empty."""
        asyncio.run(recreate_topic(self.address, self.topic, 12))

    @contextmanager
    def worker(self, port: int) -> Iterator[subprocess.Popen[bytes]]:
        """Worker that runs inside the block."""
        command = [sys.executable, "-m", "tests.monitor.sharing_worker", self.topic, "monitor", "run"]
        command += ["--shared", self.name]
        command += ["--broker", self.settings.broker, "--listen", f"127.0.0.1:{port}"]
        environment = {**os.environ, "SAGA_KAFKA_REPLICATION": "1", "SAGA_KAFKA_MIN_INSYNC": "1"}
        with (
            Path(f"worker-{port}.log").open("ab") as log,
            subprocess.Popen(command, env=environment, stdout=log, stderr=log) as process,
        ):
            try:
                yield process
            finally:
                process.kill()


@pytest.fixture
def ground(
    kafka_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Ground:
    root = request.config.rootpath
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(root))
    return Ground(kafka_address, f"{CLOCK.now_ms()}", monkeypatch)


def some(numbers: Sequence[int]) -> list[TransitionEvent]:
    """Transitions of all sagas: each with a wait and its end, failures, some dead letters; some are published twice."""
    found = []
    for n, saga in enumerate(SAGAS):
        for number in numbers:
            ms = n * S + number * MINUTE
            found.append(make_transition("order", number, ms, saga=saga, handler="place", partition=n % 3))
            outcome = ("waiting", "handled", "retrying", "dead")[number % 4 if n % 7 == 0 else number % 2]
            error = "Declined" if outcome in ("retrying", "dead") else None
            found.append(
                make_transition("payment", number, ms + 5, outcome, saga=saga, error=error, open_=True, partition=0)
            )
    return [*found, *found[::5]]


def seen(port: int) -> Iterator[object]:
    """Answers of a worker."""
    asked = MonitorClient(f"127.0.0.1:{port}")
    yield asked.rates()
    yield from (asked.errors(), asked.hot(), asked.stuck())
    yield from (asked.saga(saga) for saga in SAGAS[::9])


def until(holds: Callable[[], bool], last: Callable[[], object]) -> None:
    """Wait for it."""
    end_s = CLOCK.monotonic_s() + WITHIN_S
    while not holds():
        assert CLOCK.monotonic_s() < end_s, last()
        asyncio.run(CLOCK.sleep(0.5))


def until_equal(ground: Ground, expected: Sequence[object], *ports: int) -> None:
    """Wait until these workers answer that."""

    different: list[object] = []

    def agree() -> bool:
        try:
            different[:] = [
                next((pair for pair in zip(seen(port), expected, strict=True) if pair[0] != pair[1]), ())
                for port in ports
            ]
        except (OSError, SagaError) as why:  # not there yet, or its partitions are on the way
            different[:] = [why]
        return not any(different)

    until(agree, lambda: (different, [Path(f"worker-{port}.log").read_text() for port in ports]))


def check_missing_is_reported(stderr: str, ground: Ground, dead: int) -> None:
    """Check that an answer names what is missing, if the others do not have the partitions of the dead worker yet."""
    for line in stderr.splitlines()[1:]:
        assert line.startswith("saga: missing in this answer: ")
        assert re.search(rf"[0-9]+ partitions of {ground.topic} \([0-9, ]+\)", line)
        assert f" with http://127.0.0.1:{dead}, which does not answer: " in line or line.endswith("ask again")


@pytest.mark.slow
@pytest.mark.timeout(600)  # Faust may need a second rebalance after a death
def test_two_workers_answer_as_one_monitor_that_reads_everything_whichever_of_them_is_killed(
    ground: Ground, saga: Call
) -> None:
    ground.publish(some(range(3)))
    ports = free_ports(2)
    with ExitStack() as stack:
        workers = {port: stack.enter_context(ground.worker(port)) for port in ports}
        until_equal(ground, ground.answers(), *ports)
        for round_ in range(ROUNDS):
            dying, other = ports[round_ % 2], ports[1 - round_ % 2]
            ground.publish(some(range(3 + 2 * round_, 4 + 2 * round_)))
            workers[dying].kill()
            check_missing_is_reported(saga("monitor", "rates", "--monitor", f"127.0.0.1:{other}").stderr, ground, dying)
            ground.publish(some(range(4 + 2 * round_, 5 + 2 * round_)))
            until_equal(ground, ground.answers(), other)
            if round_ < ROUNDS - 1:
                workers[dying] = stack.enter_context(ground.worker(dying))
                until_equal(ground, ground.answers(), *ports)
        transitions = 2 * len(SAGAS) * (3 + 2 * ROUNDS)
        until(lambda: ground.kept() == transitions, ground.kept)
        workers[other].kill()
        workers[other].wait()
    new = some(range(3 + 2 * ROUNDS, 4 + 2 * ROUNDS))
    ground.publish(new)
    expected = ground.answers()
    ground.recreate()
    ground.publish(new)
    assert ground.answers() != expected
    with ground.worker(ports[0]) as one, ground.worker(ports[1]) as other_:
        until_equal(ground, expected, *ports)
        for process in (one, other_):
            process.send_signal(signal.SIGTERM)
        assert [process.wait(WITHIN_S) for process in (one, other_)] == [0, 0]
    assert [set(path.read_text().splitlines()) for path in sorted(Path().glob("worker-*.log"))] == [
        {f"the monitor answers at http://127.0.0.1:{port}"} for port in sorted(ports)
    ]
