"""HTTP server of a shared monitor. It asks all workers, merges their answers, and responds in JSON.

Each saga belongs to one partition, so a single worker can answer a question about it. But whether a saga is stuck
depends on the usual durations in all partitions. So the sums of all partitions are fetched first, and sent along with
the actual question.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from http.client import HTTPConnection, HTTPException
from typing import Literal, NamedTuple

import msgspec
from msgspec import Struct
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
from saga.monitor.counters import FailureCounts, MinuteCounts, RecentCounts, TimeHistogram
from saga.monitor.queries import Queries, compute_rates, find_hot_spots, list_errors
from saga.monitor.read_model import SAGAS_MAX, ReadModel
from saga.monitor.reader import POLL_S, Report
from saga.monitor.server import format_address, open_listener, run_server
from saga.monitor.shared.worker import KEPT, RATES, MonitorWorker, changelog_topic
from saga.monitor.views import (
    PAGE_MAX,
    ErrorClass,
    HandlerRates,
    HotSpots,
    StuckCount,
    StuckSaga,
    StuckSagas,
    Timeline,
    Why,
)
from saga.monitor.web.guards import GuardMiddleware
from saga.ops.sources import open_administration
from saga.progress.document import UNREADABLE
from saga.support.clock import Clock
from saga.support.printable import count_noun, shorten


class UsualDurations(Struct, frozen=True):
    """Usual waiting times of handlers, and usual lifetimes of sagas."""

    waits: dict[tuple[str, str], TimeHistogram]
    lives: dict[str, TimeHistogram]


class PartitionSums(Struct, frozen=True, kw_only=True):
    """The counts of one partition, or the sums over several partitions."""

    newest_ms: int
    sagas: int
    in_flight: int
    taken: int
    handlers: dict[tuple[str, str], dict[int, MinuteCounts]]
    failures: dict[tuple[str, str, str], FailureCounts]
    partitions: dict[tuple[str, int], dict[int, int]]
    busy: dict[str, int]
    usual: UsualDurations

    def to_counts(self) -> RecentCounts:
        """Convert the sums to the counters of a read model."""
        counts = RecentCounts()
        counts.newest_ms = self.newest_ms
        counts.handlers, counts.failures, counts.partitions = self.handlers, self.failures, self.partitions
        return counts


class WorkerQuestion(Struct, frozen=True):
    """A question to a worker about the partitions that it has."""

    what: Literal["sums", "stuck", "trace"]
    saga: str = ""
    now_ms: int = 0
    usual: UsualDurations | None = None


class WorkerReply(Struct, frozen=True):
    """A worker's answer to a question, by partition number."""

    sums: dict[int, PartitionSums] = {}
    stuck: dict[int, StuckSagas] = {}
    trace: dict[int, Timeline | None] = {}


def answer_question(question: WorkerQuestion, parts: dict[int, ReadModel]) -> WorkerReply:
    """Answer a question from the read models in `parts`, which are those of this worker's partitions."""
    match question.what:
        case "sums":
            return WorkerReply(sums={partition: sum_model(model) for partition, model in parts.items()})
        case "stuck":
            asked = {number: Queries(model, question.usual) for number, model in parts.items()}
            return WorkerReply(stuck={number: answers.stuck(question.now_ms) for number, answers in asked.items()})
        case "trace":
            asked = {number: Queries(model, question.usual) for number, model in parts.items()}
            return WorkerReply(
                trace={number: answers.saga(question.saga, question.now_ms) for number, answers in asked.items()}
            )


def sum_model(model: ReadModel) -> PartitionSums:
    """Return the sums of one partition."""
    return PartitionSums(
        newest_ms=model.counts.newest_ms,
        sagas=len(model.sagas),
        in_flight=len(model.without_outcome),
        taken=model.taken,
        handlers=model.counts.handlers,
        failures=model.counts.failures,
        partitions=model.counts.partitions,
        busy=model.busy,
        usual=UsualDurations(model.waits, model.lives),
    )


def add_up(several: Iterable[PartitionSums]) -> PartitionSums:
    """Add up the sums of several partitions."""
    counts, busy, waits, lives = (
        RecentCounts(),
        dict[str, int](),
        dict[tuple[str, str], TimeHistogram](),
        dict[str, TimeHistogram](),
    )
    sagas = in_flight = taken = 0
    for each in several:
        counts.merge(each.to_counts())
        busy.update(each.busy)
        sagas, in_flight, taken = sagas + each.sagas, in_flight + each.in_flight, taken + each.taken
        for kind, histogram in each.usual.lives.items():
            lives.setdefault(kind, TimeHistogram()).merge(histogram)
        for handler, histogram in each.usual.waits.items():
            waits.setdefault(handler, TimeHistogram()).merge(histogram)
    return PartitionSums(
        newest_ms=counts.newest_ms,
        sagas=sagas,
        in_flight=in_flight,
        taken=taken,
        handlers=counts.handlers,
        failures=counts.failures,
        partitions=counts.partitions,
        busy=busy,
        usual=UsualDurations(waits, lives),
    )


def merge_stuck(several: Iterable[StuckSagas], unanswered: tuple[str, ...]) -> StuckSagas:
    """Merge the stuck sagas of several partitions. Those stuck longest come first."""
    several = [*several]
    found = sorted((stuck for each in several for stuck in each.sagas), key=_sort_key)
    more = any(each.more for each in several) or len(found) > PAGE_MAX
    counts = Counter[tuple[Why, str, str]]()
    for each in several:
        for one in each.counts:
            counts[one.why, one.service, one.kind] += one.count
    return StuckSagas(
        sagas=tuple(found[:PAGE_MAX]),
        more=more,
        counts=tuple(sorted(StuckCount(why=w, service=of, kind=k, count=n) for (w, of, k), n in counts.items())),
        unanswered=unanswered,
    )


def _sort_key(stuck: StuckSaga) -> tuple[int, tuple[str, ...], str]:
    """Return the sort key of a stuck saga. It gives merged sagas the same order as the read model of one partition."""
    reason: tuple[str, ...] = (stuck.why,)
    if stuck.why == "waiting":
        reason = (stuck.why, stuck.awaited.service, stuck.awaited.handler)
    elif stuck.why != "silent":
        reason = (stuck.why, stuck.awaited.service)
    return stuck.since_ms - stuck.measure_ms, reason, stuck.saga


_questions, _replies = msgspec.msgpack.Decoder(WorkerQuestion), msgspec.msgpack.Decoder(WorkerReply)


def decode_question(content: bytes) -> WorkerQuestion:
    """Decode a question. Raises `msgspec.DecodeError` if it is invalid."""
    return _questions.decode(content)


def decode_reply(content: bytes) -> WorkerReply:
    """Decode an answer. Raises `msgspec.DecodeError` if it is invalid."""
    return _replies.decode(content)


# -------------------------------------------------------------------- answering


ASKS = "/api/part"
"""Path at which a worker receives questions of other workers."""
TIMEOUT_S = 5.0
REPLY_BYTES_MAX = 256 << 20
REASON_LENGTH_MAX = 200
"""Maximum length in characters of the reason why a worker does not answer."""


class TotalSums(Struct, frozen=True):
    """The sums over all partitions, and the reasons why some partitions are missing."""

    sums: PartitionSums
    unanswered: tuple[str, ...]


class SharedQueries:
    """Queries that any worker can answer, because it asks all other workers."""

    def __init__(self, worker: MonitorWorker, clock: Clock) -> None:
        self._worker, self._clock = worker, clock

    def reply(self, question: WorkerQuestion) -> WorkerReply:
        """Answer a question of another worker from the partitions of this one."""
        return answer_question(question, self._worker.ready_models())

    async def sums(self) -> TotalSums:
        """Fetch the sums of all partitions."""
        replies, unanswered = await self._ask(WorkerQuestion("sums"))
        parts = {number: sums for reply in replies for number, sums in reply.sums.items()}
        return TotalSums(add_up(parts.values()), (*unanswered, *self._list_missing(parts, unanswered)))

    async def rates(self) -> HandlerRates:
        """Return the rates and durations of each handler."""
        whole = await self.sums()
        sums = whole.sums
        found = compute_rates(sums.to_counts(), sagas=sums.sagas, in_flight=sums.in_flight, taken=sums.taken)
        return msgspec.structs.replace(found, unanswered=whole.unanswered)

    async def errors(self) -> tuple[tuple[ErrorClass, ...], tuple[str, ...]]:
        """Return failures by class, and the reasons why partitions are missing."""
        whole = await self.sums()
        return list_errors(whole.sums.to_counts()), whole.unanswered

    async def hot(self) -> HotSpots:
        """Return hot sagas and partitions."""
        whole = await self.sums()
        return msgspec.structs.replace(
            find_hot_spots(whole.sums.to_counts(), whole.sums.busy), unanswered=whole.unanswered
        )

    async def stuck(self) -> StuckSagas:
        """Return the sagas that are stuck now."""
        whole = await self.sums()
        asked = WorkerQuestion("stuck", now_ms=self._clock.now_ms(), usual=whole.sums.usual)
        replies, unanswered = await self._ask(asked)
        parts = {number: stuck for reply in replies for number, stuck in reply.stuck.items()}
        missing = (*unanswered, *self._list_missing(parts, unanswered))
        return merge_stuck(parts.values(), missing or whole.unanswered)

    async def saga(self, saga: str) -> tuple[Timeline | None, tuple[str, ...]]:
        """Return one saga over all services (`None` if it was not found), and the reasons why something may be
        missing."""
        whole = await self.sums()
        asked = WorkerQuestion("trace", saga=saga, now_ms=self._clock.now_ms(), usual=whole.sums.usual)
        replies, unanswered = await self._ask(asked)
        parts = {number: found for reply in replies for number, found in reply.trace.items()}
        missing = (*unanswered, *self._list_missing(parts, unanswered)) or whole.unanswered
        found = next((each for each in parts.values() if each is not None), None)
        return None if found is None else msgspec.structs.replace(found, unanswered=missing), missing

    # ---------------------------------------------------------------- asking other workers

    async def _ask(self, question: WorkerQuestion) -> tuple[list[WorkerReply], tuple[str, ...]]:
        """Ask every worker. Return the replies. Also return a text for each worker that does not answer, with its
        partitions and the reason."""
        owners, content = self._worker.owners(), msgspec.msgpack.encode(question)
        others = sorted(url for url in owners if url != self._worker.url)
        asked = [asyncio.to_thread(_ask_worker, url, content) for url in others]
        found = await asyncio.gather(*asked, return_exceptions=True)
        replies, unanswered = [answer_question(question, self._worker.ready_models())], []
        for url, reply in zip(others, found, strict=True):
            if isinstance(reply, WorkerReply):
                replies.append(reply)
            elif isinstance(reply, (OSError, HTTPException, ValueError)):
                why = shorten(str(reply) or type(reply).__name__, REASON_LENGTH_MAX)
                unanswered.append(f"{_name_partitions(owners[url])} with {url}, which does not answer: {why}")
            else:
                raise reply
        return replies, tuple(unanswered)

    def _list_missing(self, parts: Mapping[int, object], unanswered: tuple[str, ...]) -> list[str]:
        """Return a text that names the partitions which no worker has completely restored. Partitions of workers that
        did not answer are left out."""
        owned = self._worker.owners() if unanswered else {}
        silent = {
            number
            for url, numbers in owned.items()
            for number in numbers
            if any(f" with {url}, " in each for each in unanswered)
        }
        left = set(range(self._worker.partitions)) - set(parts) - silent
        return [f"{_name_partitions(left)}: on the way from one worker to another, ask again"] if left else []


def _ask_worker(url: str, content: bytes) -> WorkerReply:
    """Ask another worker. Raises `OSError` or `HTTPException` if it does not answer, and `ValueError` if its answer is
    not usable."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    connection = HTTPConnection(host.strip("[]"), int(port), timeout=TIMEOUT_S)
    try:
        connection.request("POST", ASKS, content, {"Origin": url, "Host": url.removeprefix("http://")})
        response = connection.getresponse()
        answer = response.read(REPLY_BYTES_MAX)
        if response.status != 200:
            raise ValueError(f"it answers {response.status}")
        return decode_reply(answer)
    finally:
        connection.close()


def _name_partitions(numbers: set[int]) -> str:
    which = ", ".join(map(str, sorted(numbers)))
    return f"{count_noun(len(numbers), 'partition')} of {TRANSITIONS} ({which})"


# -------------------------------------------------------------------- server


QUESTION_BYTES_MAX = 16 << 20
NO_PAGE = (
    "This monitor is shared by several processes, and answers in JSON: /api/stuck, /api/rates, /api/errors, /api/hot, "
    "/api/trace/SAGA.\nThe page is served by a monitor that is not shared: saga monitor run.\n"
)


def create_shared_app(answering: SharedQueries, settings: Settings) -> Starlette:
    """Create the application that serves the JSON API and answers other workers. Raises `ConfigurationError` if reading
    needs a login, because a shared monitor knows no users."""

    async def trace(request: Request) -> Response:
        found, unanswered = await answering.saga(request.path_params["saga"])
        if found is not None:
            return _respond(found, unanswered)
        if unanswered:
            what = "no worker that answered has transition events of this saga"
            return _respond({"error": f"{what}; no answer from: {'; '.join(unanswered)}"}, status=503)
        return _respond({"error": "there are no transition events of this saga"}, status=404)

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
        """Answer another worker from the partitions of this one."""
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > QUESTION_BYTES_MAX:
                return PlainTextResponse("the question is too large\n", 413)
        try:
            question = decode_question(body)
        except UNREADABLE as why:
            return PlainTextResponse(f"the question cannot be decoded: {why}\n", 400)
        return Response(msgspec.msgpack.encode(answering.reply(question)), media_type="application/msgpack")

    async def no_page(_: Request) -> Response:
        return PlainTextResponse(NO_PAGE)

    if settings.monitor_read == "login":
        problem = "SAGA_MONITOR_READ is login: leave it out, and put a proxy with a login in front"
        raise ConfigurationError("a shared monitor knows no users:", [problem])
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
    """Respond in JSON, with status 206 if parts are missing from the answer."""
    return Response(msgspec.json.encode(value), 206 if unanswered else status, media_type="application/json")


# -------------------------------------------------------------------- serving


NOT_STARTED = "the shared monitor was not started:"


class SharedOptions(NamedTuple):
    """The command-line options of a worker of a shared monitor."""

    name: str
    """Name of the monitor. Workers with the same name form one monitor. Its tables are named after it."""
    address: str
    """Host and port on which to listen. Other workers send their questions to this address."""
    sagas_max: int = SAGAS_MAX


async def serve_shared(
    wanted: SharedOptions,
    settings: Settings,
    stop: asyncio.Event,
    clock: Clock,
    begun: Callable[[str], None],
    tell: Report,
) -> None:
    """Read a share of the partitions, and answer queries about all of them, until `stop` is set.

    Args:
        begun: Function that is called with the address when the server answers.
        tell: Function that is called with each problem that keeps the worker from reading.

    Raises:
        SagaError: The worker cannot start, or cannot continue.
    """
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
    """Return the reason why other workers cannot use this address; empty if they can."""
    host = wanted.address.rpartition(":")[0].strip("[]")
    if host in ("", "0.0.0.0", "::"):  # other workers cannot connect to a wildcard address
        return f"other workers connect to this address, but {wanted.address!r} has no host: give one"
    return ""


async def _count_partitions(
    name: str, settings: Settings, stop: asyncio.Event, clock: Clock, tell: Report
) -> int | None:
    """Wait until the transition topic exists, and return its number of partitions. Return `None` if `stop` is set
    before."""
    reported = ""
    while not stop.is_set():
        try:
            async with open_administration(settings, clock) as broker:
                counts = await broker.count_partitions([TRANSITIONS, *_list_tables(name)])
            if TRANSITIONS in counts:
                return _check_partitions(name, counts)
            text = f"there are no transition events yet: topic {TRANSITIONS} is missing, or this user may not see it"
        except BrokerUnavailable as why:
            text = str(why)
        if text != reported:
            tell(text)
            reported = text
        await clock.sleep(POLL_S)
    return None


def _check_partitions(name: str, counts: Mapping[str, int]) -> int:
    """Return the number of partitions of the transition topic. Raises `ConfigurationError` if the tables have another
    number."""
    problems = [
        f"{TRANSITIONS} has {counts[TRANSITIONS]} partitions, and {table} of this monitor has {counts[table]}: choose "
        "another name, under which it starts from the beginning"
        for table in _list_tables(name)
        if counts.get(table, counts[TRANSITIONS]) != counts[TRANSITIONS]
    ]
    if problems:
        raise ConfigurationError(NOT_STARTED, problems)
    return counts[TRANSITIONS]


def _list_tables(name: str) -> list[str]:
    return [changelog_topic(name, KEPT), changelog_topic(name, RATES)]
