"""Waiting for what other processes do, without taking the time from them that they need for it."""

import asyncio
from collections.abc import Callable

from saga.support.clock import SystemClock

CLOCK = SystemClock()
PAUSE_S, LONGER, TIMES_MAX = 0.05, 1.2, 8


def until(
    holds: Callable[[], object], within_s: float, last: Callable[[], object] = str, *, pause_s: float = PAUSE_S
) -> None:
    """Return once it gives something true. The longer it takes the less often it is asked: a look costs as much as
    what is waited for. `last`: what was seen last, for the error. `pause_s`: the first pause."""
    end_s, pause_s_max = CLOCK.monotonic_s() + within_s, TIMES_MAX * pause_s
    while not holds():
        assert CLOCK.monotonic_s() < end_s, last()
        asyncio.run(CLOCK.sleep(pause_s))
        pause_s = min(pause_s_max, pause_s * LONGER)
