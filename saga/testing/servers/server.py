"""Run one server in a process of its own: start it, wait until it answers, freeze it, kill it."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from saga.errors import SagaError

LEASH = Path(__file__).with_name("leash.py")
READY_S = 120.0
LOOK_S = 0.05
PORTS = range(17_000, 31_000)
"""Ports for servers. They are below the ports that the system assigns to outgoing connections, so that a restarted
server finds its port free.
"""


class ServerFailed(SagaError):
    """Error for a server that did not start. The message ends with the server's last output."""


class Server:
    """A server process, usually a JVM. Unless it is started with `while_locked`, it does not outlive the process that
    started it.
    """

    def __init__(self, name: str, command: Sequence[str], folder: Path, *, is_ready: Callable[[], bool]) -> None:
        """Prepare a server; `start` starts it. `is_ready`: polled during the start, returns True once the server
        answers.
        """
        self.name = name
        self.log = folder / f"{name}.log"
        self._command, self._is_ready = list(command), is_ready
        self._leash: subprocess.Popen[bytes] | None = None
        self.pid = 0
        """Process id of the server; 0 while it does not run."""

    def start(self, *, while_locked: Path | None = None) -> None:
        """Start the server, and return when it answers.

        If the server ends before it answers, it is started once more, as a supervisor would do. For example, a broker
        gives up if its controller does not register it for a while.

        Args:
            while_locked: a file. The server then runs as long as any process holds a shared lock on it, even after this
                process has ended.

        Raises:
            ServerFailed: it ended twice, or did not answer in time.
        """
        owner = ["--while-locked", str(while_locked)] if while_locked else []
        self._spawn(owner)
        if not self._wait_until_ready():
            self._spawn(owner)
            if not self._wait_until_ready():
                raise self._make_error()
        if while_locked and self._leash is not None:
            self._leash.returncode = (
                0  # it may outlive this process, and a `Popen` without a code would warn when it is freed
            )
            self._leash = None

    def _spawn(self, owner: Sequence[str]) -> None:
        with self.log.open("ab") as log:
            leash = subprocess.Popen(
                [sys.executable, str(LEASH), *owner, *self._command],
                stdin=subprocess.DEVNULL if owner else subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        assert leash.stdout is not None, "it is a pipe"
        self.pid = int(leash.stdout.readline() or 0)
        leash.stdout.close()
        self._leash = leash

    def _wait_until_ready(self) -> bool:
        """Return True once the server answers, and False if it has ended. Raises `ServerFailed` after `READY_S`."""
        assert self._leash is not None, "the process has been spawned"
        deadline_s = time.monotonic() + READY_S
        while not self._is_ready():
            with suppress(subprocess.TimeoutExpired):
                self._leash.wait(LOOK_S)
            if self._leash.returncode is not None:
                self.kill()
                return False
            if time.monotonic() > deadline_s:
                self.kill()
                raise self._make_error()
        return True

    def _make_error(self) -> ServerFailed:
        return ServerFailed(f"{self.name} did not start: {self.log.read_text(errors='replace')[-3000:]}")

    def kill(self) -> None:
        """Kill the server with SIGKILL, and return when it has ended."""
        if self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        self._release_leash()

    def stop(self, within_s: float = 10) -> None:
        """Stop the server with SIGTERM, and kill it if it has not ended within this time."""
        if self.pid and self._leash is not None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGCONT)
                os.kill(self.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self._leash.wait(within_s)
        self.kill()

    def _release_leash(self) -> None:
        self.pid = 0
        if self._leash is not None:
            if self._leash.stdin is not None:
                self._leash.stdin.close()
            self._leash.wait(10)
            self._leash = None

    def pause(self) -> None:
        """Freeze the server with SIGSTOP: it keeps its connections and answers nothing. Return once all its threads are
        frozen, because the signal needs a moment to reach them.
        """
        os.kill(self.pid, signal.SIGSTOP)
        while not self._is_frozen():
            time.sleep(0.001)  # noqa: TID251 - the test must not continue before the server is frozen

    def _is_frozen(self) -> bool:
        states = [stat.read_text().rpartition(")")[2] for stat in Path(f"/proc/{self.pid}/task").glob("*/stat")]
        return all(state.split()[0] == "T" for state in states)

    def resume(self) -> None:
        """Let a frozen server continue."""
        os.kill(self.pid, signal.SIGCONT)


def free_ports(count: int) -> list[int]:
    """Return ports on which no process listens now. Each process begins its search at another port, so that processes
    running at the same time rarely choose the same ports.
    """
    found: list[int] = []
    at = os.getpid() * 101 + time.monotonic_ns() // 1000
    while len(found) < count:
        at += 1
        port = PORTS[at % len(PORTS)]
        with socket.socket() as trial, suppress(OSError):
            trial.bind(("127.0.0.1", port))
            found.append(port)
    return found
