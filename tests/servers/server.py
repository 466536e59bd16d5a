"""One server in a JVM of its own: started, waited for, frozen, killed."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

LEASH = Path(__file__).with_name("leash.py")
READY_S = 120.0
LOOK_S = 0.05
PORTS = range(17_000, 31_000)
"""Below those that the system gives to connections: a server that comes back finds its port free."""


class ServerFailed(Exception):
    """The server did not start; its message ends with what the server said."""


class Server:
    """A JVM that ends with the process that started it, at the latest."""

    def __init__(self, name: str, command: Sequence[str], folder: Path, *, is_ready: Callable[[], bool]) -> None:
        """`is_ready`: whether it answers; asked again and again while it starts."""
        self.name = name
        self.log = folder / f"{name}.log"
        self._command, self._is_ready = list(command), is_ready
        self._leash: subprocess.Popen[bytes] | None = None
        self.pid = 0
        """Process id of the JVM; 0 while there is none."""

    def start(self, *, while_locked: Path | None = None) -> None:
        """Return once it answers. `while_locked`: it lives as long as somebody holds a lock on that file, instead of as
        long as this process. Raises `ServerFailed`."""
        owner = ["--while-locked", str(while_locked)] if while_locked else []
        with self.log.open("ab") as log:
            leash = subprocess.Popen(
                [sys.executable, str(LEASH), *owner, *self._command],
                stdin=subprocess.DEVNULL if while_locked else subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        assert leash.stdout is not None  # it is a pipe
        self.pid = int(leash.stdout.readline() or 0)
        leash.stdout.close()
        self._leash = leash
        self._wait_until_ready()
        if while_locked:
            leash.returncode = 0  # it may outlive us, and is not ours to wait for: else it warns that nobody has
            self._leash = None

    def _wait_until_ready(self) -> None:
        assert self._leash is not None  # only called once it is there
        deadline_s = time.monotonic() + READY_S
        while not self._is_ready():
            with suppress(subprocess.TimeoutExpired):
                self._leash.wait(LOOK_S)
            if self._leash.returncode is not None or time.monotonic() > deadline_s:
                self.kill()
                raise ServerFailed(f"{self.name} did not start: {self.log.read_text(errors='replace')[-3000:]}")

    def kill(self) -> None:
        """End it without a word, and return when it has ended."""
        if self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        self._forget()

    def stop(self, within_s: float = 10) -> None:
        """Ask it to end, and kill it if it does not in that time."""
        if self.pid and self._leash is not None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGCONT)
                os.kill(self.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self._leash.wait(within_s)
        self.kill()

    def _forget(self) -> None:
        self.pid = 0
        if self._leash is not None:
            if self._leash.stdin is not None:
                self._leash.stdin.close()
            self._leash.wait(10)
            self._leash = None

    def pause(self) -> None:
        """Freeze it: it keeps its connections and answers nothing."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        os.kill(self.pid, signal.SIGCONT)


def free_ports(count: int) -> list[int]:
    """Ports on which nobody listens now; other processes of a test run look elsewhere."""
    found: list[int] = []
    at = os.getpid() * 101 + time.monotonic_ns() // 1000
    while len(found) < count:
        at += 1
        port = PORTS[at % len(PORTS)]
        with socket.socket() as trial, suppress(OSError):
            trial.bind(("127.0.0.1", port))
            found.append(port)
    return found
