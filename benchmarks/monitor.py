"""Monitor: transitions a second on one core, memory and answers at a million sagas, and when a stuck one is seen."""

import asyncio
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from os import sysconf
from pathlib import Path

from msgspec.structs import replace

from benchmarks.parts import Figure
from saga.clock import SystemClock, iso
from saga.config import Settings
from saga.messages import Outgoing, Record, Topic
from saga.monitor.answers import Answers
from saga.monitor.folds import Folds
from saga.monitor.reader import Reader
from saga.monitor.views import Filter, Page
from saga.names import TRANSITIONS
from saga.transitions import Awaited, Cause, Said, Told, from_record, line_of, to_records
from saga.wiring import broker_of

SAGAS = 1_000_000
APART_MS = 2
"""Time between the beginnings of two sagas: 500 a second, each of ten transitions, are 5,000 transitions a second."""
RUNNING = 20
"""Share of the sagas that are still running: one in so many."""
STUCK = 500
"""Sagas that are stuck: they wait, and have no deadline as the others that run have."""
DAY_MS = 86_400_000
SMALL = 3000
"""Sagas that are decoded and folded on their own."""
THROUGH = 40_000
"""Transitions that go through the broker and the reader."""
SHAPE = (
    ("order", "place", "handled", "OrderPlaced"),
    ("payment", "reserve", "handled", "PaymentReserved"),
    ("inventory", "set_aside", "handled", "InventoryReserved"),
    ("shipping", "book", "waiting", ""),
    ("shipping", "book", "waiting", ""),
    ("shipping", "book", "handled", "ShipmentBooked"),
    ("order", "confirm", "handled", "OrderConfirmed"),
    ("payment", "capture", "handled", "PaymentCaptured"),
    ("inventory", "hand_out", "handled", "StockHandedOut"),
    ("shipping", "dispatch", "handled", "Dispatched"),
)
"""Transitions of a saga of the example, in the order in which they are told."""


def told_of(n: int, begin_ms: int, upto: int = len(SHAPE), due: str | None = None) -> Iterator[Told]:
    """First transitions of the n-th saga. `due`: time of the deadline with which it begins."""
    numbers: dict[str, int] = {}
    for place, (service, handler, outcome, emitted) in enumerate(SHAPE[:upto]):
        number = numbers[service] = numbers.get(service, -1) + 1
        yield Told(
            service=service,
            saga=f"order-{n:07}",
            number=number,
            time=iso(begin_ms + n * APART_MS + place * 20),
            handler=handler,
            outcome=outcome,
            message=Cause(
                id=f"{n:024}{place:08}", type="OrderPlaced", source="order", topic="orders", partition=n % 12, offset=n
            ),
            worker=f"host-{n % 4}:17",
            emitted=(Said(id=f"{n:024}{place:08}", type=emitted),) if emitted else (),
            steps=("reserve",) if handler == "reserve" else (),
            queued_ms=n % 7,
            handler_ms=n % 50,
            open=due is not None and not place,
            due=due if not place else None,
            awaits=(Awaited(handler="book", types=("PaymentReserved",)),) if outcome == "waiting" else (),
            result="success" if handler == "confirm" else None,
            hash="0" * 64,
            previous="0" * 64,
        )


def monitor() -> list[Figure]:
    """Monitor: a million sagas of ten transitions, one process and core."""
    before = _resident_bytes()
    records = to_records(line_of(each) for n in range(SMALL) for each in told_of(n, _begin_ms()))
    begin_s = time.process_time()
    small = Folds()
    for each in records:
        for told in from_record(_record(each)):
            small.take(told, 1 << 50)
    folded = small.taken / (time.process_time() - begin_s)
    del small, records
    folds, clock = Folds(), SystemClock()
    begin_ms = _begin_ms()
    due = iso(clock.now_ms() + DAY_MS)
    for n in range(SAGAS):
        is_running, is_stuck = n % RUNNING == 0, n < RUNNING * STUCK
        upto = 5 if is_running else len(SHAPE)
        for told in told_of(n, begin_ms, upto, due if is_running and not is_stuck else None):
            folds.take(told, 1 << 50)
    resident = _resident_bytes() - before
    assert len(folds.known) == SAGAS
    views, now_ms = Answers(folds), clock.now_ms()
    last = f"order-{SAGAS - 1:07}"
    questions: dict[str, Callable[[], object]] = {
        "first page of sagas": lambda: views.sagas(Filter(), Page()),
        "sagas without an outcome, longest running first": lambda: views.sagas(Filter(outcome="none"), Page()),
        "sagas whose id holds a text that none has": lambda: views.sagas(Filter(text="nowhere"), Page()),
        "one saga": lambda: views.saga(last, now_ms),
        "stuck sagas": lambda: views.stuck(now_ms),
        "rates of all handlers": views.rates,
        "errors, hot keys and partitions": lambda: (views.errors(), views.hot()),
    }
    assert len(views.stuck(now_ms).sagas) == STUCK
    figures = [
        Figure("records decoded and folded", folded, "/s of one core"),
        Figure("memory of a million sagas, ten transitions each", resident / 1e6, "MB"),
    ]
    figures += [Figure(f"answer: {name}", _slowest_ms(ask), "ms") for name, ask in questions.items()]
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(broker=f"embedded:///{Path(folder).resolve()}/broker.db")
        rate, seen_s = asyncio.run(_through(settings, folds))
    figures.append(Figure("transitions read from the embedded broker and folded", rate, "/s of one core"))
    figures.append(Figure("dead letter told, and seen in `stuck`, at a million sagas", seen_s, "s"))
    return figures


async def _through(settings: Settings, folds: Folds) -> tuple[float, float]:
    """Transitions a second through a broker, and seconds until a dead letter that was told is seen."""
    clock = SystemClock()
    lines = [line_of(each) for n in range(THROUGH // len(SHAPE)) for each in told_of(n, _begin_ms())]
    async with broker_of(None, clock, settings) as broker:
        await broker.ensure([Topic(TRANSITIONS, 12)])
        for begin in range(0, len(lines), 1000):
            await broker.publish(to_records(lines[begin : begin + 1000]))
        fresh = Folds()
        rate = await _until(fresh, settings, lambda: fresh.taken == len(lines))
        reader = Reader(folds, clock, print)
        following = asyncio.get_running_loop().create_task(reader.follow(settings, clock.now_ms()))
        await clock.sleep(2)
        first = next(told_of(SAGAS + 1, 0))
        dead = replace(first, time=iso(clock.now_ms()), outcome="dead", open=True, error="KeyError")
        begin_s = time.perf_counter()
        await broker.publish(to_records([line_of(dead)]))
        views = Answers(folds)
        while not any(each.saga == dead.saga for each in views.stuck(clock.now_ms()).sagas):
            await clock.sleep(0.01)
        seen_s = time.perf_counter() - begin_s
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following
    return rate, seen_s


async def _until(folds: Folds, settings: Settings, holds: Callable[[], bool]) -> float:
    """Fold until it holds; transitions for each second of the processor."""
    clock = SystemClock()
    begin_s = time.process_time()
    following = asyncio.get_running_loop().create_task(Reader(folds, clock, print).follow(settings))
    while not holds():
        await clock.sleep(0.01)
    rate = folds.taken / (time.process_time() - begin_s)
    following.cancel()
    with suppress(asyncio.CancelledError):
        await following
    return rate


def _begin_ms() -> int:
    """Beginning of all: the last saga has begun ten minutes ago."""
    return SystemClock().now_ms() - SAGAS * APART_MS - 600_000


def _record(outgoing: Outgoing) -> Record:
    return Record(outgoing.topic, 0, 0, outgoing.key, outgoing.value, (), 0)


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * sysconf("SC_PAGE_SIZE")


def _slowest_ms(ask: Callable[[], object], times: int = 20) -> float:
    """Longest time of some, in milliseconds."""
    slowest_s = 0.0
    for _ in range(times):
        begin_s = time.perf_counter()
        ask()
        slowest_s = max(slowest_s, time.perf_counter() - begin_s)
    return 1000 * slowest_s
