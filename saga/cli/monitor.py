"""`saga monitor`: run the monitor, query it over HTTP or read the topic of transition events instead, and create users
for its page."""

import asyncio
import re
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from http.client import HTTPConnection, HTTPException
from typing import TypeAlias, TypeVar, get_args
from urllib.parse import quote

import click
import msgspec
from msgspec import Struct

from saga.cli.main import Commands, LazyGroup
from saga.cli.options import broker_option, parse_since_ms, read_stores_option
from saga.cli.printing import print_error, print_json, print_lines
from saga.configuration import wiring
from saga.configuration.settings import Settings
from saga.errors import BadInput, ConfigurationError, SagaError
from saga.messaging.names import TRANSITIONS
from saga.monitor.queries import Queries
from saga.monitor.read_model import SAGAS_MAX, ReadModel
from saga.monitor.reader import TransitionReader
from saga.monitor.views import (
    ErrorClass,
    HandlerRate,
    HandlerRates,
    HotSpots,
    SagaWait,
    StuckSaga,
    StuckSagas,
    Timeline,
    TimelineRow,
)
from saga.monitor.web.users import Role, format_user_line
from saga.ops.offsets import ServiceOffsets, find_unattended
from saga.progress.document import UNREADABLE
from saga.support.clock import SystemClock, iso
from saga.support.printable import count_noun, shorten

ADDRESS = "127.0.0.1:8642"
"""Default address of the monitor."""

NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")
"""Valid names of a shared monitor. The names of its topics and of its consumer group begin with its name."""
Serve: TypeAlias = Callable[[asyncio.Event], Coroutine[None, None, None]]
"""Function that serves until the event is set."""


def _check_name(context: click.Context, parameter: click.Parameter, name: str | None) -> str | None:
    if name is not None and not NAME.fullmatch(name):
        raise click.BadParameter(
            "it must consist of letters, digits, '.', '_' and '-', at most 200, for example shop-monitor"
        )
    return name


MONITOR: Commands = {
    "run": ("saga.cli.monitor:run", "Run the monitor: its web page and its JSON API."),
    "stuck": ("saga.cli.monitor:stuck", "List sagas that are stuck, and services that are down."),
    "rates": ("saga.cli.monitor:rates", "Show throughput, latency and failures of each handler."),
    "trace": ("saga.cli.monitor:trace", "Show the published transitions of one saga."),
    "password": ("saga.cli.monitor:password", "Print a line for the file of users of the page."),
}


@click.group(cls=LazyGroup, commands=MONITOR)
def monitor() -> None:
    """Run the monitor and its web page; ask it what is stuck and how fast it goes.

    `stuck`, `rates` and `trace` ask the monitor at SAGA_MONITOR. Without one they read the topic saga.transitions.

    \b
    Exit code 0: done, or nothing is stuck.
    Exit code 1: something is stuck, or nothing is known of the saga.
    Exit code 2: wrong usage, or neither monitor nor broker can be read; standard error says what to do.
    """


@click.command()
@click.option("--listen", metavar="HOST:PORT", help=f"Address to listen on, instead of SAGA_MONITOR or {ADDRESS}.")
@click.option("--since", metavar="TIME", help="Read transitions since then: 90s, 2h, 3d ago or 2026-11-22T16:00:00Z.")
@click.option(
    "--sagas-max",
    type=click.IntRange(100, 10_000_000),
    default=SAGAS_MAX,
    show_default=True,
    help="Most sagas to keep; beyond that it forgets sagas that ended, oldest first.",
)
@click.option(
    "--shared",
    metavar="NAME",
    callback=_check_name,
    help="Share the work with all other processes of this name, on Kafka. JSON only, no page.",
)
@broker_option
@read_stores_option
def run(  # one parameter for each option
    listen: str | None,
    since: str | None,
    sagas_max: int,
    shared: str | None,
    broker: str | None,
    addresses: tuple[str, ...],
) -> None:
    """Run the monitor: its web page and its JSON API.

    `saga monitor trace`, `saga monitor stuck` and `saga monitor rates` ask it if SAGA_MONITOR names its address.

    It reads the topic saga.transitions, from the oldest record or from --since, and keeps its read model in memory:
    about a kilobyte for each saga. It only reads. It commits no offset, no service depends on it, and it may be killed
    and started again at any time.

    The page reads the stores, too, for single sagas and for what needs a person, and acts only for users in the file of
    SAGA_MONITOR_USERS.

    With --shared NAME several processes, on as many machines, share the work: each reads some partitions of the topic,
    keeps its read model in tables on Kafka, and answers for all. When a worker dies, the others take over its
    partitions. They have no page, and read no stores.

    See docs/operating/monitor.md. SIGTERM or Ctrl-C ends it.

    \b
    Exit code 0: stopped by a signal.
    Exit code 2: could not start, or cannot continue; standard error says what to do.
    """
    settings = Settings.from_environment(broker=broker, monitor=listen)
    clock = SystemClock()
    if shared is not None:
        if since is not None or addresses:
            raise click.UsageError("--shared reads the whole topic and no store: leave out --since and --store")
        _run_until_stopped(_prepare_shared(shared, sagas_max, settings, clock))
        return
    try:
        from saga.monitor.server import ServerOptions, serve
    except ImportError as why:
        problem = f"{why}; pip install 'saga-choreography[monitor]'"
        raise ConfigurationError("the monitor was not started:", [problem]) from why
    wanted = ServerOptions(
        address=settings.monitor or ADDRESS,
        stores=addresses,
        since_ms=None if since is None else parse_since_ms("--since", since, clock),
        sagas_max=sagas_max,
    )

    _run_until_stopped(lambda stop: serve(wanted, settings, stop, clock, _print_address, print_error))


def _prepare_shared(name: str, sagas_max: int, settings: Settings, clock: SystemClock) -> Serve:
    """Prepare a worker of a shared monitor, and return the function that runs it."""
    try:
        from saga.monitor.shared.server import SharedOptions, serve_shared
    except ImportError as why:
        problem = f"{why}; pip install 'saga-choreography[faust,kafka,monitor]'"
        raise ConfigurationError("the shared monitor was not started:", [problem]) from why
    wanted = SharedOptions(name, settings.monitor or ADDRESS, sagas_max)
    return lambda stop: serve_shared(wanted, settings, stop, clock, _print_address, print_error)


def _print_address(address: str) -> None:
    print_lines(f"the monitor answers at http://{address}")


def _run_until_stopped(serve: Serve) -> None:
    """Run the function until the process receives a stop signal."""

    async def until_stopped() -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        for name in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(name, stop.set)
        await serve(stop)

    wiring.tune_collector()
    asyncio.run(until_stopped())


# -------------------------------------------------------------------- client


TIMEOUT_S = 10.0
ANSWER_BYTES_MAX = 64 << 20
ERROR_TEXT_MAX = 1000
"""Maximum number of characters that are shown of an error."""

Answer = TypeVar("Answer")


class MonitorClient:
    """HTTP client of the monitor at an address (host:port)."""

    def __init__(self, address: str) -> None:
        self._address = address

    def saga(self, saga: str) -> Timeline | None:
        """Return one saga over all services; `None` if the monitor does not know it."""
        return self._ask(f"/api/trace/{quote(saga, safe='')}", Timeline)

    def stuck(self) -> StuckSagas:
        """Return the sagas that are stuck now."""
        return self._ask_required("/api/stuck", StuckSagas)

    def rates(self) -> HandlerRates:
        """Return rates and durations of each handler."""
        return self._ask_required("/api/rates", HandlerRates)

    def errors(self) -> tuple[ErrorClass, ...]:
        """Return failures by class."""
        return self._ask_required("/api/errors", tuple[ErrorClass, ...])

    def hot(self) -> HotSpots:
        """Return hot sagas and partitions."""
        return self._ask_required("/api/hot", HotSpots)

    def _ask_required(self, path: str, kind: type[Answer]) -> Answer:
        answer = self._ask(path, kind)
        if answer is None:
            raise self._no_monitor(f"it has no {path}")
        return answer

    def _no_monitor(self, why: object) -> SagaError:
        return SagaError(f"the server at {self._address} is no monitor: {why}; correct SAGA_MONITOR")

    def _ask(self, path: str, kind: type[Answer]) -> Answer | None:
        """Send a query and return the answer. Return `None` if the server answers as a monitor does for an unknown
        saga: with status 404 and an error. Other servers answer otherwise to a path that they do not have.

        Raises `OSError` if no server answers, and `SagaError` if the server is not a monitor or cannot answer.
        """
        host, _, port = self._address.rpartition(":")
        connection = HTTPConnection(host.strip("[]"), int(port), timeout=TIMEOUT_S)
        try:
            connection.request("GET", path, headers={"Accept": "application/json"})
            with connection.getresponse() as response:  # otherwise the error may keep its socket open
                content = response.read(ANSWER_BYTES_MAX)
            if response.status == 404 and _is_error(content):
                return None
            if response.status == 404:
                raise self._no_monitor(f"it has no {path}")
            if response.status == 503:
                raise SagaError(f"the monitor at {self._address} cannot answer: {_find_error(content)}")
            if response.status == 401:
                raise SagaError(
                    f"the monitor at {self._address} answers only to users: leave SAGA_MONITOR out to read the topic"
                )
            if response.status not in (200, 206):  # 206: the answer itself lists the missing parts
                raise SagaError(f"the monitor at {self._address} answers {response.status} to {path}; see its log")
            return msgspec.json.decode(content, type=kind)
        except (*UNREADABLE, HTTPException) as why:
            raise self._no_monitor(why) from why
        finally:
            connection.close()


class _ErrorAnswer(Struct, frozen=True):
    error: str


def _is_error(content: bytes) -> bool:
    """Return whether a response has the form of a monitor's error: a text, without the fields, such as a status, that
    web frameworks add."""
    try:
        return msgspec.json.decode(content, type=dict[str, str]).keys() == {"error"}
    except UNREADABLE:
        return False


def _find_error(content: bytes) -> str:
    """Return the error message in a response, shortened."""
    try:
        return shorten(msgspec.json.decode(content, type=_ErrorAnswer).error, ERROR_TEXT_MAX)
    except UNREADABLE:
        return "it is not ready, or has too many to answer; ask again"


# -------------------------------------------------------------------- queries


monitor_option = click.option(
    "--monitor",
    metavar="HOST:PORT",
    help="Address of a monitor, instead of SAGA_MONITOR. Without both the topic is read.",
)
"""The option `--monitor`, instead of SAGA_MONITOR."""
one_json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")


@click.command()
@click.argument("saga_id")
@monitor_option
@broker_option
@one_json_option
def trace(saga_id: str, monitor: str | None, broker: str | None, as_json: bool) -> None:
    """Show the published transitions of one saga.

    It reads the transition events that services publish on the topic saga.transitions, and no store. `saga sagas show`
    reads the stores, and shows more of each transition. Lines are ordered by the services' clocks, so they may be out
    of order by as much as the clocks differ.

    The monitor at SAGA_MONITOR or --monitor is asked. If none is set, or it does not answer, the topic is read from its
    oldest record. Standard error says which one was used.

    \b
    Exit code 0: shown.
    Exit code 1: no transition of this saga was published, or the topic no longer keeps it.
    Exit code 2: wrong usage, or neither monitor nor broker can be read.
    """
    now_ms = SystemClock().now_ms()
    found = _ask_or_read(monitor, broker, lambda asked: asked.saga(saga_id), lambda own: own.saga(saga_id, now_ms))
    if found is None:
        print_lines(
            f"no transition of saga {saga_id} was published; `saga sagas show {saga_id}` reads the stores", err=True
        )
        sys.exit(1)
    if as_json:
        print_json(msgspec.to_builtins(found))
    else:
        print_lines(*_format_timeline(found))
    _report_unanswered(found.unanswered)


@click.command()
@monitor_option
@broker_option
@one_json_option
def stuck(monitor: str | None, broker: str | None, as_json: bool) -> None:
    """List sagas that are stuck, and services that are down.

    \b
    dead      a dead letter blocks it: it waits for a person
    failing   a parked run fails because of the service's own code: it waits for a release or a rollback
    overdue   the time of its next attempt, of a deadline, or of a handler that returned `Later` passed more than 10 s
              ago, and nothing was reported since
    waiting   a handler waits for events, for four times as long as 99 % of its earlier waits took, and at least a
              minute
    silent    it has no outcome, waits for nothing that is known, and reported nothing for four times as long as 99 % of
              the sagas took that began with the same type of message, and at least a minute

    It also lists services that have messages to handle and no running process. What waits for such a service may not
    show up in any transition, for example money that stays reserved although the order is confirmed.

    While fewer than 20 earlier waits (or, for `silent`, outcomes) are known, the limit is five minutes. A saga that
    will resume by itself at a set time is not waiting; it may become overdue. SINCE is the time from which on it counts
    as stuck.

    The monitor at SAGA_MONITOR or --monitor is asked. If none is set, or it does not answer, the topic
    saga.transitions is read from its oldest record. Standard error says which one was used.

    \b
    Exit code 0: nothing is stuck, and no service with messages to handle is down.
    Exit code 1: a saga is stuck, or such a service is down.
    Exit code 2: wrong usage, or neither monitor nor broker can be read, or a shared monitor answered only in part, or
                 it is not known whether services run (`down` is null with --json).
    """
    now_ms = SystemClock().now_ms()
    found = _ask_or_read(monitor, broker, lambda asked: asked.stuck(), lambda own: own.stuck(now_ms))
    down = _find_unattended(Settings.from_environment(broker=broker, monitor=monitor))
    if as_json:
        lags = None if down is None else {each.service: each.lag for each in down}
        print_json({**msgspec.to_builtins(found), "down": lags})
    else:
        print_lines(*_format_stuck(found))
        for each in down or ():
            print_lines(
                f"{each.service} has no running process, and {count_noun(each.lag, 'message')} to handle: start it"
            )
    _report_unanswered(found.unanswered)
    sys.exit(1 if found.sagas or down else 2 if found.unanswered or down is None else 0)


def _find_unattended(settings: Settings) -> list[ServiceOffsets] | None:
    """Return the services that have unhandled records but no running process; `None` if the broker cannot be read."""
    try:
        return asyncio.run(find_unattended(settings, SystemClock()))
    except SagaError as why:
        print_error(f"whether each service runs is not known: {why}")
        return None


@click.command()
@monitor_option
@broker_option
@one_json_option
def rates(monitor: str | None, broker: str | None, as_json: bool) -> None:
    """Show throughput, latency and failures of each handler.

    The numbers cover the hour before the newest transition; the rate per second (/s) covers its last five whole
    minutes. p50, p95 and p99 are durations in milliseconds that 50 %, 95 % and 99 % of the handler's runs did not
    exceed, with an error of at most a twelfth. STORM marks a retry storm: in the last five minutes at least 20 attempts
    failed and are retried, and these are more than the runs that finished.

    A partition is hot if it gets at least 100 messages, and three times as many as the mean of its topic. A saga is hot
    if it has 50 transitions or more.

    The monitor at SAGA_MONITOR or --monitor is asked. If none is set, or it does not answer, the topic saga.transitions
    is read from its oldest record. Standard error says which one was used.

    \b
    Exit code 0: shown.
    Exit code 2: wrong usage, or neither monitor nor broker can be read.
    """

    def of(views: MonitorClient | Queries) -> tuple[HandlerRates, tuple[ErrorClass, ...], HotSpots]:
        return views.rates(), views.errors(), views.hot()

    found, errors, hot = _ask_or_read(monitor, broker, of, of)
    if as_json:
        print_json(msgspec.to_builtins({"rates": found, "errors": errors, "hot": hot}))
    else:
        print_lines(*_format_rates(found), *_format_errors(errors), *_format_hot_spots(hot))
    _report_unanswered(found.unanswered or hot.unanswered)


# -------------------------------------------------------------------- monitor or topic


def _ask_or_read(
    monitor: str | None, broker: str | None, asks: Callable[[MonitorClient], Answer], reads: Callable[[Queries], Answer]
) -> Answer:
    """Query a running monitor if there is one, otherwise read the topic. Print which of the two was used.

    `asks`: function that queries the monitor. `reads`: function that answers the same from the topic.
    """
    settings = Settings.from_environment(broker=broker, monitor=monitor)
    if settings.monitor:
        try:
            answer = asks(MonitorClient(settings.monitor))
        except OSError as why:
            reason = f"no monitor answers at {settings.monitor} ({why.strerror or why})"
        else:
            print_lines(f"answered by the monitor at {settings.monitor}", err=True)
            return answer
    else:
        reason = "SAGA_MONITOR is not set"
    reader = TransitionReader(ReadModel(), SystemClock(), print_error)
    has_topic = asyncio.run(reader.read_all(settings))
    what = count_noun(reader.folds.taken, "transition") if has_topic else "no service has published a transition yet"
    others = f", {reader.refused} records are not transitions" if reader.refused else ""
    print_lines(f"{reason}: read from the topic {TRANSITIONS}: {what}{others}", err=True)
    return reads(Queries(reader.folds))


def _report_unanswered(unanswered: Sequence[str]) -> None:
    """Print which parts are missing from the answer of a shared monitor."""
    for each in unanswered:
        print_error(f"missing in this answer: {each}")


# -------------------------------------------------------------------- text


def _format_timeline(found: Timeline) -> list[str]:
    row = found.row
    ended = f"ended with {row.outcome or row.result} ({row.result})" if row.result else "no outcome yet"
    lines = [f"saga {row.saga}: {ended}; reported by {', '.join(row.services)}", ""]
    lines += _format_table([_timeline_row(line) for line in found.lines])
    if found.left_out:
        lines.append(f"and {found.left_out} before these")
    if found.missing:
        lines.append(
            f"{count_noun(found.missing, 'transition')} {'is' if found.missing == 1 else 'are'} missing from the topic"
        )
    if found.awaited:
        lines += ["", "awaited:", *(f"  {_format_wait(each)}" for each in found.awaited)]
    if found.stuck:
        lines += ["", "stuck:", *(f"  {each.why} since {iso(each.since_ms)}" for each in found.stuck)]
    return lines


def _timeline_row(line: TimelineRow) -> list[str]:
    story = line.type + (f" -> {', '.join(line.emitted)}" if line.emitted else "")
    story += f"  [{', '.join(line.steps)}]" if line.steps else ""
    story += f"  attempt {line.attempt}" if line.attempt > 1 else ""
    story += f"  ({line.error})" if line.error else ""
    took = "" if line.handler_ms is None else f"{line.handler_ms} ms"
    return [iso(line.time_ms), f"{line.service} {line.number}", line.handler, line.outcome, took, story]


def _format_wait(each: SagaWait) -> str:
    who = f"{each.service}.{each.handler}" if each.handler else each.service
    return f"{who} since {iso(each.since_ms)}: {each.ends}"


def _format_stuck(found: StuckSagas) -> list[str]:
    if not found.sagas:
        return ["nothing is stuck in the part that answered" if found.unanswered else "nothing is stuck"]
    rows = [["SAGA", "WHY", "SINCE", "WHERE", "WHAT WOULD END IT"], *map(_format_stuck_row, found.sagas)]
    return [*_format_table(rows), *(["and more"] if found.more else [])]


def _format_stuck_row(each: StuckSaga) -> list[str]:
    where = f"{each.awaited.service}.{each.awaited.handler}" if each.awaited.handler else each.awaited.service
    return [each.saga, each.why, iso(each.since_ms), where, each.awaited.ends]


def _format_rates(found: HandlerRates) -> list[str]:
    summary = f"{count_noun(found.sagas, 'saga')}, {found.in_flight} without an outcome; "
    if not found.handlers:
        return [f"{summary}no transition was reported"]
    heading = [
        "SERVICE",
        "HANDLER",
        "/S",
        "TRANSITIONS",
        "RUNS",
        "RETRIES",
        "DEAD",
        "P50",
        "P95",
        "P99",
        "QUEUED P95",
        "",
    ]
    newest = iso(found.newest_ms)
    return [
        f"{summary}the {found.minutes} minutes up to {newest}",
        "",
        *_format_table([heading, *map(_format_rate, found.handlers)]),
    ]


def _format_rate(each: HandlerRate) -> list[str]:
    counts = each.transitions, each.runs, each.retries, each.dead
    times = each.p50_ms, each.p95_ms, each.p99_ms, each.queued_p95_ms
    numbers = [f"{each.per_s:.2f}", *map(str, counts), *(f"{ms:.0f}" for ms in times)]
    return [each.service, each.handler, *numbers, "STORM" if each.storm else ""]


def _format_errors(errors: Sequence[ErrorClass]) -> list[str]:
    if not errors:
        return []
    rows = [["FAILURES", "SERVICE", "HANDLER", "CLASS", "LAST", "OF"]]
    rows += [[str(e.count), e.service, e.handler, e.error, iso(e.last_ms), e.saga] for e in errors]
    return ["", *_format_table(rows)]


def _format_hot_spots(hot: HotSpots) -> list[str]:
    lines = [f"hot saga {each.saga}: {each.transitions} transitions" for each in hot.sagas]
    for each in hot.partitions:
        times = f"{each.transitions} messages, {each.share:.1f} times the mean of its topic"
        lines.append(f"hot partition {each.topic}/{each.partition}: {times}")
    return ["", *lines] if lines else []


def _format_table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


# -------------------------------------------------------------------- password


@click.command()
@click.argument("name")
@click.option(
    "--role",
    type=click.Choice(get_args(Role)),
    default="act",
    show_default=True,
    help="What NAME may do on the page: only read, or act, too.",
)
def password(name: str, role: Role) -> None:
    """Print a line for the file of users of the page.

    SAGA_MONITOR_USERS names that file. Users in it can sign in on the page, and act there; those with --role read can
    only read.

    You enter the password twice; without a terminal it is the first line of standard input. The printed line holds its
    scrypt hash. The monitor need not restart: a user whose line is removed or changed is signed out at once.

    \b
    saga monitor password ada >> users

    \b
    Exit code 0: printed.
    Exit code 2: the name or the password is not valid.
    """
    if sys.stdin.isatty():
        password_ = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        password_ = sys.stdin.readline().rstrip("\r\n")
    try:
        line = format_user_line(name, password_, role)
    except BadInput as why:
        raise click.UsageError(str(why)) from why
    print_lines(line)
