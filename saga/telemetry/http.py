"""HTTP server of a process: `/health/live`, `/health/ready` and `/metrics`.

Clients are not trusted: they may open connections and send nothing, send slowly, or send garbage. So the number of
connections is limited to a share of the process's file descriptors. Each connection serves one request and is closed
after a few seconds. Above the limit the oldest connection is closed, not the newest, so that a liveness probe succeeds
even among thousands of idle connections.
"""

import asyncio
import json
import logging
import resource
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from aiohttp import web

from saga.errors import ConfigurationError
from saga.support.clock import Clock
from saga.telemetry.events import Report
from saga.telemetry.health import Health, Reason, Watch, WorkerView
from saga.telemetry.metrics import Metrics, MetricsPage

RECOVERY_S = 0.2
"""Seconds between two checks of whether workers have caught up with the log."""
LOOK_S = 5.0
"""Seconds between two checks of whether each worker's store answers."""
CLOSE_S = 1.0
"""Seconds for which open requests may continue after the server has begun to stop."""


log = logging.getLogger("saga.telemetry")


@dataclass(frozen=True, slots=True)
class HttpEndpoint:
    """A running server, with the functions through which it receives telemetry events and workers."""

    host: str
    port: int
    report: Report
    watch: Watch


@asynccontextmanager
async def serve_http(
    address: str, services: Collection[str], stop: asyncio.Event, clock: Clock
) -> AsyncIterator[HttpEndpoint]:
    """Serve health and metrics of these services within the block.

    `address`: host:port; port 0 means any free port. Raises `ConfigurationError` if the server cannot listen there,
    because the port is in use or the host is not one of this machine.
    """
    health = Health(services, stop)
    metrics = Metrics(health.working, clock)

    @contextmanager
    def watch(worker: WorkerView) -> Iterator[None]:
        metrics.begins(worker)
        with health.watch(worker):
            yield

    runner = web.AppRunner(
        _build_app(health, MetricsPage(metrics, clock)), handle_signals=False, shutdown_timeout=CLOSE_S
    )
    await runner.setup()
    try:
        async with _listen(runner, address) as (host, port):
            # No TaskGroup: it would wrap the block's own exceptions.
            looking = asyncio.get_running_loop().create_task(_watch(health, metrics, clock), name="looking")
            looking.add_done_callback(_log_failure)
            try:
                yield HttpEndpoint(host, port, metrics, watch)
            finally:
                looking.cancel()
                await asyncio.wait([looking])
    finally:
        await runner.cleanup()


def _log_failure(looking: asyncio.Task[None]) -> None:
    if not looking.cancelled() and (why := looking.exception()) is not None:
        log.error("workers are no longer checked: health and recovery times are out of date", exc_info=why)


@asynccontextmanager
async def _listen(runner: web.AppRunner, address: str) -> AsyncIterator[tuple[str, int]]:
    host, _, port = address.rpartition(":")
    server, connections = runner.server, HttpConnections(compute_connections_max())
    assert server is not None  # the server is ready
    try:
        listener = await asyncio.get_running_loop().create_server(
            lambda: LimitedConnection(server, connections), host.strip("[]"), int(port), backlog=BACKLOG
        )
    except (OSError, ValueError) as why:  # ValueError: the host name is malformed
        reason = (why.strerror if isinstance(why, OSError) else None) or why
        problem = f"SAGA_HTTP is {address!r}: {reason}; choose another port, or stop the process that uses it"
        raise ConfigurationError("nothing was started:", [problem]) from why
    try:
        at = listener.sockets[0].getsockname()
        yield str(at[0]), int(at[1])
    finally:
        listener.close()


# ---------------------------------------------------------------- pages


def _build_app(health: Health, page: MetricsPage) -> web.Application:
    async def live(_: web.Request) -> web.Response:
        return _respond("alive", health.not_alive())

    async def ready(_: web.Request) -> web.Response:
        return _respond("ready", health.not_ready())

    async def metrics(request: web.Request) -> web.Response:
        text, content_type = await page.text(request.headers.get("Accept", ""))
        return web.Response(body=text, headers={"Content-Type": content_type})

    app = web.Application(client_max_size=1)
    app.on_response_prepare.append(close_after_response)
    app.add_routes([web.get("/health/live", live), web.get("/health/ready", ready), web.get("/metrics", metrics)])
    return app


def _respond(what: str, against: Sequence[Reason]) -> web.Response:
    """Respond with status 200 if there are no reasons `against`, otherwise with 503 and the reasons."""
    body = {what: not against, "reasons": [reason._asdict() for reason in against]}
    headers = {"Cache-Control": "no-store"}
    return web.Response(
        status=503 if against else 200, text=f"{json.dumps(body)}\n", content_type="application/json", headers=headers
    )


# ---------------------------------------------------------------- checks


async def _watch(health: Health, metrics: Metrics, clock: Clock) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_watch_recoveries(metrics, clock))
        tasks.create_task(_watch_workers(health, clock))


async def _watch_recoveries(metrics: Metrics, clock: Clock) -> None:
    while True:
        await clock.sleep(RECOVERY_S)
        metrics.look()


async def _watch_workers(health: Health, clock: Clock) -> None:
    while True:
        await clock.sleep(LOOK_S)
        looks = [worker.look() for worker in health.working.values()]
        await asyncio.gather(*looks, return_exceptions=True)  # failures are reported where messages are handled


# -------------------------------------------------------------------- connections


CONNECTION_S = 10.0
"""Maximum lifetime of a connection in seconds, from its opening to the last byte of the response."""
CONNECTIONS_MAX, CONNECTIONS_LEAST = 100, 8
SHARE = 10
"""The process's limit of file descriptors, divided by this number, is the maximum number of connections. The maximum is
kept between `CONNECTIONS_LEAST` and `CONNECTIONS_MAX`."""
BACKLOG = 16
"""Maximum number of connections that asyncio accepts in one go, before the oldest ones can be closed."""
LINE_BYTES_MAX, FIELD_BYTES_MAX, FIELDS_MAX = 2048, 4096, 64
"""Limits of a request: the length of its first line and of each header in bytes, and the number of headers."""
SERVER = "saga"
"""Value of the `Server` header, which reveals neither library nor version."""


def compute_connections_max() -> int:
    """Return the maximum number of open connections, which depends on the limit of file descriptors."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return CONNECTIONS_MAX
    return max(CONNECTIONS_LEAST, min(CONNECTIONS_MAX, soft // SHARE))


class HttpConnections:
    """The open connections, oldest first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: dict[asyncio.Transport, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self._open)

    def came(self, transport: asyncio.Transport) -> None:
        """Add a connection, which is closed after `CONNECTION_S`. If there are too many, close the oldest one."""
        while len(self._open) >= self._most:
            oldest = next(iter(self._open))
            self.went(oldest)
            oldest.abort()
        self._open[transport] = asyncio.get_running_loop().call_later(CONNECTION_S, transport.abort)

    def went(self, transport: asyncio.BaseTransport | None) -> None:
        """Remove a connection that is closed or is about to be closed."""
        ends = self._open.pop(transport, None)  # type: ignore[call-overload]  # other transports are not keys
        if ends is not None:
            ends.cancel()


class LimitedConnection(web.RequestHandler):
    """Protocol of one connection, which limits the size of a request and the number of connections."""

    __slots__ = ("_connections", "_own")

    def __init__(self, server: web.Server, connections: HttpConnections) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=0,  # `HttpConnections` closes them
            tcp_keepalive=False,
            access_log=None,  # type: ignore[arg-type]  # as aiohttp's own `run_app` gives it, for none
            max_line_size=LINE_BYTES_MAX,
            max_field_size=FIELD_BYTES_MAX,
            max_headers=FIELDS_MAX,
            lingering_time=0,
        )
        self._connections = connections
        self._own: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._own = transport
        self._connections.came(transport)
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._connections.went(self._own)
        super().connection_lost(exc)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Respond to a malformed request without logging it, so that clients cannot fill the log. Only errors of this
        server (status 500 and above) are logged."""
        if status >= 500:
            self.log_exception("an HTTP request failed", exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionError("the response has already begun")
        response = web.Response(status=status, text=f"{status}\n", headers={"Server": SERVER})
        response.force_close()
        return response


async def close_after_response(request: web.Request, response: web.StreamResponse) -> None:
    """Hook for aiohttp's `on_response_prepare`, which closes each connection after one request."""
    response.headers["Server"] = SERVER
    response.headers["Connection"] = "close"
    response.force_close()
