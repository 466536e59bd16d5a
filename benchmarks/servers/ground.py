"""Start the servers of a run, and processes that use them until they are stopped."""

import asyncio
import multiprocessing
import os
import re
import signal
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Concatenate, NamedTuple, ParamSpec

from saga.broker.kafka.adapter import KafkaOptions
from saga.configuration import wiring
from saga.configuration.settings import Settings
from saga.store.couchbase.adapter import CouchbaseOptions
from saga.testing.servers.couchbase import BUCKET, CouchbaseMock
from saga.testing.servers.kafka import RUNS_FAST, KafkaServer

P = ParamSpec("P")

MOCK_JVM = ("-XX:+UseG1GC", "-Xmx2g")
"""Options of the JVM for the mock of Couchbase, which keeps in memory everything that was ever written."""
PART_S = 60.0
"""Time after which a part starts no further round, in seconds. So there are fewer rounds on a busy machine."""
WORDS_S = 60.0
"""Time without a message from a process after which the process counts as failed, in seconds."""


class Ground(NamedTuple):
    """Addresses of the servers."""

    kafka: str
    couchbase: str

    @property
    def settings(self) -> Settings:
        """Return settings for servers with a single node, on which nothing can be replicated."""
        return Settings(
            broker=f"kafka://{self.kafka}",
            store=f"{self.couchbase}/{BUCKET}",
            options=(
                KafkaOptions(kafka_replication=1, kafka_min_insync=1),
                CouchbaseOptions(store_durability="none", couchbase_username="bench", couchbase_password="bench"),
            ),
        )


@contextmanager
def servers(folder: Path) -> Iterator[Ground]:
    """Run Kafka and CouchbaseMock while the block runs."""
    kafka = KafkaServer.start(folder / "kafka", jvm=RUNS_FAST)
    try:
        mock = CouchbaseMock.start(folder / "couchbase", jvm=MOCK_JVM)
        try:
            yield Ground(kafka.address, mock.address)
        finally:
            mock.stop()
    finally:
        kafka.kill()


def rounds(count: int, at_least: int = 1) -> Iterator[int]:
    """Yield the numbers of the rounds while there is time: `count` rounds, or fewer on a slow machine, but at least
    `at_least`."""
    began = time.monotonic()
    for number in range(count):
        if number >= at_least and time.monotonic() - began > PART_S:
            print(f"  (only {number} of {count} rounds: the machine is slow)")
            return
        yield number


# -------------------------------------------------------------------- what a process does


@dataclass
class Work:
    """A task for a process: what the process must do, and what it has done so far."""

    count: int | None = None
    """Number of messages to handle; `None` to handle messages until stopped."""
    marks: tuple[int, ...] = ()
    """Numbers of handled messages at which the memory is measured."""
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    ready: Callable[[], None] = lambda: None
    """Function to call when all connections are open."""
    killed_after: int | None = None
    """Number of handled messages after which the process kills itself."""
    _done: int = 0
    _repeated: int = 0
    _began: tuple[float, float] = (0.0, 0.0)
    _ended: tuple[float, float] = (0.0, 0.0)
    _peaks_mb: list[float] = field(default_factory=list)

    def begins(self) -> None:
        """Start the clock. From now on the first message may come."""
        self._began = time.perf_counter(), time.process_time()

    def done(self, messages: int = 1, *, repeated: int = 0) -> None:
        """Count handled messages, some of which were repeated. Stop the task when all messages are handled."""
        self._done += messages
        self._repeated += repeated
        if self._done == self.killed_after:
            os.kill(os.getpid(), signal.SIGKILL)
        if len(self._peaks_mb) < len(self.marks) and self._done >= self.marks[len(self._peaks_mb)]:
            self._peaks_mb.append(peak_mb())
        if self._done == self.count:
            self._ended = time.perf_counter(), time.process_time()
            self.stop.set()

    def spent(self) -> "Spent":
        """Return the time and the memory that the task took. If `count` is `None`, the CPU time up to now counts."""
        if self.count is None:
            return Spent(0.0, time.process_time() - self._began[1], [], self._repeated)
        assert self._done == self.count, f"{self._done} of {self.count} messages"
        (wall_s, cpu_s), (wall_end_s, cpu_end_s) = self._began, self._ended
        return Spent(wall_end_s - wall_s, cpu_end_s - cpu_s, self._peaks_mb, self._repeated)


class Spent(NamedTuple):
    """Time and memory that a task took."""

    wall_s: float
    cpu_s: float
    peaks_mb: list[float]
    repeated: int


def peak_mb() -> float:
    """Return the peak memory of this process in MB. `ru_maxrss` is not used, because it may be the parent's."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None, "needs Linux"
    return int(found[1]) / 1e3


# -------------------------------------------------------------------- processes


class Child:
    """A process that does a task."""

    def __init__(self, process: multiprocessing.process.BaseProcess, words: Connection) -> None:
        self._process, self._words = process, words

    def spent(self) -> Spent:
        """Wait until the process has ended. Return the time and the memory that it took. Raises `RuntimeError` if it
        failed."""
        spent = self._word()
        assert isinstance(spent, Spent)
        return spent

    def killed(self) -> None:
        """Wait until the process has killed itself."""
        self._process.join(WORDS_S)
        if self._process.exitcode != -signal.SIGKILL:
            raise RuntimeError(f"{self._process.name} has ended with {self._process.exitcode}")

    def stopped(self) -> Spent:
        """Stop the process. Return the time and the memory that it took."""
        self._words.send("stop")
        return self.spent()

    def _word(self) -> object:
        if not self._words.poll(WORDS_S):
            raise RuntimeError(f"{self._process.name} says nothing")
        try:
            return self._words.recv()
        except EOFError as why:
            raise RuntimeError(f"{self._process.name} has failed: see above") from why


@contextmanager
def child(
    work: Callable[Concatenate[Work, P], Coroutine[Any, Any, None]], asked: Work, *args: P.args, **kwargs: P.kwargs
) -> Iterator[Child]:
    """Run a process for a task while the block runs. The block begins when the process is ready."""
    context = multiprocessing.get_context("spawn")
    ours, its = context.Pipe()
    about = asked.count, asked.marks, asked.killed_after
    process = context.Process(target=_work, args=(its, about, work, args, kwargs), name=work.__qualname__)
    process.start()
    its.close()
    try:
        child = Child(process, ours)
        child._word()
        yield child
    finally:
        process.join(5)
        if process.exitcode is None:
            process.kill()
            process.join()


def _work(
    words: Connection,
    about: tuple[int | None, tuple[int, ...], int | None],
    work: Callable[..., Coroutine[Any, Any, None]],
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> None:
    wiring.tune_collector()  # as `saga run` does; it helps the plain clients, too

    async def work_until_stopped() -> Spent:
        count, marks, killed_after = about
        asked = Work(count, marks, killed_after=killed_after, ready=lambda: words.send("ready"))
        asyncio.get_running_loop().add_reader(words.fileno(), asked.stop.set)
        asked.begins()
        await work(asked, *args, **kwargs)
        asyncio.get_running_loop().remove_reader(words.fileno())
        return asked.spent()

    words.send(asyncio.run(work_until_stopped()))
