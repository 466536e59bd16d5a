"""Connections of those who ask over HTTP: few, short, and none that holds up the process or fills its log.

Whoever reaches the port may open connections and send nothing, or slowly, or rubbish. So there is one request in each,
all of it within seconds; and when there are too many, the oldest goes, not the newest: a probe for life gets through
among thousands that wait for nothing. They never take more than a share of the descriptors that the process may have.
"""

import asyncio
import resource

from aiohttp import web

CONNECTION_S = 10.0
"""Longest life of a connection: from its beginning to the last byte of the answer."""
CONNECTIONS_MAX, CONNECTIONS_LEAST = 100, 8
SHARE = 10
"""Share of the process's descriptors that connections may take: one in so many."""
BACKLOG = 16
"""Connections that asyncio accepts at once, before the oldest can go."""
LINE_BYTES_MAX, FIELD_BYTES_MAX, FIELDS_MAX = 2048, 4096, 64
"""Limits of a request: its first line, each header, and how many headers."""
SERVER = "saga"
"""Value of the header `Server`: neither the library nor its version."""


def connections_max() -> int:
    """Most connections that there may be at once."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return CONNECTIONS_MAX
    return max(CONNECTIONS_LEAST, min(CONNECTIONS_MAX, soft // SHARE))


class Connections:
    """Open connections, oldest first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: dict[asyncio.Transport, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self._open)

    def came(self, transport: asyncio.Transport) -> None:
        """Take in a connection: the oldest goes if there are too many, and this one when its time is over."""
        while len(self._open) >= self._most:
            oldest = next(iter(self._open))
            self.went(oldest)
            oldest.abort()
        self._open[transport] = asyncio.get_running_loop().call_later(CONNECTION_S, transport.abort)

    def went(self, transport: asyncio.BaseTransport | None) -> None:
        """Forget a connection that is closed, or will be in a moment."""
        ends = self._open.pop(transport, None)  # type: ignore[call-overload]  # any other is not there
        if ends is not None:
            ends.cancel()


class Connection(web.RequestHandler):
    """Connection with one who asks, which asyncio calls as a protocol."""

    __slots__ = ("_connections", "_own")

    def __init__(self, server: web.Server, connections: Connections) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=0,  # `Connections` ends them
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
        """Answer what cannot be read, without a word in the log: else who sends rubbish would fill it. A defect of ours
        is logged."""
        if status >= 500:
            self.log_exception("an answer over HTTP failed", exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionError("the answer has begun")
        response = web.Response(status=status, text=f"{status}\n", headers={"Server": SERVER})
        response.force_close()
        return response


async def closing(request: web.Request, response: web.StreamResponse) -> None:
    """Close each connection after one request: a hook for `on_response_prepare`."""
    response.headers["Server"] = SERVER
    response.headers["Connection"] = "close"
    response.force_close()
