"""The process of the monitor. It reads transition events into the read model, and serves the page and the JSON API."""

import asyncio
import socket
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import h11
import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from saga.configuration.settings import Settings
from saga.errors import ConfigurationError
from saga.monitor.queries import Queries
from saga.monitor.read_model import SAGAS_MAX, ReadModel
from saga.monitor.reader import Report, TransitionReader
from saga.monitor.web.app import create_app
from saga.support.clock import Clock

HEAD_BYTES_MAX = 16_384
"""Maximum size in bytes of a request, not counting its body."""
CONNECTIONS_MAX = 64
"""Maximum number of open connections.

If there are more, the connection that has kept the server waiting longest is closed. If the server is answering all of
them, new clients are asked to try again.
"""
ANSWER_S_MAX = 60.0
"""Time limit in seconds for an answer, until the client has received its last byte."""
REQUEST_S_MAX = 10.0
"""Time limit in seconds for a complete request, counted from the opening of its connection or from the end of the
previous answer."""
END_S = 3
"""Seconds for which answers in progress may continue after the server has begun to stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Options of a monitor process."""

    address: str
    """Host and port to listen on; port 0 means any free port."""
    stores: Sequence[str] = ()
    """Addresses of stores to read. If this is empty, the setting `SAGA_STORE` is used."""
    since_ms: int | None = None
    """Time from which on transitions are read; `None` means all."""
    sagas_max: int = SAGAS_MAX


class HttpConnection(H11Protocol):
    """HTTP connection with time limits. A client that sends nothing, sends slowly, or does not read the answer loses
    its connection. So it cannot block other clients."""

    _open: ClassVar[dict["HttpConnection", asyncio.TimerHandle]] = {}
    """Open connections with the timers for their time limits. The oldest limit comes first."""
    _is_asking = True
    """True until the client has sent a complete request."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        if len(self.connections) >= CONNECTIONS_MAX and (oldest := self._oldest()) is not None:
            oldest.give_up()
        super().connection_made(transport)
        self._has(REQUEST_S_MAX)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._is_asking = False  # the next request has a time limit of its own
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended()
        super().connection_lost(exc)

    def give_up(self) -> None:
        """Close this connection, because its time limit has passed or its place is needed."""
        self._ended()
        self.connections.discard(self)
        self.transport.abort()

    def _oldest(self) -> "HttpConnection | None":
        """Return the connection that has kept this server waiting longest; `None` if no client keeps it waiting."""
        return next((each for each in self._open if each._is_asking and each.server_state is self.server_state), None)

    def _look(self) -> None:
        is_asking = self.conn.their_state in (h11.IDLE, h11.SEND_BODY)
        if is_asking != self._is_asking and self in self._open:
            self._has(REQUEST_S_MAX if is_asking else ANSWER_S_MAX)
        self._is_asking = is_asking

    def _has(self, seconds: float) -> None:
        self._ended()
        self._open[self] = self.loop.call_later(seconds, self.give_up)

    def _ended(self) -> None:
        if (ends := self._open.pop(self, None)) is not None:
            ends.cancel()


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle no signals, because the process that started the server does so."""
        yield


async def serve(
    wanted: ServerOptions,
    settings: Settings,
    stop: asyncio.Event,
    clock: Clock,
    begun: Callable[[str], None],
    tell: Report,
) -> None:
    """Read transition events and answer queries until `stop` is set.

    Args:
        begun: Function that is called with the address when the server answers.
        tell: Function that is called with each problem that keeps the monitor from reading.

    Raises:
        SagaError: The monitor cannot start, or cannot continue.
    """
    folds = ReadModel(wanted.sagas_max)
    reader = TransitionReader(folds, clock, tell)
    made = create_app(Queries(folds), settings, clock, addresses=wanted.stores)
    with open_listener(wanted.address) as listener:
        await run_server(listener, made, reader.follow(settings, wanted.since_ms), stop, clock, begun)


async def run_server(
    listener: socket.socket,
    made: Starlette,
    follow: Coroutine[None, None, None],
    stop: asyncio.Event,
    clock: Clock,
    begun: Callable[[str], None],
) -> None:
    """Serve the application `made` while `follow` reads, until `stop` is set. If one of them ends with an exception,
    stop both and raise the exception."""
    server = _Server(
        uvicorn.Config(
            made,
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="on",
            ws="none",
            http=HttpConnection,
            limit_concurrency=CONNECTIONS_MAX + 1,
            timeout_graceful_shutdown=END_S,
            h11_max_incomplete_event_size=HEAD_BYTES_MAX,
        )
    )
    loop = asyncio.get_running_loop()
    reading = loop.create_task(follow, name="reading")
    serving = loop.create_task(server.serve([listener]), name="answering")
    stopped = loop.create_task(stop.wait(), name="stopped")
    try:
        while not (server.started or serving.done()):
            await clock.sleep(0.01)
        if not serving.done():
            begun(format_address(listener))
        await asyncio.wait([reading, serving, stopped], return_when=asyncio.FIRST_COMPLETED)
    finally:
        server.should_exit = True
        await asyncio.wait([serving])
        reading.cancel()
        stopped.cancel()
        await asyncio.wait([reading, stopped])
    for task in (serving, reading):
        if not task.cancelled() and (why := task.exception()) is not None:
            raise why


def format_address(listener: socket.socket) -> str:
    """Return the host and port on which a socket listens."""
    host, port = listener.getsockname()[:2]
    return f"{f'[{host}]' if ':' in host else host}:{port}"


@contextmanager
def open_listener(address: str) -> Iterator[socket.socket]:
    """Open a socket that listens on host:port. Raises `ConfigurationError` if that is not possible."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, int(port)), family=family)
    except (OSError, ValueError, OverflowError) as why:
        reason = (why.strerror if isinstance(why, OSError) else None) or why
        problem = f"it cannot listen at {address!r}: {reason}; choose another port, or stop the process that uses it"
        raise ConfigurationError("the monitor was not started:", [problem]) from why
    with listener:
        yield listener
