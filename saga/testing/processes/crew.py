"""The worker processes: started, killed, frozen, taken away, and never left running."""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from saga.errors import SagaError
from saga.support.clock import Clock
from saga.testing.processes.worker_setup import WorkerSetup

WORKERS = 2
"""Workers of each service, from the start."""
STOP_S_MAX = 5.0
"""Time after SIGTERM at which a worker that has not ended is killed."""
COULD_NOT_START = 2
"""Exit code of a worker that says it could not start."""
LOG_LINES, LOG_CHARACTERS = 4, 400
"""Last lines that are shown of a worker's log, and characters of each."""


@dataclass(slots=True, eq=False)
class Member:
    """One worker process."""

    service: str
    number: int
    """Number within its service; a worker that is started again keeps it, and its log."""
    process: subprocess.Popen[bytes]
    starts: int = 1
    """Number of starts since it was hired or killed."""
    frozen: bool = False
    ends_by_s: float | None = None
    """Time at which it has ended at the latest, by the clock's monotonic time; `None`: it is to stay."""

    @property
    def name(self) -> str:
        """Name: `payment-1`."""
        return f"{self.service}-{self.number}"

    def __str__(self) -> str:
        state = "frozen" if self.frozen else "told to end" if self.ends_by_s is not None else "running"
        return f"{self.name} ({state}, process {self.process.pid})"


class Crew:
    """All worker processes of a world. Leaving the `with` block ends them, whatever state they are in."""

    def __init__(self, folder: Path, clock: Clock, *, starts_max: int = 1) -> None:
        """`starts_max`: most starts of a worker that says it could not start, for a server does not answer."""
        self._folder, self._clock, self._starts_max = folder, clock, starts_max
        self._members: list[Member] = []
        self._started = Counter[str]()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, why: BaseException | None, at: TracebackType | None) -> None:
        try:
            for member in self._members:
                self.thaw(member)
                member.process.send_signal(signal.SIGTERM)
            until_s = self._clock.monotonic_s() + STOP_S_MAX
            for member in self._members:
                with suppress(subprocess.TimeoutExpired):
                    member.process.wait(max(0.0, until_s - self._clock.monotonic_s()))
        finally:
            for member in list(self._members):
                self._end(member)

    @property
    def members(self) -> Sequence[Member]:
        """Workers that are there, running or frozen; not those that are told to end."""
        return [member for member in self._members if member.ends_by_s is None]

    @property
    def is_steady(self) -> bool:
        """True if nobody is frozen or about to end."""
        return not any(member.frozen or member.ends_by_s is not None for member in self._members)

    @property
    def sizes(self) -> Counter[str]:
        """Number of workers of each service."""
        return Counter(member.service for member in self.members)

    def hire(self, service: str, setup: WorkerSetup) -> Member:
        """Start one more worker."""
        self._started[service] += 1
        file = self._folder / f"{service}.json"
        if not file.exists():
            setup.write(file)
        member = Member(service, self._started[service], self._process(service, self._started[service]))
        self._members.append(member)
        return member

    def _process(self, service: str, number: int) -> subprocess.Popen[bytes]:
        found = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
        with (self._folder / f"{service}-{number}.log").open("ab") as log:
            # A session of its own: Ctrl-C in the terminal reaches us alone, and we end the workers in order. Its
            # standard input ends with us, however we end, and the worker with it.
            return subprocess.Popen(
                [sys.executable, "-m", "saga.testing.processes.worker", str(self._folder / f"{service}.json")],
                env={**os.environ, "PYTHONPATH": found},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def restart(self, member: Member) -> Member:
        """Kill it with `kill -9`, and start it again; the new one."""
        self._end(member)
        again = Member(member.service, member.number, self._process(member.service, member.number))
        self._members.append(again)
        return again

    def freeze(self, member: Member) -> None:
        """Stop it with SIGSTOP: it keeps its locks, and knows nothing of it."""
        member.process.send_signal(signal.SIGSTOP)
        member.frozen = True

    def thaw(self, member: Member) -> None:
        """Let a frozen one go on, with SIGCONT."""
        if member.frozen:
            member.process.send_signal(signal.SIGCONT)
            member.frozen = False

    def dismiss(self, member: Member) -> None:
        """End it with SIGTERM: it drains, leaves its group, and ends."""
        self.thaw(member)
        member.process.send_signal(signal.SIGTERM)
        member.ends_by_s = self._clock.monotonic_s() + STOP_S_MAX

    def check(self) -> None:
        """Forget those that have ended as they were told. Raises `SagaError` for one that has ended by itself."""
        for member in list(self._members):
            code = member.process.poll()
            if member.ends_by_s is not None:
                is_late = code is None and self._clock.monotonic_s() > member.ends_by_s
                # By the signal itself: it was still starting.
                if is_late or code in (0, -signal.SIGTERM) or (code == COULD_NOT_START and self._starts_max > 1):
                    self._end(member)
                    continue
            if code == COULD_NOT_START and member.ends_by_s is None and member.starts < self._starts_max:
                _close(member.process)
                member.process = self._process(member.service, member.number)
                member.starts += 1
            elif code is not None:
                raise SagaError(f"worker {member.name} ended by itself, with {code}; {self.last_words(member)}")

    def last_words(self, member: Member) -> str:
        """The end of its log, for people."""
        lines = (self._folder / f"{member.name}.log").read_text("utf-8", "replace").splitlines()
        if not lines:
            return "its log is empty"
        return "\n".join(["the end of its log:", *(f"  {line[:LOG_CHARACTERS]}" for line in lines[-LOG_LINES:])])

    def _end(self, member: Member) -> None:
        """Kill one that has not ended with SIGKILL, which nobody can catch; nothing is left of it."""
        self._members.remove(member)
        _close(member.process)


def _close(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
    process.wait()
    if process.stdin is not None:
        process.stdin.close()
