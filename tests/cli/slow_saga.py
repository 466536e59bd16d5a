"""`saga`, slower: a while passes before and after each write and each publication of a service.

For tests that kill a service, or ask about it, once they see what its handlers did: by then nothing need be written
yet, and nothing that is written has to be reported.
"""

import os
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

from saga.cli.main import main
from saga.engine.persistence import outbox
from saga.engine.service_runtime import ServiceRuntime
from saga.messages import Position
from saga.support.clock import SystemClock

P = ParamSpec("P")
T = TypeVar("T")

SLOW_S = "SAGA_TEST_SLOW_S"
"""Variable with the seconds that pass each time."""
CLOCK = SystemClock()
_patiently = outbox.retry_while_unavailable


async def slowly(
    service: ServiceRuntime,
    position: Position,
    operation: str,
    act: Callable[P, Awaitable[T]],
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    """Do as `persistence.patiently`, and take one's time over all but reads."""

    async def acted() -> T:
        await CLOCK.sleep(pause_s)
        value = await act(*args, **kwargs)
        await CLOCK.sleep(pause_s)
        return value

    pause_s = 0.0 if operation == "get" else float(os.environ[SLOW_S])
    return await _patiently(service, position, operation, acted)


if __name__ == "__main__":
    outbox.retry_while_unavailable = slowly
    main()
