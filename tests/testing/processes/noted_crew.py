"""A crew whose processes are only noted down, and a clock that is moved by hand."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from saga.support.clock import SystemClock
from saga.testing.processes.worker_processes import WorkerProcess

if TYPE_CHECKING:
    from subprocess import Popen


class HandClock(SystemClock):
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic_s(self) -> float:
        return self.now_s


class Hands:
    """Does nothing, and notes it."""

    def __init__(self, services: Sequence[str]) -> None:
        self.done: list[tuple[str, str]] = []
        self.members = [self._member(service, number) for service in services for number in (1, 2)]

    def note(self, what: str, whom: str = "") -> None:
        self.done.append((what, whom))

    @property
    def sizes(self) -> Counter[str]:
        return Counter(member.service for member in self.members)

    @property
    def is_steady(self) -> bool:
        return not any(member.frozen for member in self.members)

    def hire(self, service: str) -> WorkerProcess:
        hired = self._member(service, 3)
        self.members.append(hired)
        self.note("hire", hired.name)
        return hired

    def restart(self, member: WorkerProcess) -> WorkerProcess:
        self.note("crash", member.name)
        again = self._member(member.service, member.number)
        self.members[self.members.index(member)] = again
        return again

    def freeze(self, member: WorkerProcess) -> None:
        self.note("freeze", member.name)
        member.frozen = True

    def thaw(self, member: WorkerProcess) -> None:
        self.note("thaw", member.name)
        member.frozen = False

    def dismiss(self, member: WorkerProcess) -> None:
        self.note("dismiss", member.name)
        self.members.remove(member)

    def _member(self, service: str, number: int) -> WorkerProcess:
        return WorkerProcess(service, number, cast("Popen[bytes]", None))
