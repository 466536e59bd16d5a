"""A server of ours in a test: when its block ends, every connection is closed, and no task is left that serves one."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress


@asynccontextmanager
async def listening(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[int]:
    """The port at which `serve` is called for each connection. Python 3.11 leaves connections open that a closed server
    has accepted: one that is collected later spoils another test."""
    tasks: dict[asyncio.Task[object], asyncio.StreamWriter] = {}

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            await serve(reader, writer)
        writer.close()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks[asyncio.get_running_loop().create_task(served(reader, writer))] = (
            writer  # known at once, not once it runs
        )

    server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()
        for writer in tasks.values():
            writer.close()
        if tasks:
            await asyncio.wait(tasks)
        for writer in tasks.values():
            with suppress(OSError):
                await writer.wait_closed()
