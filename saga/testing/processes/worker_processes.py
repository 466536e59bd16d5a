"""Set up, start, freeze and stop worker processes. The setup of a worker names its service, its files or servers, and
its fakes.
"""

import importlib
import inspect
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
from typing import TYPE_CHECKING, Self

import msgspec
from msgspec import Struct

from saga.declarations.annotations import is_async
from saga.declarations.resources import Limits, limits_of
from saga.declarations.values import Declared
from saga.errors import SagaError
from saga.policies.breaker import LastGood
from saga.service import Service
from saga.support.clock import Clock
from saga.testing.processes.servers import ServerAddresses

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class CallLimits(Struct, frozen=True, kw_only=True):
    """Declared limits of one method of a fake, as stored in the worker's setup."""

    call: str
    timeout_s: float | None = None
    at_once_max: int | None = None
    rate_per_s: float | None = None
    remembered: LastGood | None = None
    instead: str | None = None
    """Name of the fallback method, called when a call of this method is rejected."""


class RemoteFake(Struct, frozen=True, kw_only=True):
    """Describes a fake of the test to a worker, which forwards calls of it to the test's process."""

    resource: str
    """Name of the resource that the fake replaces."""
    fake: str
    """Name of the fake's class."""
    number: int
    """Index of the fake among the test's fakes."""
    calls: dict[str, CallLimits | None]
    """Names of its public async methods, each with its limits."""


class WorkerSetup(Struct, frozen=True, kw_only=True):
    """Setup of one worker process, stored in a JSON file."""

    modules: tuple[str, ...]
    """Modules that must be imported so that all handlers of the service are declared. The module with the service
    object comes first.
    """
    attribute: str
    declarations: tuple[str, ...]
    """Names of everything that the service declares in the test's process. The worker compares its own declarations
    with them.
    """
    broker: str = ""
    store: str = ""
    """Path of the file with the service's store; `broker` is the path of the broker's file. Both are empty if the world
    uses servers.
    """
    place: ServerAddresses | None = None
    """Addresses of the servers; `None` if the world uses files."""
    outside: str
    """Path of the socket on which the test's process receives calls of its fakes."""
    fakes: tuple[RemoteFake, ...]

    def write(self, file: Path) -> None:
        """Write the setup for a process that is about to start."""
        file.write_bytes(msgspec.json.encode(self))

    @classmethod
    def read(cls, file: Path) -> "WorkerSetup":
        """Read a setup from a file that `write` wrote."""
        return msgspec.json.decode(file.read_bytes(), type=cls)

    def service(self) -> Declared:
        """Import and return the service. Raises `SagaError` if its declarations differ from those in the test's
        process.
        """
        module, *_ = [importlib.import_module(name) for name in self.modules]
        service = getattr(module, self.attribute, None)
        if not isinstance(service, Service):
            raise SagaError(
                f"{self.modules[0]}.{self.attribute} is no service when the module is imported afresh: declare it at "
                "the module's top level"
            )
        if declarations_of(service.declared) != self.declarations:
            raise SagaError(
                f"service {service.declared.name!r} declares {_listed(declarations_of(service.declared))} when "
                f"{', '.join(self.modules)} are imported afresh, and {_listed(self.declarations)} in the test: "
                "let its declarations depend on nothing but these modules"
            )
        return service.declared


def module_and_name(service: "Service[DataclassInstance | None]") -> tuple[tuple[str, ...], str]:
    """Return the modules in which a service is declared, and the name of the service object in the first of them.

    Raises `SagaError` for a service that another process cannot import.
    """
    declared = service.declared
    functions = [
        *(handler.function for handler in declared.reactions),
        *(resource.opener for resource in declared.resources),
    ]
    modules = dict.fromkeys(function.__module__ for function in functions)
    for name in modules:
        for attribute, value in vars(sys.modules[name]).items() if name in sys.modules else ():
            if value is service and name != "__main__":
                return (name, *(other for other in modules if other not in (name, "__main__"))), attribute
    where = f" (looked for in {', '.join(modules)})" if modules else ""
    raise SagaError(
        f"service {declared.name!r} cannot be run by another process, for no module of its handlers holds it{where}: "
        "move it to the top level of a module that can be imported, with its handlers"
    )


def declarations_of(declared: Declared) -> tuple[str, ...]:
    """Return the names of everything that a service declares. They are sorted, because another process may import
    modules in another order.
    """
    return tuple(
        sorted(
            [
                *(handler.name for handler in declared.reactions),
                *(resource.name for resource in declared.resources),
                *(document.collection for document in declared.documents),
            ]
        )
    )


def remote_fakes_of(declared: Declared, use: Sequence[object]) -> tuple[RemoteFake, ...]:
    """Return descriptions of the fakes for the resources of a service. The fake for a resource is the first object in
    `use` that is an instance of the resource's type.
    """
    found = []
    for resource in declared.resources:
        number = next((n for n, fake in enumerate(use) if isinstance(fake, resource.gives)), None)
        if number is not None:
            fake = use[number]
            found.append(
                RemoteFake(resource=resource.name, fake=type(fake).__name__, number=number, calls=_calls_of(fake))
            )
    return tuple(found)


def _calls_of(fake: object) -> dict[str, CallLimits | None]:
    public = {name: inspect.getattr_static(fake, name, None) for name in dir(fake) if not name.startswith("_")}
    return {name: _as_json(limits_of(method)) for name, method in public.items() if is_async(method)}


def _as_json(limits: Limits | None) -> CallLimits | None:
    if limits is None:
        return None
    other = limits.fallback
    return CallLimits(
        call=limits.call,
        timeout_s=limits.timeout_s,
        at_once_max=limits.at_once_max,
        rate_per_s=limits.rate_per_s,
        remembered=other if isinstance(other, LastGood) else None,
        instead=None if other is None or isinstance(other, LastGood) else other.__name__,
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "nothing"


WORKERS = 2
"""Number of workers of each service at the start."""
STOP_S_MAX = 5.0
"""Maximum time in seconds between SIGTERM and the end of a worker. A worker that is still running then is killed."""
COULD_NOT_START = 2
"""Exit code of a worker that could not start."""
LOG_LINES, LOG_CHARACTERS = 4, 400
"""How many of a worker's last log lines are shown, and the maximum length of each in characters."""


@dataclass(slots=True, eq=False)
class WorkerProcess:
    """One worker process."""

    service: str
    number: int
    """Number among the workers of its service. A worker that is started again keeps its number and its log."""
    process: subprocess.Popen[bytes]
    starts: int = 1
    """Number of starts since the worker was added, or since it was last killed."""
    frozen: bool = False
    ends_by_s: float | None = None
    """Time, on the monotonic clock, by which the worker must have ended; `None` unless it is being stopped."""

    @property
    def name(self) -> str:
        """Name of the worker, such as `payment-1`."""
        return f"{self.service}-{self.number}"

    def __str__(self) -> str:
        state = "frozen" if self.frozen else "told to end" if self.ends_by_s is not None else "running"
        return f"{self.name} ({state}, process {self.process.pid})"


class WorkerPool:
    """All worker processes of a world. Leaving the `with` block ends them all, even frozen ones."""

    def __init__(self, folder: Path, clock: Clock, *, starts_max: int = 1) -> None:
        """Create a pool without workers.

        `starts_max`: maximum number of attempts to start a worker whose start fails because a server does not answer.
        """
        self._folder, self._clock, self._starts_max = folder, clock, starts_max
        self._members: list[WorkerProcess] = []
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
    def members(self) -> Sequence[WorkerProcess]:
        """Workers that are running or frozen. Workers that are being stopped are not included."""
        return [member for member in self._members if member.ends_by_s is None]

    @property
    def is_steady(self) -> bool:
        """True if no worker is frozen or being stopped."""
        return not any(member.frozen or member.ends_by_s is not None for member in self._members)

    @property
    def sizes(self) -> Counter[str]:
        """Number of workers of each service."""
        return Counter(member.service for member in self.members)

    def hire(self, service: str, setup: WorkerSetup) -> WorkerProcess:
        """Start one more worker."""
        self._started[service] += 1
        file = self._folder / f"{service}.json"
        if not file.exists():
            setup.write(file)
        member = WorkerProcess(service, self._started[service], self._process(service, self._started[service]))
        self._members.append(member)
        return member

    def _process(self, service: str, number: int) -> subprocess.Popen[bytes]:
        found = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
        with (self._folder / f"{service}-{number}.log").open("ab") as log:
            # In a session of its own, the worker gets no Ctrl-C of the terminal; the test does, and stops the workers.
            # The standard input is closed when the test's process ends in any way, and the worker then ends too.
            return subprocess.Popen(
                [sys.executable, "-m", "saga.testing.processes.worker", str(self._folder / f"{service}.json")],
                env={**os.environ, "PYTHONPATH": found},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def restart(self, member: WorkerProcess) -> WorkerProcess:
        """Kill a worker with SIGKILL, and start it again. Return the new worker process."""
        self._end(member)
        again = WorkerProcess(member.service, member.number, self._process(member.service, member.number))
        self._members.append(again)
        return again

    def freeze(self, member: WorkerProcess) -> None:
        """Freeze a worker with SIGSTOP. It keeps its locks and cannot notice the freeze."""
        member.process.send_signal(signal.SIGSTOP)
        member.frozen = True

    def thaw(self, member: WorkerProcess) -> None:
        """Continue a frozen worker with SIGCONT."""
        if member.frozen:
            member.process.send_signal(signal.SIGCONT)
            member.frozen = False

    def dismiss(self, member: WorkerProcess) -> None:
        """Stop a worker with SIGTERM: it drains, leaves its group, and ends."""
        self.thaw(member)
        member.process.send_signal(signal.SIGTERM)
        member.ends_by_s = self._clock.monotonic_s() + STOP_S_MAX

    def check(self) -> None:
        """Remove workers that have ended after they were stopped, and restart workers whose start failed while attempts
        are left. Raises `SagaError` for any other worker that has ended.
        """
        for member in list(self._members):
            code = member.process.poll()
            if member.ends_by_s is not None:
                is_late = code is None and self._clock.monotonic_s() > member.ends_by_s
                # It was still starting, so the signal itself ended it.
                if is_late or code in (0, -signal.SIGTERM) or (code == COULD_NOT_START and self._starts_max > 1):
                    self._end(member)
                    continue
            if code == COULD_NOT_START and member.ends_by_s is None and member.starts < self._starts_max:
                _close(member.process)
                member.process = self._process(member.service, member.number)
                member.starts += 1
            elif code is not None:
                raise SagaError(f"worker {member.name} ended by itself, with {code}; {self.last_words(member)}")

    def last_words(self, member: WorkerProcess) -> str:
        """Return the end of a worker's log, for error messages."""
        lines = (self._folder / f"{member.name}.log").read_text("utf-8", "replace").splitlines()
        if not lines:
            return "its log is empty"
        return "\n".join(["the end of its log:", *(f"  {line[:LOG_CHARACTERS]}" for line in lines[-LOG_LINES:])])

    def _end(self, member: WorkerProcess) -> None:
        """Kill a worker with SIGKILL if it has not ended, and release its resources."""
        self._members.remove(member)
        _close(member.process)


def _close(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
    process.wait()
    if process.stdin is not None:
        process.stdin.close()
