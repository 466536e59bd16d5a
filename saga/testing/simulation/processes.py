"""Processes of a simulated world: each dies and freezes as a whole, and has one clock that may be wrong."""

from asyncio import Handle
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass(eq=False, slots=True)
class Process:
    """One life of a worker, or of an application. Whatever it begins in the event loop carries it in its context."""

    name: str
    """Name, the same in each of its lives: `payment-1`."""
    service: str
    life: int = 1
    """Number of this life."""
    alive: bool = True
    frozen: bool = False
    skew_ms: int = 0
    """Error of its clock."""
    deferred: list[tuple[Handle, int]] = field(default_factory=list)
    """Callbacks that came while it was frozen, with the task's number for a task's next step."""


CURRENT: ContextVar[Process | None] = ContextVar("process", default=None)
"""Process whose code runs; `None`: the world's own."""
