"""A TCP proxy in front of a server on this machine. It can hold back, delay and cut connections."""

import asyncio
import threading
from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType, TracebackType
from typing import Self

from saga.support.clock import SystemClock

NOTHING: Mapping[bytes, bytes] = MappingProxyType({})
CHUNK_BYTES = 1 << 16
READY_S_MAX = 10.0


class Proxy:
    """A proxy from `port` to `target`. It runs in a thread of its own within the `with` block."""

    def __init__(self, port: int, target: int, *, instead: Mapping[bytes, bytes] = NOTHING) -> None:
        """Prepare the proxy.

        Args:
            instead: strings to replace in the answers of the server, because some servers send their own addresses to
                clients. Each replacement has the same length as the original.
        """
        assert all(len(theirs) == len(ours) for theirs, ours in instead.items())
        self.port, self.target, self._instead = port, target, instead
        self._clock = SystemClock()
        self._slow_s = 0.0
        self._connections: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._live()), name=f"proxy {port}", daemon=True)
        self._ready = threading.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(READY_S_MAX), f"the proxy on port {self.port} did not start"
        return self

    def __exit__(self, kind: type[BaseException] | None, why: BaseException | None, at: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(READY_S_MAX)

    # ---------------------------------------------------------------- faults, from any thread

    def hold(self) -> None:
        """Hold back all data, in both directions. Connections stay open, and new ones get no answer."""
        self._loop.call_soon_threadsafe(self._open.clear)

    def let_go(self) -> None:
        """Deliver the data that was held back, and continue."""
        self._loop.call_soon_threadsafe(self._open.set)

    def slow(self, seconds: float) -> None:
        """Delay all data by this time, in each direction."""
        self._slow_s = seconds

    def cut(self) -> None:
        """Abort all connections and drop the data in transit. New connections are accepted."""
        self._loop.call_soon_threadsafe(self._cut)

    # ---------------------------------------------------------------- on the thread

    async def _live(self) -> None:
        self._loop, self._over, self._open = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
        self._open.set()
        server = await asyncio.start_server(self._on_connection, "127.0.0.1", self.port)
        self._ready.set()
        try:
            await self._over.wait()
        finally:
            server.close()
            self._open.set()
            while self._tasks:  # a connection may have been accepted just now
                self._cut()
                await asyncio.wait(self._tasks)

    def _cut(self) -> None:
        for writer in self._connections:
            writer.transport.abort()

    def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._over.is_set():  # accepted just before the proxy ended, which no longer waits for it
            writer.transport.abort()
            return
        # Not a coroutine: its task would only begin later, so a proxy that ends in this moment would not wait for it.
        task = self._loop.create_task(self._connect(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        try:
            await self._open.wait()
            with suppress(OSError):  # the server does not run, so the client gets no connection either
                server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self.target)
                self._connections.add(server_writer)
                try:
                    async with asyncio.TaskGroup() as tasks:
                        tasks.create_task(self._pass_on(reader, server_writer))
                        tasks.create_task(self._pass_on(server_reader, writer, self._instead))
                finally:
                    await self._end(server_writer)
        finally:
            await self._end(writer)

    async def _end(self, writer: asyncio.StreamWriter) -> None:
        self._connections.discard(writer)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, instead: Mapping[bytes, bytes] = NOTHING
    ) -> None:
        with suppress(OSError):
            while chunk := await reader.read(CHUNK_BYTES):
                if self._slow_s:
                    await self._clock.sleep(self._slow_s)
                await self._open.wait()
                for theirs, ours in instead.items():
                    chunk = chunk.replace(theirs, ours)
                writer.write(chunk)
                await writer.drain()
        writer.close()
