"""The worker processes: several of a service, each by `saga run`, killed, frozen, added, and never left running."""

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from saga.support.clock import Clock
from services.demo.fleet import ROOT, Fallen

STOP_S_MAX = 30.0
"""Longest time for a worker to drain: its own limit is 20 s."""
LOOK_S = 0.05
COULD_NOT_START = 2
"""The exit code of `saga run` for that."""
MODULES = {"payment": "tests.torture.troubled_payment"}
"""Modules that are run in the place of the example's."""
OPENED = '"state":"open","open_s"'
LOG_LINES, LOG_CHARACTERS = 5, 400


@dataclass(slots=True, eq=False)
class Worker:
    """One process, which may be started again."""

    service: str
    number: int
    process: subprocess.Popen[bytes]
    guest: bool
    """True if it is to leave again."""
    in_hand: bool = False
    """True if something is done to it already."""

    @property
    def name(self) -> str:
        """`payment-2`."""
        return f"{self.service}-{self.number}"


class Workers:
    """All of them. Leaving the `with` block kills what still runs."""

    def __init__(self, folder: Path, environment: Mapping[str, str], clock: Clock) -> None:
        self._folder, self._environment, self._clock = folder, environment, clock
        self._workers: list[Worker] = []
        self._hired = Counter[str]()
        self.not_started = 0
        """Times that one could not start, for a server did not answer, and was started again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, why: BaseException | None, at: TracebackType | None) -> None:
        for worker in self._workers:
            worker.process.kill()
            worker.process.wait()

    @property
    def free(self) -> Sequence[Worker]:
        """Workers to which something may be done now."""
        return [worker for worker in self._workers if not worker.in_hand and not worker.guest]

    def hire(self, service: str, *, guest: bool = False) -> Worker:
        """Start one more."""
        self._hired[service] += 1
        number = self._hired[service]
        worker = Worker(service, number, self._process(service, number), guest)
        self._workers.append(worker)
        return worker

    def _process(self, service: str, number: int) -> subprocess.Popen[bytes]:
        with self._log(service, number).open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "saga.cli.main", "run", MODULES.get(service, f"services.{service}")],
                cwd=ROOT,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self, worker: Worker) -> None:
        """Kill it with SIGKILL, which cannot be caught."""
        worker.process.kill()
        worker.process.wait()

    def start_again(self, worker: Worker) -> None:
        worker.process = self._process(worker.service, worker.number)

    def freeze(self, worker: Worker) -> None:
        """It keeps its connections, and knows nothing of it."""
        worker.process.send_signal(signal.SIGSTOP)

    def thaw(self, worker: Worker) -> None:
        worker.process.send_signal(signal.SIGCONT)

    async def dismiss(self, *workers: Worker, in_trouble: bool) -> None:
        """SIGTERM; return when they have drained and ended. Raises `Fallen` for one that does not end well: one that
        could not start while a server was `in_trouble` may have ended just before it was asked to leave."""
        for worker in workers:
            worker.in_hand = True
            worker.process.send_signal(signal.SIGTERM)
        until_s = self._clock.monotonic_s() + STOP_S_MAX
        while any(worker.process.poll() is None for worker in workers):
            if self._clock.monotonic_s() > until_s:
                late = ", ".join(worker.name for worker in workers if worker.process.poll() is None)
                raise Fallen(f"{late} did not end within {STOP_S_MAX:.0f} s of SIGTERM")
            await self._clock.sleep(LOOK_S)
        for worker in workers:
            self._workers.remove(worker)
            code = worker.process.returncode
            if code == COULD_NOT_START and in_trouble:
                self.not_started += 1
            elif code not in (0, -signal.SIGTERM):  # by the signal itself: it was still starting
                raise Fallen(self._describe_end(worker))

    async def dismiss_all(self) -> None:
        await self.dismiss(*self._workers, in_trouble=False)

    def check(self, *, in_trouble: bool) -> None:
        """Start those again that could not start while a server was `in_trouble`, as a supervisor of services does.
        Raises `Fallen` for one that ended by itself in any other way."""
        for worker in [worker for worker in self._workers if not worker.in_hand]:
            code = worker.process.poll()
            if code is None:
                continue
            if code != COULD_NOT_START or not in_trouble:
                raise Fallen(self._describe_end(worker))
            self.not_started += 1
            self.start_again(worker)

    def _describe_end(self, worker: Worker) -> str:
        log = self._log(worker.service, worker.number)
        lines = log.read_text("utf-8", "replace").splitlines()[-LOG_LINES:]
        words = "\n".join(f"  {line[:LOG_CHARACTERS]}" for line in lines)
        return f"{worker.name} ended with {worker.process.returncode}; its log:\n{words}\n  all of it: {log}"

    def opened(self) -> int:
        """Times that a breaker has opened, as all logs tell."""
        return sum(log.read_text("utf-8", "replace").count(OPENED) for log in self._folder.glob("*.log"))

    def _log(self, service: str, number: int) -> Path:
        return self._folder / f"{service}-{number}.log"
