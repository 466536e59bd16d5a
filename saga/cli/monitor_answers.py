"""`saga monitor trace`, `saga monitor stuck` and `saga monitor rates`: answers of the monitor, or, where none runs, out
of the topic itself."""

import asyncio
import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

import click
import msgspec

from saga.cli.options import broker_option
from saga.cli.printing import tell, tell_json, tell_trouble
from saga.configuration.settings import Settings
from saga.errors import SagaError
from saga.messaging.names import TRANSITIONS
from saga.monitor.client import MonitorClient
from saga.monitor.queries import Queries
from saga.monitor.read_model import ReadModel
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
from saga.ops.offsets import ServiceOffsets, find_unattended
from saga.support.clock import SystemClock, iso
from saga.support.printable import counted

Answer = TypeVar("Answer")

monitor_option = click.option(
    "--monitor",
    metavar="HOST:PORT",
    help="Where a monitor answers, in the place of SAGA_MONITOR. Without both the topic is read.",
)
"""The flag `--monitor`, in the place of SAGA_MONITOR."""
json_option = click.option("--json", "as_json", is_flag=True, help="One JSON document instead of text.")


@click.command()
@click.argument("saga_id")
@monitor_option
@broker_option
@json_option
def trace(saga_id: str, monitor: str | None, broker: str | None, as_json: bool) -> None:
    """Show the published transitions of one saga.

    It reads what services tell on the topic saga.transitions, and no store: `saga sagas show` reads the stores, and has
    more
    of each transition. Lines are by the clocks of the services, and may be out of order by as much as these differ.

    If SAGA_MONITOR is set, or --monitor given, the monitor there is asked; if it does not answer, or neither is given,
    the topic is read from its oldest record on. Which of both it was is told on standard error.

    \b
    Exit code 0: shown.
    Exit code 1: nothing was told of this saga, or only longer ago than the topic keeps.
    Exit code 2: asked wrongly, or neither monitor nor broker can be read.
    """
    now_ms = SystemClock().now_ms()
    found = _answer(monitor, broker, lambda asked: asked.saga(saga_id), lambda own: own.saga(saga_id, now_ms))
    if found is None:
        tell(f"nothing was told of saga {saga_id}; `saga sagas show {saga_id}` reads the stores", err=True)
        sys.exit(1)
    if as_json:
        tell_json(msgspec.to_builtins(found))
    else:
        tell(*_timeline(found))
    _tell_unanswered(found.unanswered)


@click.command()
@monitor_option
@broker_option
@json_option
def stuck(monitor: str | None, broker: str | None, as_json: bool) -> None:
    """List sagas that are stuck, and services that are down.

    \b
    dead      a dead letter blocks it: it waits for a person
    failing   a run is tried again that failed of the service's own code: it waits for a release, or a roll back
    overdue   the time of its next attempt, of a deadline, or for which a handler asked by `Later` has passed by 10 s,
              and nothing was told since
    waiting   a handler waits for events, for four times as long as 99 % of its waits took, and at least a minute
    silent    it has no outcome, waits for nothing that is known, and nothing was told for four times as long as 99 % of
              the sagas took that began with the same type of message, and at least a minute

    Besides, services that have messages to handle and no process: what they keep waiting no transition tells, as an
    order that is confirmed, and whose money is still reserved.

    Where fewer than 20 waits, or ends of sagas, are known, five minutes are allowed. As long as a time is set anywhere
    at which the saga goes on by itself, it is not waiting: it may become overdue. SINCE is the moment from which on it
    was stuck by this measure.

    If SAGA_MONITOR is set, or --monitor given, the monitor there is asked; if it does not answer, or neither is given,
    the topic saga.transitions is read from its oldest record on. Which of both it was is told on standard error.

    \b
    Exit code 0: nothing is stuck, and no service is down that has something to handle.
    Exit code 1: something is, or a service.
    Exit code 2: asked wrongly, or neither monitor nor broker can be read, or not all of a shared monitor.
    """
    now_ms = SystemClock().now_ms()
    found = _answer(monitor, broker, lambda asked: asked.stuck(), lambda own: own.stuck(now_ms))
    down = _down(Settings.from_environment(broker=broker, monitor=monitor))
    if as_json:
        tell_json({**msgspec.to_builtins(found), "down": {each.service: each.lag for each in down}})
    else:
        tell(*_stuck(found))
        for each in down:
            tell(f"{each.service} has no process, and {counted(each.lag, 'message')} to handle: start it")
    _tell_unanswered(found.unanswered)
    sys.exit(1 if found.sagas or down else 2 if found.unanswered else 0)


def _down(settings: Settings) -> list[ServiceOffsets]:
    """Services that nobody runs; none, where the broker cannot tell."""
    try:
        return asyncio.run(find_unattended(settings, SystemClock()))
    except SagaError as why:
        tell_trouble(f"whether each service runs is not known: {why}")
        return []


@click.command()
@monitor_option
@broker_option
@json_option
def rates(monitor: str | None, broker: str | None, as_json: bool) -> None:
    """Show throughput, latency and failures of each handler.

    All of the last 30 minutes before the newest transition; /s is of the last five whole ones. p50, p95, p99: half,
    95 % and 99 % of its runs took no longer, in milliseconds; they are exact to a twelfth. STORM: in the last five
    minutes it failed at least 20 times so that it is tried again, and more often than it came to an end.

    A partition is hot that gets at least 100 messages, and three times as many as the mean of its topic; a saga that
    has 50 transitions or more.

    If SAGA_MONITOR is set, or --monitor given, the monitor there is asked; if it does not answer, or neither is given,
    the topic saga.transitions is read from its oldest record on. Which of both it was is told on standard error.

    \b
    Exit code 0: shown.
    Exit code 2: asked wrongly, or neither monitor nor broker can be read.
    """

    def of(views: MonitorClient | Queries) -> tuple[HandlerRates, tuple[ErrorClass, ...], HotSpots]:
        return views.rates(), views.errors(), views.hot()

    found, errors, hot = _answer(monitor, broker, of, of)
    if as_json:
        tell_json(msgspec.to_builtins({"rates": found, "errors": errors, "hot": hot}))
    else:
        tell(*_rates(found), *_errors(errors), *_hot(hot))
    _tell_unanswered(found.unanswered or hot.unanswered)


# -------------------------------------------------------------------- where the answer is from


def _answer(
    monitor: str | None, broker: str | None, asks: Callable[[MonitorClient], Answer], reads: Callable[[Queries], Answer]
) -> Answer:
    """Answer of a monitor that runs, or else out of the topic; it is told which."""
    settings = Settings.from_environment(broker=broker, monitor=monitor)
    if settings.monitor:
        try:
            answer = asks(MonitorClient(settings.monitor))
        except OSError as why:
            reason = f"no monitor answers at {settings.monitor} ({why.strerror or why})"
        else:
            tell(f"as the monitor at {settings.monitor} says", err=True)
            return answer
    else:
        reason = "SAGA_MONITOR is not set"
    reader = TransitionReader(ReadModel(), SystemClock(), tell_trouble)
    there = asyncio.run(reader.read_all(settings))
    what = counted(reader.folds.taken, "transition") if there else "no service has told anything there yet"
    others = f", {reader.refused} records are none" if reader.refused else ""
    tell(f"{reason}: read from the topic {TRANSITIONS}: {what}{others}", err=True)
    return reads(Queries(reader.folds))


def _tell_unanswered(unanswered: Sequence[str]) -> None:
    """Tell what of a shared monitor is missing in an answer."""
    for each in unanswered:
        tell_trouble(f"missing in this answer: {each}")


# -------------------------------------------------------------------- text


def _timeline(found: Timeline) -> list[str]:
    row = found.row
    ended = f"ended with {row.outcome or row.result} ({row.result})" if row.result else "no outcome yet"
    lines = [f"saga {row.saga}: {ended}; told by {', '.join(row.services)}", ""]
    lines += _table([_line(line) for line in found.lines])
    if found.left_out:
        lines.append(f"and {found.left_out} before these")
    if found.missing:
        lines.append(f"{counted(found.missing, 'transition')} of it {'was' if found.missing == 1 else 'were'} not told")
    if found.awaited:
        lines += ["", "awaited:", *(f"  {_awaited(each)}" for each in found.awaited)]
    if found.stuck:
        lines += ["", "stuck:", *(f"  {each.why} since {iso(each.since_ms)}" for each in found.stuck)]
    return lines


def _line(line: TimelineRow) -> list[str]:
    story = line.type + (f" -> {', '.join(line.emitted)}" if line.emitted else "")
    story += f"  [{', '.join(line.steps)}]" if line.steps else ""
    story += f"  attempt {line.attempt}" if line.attempt > 1 else ""
    story += f"  ({line.error})" if line.error else ""
    took = "" if line.handler_ms is None else f"{line.handler_ms} ms"
    return [iso(line.time_ms), f"{line.service} {line.number}", line.handler, line.outcome, took, story]


def _awaited(each: SagaWait) -> str:
    who = f"{each.service}.{each.handler}" if each.handler else each.service
    return f"{who} since {iso(each.since_ms)}: {each.ends}"


def _stuck(found: StuckSagas) -> list[str]:
    if not found.sagas:
        return ["nothing of what could be asked is stuck" if found.unanswered else "nothing is stuck"]
    rows = [["SAGA", "WHY", "SINCE", "WHERE", "WHAT WOULD END IT"], *map(_stuck_row, found.sagas)]
    return [*_table(rows), *(["and more"] if found.more else [])]


def _stuck_row(each: StuckSaga) -> list[str]:
    where = f"{each.awaited.service}.{each.awaited.handler}" if each.awaited.handler else each.awaited.service
    return [each.saga, each.why, iso(each.since_ms), where, each.awaited.ends]


def _rates(found: HandlerRates) -> list[str]:
    told = f"{counted(found.sagas, 'saga')}, {found.in_flight} without an outcome; "
    if not found.handlers:
        return [f"{told}no transition was told"]
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
    return [f"{told}the {found.minutes} minutes up to {newest}", "", *_table([heading, *map(_rate, found.handlers)])]


def _rate(each: HandlerRate) -> list[str]:
    counts = each.transitions, each.runs, each.retries, each.dead
    times = each.p50_ms, each.p95_ms, each.p99_ms, each.queued_p95_ms
    numbers = [f"{each.per_s:.2f}", *map(str, counts), *(f"{ms:.0f}" for ms in times)]
    return [each.service, each.handler, *numbers, "STORM" if each.storm else ""]


def _errors(errors: Sequence[ErrorClass]) -> list[str]:
    if not errors:
        return []
    rows = [["FAILURES", "SERVICE", "HANDLER", "CLASS", "LAST", "OF"]]
    rows += [[str(e.count), e.service, e.handler, e.error, iso(e.last_ms), e.saga] for e in errors]
    return ["", *_table(rows)]


def _hot(hot: HotSpots) -> list[str]:
    lines = [f"hot saga {each.saga}: {each.transitions} transitions" for each in hot.sagas]
    for each in hot.partitions:
        times = f"{each.transitions} messages, {each.share:.1f} times the mean of its topic"
        lines.append(f"hot partition {each.topic}/{each.partition}: {times}")
    return ["", *lines] if lines else []


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
