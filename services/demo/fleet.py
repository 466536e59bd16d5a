"""Run the four services, each in a process of its own. At the end no process is left running."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from saga.support.clock import Clock
from services.audit.books import SERVICES

ROOT = Path(__file__).parents[2]
"""Folder from which `services` can be imported."""
STOP_S_MAX = 120.0
"""Longest time for which a service may take to stop, in seconds. It is long for slow machines; the service itself has a
limit of 20 s."""
AT_WORK = b'"event":"assigned"'
LOOK_S = 0.02
LOG_LINES, LOG_CHARACTERS = 3, 400
"""Number of last lines, and of characters of each line, that are shown from the log of a service that ended
unexpectedly."""


class Fallen(Exception):
    """Raised if a service ended unexpectedly."""


class Fleet:
    """The processes of the services. All their files are in one folder: stores, broker, ledgers, and a log for each
    service.

    At the end of the `with` block, services that still run are killed. They are built to survive that.
    """

    def __init__(
        self, folder: Path, clock: Clock, services: Sequence[str] = SERVICES, *, patience_s: float | None = None
    ) -> None:
        """Store the parameters. `patience_s`: seconds after which an order without an answer expires; `None` for the
        default of the service. A later change of the attribute affects services that are started after it."""
        self.folder, self.services, self.patience_s = folder.absolute(), services, patience_s
        self._clock = clock
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def broker(self) -> str:
        """Return the URL of the broker that the services share."""
        return f"embedded:///{self.folder}/broker.db"

    @property
    def silence(self) -> Path:
        """Return the path of a file. While the file exists, the issuer of some cards does not answer."""
        return self.folder / "silence"

    @property
    def environment(self) -> Mapping[str, str]:
        """Return the environment variables of the services. The caller's own `SAGA_` variables are left out."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SAGA_")}
        return kept | {
            "SAGA_BROKER": self.broker,
            "SAGA_STORE": f"sqlite:///{self.folder}/{{service}}.db",
            "SAGA_CONTRACTS": str(ROOT / "contracts"),
            "SAGA_LOG": "json",
            "ORDER_PATIENCE_S": str(self.patience_s or ""),
            "PAYMENT_LEDGER": str(self.folder / "bank.db"),
            "PAYMENT_SILENCE": str(self.silence),
            "SHIPPING_LEDGER": str(self.folder / "carrier.db"),
        }

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, why: BaseException | None, at: TracebackType | None) -> None:
        for service in list(self._running):
            self.kill(service)

    def start(self, service: str) -> int:
        """Start a service and return its process id. After a stop or a kill it continues where it was."""
        with (self.folder / f"{service}.log").open("ab") as log:
            # With a session of its own it gets no Ctrl-C from the terminal. This process stops the services in order.
            process = subprocess.Popen(
                [sys.executable, "-m", "saga.cli.main", "run", f"services.{service}"],
                cwd=ROOT,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._running[service] = process
        return process.pid

    def start_all(self) -> dict[str, int]:
        """Start all services and return their process ids."""
        return {service: self.start(service) for service in self.services}

    def is_at_work(self, service: str) -> bool:
        """Return whether the service has been assigned partitions, according to its log."""
        with suppress(OSError):
            return AT_WORK in (self.folder / f"{service}.log").read_bytes()
        return False

    def kill(self, service: str) -> int:
        """Kill the service with SIGKILL, which a process cannot handle. Return the id of the killed process."""
        process = self._running.pop(service)
        process.kill()
        process.wait()
        return process.pid

    async def stop(self) -> None:
        """Stop all services with SIGTERM, and wait until they have drained. Raises `Fallen` if one does not stop in
        time, or fails."""
        self.check()
        for process in self._running.values():
            process.send_signal(signal.SIGTERM)
        until_s = self._clock.monotonic_s() + STOP_S_MAX
        while any(process.poll() is None for process in self._running.values()):
            if self._clock.monotonic_s() > until_s:
                late = [service for service, process in self._running.items() if process.poll() is None]
                raise Fallen(f"{', '.join(late)} did not stop within {STOP_S_MAX:.0f} s of SIGTERM")
            await self._clock.sleep(LOOK_S)
        ended, self._running = self._running, {}
        self._tell_of({service: process for service, process in ended.items() if process.returncode})

    def check(self) -> None:
        """Check that all started services are running. Raises `Fallen` if one ended unexpectedly."""
        self._tell_of({service: process for service, process in self._running.items() if process.poll() is not None})

    def _tell_of(self, ended: Mapping[str, subprocess.Popen[bytes]]) -> None:
        if ended:
            lines = [
                f"{s} ended by itself, with {p.returncode}; its log:\n{self._last_lines(s)}" for s, p in ended.items()
            ]
            raise Fallen("\n".join(lines))

    def _last_lines(self, service: str) -> str:
        log = self.folder / f"{service}.log"
        with suppress(OSError):
            lines = log.read_text("utf-8", "replace").splitlines()[-LOG_LINES:]
            return "\n".join([*(f"  {line[:LOG_CHARACTERS]}" for line in lines), f"  all of it: {log}"])
        return f"  there is none in {log}"
