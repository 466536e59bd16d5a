"""Controls as this process knows them, and since when."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from math import inf

from saga.messaging.active_controls import InForce, Target
from saga.messaging.controls import Noted

READ_S = 5.0
"""Time for which what was read of the book holds: what is switched is so everywhere after it."""


@dataclass(slots=True)
class KnownControls:
    """Controls of a service, as of the last look into its book."""

    in_force: InForce = field(default_factory=InForce)
    until_s: float = -inf
    """Time until which that look holds; before the first one it is over."""
    stops: bool = False
    """True if anything is paused, limited or routed: else no run has to ask."""
    gate: AbstractAsyncContextManager[object] | None = None
    """Gate of looks: one at a time, and who comes meanwhile waits for its end. What is known by then may be of long
    ago, as of a worker that had nothing to do."""
    cas: int | None = None
    """Version of the book that was read; 0: there is none."""
    told: Mapping[Target, Noted] = field(default_factory=dict)
    """Controls that were active when people were last told."""
