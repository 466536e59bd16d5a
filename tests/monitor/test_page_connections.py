"""Clients of the monitor's page can neither lock others out, nor fill its log."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest

from saga.configuration.settings import Settings
from saga.monitor import server
from saga.monitor.server import CONNECTIONS_MAX, open_listener, run_server
from saga.monitor.web.app import create_app
from saga.monitor.web.users import format_user_line
from saga.support.clock import SystemClock

CLOCK = SystemClock()
HEAD = b"Host: 127.0.0.1\r\nOrigin: http://127.0.0.1\r\n"
ASK = b"GET /dead HTTP/1.1\r\n" + HEAD + b"Connection: close\r\n\r\n"
ASK_AGAIN = b"GET /dead HTTP/1.1\r\n" + HEAD + b"\r\n"
FORM = b"POST /sign-in HTTP/1.1\r\n" + HEAD + b"Content-Type: application/x-www-form-urlencoded\r\n"
SILENT = {
    "nothing": b"",
    "half of a line": b"GET /dead HT",
    "half of the headers": b"GET /dead HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ",
    "half of a form": FORM + b"Content-Length: 100\r\n\r\nname=ada",
    "another request that does not come": ASK_AGAIN,
}


@asynccontextmanager
async def page(folder: object, users: str = "") -> AsyncIterator[int]:
    """The page as it runs; its port. `users`: file of those who may sign in."""
    stop, begun = asyncio.Event(), asyncio.Event()

    async def reading() -> None:
        await asyncio.Event().wait()

    with open_listener("127.0.0.1:0") as listener:
        made = create_app(None, Settings(monitor_users=users), CLOCK)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(run_server(listener, made, reading(), stop, CLOCK, lambda _: begun.set()))
            await CLOCK.within(20, begun.wait())
            try:
                yield int(listener.getsockname()[1])
            finally:
                stop.set()


@asynccontextmanager
async def sent(port: int, first: bytes) -> AsyncIterator[asyncio.StreamReader]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(first)
    try:
        yield reader
    finally:
        writer.transport.abort()


async def asked(port: int) -> bytes:
    async with sent(port, ASK) as reader:
        return await CLOCK.within(20, reader.read())


@pytest.mark.parametrize("kind", SILENT)
async def test_slow_connections_lock_no_other_out(kind: str, folder: object) -> None:
    async with page(folder) as port, AsyncExitStack() as stack:
        for _ in range(2 * CONNECTIONS_MAX + 10):
            reader = await stack.enter_async_context(sent(port, SILENT[kind]))
            if SILENT[kind] == ASK_AGAIN:
                await reader.readuntil(b"\r\n\r\n")
        for _ in range(3):
            assert (await asked(port)).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("kind", SILENT)
async def test_a_request_has_its_time(kind: str, folder: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REQUEST_S_MAX", 0.3)
    async with page(folder) as port, sent(port, SILENT[kind]) as reader:
        with suppress(ConnectionError):
            await CLOCK.within(20, reader.read())
    assert server.HttpConnection._open == {}


async def test_an_answer_that_takes_too_long_is_given_up(folder: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "ANSWER_S_MAX", 0.3)

    async def never(scope: object, receive: object, send: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("saga.monitor.web.guards.GuardMiddleware.__call__", lambda self, scope, receive, send: (
        never(scope, receive, send) if scope["type"] == "http" else self._app(scope, receive, send)
    ))  # fmt: skip
    async with page(folder) as port, sent(port, ASK) as reader:
        with suppress(ConnectionError):
            assert await CLOCK.within(20, reader.read()) == b""


async def test_requests_one_after_another_on_one_connection_are_answered(folder: object) -> None:
    async with page(folder) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(3):
            writer.write(ASK_AGAIN * 2)  # the second before the first is answered
            for _ in range(2):
                head = await CLOCK.within(20, reader.readuntil(b"\r\n\r\n"))
                assert head.startswith(b"HTTP/1.1 200")
                length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
                await reader.readexactly(int(length.partition(b":")[2]))
        writer.transport.abort()


async def test_a_browser_that_goes_away_in_the_middle_is_no_error_in_the_log(
    folder: object, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    file = tmp_path / "users"
    file.write_text(format_user_line("ada", "correct horse"))
    async with page(folder, str(file)) as port:
        for first in (SILENT["half of a form"], ASK, SILENT["half of the headers"]):
            async with sent(port, first):
                await asked(port)  # by then what came before is in hand
            await asked(port)
        assert (await asked(port)).startswith(b"HTTP/1.1 200")
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
