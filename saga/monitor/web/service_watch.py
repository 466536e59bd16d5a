"""Watches which services run, and how far each one is behind, according to the broker.

The broker is read when the overview is shown, and once a minute in the background. So the overview can show how the lag
of each service has changed. One point per minute is kept in memory, for an hour.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from saga.configuration.settings import Settings
from saga.errors import SagaError
from saga.monitor.web.operator_console import PATIENCE_S, CachedRead, Snapshot
from saga.ops.offsets import ServiceOffsets, read_offsets_of_every_service
from saga.ops.sources import missing_broker_file
from saga.support.clock import Clock

POINTS_MAX = 60
"""Maximum number of points that are kept per service. There is one for each minute."""
SERVICES_MAX = 200
"""Maximum number of services for which points are kept."""
MINUTE_MS = 60_000
EACH_S = 60.0
"""Seconds between two reads in the background."""
READ_S_MAX = 15.0
"""Time limit in seconds for one read of the broker."""


class LagPoint(NamedTuple):
    """The number of messages that a service had not handled in one minute."""

    minute_ms: int
    lag: int


class ServiceWatch:
    """Reads which services run and how far they are, and keeps their lags of the last hour."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings, self._clock = settings, clock
        self._read: CachedRead[Sequence[ServiceOffsets]] = CachedRead(self._read_offsets, clock)
        self._lags: dict[str, deque[LagPoint]] = {}

    async def get(self, patience_s: float = PATIENCE_S) -> Snapshot[Sequence[ServiceOffsets]]:
        """Return the offsets and members of each service. If they are old, read them again, but wait for this only for
        `patience_s` seconds."""
        found = await self._read.get(patience_s)
        if found.value:
            self.note(found.value, self._clock.now_ms() - round(found.age_s * 1000))
        return found

    def list_lags(self, service: str) -> Sequence[LagPoint]:
        """Return the known lag of a service in each minute of the last hour, oldest first."""
        return tuple(self._lags.get(service, ()))

    async def run(self) -> None:
        """Read once a minute, until cancelled."""
        while True:
            await self.get(READ_S_MAX)
            await self._clock.sleep(EACH_S)

    async def end(self) -> None:
        """Wait until no read is running."""
        await self._read.end()

    async def _read_offsets(self, troubles: list[str]) -> Sequence[ServiceOffsets]:
        if (file := missing_broker_file(self._settings)) is not None:
            troubles.append(f"whether the services run is not known: there is no file {file}")
            return ()
        try:
            return await self._clock.within(READ_S_MAX, read_offsets_of_every_service(self._settings, self._clock))
        except (SagaError, TimeoutError) as why:
            reason = str(why) or f"the broker did not answer within {READ_S_MAX:g} s"
            troubles.append(f"whether the services run is not known: {reason}")
            return ()

    def note(self, found: Sequence[ServiceOffsets], now_ms: int) -> None:
        """Record the lag of each service for this minute. Within a minute, the last value counts."""
        minute_ms = now_ms - now_ms % MINUTE_MS
        oldest_ms = minute_ms - POINTS_MAX * MINUTE_MS
        self._lags = {name: points for name, points in self._lags.items() if points[-1].minute_ms > oldest_ms}
        for each in found[:SERVICES_MAX]:
            points = self._lags.setdefault(each.service, deque(maxlen=POINTS_MAX))
            if points and points[-1].minute_ms >= minute_ms:
                points.pop()
            points.append(LagPoint(minute_ms, each.lag))


@asynccontextmanager
async def open_watch(settings: Settings, clock: Clock) -> AsyncIterator[ServiceWatch]:
    """Read once a minute within the block."""
    watch = ServiceWatch(settings, clock)
    running = asyncio.get_running_loop().create_task(watch.run(), name="watching services")
    try:
        yield watch
    finally:
        running.cancel()
        await asyncio.wait([running])
        await watch.end()
