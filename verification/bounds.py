"""Bounds of the runtime, so small that they are reached within a scenario."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from saga.policies import concurrency
from saga.progress import history as transitions
from saga.progress import journal, timers
from verification.operations import TICK_MS

TIGHT = {(journal, "INBOX_MAX"): 1, (transitions, "TRANSITIONS_MAX"): 2, (transitions, "TRANSITIONS_KEPT"): 1}
"""Bounds of what a progress holds."""
SHORT = {(concurrency, "AWAY_S_MAX"): TICK_MS / 1000, (concurrency, "STAYS_S"): 0}
"""Bounds by which what is paused is parked at once, and looked at again after the time that passes at once."""

STEADY = {(timers, "AHEAD_MS"): 0}
"""Bound by which clocks that differ by a tick are distinguished."""


@contextmanager
def bounded(bounds: Mapping[tuple[Any, str], float]) -> Iterator[None]:
    """Block in which these bounds hold."""
    before = {where: getattr(*where) for where in bounds}
    for (module, name), bound in bounds.items():
        setattr(module, name, bound)
    try:
        yield
    finally:
        for (module, name), bound in before.items():
            setattr(module, name, bound)
