"""Application that serves the answers of a shared monitor, in JSON."""

import asyncio
from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from saga.broker.adapter import TakesClients
from saga.configuration import adapters
from saga.configuration.settings import Settings
from saga.errors import BrokerUnavailable, ConfigurationError
from saga.messaging.names import TRANSITIONS
from saga.monitor.read_model import SAGAS_MAX
from saga.monitor.reader import POLL_S, Report
from saga.monitor.server import format_address, open_listener, run_server
from saga.monitor.shared.queries import ASKS, SharedQueries, decode_question
from saga.monitor.shared.worker import KEPT, RATES, MonitorWorker, changelog_topic
from saga.monitor.web.guards import GuardMiddleware
from saga.ops.sources import open_administration
from saga.support.clock import Clock

QUESTION_BYTES_MAX = 16 << 20
NO_PAGE = (
    "This monitor is shared by several processes, and answers in JSON: /api/stuck, /api/rates, /api/errors, /api/hot, "
    "/api/trace/SAGA.\nThe page is served by a monitor that is not shared: saga monitor run.\n"
)


def create_shared_app(answering: SharedQueries, settings: Settings) -> Starlette:
    """The application."""

    async def trace(request: Request) -> Response:
        found, unanswered = await answering.saga(request.path_params["saga"])
        if found is not None:
            return _respond(found, unanswered)
        if unanswered:
            what = "nothing was told of this saga as far as workers answer"
            return _respond({"error": f"{what}; not asked: {'; '.join(unanswered)}"}, status=503)
        return _respond({"error": "nothing was told of this saga"}, status=404)

    async def stuck(_: Request) -> Response:
        found = await answering.stuck()
        return _respond(found, found.unanswered)

    async def rates(_: Request) -> Response:
        found = await answering.rates()
        return _respond(found, found.unanswered)

    async def errors(_: Request) -> Response:
        found, unanswered = await answering.errors()
        return _respond(found, unanswered)

    async def hot(_: Request) -> Response:
        found = await answering.hot()
        return _respond(found, found.unanswered)

    async def part(request: Request) -> Response:
        """Answer to another worker, with what is here."""
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > QUESTION_BYTES_MAX:
                return PlainTextResponse("that is no question\n", 413)
        try:
            question = decode_question(body)
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
        middleware=[Middleware(GuardMiddleware, hosts=hosts)],
    )


def _respond(value: object, unanswered: tuple[str, ...] = (), status: int = 200) -> Response:
    """Answer in JSON; of one that is not whole the status says so."""
    return Response(msgspec.json.encode(value), 206 if unanswered else status, media_type="application/json")


# -------------------------------------------------------------------- serving


NOT_STARTED = "the shared monitor was not started:"


class SharedOptions(NamedTuple):
    """Choices of whoever starts a worker of a shared monitor."""

    name: str
    """Name under which its workers find each other, and under which its tables are kept."""
    address: str
    """Host and port to listen at, and at which the other workers ask."""
    sagas_max: int = SAGAS_MAX


async def serve_shared(
    wanted: SharedOptions,
    settings: Settings,
    stop: asyncio.Event,
    clock: Clock,
    begun: Callable[[str], None],
    tell: Report,
) -> None:
    """Fold a share, and answer for all, until `stop`. `begun` is told the address once it answers, `tell` what keeps it
    from folding. Raises `SagaError` for what keeps it from starting, or ends it."""
    adapter = adapters.broker_adapter(settings.broker)
    if not isinstance(adapter, TakesClients):
        problem = (
            f"several processes share a monitor on Kafka, and SAGA_BROKER is {settings.broker}: there one reads "
            "everything, leave out --shared"
        )
        raise ConfigurationError(NOT_STARTED, [problem])
    if problem := _find_problem(wanted):
        raise ConfigurationError(NOT_STARTED, [problem])
    partitions = await _count_partitions(wanted.name, settings, stop, clock, tell)
    if partitions is None:
        return
    options = adapter.client_options(settings)
    async with open_administration(settings, clock) as broker:
        with open_listener(wanted.address) as listener:
            worker = MonitorWorker(
                wanted.name, format_address(listener), partitions, wanted.sagas_max, clock, broker.fetch_log_ids
            )
            following = worker.follow(options, adapter.required_replicas(settings))
            await run_server(
                listener, create_shared_app(SharedQueries(worker, clock), settings), following, stop, clock, begun
            )


def _find_problem(wanted: SharedOptions) -> str:
    """Reason why the others could not ask at this address; empty if they can."""
    host = wanted.address.rpartition(":")[0].strip("[]")
    if host in ("", "0.0.0.0", "::"):  # refused, not listened at
        return f"others ask it at the address at which it listens, and {wanted.address!r} is none of a host: name one"
    return ""


async def _count_partitions(
    name: str, settings: Settings, stop: asyncio.Event, clock: Clock, tell: Report
) -> int | None:
    """Count the partitions to share, once there is a topic; `None` if it was stopped before."""
    told = ""
    while not stop.is_set():
        try:
            async with open_administration(settings, clock) as broker:
                counts = await broker.count_partitions([TRANSITIONS, *_list_tables(name)])
            if TRANSITIONS in counts:
                return _check_partitions(name, counts)
            text = f"no service has told anything yet: there is no topic {TRANSITIONS}, or it is hidden from us"
        except BrokerUnavailable as why:
            text = str(why)
        if text != told:
            tell(text)
            told = text
        await clock.sleep(POLL_S)
    return None


def _check_partitions(name: str, counts: Mapping[str, int]) -> int:
    """Partitions of the topic, if the tables have as many. Raises `ConfigurationError`."""
    problems = [
        f"{TRANSITIONS} has {counts[TRANSITIONS]} partitions, and {table} of this monitor has {counts[table]}: choose "
        "another name, under which it begins anew"
        for table in _list_tables(name)
        if counts.get(table, counts[TRANSITIONS]) != counts[TRANSITIONS]
    ]
    if problems:
        raise ConfigurationError(NOT_STARTED, problems)
    return counts[TRANSITIONS]


def _list_tables(name: str) -> list[str]:
    return [changelog_topic(name, KEPT), changelog_topic(name, RATES)]
