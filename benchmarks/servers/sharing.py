"""Benchmark of the shared monitor: transitions per second of one worker and of two, compared with a monitor that reads
alone."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from pathlib import Path

from benchmarks.parts import Figure
from benchmarks.servers.ground import Ground
from benchmarks.watched import make_transition_events
from saga.configuration.wiring import open_broker
from saga.messages import Topic
from saga.messaging.names import TRANSITIONS
from saga.messaging.transition_events import make_line, transitions_to_records
from saga.monitor.read_model import ReadModel
from saga.monitor.reader import TransitionReader
from saga.support.clock import SystemClock
from saga.testing.servers.server import free_ports

SAGAS = 4000
TRANSITIONS_OF_EACH = 10
TICKS = os.sysconf("SC_CLK_TCK")
WITHIN_S = 300.0
clock = SystemClock()


def sharing(ground: Ground) -> list[Figure]:
    """(g) Measure the transitions that a monitor processes on Kafka: alone, and shared by one and by two workers"""
    asyncio.run(_tell(ground))
    alone = asyncio.run(_alone(ground))
    one_s, one_cpu_s = _shared(ground, "one", 1)
    two_s, two_cpu_s = _shared(ground, "two", 2)
    count = SAGAS * TRANSITIONS_OF_EACH
    return [
        Figure("g read and folded by one monitor alone", alone, "/s"),
        Figure("g folded by one worker, and kept in its tables", count / one_s, "/s"),
        Figure("g CPU of it", one_cpu_s / count * 1e6, "us/transition"),
        Figure("g folded by two workers", count / two_s, "/s"),
        Figure("g CPU of both", two_cpu_s / count * 1e6, "us/transition"),
    ]


async def _tell(ground: Ground) -> None:
    begin_ms = clock.now_ms() - 600_000
    lines = [make_line(each) for n in range(SAGAS) for each in make_transition_events(n, begin_ms)]
    async with open_broker(None, clock, ground.settings) as broker:
        await broker.ensure_topics([Topic(TRANSITIONS, 12)])
        for begin in range(0, len(lines), 1000):
            await broker.publish(transitions_to_records(lines[begin : begin + 1000]))


async def _alone(ground: Ground) -> float:
    """Return the transitions per second of a monitor that reads everything alone."""
    folds = ReadModel()
    began_s = time.perf_counter()
    await TransitionReader(folds, clock, print).read_all(ground.settings)
    return folds.taken / (time.perf_counter() - began_s)


def _shared(ground: Ground, name: str, workers: int) -> tuple[float, float]:
    """Start `workers` workers. Return the wall time and the CPU time in seconds, from the first processed transition to
    the last."""
    ports = free_ports(workers)
    with ExitStack() as stack:
        pids = [stack.enter_context(_worker(ground, name, port)) for port in ports]
        first_s, first_cpu_s, count = 0.0, 0.0, 0
        end_s = time.perf_counter() + WITHIN_S
        while count < SAGAS * TRANSITIONS_OF_EACH:
            assert time.perf_counter() < end_s, f"{count} transitions were folded"
            time.sleep(0.05)
            count = _taken(ports[0])
            if not count:
                first_s, first_cpu_s = time.perf_counter(), sum(map(_cpu_s, pids))
        return time.perf_counter() - first_s, sum(map(_cpu_s, pids)) - first_cpu_s


@contextmanager
def _worker(ground: Ground, name: str, port: int) -> Iterator[int]:
    """Run a worker until the block ends. Yields its process id."""
    environment = {**os.environ, "SAGA_KAFKA_REPLICATION": "1", "SAGA_KAFKA_MIN_INSYNC": "1"}
    command = [sys.executable, "-m", "saga.cli.main", "monitor", "run", "--shared", f"bench-{name}"]
    command += ["--broker", f"kafka://{ground.kafka}", "--listen", f"127.0.0.1:{port}"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process:
        try:
            yield process.pid
        finally:
            process.terminate()


def _taken(port: int) -> int:
    """Return the number of transitions that all workers have processed; 0 if they do not answer yet."""
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/api/rates")
        return int(json.loads(connection.getresponse().read())["taken"])
    except (OSError, ValueError):
        return 0
    finally:
        connection.close()


def _cpu_s(pid: int) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / TICKS
