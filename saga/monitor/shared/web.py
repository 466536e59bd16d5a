"""Application that serves the answers of a shared monitor, in JSON."""

import msgspec
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from saga.configuration.settings import Settings
from saga.monitor.shared.answering import ASKS, Answering
from saga.monitor.shared.sums import question_in
from saga.monitor.web.guards import Guarded

QUESTION_BYTES_MAX = 16 << 20
NO_PAGE = (
    "This monitor is shared by several processes, and answers in JSON: /api/stuck, /api/rates, /api/errors, /api/hot, "
    "/api/trace/SAGA.\nThe page is served by a monitor that is not shared: saga monitor run.\n"
)


def app(answering: Answering, settings: Settings) -> Starlette:
    """The application."""

    async def trace(request: Request) -> Response:
        found, unanswered = await answering.saga(request.path_params["saga"])
        if found is not None:
            return _json(found, unanswered)
        if unanswered:
            what = "nothing was told of this saga as far as workers answer"
            return _json({"error": f"{what}; not asked: {'; '.join(unanswered)}"}, status=503)
        return _json({"error": "nothing was told of this saga"}, status=404)

    async def stuck(_: Request) -> Response:
        found = await answering.stuck()
        return _json(found, found.unanswered)

    async def rates(_: Request) -> Response:
        found = await answering.rates()
        return _json(found, found.unanswered)

    async def errors(_: Request) -> Response:
        found, unanswered = await answering.errors()
        return _json(found, unanswered)

    async def hot(_: Request) -> Response:
        found = await answering.hot()
        return _json(found, found.unanswered)

    async def part(request: Request) -> Response:
        """Answer to another worker, with what is here."""
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > QUESTION_BYTES_MAX:
                return PlainTextResponse("that is no question\n", 413)
        try:
            question = question_in(body)
        except msgspec.DecodeError as why:
            return PlainTextResponse(f"that is no question: {why}\n", 400)
        return Response(msgspec.msgpack.encode(answering.reply(question)), media_type="application/msgpack")

    async def no_page(_: Request) -> Response:
        return PlainTextResponse(NO_PAGE)

    hosts = [name.strip() for name in settings.monitor_hosts.split(",") if name.strip()]
    return Starlette(
        routes=[
            Route("/", no_page),
            Route("/api/trace/{saga:path}", trace),
            Route("/api/stuck", stuck),
            Route("/api/rates", rates),
            Route("/api/errors", errors),
            Route("/api/hot", hot),
            Route(ASKS, part, methods=["POST"]),
        ],
        middleware=[Middleware(Guarded, hosts=hosts)],
    )


def _json(value: object, unanswered: tuple[str, ...] = (), status: int = 200) -> Response:
    """Answer in JSON; of one that is not whole the status says so."""
    return Response(msgspec.json.encode(value), 206 if unanswered else status, media_type="application/json")
