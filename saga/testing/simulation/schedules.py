"""Schedule of a run: its seed, the faults that are planted, the events of the test that are left out."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from saga.testing.fault_kinds import Faults
from saga.testing.simulation.chance import Chance
from saga.testing.simulation.plan import Drawn, Plan, Planned, Scheduled


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Schedule of one run, to be had again at any time. Without `drawn`, exactly the planted faults happen."""

    seed: int
    drawn: Faults | None = None
    """Faults to be drawn from the seed, instead of planted ones."""
    planted: tuple[Planned, ...] = ()
    without: frozenset[int] = frozenset()
    """Numbers of the events of the test that are left out."""

    @classmethod
    def parsed(cls, seed: int, faults: Iterable[str], without: Iterable[int]) -> Self:
        """Read a schedule from a regression test. Raises `SagaError` for a text that is no fault."""
        return cls(seed=seed, planted=tuple(map(Planned.parsed, faults)), without=frozenset(without))

    def plan(self) -> Plan | None:
        """Plan that decides, operation by operation."""
        if self.drawn is not None:
            return Drawn(self.drawn, Chance(self.seed)) if self.drawn.rules else None
        return Scheduled(self.planted) if self.planted else None
