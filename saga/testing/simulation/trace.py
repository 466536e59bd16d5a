"""Trace of a simulated world, in order: for people a timeline, for comparing two runs a fingerprint."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

from saga.telemetry.events import Moment
from saga.testing.simulation.plan import Operation, Planned


class Asked(NamedTuple):
    """An operation took effect, or was refused."""

    time_s: float
    operation: Operation
    said: str
    """Result: `done`, or the name of the exception."""


class Injected(NamedTuple):
    """A fault happened."""

    time_s: float
    operation: Operation
    planned: Planned
    details: str


class Noted(NamedTuple):
    """Something else: a process began, was thawed, a service reported."""

    time_s: float
    process: str
    what: str
    moment: Moment | None = None


@dataclass(slots=True)
class Trace:
    """Everything that happened in one run."""

    lines: list[Asked | Injected | Noted] = field(default_factory=list)

    @property
    def faults(self) -> list[Injected]:
        """Faults that were planted, in order."""
        return [line for line in self.lines if isinstance(line, Injected)]

    def fingerprint(self) -> str:
        """Text that is the same for two runs in which the same happened, at the same times, in the same order."""
        digest = blake2b(digest_size=16)
        for line in self.lines:
            digest.update("\n".join(_as_text(line)).encode())
        return digest.hexdigest()


def _as_text(line: Asked | Injected | Noted) -> Iterator[str]:
    yield f"{line.time_s:.9f}"
    if isinstance(line, Noted):
        yield line.process
        yield line.what
        yield type(line.moment).__name__
    else:
        yield f"{line.operation.process}#{line.operation.number}"
        yield line.operation.what
        yield line.operation.where
        yield str(line.planned) if isinstance(line, Injected) else line.said
