"""The clock: the only place that asks the time, sleeps, or draws chance. Everything else is handed one."""

import asyncio
import random
import time
from collections.abc import Awaitable
from datetime import UTC, datetime
from typing import Protocol, TypeVar

T = TypeVar("T")


class Clock(Protocol):
    """Time, waiting and chance as inputs, so that a simulation can give them."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, UTC."""

    def monotonic_s(self) -> float:
        """Seconds that never go back; only differences mean something."""

    def chance(self) -> float:
        """A number from 0 to 1, to spread waits."""

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""

    async def within(self, seconds: float, what: Awaitable[T]) -> T:
        """What `what` gives; `TimeoutError`, and `what` is cancelled, when it takes longer than `seconds`."""


class SystemClock:
    """The real one."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return time.monotonic()

    def chance(self) -> float:
        return random.random()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def within(self, seconds: float, what: Awaitable[T]) -> T:
        async with asyncio.timeout(seconds):
            return await what


def iso(ms: int) -> str:
    """RFC 3339 with milliseconds; such texts sort as the times do.

    >>> iso(1_795_270_000_123)
    '2026-11-21T14:06:40.123Z'
    """
    seconds, rest = divmod(ms, 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:03}Z"


def from_iso(text: str) -> int:
    """Milliseconds since 1970 of an RFC 3339 text; `ValueError` for any other.

    >>> from_iso("2026-11-21T15:06:40.123+01:00")
    1795270000123
    """
    when = datetime.fromisoformat(text)
    if when.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    return round(when.timestamp() * 1000)
