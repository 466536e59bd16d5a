"""Part h of the benchmarks: what 100,000 open deadlines cost, and how late 1,000 deadlines run that are due
together."""

import asyncio
import resource
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.events import OrderRequested, Pinged
from benchmarks.parts import Figure
from benchmarks.running import Running, running
from saga import Event, Service
from saga.clients.events import to_record
from saga.support.clock import SystemClock

OPEN, WARM, AT_ONCE = 100_000, 2_000, 1_000
BATCH = 500
SOON_S = 4.0
"""Time until the deadlines of the second measurement are due, all at once, in seconds. By then all of them have been
opened."""

clock = SystemClock()
late_ms: list[int] = []
patient = Service("patient")


@patient.deadline(within=timedelta(days=1))
async def forget(asked: OrderRequested) -> None:
    """Handler of a deadline that is due after a day."""


@patient.deadline(within=timedelta(seconds=SOON_S))
async def remind(pinged: Pinged) -> None:
    """Handler of a deadline that is due soon. It records how late it runs."""
    late_ms.append(clock.now_ms() - int(pinged.text))


def deadlines() -> list[Figure]:
    """(h) Measure 100,000 deadlines open for a day, and 1,000 that are due in the same moment"""
    return asyncio.run(_deadlines())


async def _deadlines() -> list[Figure]:
    with TemporaryDirectory() as name:
        folder = Path(name)
        async with running(folder, [patient.declared], {}) as run:
            await _open(run, "warm", WARM, 0)
            before = _resident_mb()
            began = time.perf_counter()
            await _open(run, "open", OPEN, WARM)
            per_s = OPEN / (time.perf_counter() - began)
            grown = _resident_mb() - before
        began = time.perf_counter()
        async with running(folder, [patient.declared], {}) as run:
            await _open(run, "again", 1, 0)
            start_s = time.perf_counter() - began
            await _open(run, "soon", AT_ONCE, 1, _pinged)
            while len(late_ms) < AT_ONCE:
                await asyncio.sleep(0.05)
    late = sorted(late_ms)
    assert late[0] >= 0, "a deadline ran too early"
    return [
        Figure("h deadlines opened", per_s, "/s"),
        Figure(f"h memory that {OPEN:,} open deadlines take", grown, "MB"),
        Figure("h start of a worker beside them, to its first message", start_s, "s"),
        Figure(f"h lateness of {AT_ONCE:,} due at once, median", late[len(late) // 2] / 1000, "s"),
        Figure("h lateness of the last of them", late[-1] / 1000, "s"),
    ]


async def _open(
    run: Running, what: str, count: int, handled: int, first: Callable[[str, int], Event] | None = None
) -> None:
    """Start `count` sagas with the same start time. Wait until their first messages have been handled."""
    now_ms = clock.now_ms()
    for begin in range(0, count, BATCH):
        events = [
            (first or _asked)(f"{what}-{number:06}", now_ms) for number in range(begin, min(begin + BATCH, count))
        ]
        await run.broker.publish([to_record(event, now_ms) for event in events])
    while run.counted.handled < handled + count:
        await asyncio.sleep(0.01)


def _asked(order_id: str, now_ms: int) -> OrderRequested:
    return OrderRequested(
        order_id=order_id, customer_id="c-1", sku="tea", quantity=1, total=Decimal("9.80"), address="Kiel"
    )


def _pinged(order_id: str, now_ms: int) -> Pinged:
    """Return the first event of a saga. Its `text` is the time at which the deadline is due."""
    return Pinged(order_id=order_id, text=str(now_ms + int(SOON_S * 1000)), amount=Decimal("9.80"))


def _resident_mb() -> float:
    """Return the memory of this process in MB; on systems that do not report it, the peak so far."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * resource.getpagesize() / 1e6
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1e6 if sys.platform == "darwin" else 1e3)
