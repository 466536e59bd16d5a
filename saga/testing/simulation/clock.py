"""The clock of one simulated process: virtual time, its own error, chance from the seed."""

import asyncio
from collections.abc import Awaitable
from datetime import UTC, datetime
from typing import TypeVar

from saga.testing.simulation.chance import Chance
from saga.testing.simulation.processes import Process

T = TypeVar("T")

BEGINNING_MS = round(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1000)
"""Time of day at which every simulated world begins."""


class SimulatedClock:
    """See `saga.support.clock.Clock` for the promises."""

    __slots__ = ("_chance", "_draws", "_process")

    def __init__(self, process: Process, chance: Chance) -> None:
        self._process, self._chance, self._draws = process, chance, 0

    def now_ms(self) -> int:
        return BEGINNING_MS + int(asyncio.get_running_loop().time() * 1000) + self._process.skew_ms

    def monotonic_s(self) -> float:
        return asyncio.get_running_loop().time()

    def chance(self) -> float:
        self._draws += 1
        return self._chance.draw(f"{self._process.name} {self._process.life}?{self._draws}")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)  # noqa: TID251 - on a loop whose time is virtual

    async def within(self, seconds: float, what: Awaitable[T]) -> T:
        async with asyncio.timeout(seconds):
            return await what
