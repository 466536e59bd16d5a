"""Clients of the HTTP port can neither stop a process, nor use up its descriptors, nor fill its log."""

import asyncio
import json
import logging
import os
import resource
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import pytest

from saga import Saga, Service
from saga.configuration import wiring
from saga.configuration.settings import Settings
from saga.contracts.library import contract_of
from saga.messaging import envelope
from saga.support.clock import SystemClock, iso
from saga.telemetry import http
from saga.telemetry.events import Handled, TelemetryEvent
from saga.telemetry.http import (
    BACKLOG,
    CONNECTIONS_LEAST,
    CONNECTIONS_MAX,
    FIELD_BYTES_MAX,
    FIELDS_MAX,
    LINE_BYTES_MAX,
    compute_connections_max,
    serve_http,
)
from services.order.events import OrderPlaced
from tests.engine.real_worker import an_order, message_of
from tests.telemetry.test_http import port, settings, until

__all__ = ["port", "settings"]

CLOCK = SystemClock()
ASK = b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n"
HALF = b"GET /health/live HTTP/1.1\r\nHost: x\r\nX-Slow: "
LONG = 64 << 20
RUBBISH = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET / HTTP/9.9\r\n\r\n",
    b"G\x00T / HTTP/1.1\r\n\r\n",
    b"GET /health/live HTTP/1.1\r\nno header\r\n\r\n",
    b"GET /health/live HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    b"GET /health/live HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\nzz",
    b"POST /metrics HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nnot a size\r\n",
    b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 5_000 + b"\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET /../../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\n\r\n",
    b"GET http://[::1 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\r\n" * 50,
]


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0


@asynccontextmanager
async def sent(host: str, port: int, first: bytes) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(first)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def asked(host: str, port: int, request: bytes = ASK) -> bytes:
    """All that is answered until the connection is closed."""
    async with sent(host, port, request) as (reader, _):
        try:
            return await CLOCK.within(8, reader.read())
        except ConnectionError:
            return b""


async def closed(reader: asyncio.StreamReader) -> None:
    """Return when the other side has closed the connection."""
    try:
        await reader.read()
    except ConnectionError:
        return


def body(answer: bytes) -> object:
    return json.loads(answer.partition(b"\r\n\r\n")[2])


# ---------------------------------------------------------------- how many


async def test_health_answers_among_500_connections_that_send_nothing_or_half_and_the_service_works(
    settings: Settings, port: int
) -> None:
    payment, stop, moments = Service("payment"), asyncio.Event(), list[TelemetryEvent]()

    @payment.handler
    async def note(event: OrderPlaced, saga: Saga) -> None:
        pass

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(wiring.run([payment.declared], settings, moments.append, stop))

        async def is_ready() -> bool:
            try:
                return (await asked("127.0.0.1", port, ASK.replace(b"live", b"ready"))).startswith(b"HTTP/1.1 200")
            except OSError:
                return False

        await until(is_ready)
        before = descriptors()
        async with AsyncExitStack() as held:
            for number in range(500):
                await held.enter_async_context(sent("127.0.0.1", port, b"" if number % 2 else HALF))
            for _ in range(20):
                assert body(await asked("127.0.0.1", port)) == {"alive": True, "reasons": []}
            assert await is_ready()
            message = message_of(an_order(), started=iso(CLOCK.now_ms()))
            async with wiring.open_broker(None, CLOCK, settings) as broker:
                await broker.publish([envelope.to_record(message, contract_of(OrderPlaced))])

            async def is_handled() -> bool:
                return any(isinstance(moment, Handled) for moment in moments)

            await until(is_handled)
            ours = descriptors() - before - 500
            assert ours <= compute_connections_max() + BACKLOG + 10
        stop.set()


@pytest.mark.parametrize(
    ("soft", "most"),
    [(resource.RLIM_INFINITY, CONNECTIONS_MAX), (1 << 20, CONNECTIONS_MAX), (256, 25), (20, CONNECTIONS_LEAST)],
)
def test_connections_take_a_share_of_the_descriptors(soft: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, soft))
    assert compute_connections_max() == most


async def test_the_oldest_goes_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("saga.telemetry.http.compute_connections_max", lambda: 3)
    async with serve_http("127.0.0.1:0", [], asyncio.Event(), CLOCK) as at, AsyncExitStack() as held:
        open_ = [await held.enter_async_context(sent(at.host, at.port, HALF)) for _ in range(4)]
        first, second = open_[0][0], open_[1][0]
        await CLOCK.within(5, closed(first))
        with pytest.raises(TimeoutError):
            await CLOCK.within(0.05, closed(second))
        open_[3][1].write(b"\r\n\r\n")
        assert (await CLOCK.within(5, open_[3][0].read())).startswith(b"HTTP/1.1 200")


# ---------------------------------------------------------------- how long


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> float:
    """Time after which a thing ends here that ends after ten seconds in use."""
    monkeypatch.setattr(http, "CONNECTION_S", 0.3)
    return 0.3


async def test_a_client_that_sends_nothing_or_slowly_is_disconnected(soon: float) -> None:
    async with serve_http("127.0.0.1:0", [], asyncio.Event(), CLOCK) as at:

        async def dripped(first: bytes) -> float:
            began_s = CLOCK.monotonic_s()
            async with sent(at.host, at.port, first) as (reader, writer):
                ending = asyncio.gather(closed(reader))
                while not ending.done():
                    if first and not writer.is_closing():
                        writer.write(b"a")
                    await CLOCK.sleep(0.02)
                await ending
            return CLOCK.monotonic_s() - began_s

        for took_s in await asyncio.gather(dripped(b""), dripped(HALF), dripped(b"GET /")):
            assert soon * 0.8 <= took_s < soon + 5


async def test_a_client_that_does_not_read_is_disconnected(soon: float, monkeypatch: pytest.MonkeyPatch) -> None:
    async def long(*_: object) -> bytes:
        return b"x" * LONG

    monkeypatch.setattr("saga.telemetry.metrics.asyncio.to_thread", long)
    async with (
        serve_http("127.0.0.1:0", [], asyncio.Event(), CLOCK) as at,
        sent(at.host, at.port, ASK.replace(b"/health/live", b"/metrics")) as (reader, writer),
    ):
        await reader.readexactly(9)
        writer.transport.pause_reading()  # type: ignore[attr-defined]  # it is one that reads
        await CLOCK.sleep(2 * soon)
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        got = 0
        with suppress(ConnectionError):
            while part := await reader.read(1 << 20):
                got += len(part)
        assert got < LONG


async def test_each_connection_has_one_answer(soon: float) -> None:
    async with serve_http("127.0.0.1:0", [], asyncio.Event(), CLOCK) as at:
        answer = await asked(at.host, at.port, ASK * 10)
    assert answer.count(b"HTTP/1.1 200") == 1
    assert b"Connection: close" in answer


async def test_a_body_without_end_is_not_waited_for() -> None:
    request = b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 10000000000\r\n\r\n"
    async with serve_http("127.0.0.1:0", [], asyncio.Event(), CLOCK) as at:
        began_s = CLOCK.monotonic_s()
        assert (await asked(at.host, at.port, request)).startswith(b"HTTP/1.1 405")
        assert CLOCK.monotonic_s() - began_s < http.CONNECTION_S / 2


# ---------------------------------------------------------------- what is logged


@pytest.mark.parametrize("rubbish", RUBBISH, ids=lambda rubbish: repr(rubbish[:24]))
async def test_rubbish_is_answered_without_a_word_in_the_log(rubbish: bytes, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with serve_http("127.0.0.1:0", [], asyncio.Event(), CLOCK) as at:
        for _ in range(20):
            async with sent(at.host, at.port, rubbish) as (reader, writer):
                writer.write_eof()
                try:
                    answer = await CLOCK.within(8, reader.read())
                except ConnectionError:
                    answer = b""
                assert answer[9:10] in (b"", b"4"), answer
                assert b"aiohttp" not in answer.lower()
                assert b"python" not in answer.lower()
        assert body(await asked(at.host, at.port)) == {"alive": True, "reasons": []}
    assert caplog.messages == []


@pytest.mark.parametrize("path_bytes", [1500, LINE_BYTES_MAX + 100])
@pytest.mark.parametrize("field_bytes", [10, FIELD_BYTES_MAX - 100, FIELD_BYTES_MAX + 100])
@pytest.mark.parametrize("fields", [1, FIELDS_MAX - 4, FIELDS_MAX + 4])
async def test_a_request_has_bounds(path_bytes: int, field_bytes: int, fields: int) -> None:
    """Else a hundred connections could make the process keep whatever they send."""
    fits = path_bytes < LINE_BYTES_MAX and field_bytes < FIELD_BYTES_MAX and fields < FIELDS_MAX
    given = b"".join(b"X-%d: %b\r\n" % (n, b"a" * field_bytes) for n in range(fields))
    request = b"GET /%b HTTP/1.1\r\nHost: x\r\n%b\r\n" % (b"a" * path_bytes, given)
    async with serve_http("127.0.0.1:0", [], asyncio.Event(), CLOCK) as at:
        answer = await asked(at.host, at.port, request)
    assert answer[9:12] in ((b"404",) if fits else (b"400", b"")), answer[:100]


@pytest.mark.parametrize("path", [b"/health/live", b"/health/ready", b"/metrics", b"/", b"/nowhere"])
async def test_no_answer_names_the_version_of_the_server(path: bytes) -> None:
    async with serve_http("127.0.0.1:0", [], asyncio.Event(), CLOCK) as at:
        answer = await asked(at.host, at.port, ASK.replace(b"/health/live", path))
    head = answer.partition(b"\r\n\r\n")[0].lower()
    assert head.startswith(b"http/1.1 ")
    assert b"server: saga\r\n" in head + b"\r\n"
    assert b"aiohttp" not in head


async def test_a_defect_of_a_page_is_answered_without_details(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> None:
        raise ZeroDivisionError("a secret of ours")

    monkeypatch.setattr("saga.telemetry.health.Health.not_alive", fails)
    async with serve_http("127.0.0.1:0", [], asyncio.Event(), CLOCK) as at:
        answer = await asked(at.host, at.port)
    assert answer.startswith(b"HTTP/1.1 500")
    assert b"secret" not in answer
    assert caplog.messages == ["an HTTP request failed"]


async def test_repeated_requests_for_the_page_get_the_one_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("saga.telemetry.metrics.PAGE_S", 3600)
    written = 0

    async def counted(*_: object) -> bytes:
        nonlocal written
        written += 1
        return b"saga_partitions 1\n"

    monkeypatch.setattr("saga.telemetry.metrics.asyncio.to_thread", counted)
    async with serve_http("127.0.0.1:0", [], asyncio.Event(), CLOCK) as at:
        page = b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: %s\r\n\r\n"
        answers = await asyncio.gather(*(asked(at.host, at.port, page % b"a/%d" % n) for n in range(50)))
    assert all(answer.endswith(b"saga_partitions 1\n") for answer in answers)
    assert written == 1
