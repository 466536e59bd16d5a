"""Benchmark of the monitor: transitions per second on one core, memory and answer times with a million sagas, and the
time until a stuck saga is visible."""

import asyncio
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from os import sysconf
from pathlib import Path

import httpx
from msgspec.structs import replace

from benchmarks.parts import Figure
from benchmarks.watched import (
    APART_MS,
    DAY_MS,
    GROUP,
    RUNNING,
    SHAPE,
    STUCK,
    make_transition_events,
    name_of,
    population,
    record_of,
)
from saga.configuration.settings import Settings
from saga.configuration.wiring import open_broker
from saga.messages import Topic
from saga.messaging.names import TRANSITIONS
from saga.messaging.transition_events import make_line, parse_transitions, transitions_to_records
from saga.monitor.queries import Queries
from saga.monitor.read_model import ReadModel
from saga.monitor.reader import TransitionReader
from saga.monitor.views import PageRequest, SagaFilter
from saga.monitor.web.app import create_app
from saga.support.clock import SystemClock, iso

SAGAS = 1_000_000
SMALL = 3000
"""Number of sagas for the measurement of decoding and applying transitions alone."""
THROUGH = 40_000
"""Number of transitions for the measurement that includes the broker and its reader."""
TIMES = 20
"""Number of requests for each answer and each page. The slowest one counts."""


def monitor() -> list[Figure]:
    """Measure the monitor with a million sagas of ten transitions, in one process on one core."""
    before = _resident_bytes()
    records = transitions_to_records(
        make_line(each) for n in range(SMALL) for each in make_transition_events(n, _begin_ms())
    )
    begin_s = time.process_time()
    small = ReadModel()
    for each in records:
        for transition in parse_transitions(record_of(each)):
            small.apply(transition, 1 << 50)
    folded = small.taken / (time.process_time() - begin_s)
    del small, records
    clock = SystemClock()
    begin_s = time.perf_counter()
    folds = population(SAGAS, _begin_ms(), clock.now_ms() + DAY_MS)
    built_s = time.perf_counter() - begin_s
    resident = _resident_bytes() - before
    assert len(folds.sagas) == SAGAS
    views, now_ms = Queries(folds), clock.now_ms()
    last = name_of(SAGAS - 1)
    questions: dict[str, Callable[[], object]] = {
        "first page of sagas": lambda: views.sagas(SagaFilter(), PageRequest()),
        "sagas without an outcome, longest running first": lambda: views.sagas(
            SagaFilter(outcome="none"), PageRequest()
        ),
        "sagas whose id holds a text that none has": lambda: views.sagas(SagaFilter(text="nowhere"), PageRequest()),
        "sagas of a service without any": lambda: views.sagas(SagaFilter(service="audit"), PageRequest()),
        "one saga": lambda: views.saga(last, now_ms),
        "stuck sagas": lambda: views.stuck(now_ms),
        "rates of all handlers": views.rates,
        "errors, hot keys and partitions": lambda: (views.errors(), views.hot()),
    }
    assert len(views.stuck(now_ms).sagas) == min(STUCK, SAGAS // RUNNING)
    figures = [
        Figure("records decoded and folded", folded, "/s of one core"),
        Figure(f"{SAGAS:,} sagas, one in {GROUP} folded and the others copied", built_s, "s"),
        Figure(f"memory of {SAGAS:,} sagas, ten transitions each", resident / 1e6, "MB"),
    ]
    figures += [Figure(f"answer: {name}", _slowest_ms(ask), "ms") for name, ask in questions.items()]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder).resolve()
        settings = Settings(broker=f"embedded:///{place}/broker.db", store=f"sqlite:///{place}/{{service}}.db")
        figures += asyncio.run(_pages(settings, folds, last))
        rate, seen_s = asyncio.run(_through(settings, folds))
    figures.append(Figure("transitions read from the embedded broker and folded", rate, "/s of one core"))
    figures.append(Figure("dead letter published, and seen in `stuck`, at a million sagas", seen_s, "s"))
    return figures


async def _pages(settings: Settings, folds: ReadModel, saga: str) -> list[Figure]:
    """Return the longest time of each page, from the request to its last byte, in this process."""
    paths = (
        "/sagas",
        "/sagas?outcome=none&age=1+h",
        "/sagas?text=nowhere",
        "/sagas?service=shipping&state=open",
        "/stuck",
        "/rates",
        f"/saga?id={saga}",
        f"/api/trace/{saga}",
        "/api/stuck",
    )
    figures, made = [], create_app(Queries(folds), settings, SystemClock())
    transport = httpx.ASGITransport(app=made)
    async with (
        made.router.lifespan_context(made),
        httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8642") as client,
    ):
        for path in paths:
            slowest_s = 0.0
            for _ in range(TIMES):
                begin_s = time.perf_counter()
                answer = await client.get(path)
                slowest_s = max(slowest_s, time.perf_counter() - begin_s)
                assert answer.status_code == 200, (path, answer.status_code)
            figures.append(Figure(f"page: {path.replace(saga, 'ID')}", 1000 * slowest_s, "ms"))
    return figures


async def _through(settings: Settings, folds: ReadModel) -> tuple[float, float]:
    """Return the transitions per second that are read from a broker, and the seconds until a published dead letter is
    visible."""
    clock = SystemClock()
    lines = [make_line(each) for n in range(THROUGH // len(SHAPE)) for each in make_transition_events(n, _begin_ms())]
    async with open_broker(None, clock, settings) as broker:
        await broker.ensure_topics([Topic(TRANSITIONS, 12)])
        for begin in range(0, len(lines), 1000):
            await broker.publish(transitions_to_records(lines[begin : begin + 1000]))
        fresh = ReadModel()
        rate = await _until(fresh, settings, lambda: fresh.taken == len(lines))
        reader = TransitionReader(folds, clock, print)
        following = asyncio.get_running_loop().create_task(reader.follow(settings, clock.now_ms()))
        await clock.sleep(2)
        first = next(make_transition_events(SAGAS + 1, 0))
        dead = replace(first, time=iso(clock.now_ms()), outcome="dead", open=True, error="KeyError")
        begin_s = time.perf_counter()
        await broker.publish(transitions_to_records([make_line(dead)]))
        views = Queries(folds)
        while not any(each.saga == dead.saga for each in views.stuck(clock.now_ms()).sagas):
            await clock.sleep(0.01)
        seen_s = time.perf_counter() - begin_s
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following
    return rate, seen_s


async def _until(folds: ReadModel, settings: Settings, holds: Callable[[], bool]) -> float:
    """Read transitions until `holds` is true. Return the transitions per second of CPU time."""
    clock = SystemClock()
    begin_s = time.process_time()
    following = asyncio.get_running_loop().create_task(TransitionReader(folds, clock, print).follow(settings))
    while not holds():
        await clock.sleep(0.01)
    rate = folds.taken / (time.process_time() - begin_s)
    following.cancel()
    with suppress(asyncio.CancelledError):
        await following
    return rate


def _begin_ms() -> int:
    """Return the start time of the first saga. It is chosen so that the last saga started ten minutes ago."""
    return SystemClock().now_ms() - SAGAS * APART_MS - 600_000


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * sysconf("SC_PAGE_SIZE")


def _slowest_ms(ask: Callable[[], object]) -> float:
    """Return the longest time of an answer, in milliseconds."""
    slowest_s = 0.0
    for _ in range(TIMES):
        begin_s = time.perf_counter()
        ask()
        slowest_s = max(slowest_s, time.perf_counter() - begin_s)
    return 1000 * slowest_s
