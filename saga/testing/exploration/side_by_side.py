"""Several scenarios explored side by side, a process for each core."""

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

from saga.testing.exploration.explore import Report, explore
from saga.testing.exploration.scenario import Scenario
from saga.testing.exploration.scenarios import scenarios

DEEP_STATES_MAX = 1_000_000
"""Of one scenario with more faults; most end earlier."""


def chosen(part: str, *, deep: bool) -> list[Scenario]:
    """The scenarios whose name holds `part`; with one more fault of each of their kinds, if `deep`."""
    return [s.deeper() if deep else s for s in scenarios() if part in s.name]


def _explored(part: str, deep: bool, number: int) -> Report:
    return explore(chosen(part, deep=deep)[number], states_max=DEEP_STATES_MAX if deep else 10_000_000)


def explore_all(part: str = "", *, deep: bool = False) -> Iterator[Report]:
    """Each chosen scenario, to its end, or to a bound if `deep`."""
    count = len(chosen(part, deep=deep))
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        yield from pool.map(_explored, [part] * count, [deep] * count, range(count))
