"""The processes of a simulated world: what dies together, freezes together, and has one clock that may be wrong."""

from asyncio import Handle
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass(eq=False, slots=True)
class Process:
    """One life of a worker, or of an application. Whatever it begins in the event loop carries it in its context."""

    name: str
    """`payment-1`: the same in each of its lives."""
    service: str
    life: int = 1
    """Which of its lives this is."""
    alive: bool = True
    frozen: bool = False
    skew_ms: int = 0
    """How wrong its clock is."""
    deferred: list[tuple[Handle, int]] = field(default_factory=list)
    """What would have run while it was frozen, and if it is a task's next step, the task's number."""


CURRENT: ContextVar[Process | None] = ContextVar("process", default=None)
"""Whose code runs; `None`: the world's own."""
