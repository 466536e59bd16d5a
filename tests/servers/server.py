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
        long as this process. One that ends before it answers is started once more, as whoever runs it would do: a
        broker gives up when its controller does not take it in for a while. Raises `ServerFailed`."""
        owner = ["--while-locked", str(while_locked)] if while_locked else []
        self._spawn(owner)
        if not self._comes_up():
            self._spawn(owner)
            if not self._comes_up():
                raise self._failed()
        if while_locked and self._leash is not None:
            self._leash.returncode = 0  # it may outlive us, and is not ours to wait for: else it warns that nobody has
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
        assert leash.stdout is not None  # it is a pipe
        self.pid = int(leash.stdout.readline() or 0)
        leash.stdout.close()
        self._leash = leash

    def _comes_up(self) -> bool:
        """True once it answers; false if it has ended before. Raises `ServerFailed` if it does neither for long."""
        assert self._leash is not None  # only called once it is there
        deadline_s = time.monotonic() + READY_S
        while not self._is_ready():
            with suppress(subprocess.TimeoutExpired):
                self._leash.wait(LOOK_S)
            if self._leash.returncode is not None:
                self.kill()
                return False
            if time.monotonic() > deadline_s:
                self.kill()
                raise self._failed()
        return True

    def _failed(self) -> ServerFailed:
        return ServerFailed(f"{self.name} did not start: {self.log.read_text(errors='replace')[-3000:]}")

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
        """Freeze it, and return when it is frozen, as a signal needs a moment to reach all threads: it keeps its
        connections and answers nothing."""
        os.kill(self.pid, signal.SIGSTOP)
        while not self._is_frozen():
            time.sleep(0.001)  # noqa: TID251 - the system's own time: nobody else may run meanwhile

    def _is_frozen(self) -> bool:
        states = [stat.read_text().rpartition(")")[2] for stat in Path(f"/proc/{self.pid}/task").glob("*/stat")]
        return all(state.split()[0] == "T" for state in states)

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
