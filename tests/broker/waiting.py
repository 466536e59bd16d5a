"""Waiting for what members are notified of."""

from collections.abc import Callable

from saga.support.clock import SystemClock

CLOCK = SystemClock()
WITHIN_S = 60.0


async def until(holds: Callable[[], object]) -> None:
    """Return once it gives something true; fail after a while."""

    async def look() -> None:
        while not holds():
            await CLOCK.sleep(0.01)

    await CLOCK.within(WITHIN_S, look())
