"""The proxy between clients and a server: it delays, slows down or cuts off connections."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress

import pytest

from saga.support.clock import SystemClock
from saga.testing.servers.proxy import Proxy
from saga.testing.servers.server import free_ports

CLOCK = SystemClock()
WITHIN_S = 10.0
HELD_S = 0.2


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    port, target = free_ports(2)
    with Proxy(port, target, instead={b"at:1": b"at:2"}) as proxy:
        yield proxy


class Talk:
    """One connection to a server that says everything back."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def ask(self, words: bytes) -> bytes:
        """What comes back; empty if the connection ends instead, by a reset too: words may not have been read."""
        self._writer.write(words + b"\n")
        with suppress(ConnectionError):
            return (await CLOCK.within(WITHIN_S, self._reader.readline())).rstrip()
        return b""


@asynccontextmanager
async def echo(port: int) -> AsyncIterator[None]:
    there = list[asyncio.StreamWriter]()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there.append(writer)
        with suppress(ConnectionError):
            while line := await reader.readline():
                writer.write(line)

    async with await asyncio.start_server(connected, "127.0.0.1", port):
        yield
    for writer in there:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


@asynccontextmanager
async def talk(proxy: Proxy) -> AsyncIterator[Talk]:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    try:
        yield Talk(reader, writer)
    finally:
        writer.transport.abort()


async def test_the_proxy_forwards_bytes_and_rewrites_the_address_of_the_server(proxy: Proxy) -> None:
    async with echo(proxy.target), talk(proxy) as talking:
        assert await talking.ask(b"hello") == b"hello"
        assert await talking.ask(b"at:1") == b"at:2"


async def test_delayed_bytes_arrive_when_released_on_old_and_new_connections(proxy: Proxy) -> None:
    async with echo(proxy.target), talk(proxy) as old:
        await old.ask(b"before")
        proxy.hold()
        async with talk(proxy) as new, asyncio.TaskGroup() as tasks:
            held = [tasks.create_task(old.ask(b"old")), tasks.create_task(new.ask(b"new"))]
            done, _ = await asyncio.wait(held, timeout=HELD_S)
            assert not done
            proxy.let_go()
            assert [await each for each in held] == [b"old", b"new"]


async def test_slowed_bytes_arrive_later(proxy: Proxy) -> None:
    async with echo(proxy.target), talk(proxy) as talking:
        await talking.ask(b"before")
        proxy.slow(HELD_S)
        began_s = CLOCK.monotonic_s()
        assert await talking.ask(b"late") == b"late"
        assert CLOCK.monotonic_s() - began_s >= 2 * HELD_S


async def until_it_ends(talking: Talk) -> None:
    """Return when no server answers any more; the test's own limit bounds it."""
    while await talking.ask(b"still there?"):
        pass


async def test_connections_that_are_cut_end_and_new_ones_are_welcome(proxy: Proxy) -> None:
    async with echo(proxy.target):
        async with talk(proxy) as old:
            await old.ask(b"before")
            proxy.cut()
            await until_it_ends(old)
        async with talk(proxy) as new:
            assert await new.ask(b"again") == b"again"


async def test_a_connection_while_the_server_is_down_gets_no_answer(proxy: Proxy) -> None:
    async with talk(proxy) as talking:
        assert await talking.ask(b"is anybody there?") == b""
