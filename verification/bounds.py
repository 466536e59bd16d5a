"""Set bounds of the runtime so small that a scenario reaches them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from saga.policies import concurrency
from saga.progress import history as transitions
from saga.progress import journal, timers
from verification.operations import TICK_MS

TIGHT = {(journal, "INBOX_MAX"): 1, (transitions, "TRANSITIONS_MAX"): 2, (transitions, "TRANSITIONS_KEPT"): 1}
"""Bounds on the contents of a progress."""
SHORT = {(concurrency, "AWAY_S_MAX"): TICK_MS / 1000, (concurrency, "STAYS_S"): 0}
"""Bounds with which a paused run is parked at once, and tried again after one tick."""

STEADY = {(timers, "AHEAD_MS"): 0}
"""Bound with which clocks that differ by one tick count as different."""


@contextmanager
def bounded(bounds: Mapping[tuple[Any, str], float]) -> Iterator[None]:
    """Set these bounds until the block ends."""
    before = {where: getattr(*where) for where in bounds}
    for (module, name), bound in bounds.items():
        setattr(module, name, bound)
    try:
        yield
    finally:
        for (module, name), bound in before.items():
            setattr(module, name, bound)
