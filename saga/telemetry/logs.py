"""Telemetry events as log lines: a JSON object per line for machines, or readable lines on a terminal.

The name of a line is the event's class name in snake case. Data are in the fields, never in the name.

There is one `handled` line for each handled message. So a search for the id of a saga or message shows its way through
a service. These lines are never suppressed, and neither are the lines for each step at level `debug`.

Of every other kind, at most 20 lines a minute are written, followed by the number of suppressed lines. So an outage or
a stream of bad input does not fill the disk. Metrics count all events.
"""

import json
import logging
import re
import sys
import threading
import traceback
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO, Literal, NamedTuple, Protocol

import msgspec
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from saga.messages import Partition
from saga.support.clock import Clock, SystemClock, iso
from saga.support.printable import printable
from saga.telemetry import events
from saga.telemetry.events import TelemetryEvent

LEVELS: Mapping[type[TelemetryEvent], int] = {
    events.Handled: logging.INFO,
    events.Traced: logging.NOTSET,  # used by traces only: not logged
    events.StepDone: logging.DEBUG,
    events.Failed: logging.DEBUG,
    events.Retrying: logging.WARNING,
    events.Parked: logging.WARNING,
    events.PutOff: logging.INFO,
    events.BreakerTurned: logging.WARNING,
    events.ControlTurned: logging.WARNING,
    events.ControlUnknown: logging.WARNING,
    events.CallWaited: logging.DEBUG,
    events.FellBack: logging.INFO,
    events.WriteRefused: logging.DEBUG,
    events.DeadLettered: logging.ERROR,
    events.ReplayEnded: logging.INFO,
    events.Escalated: logging.ERROR,
    events.Stuck: logging.ERROR,
    events.Unavailable: logging.ERROR,
    events.Recovered: logging.INFO,
    events.PassedOver: logging.DEBUG,
    events.UnknownType: logging.WARNING,
    events.OtherPartitioner: logging.WARNING,
    events.Expired: logging.ERROR,
    events.LogReplaced: logging.ERROR,
    events.PartitionsRaised: logging.WARNING,
    events.TimersLost: logging.ERROR,
    events.PublishedLost: logging.ERROR,
    events.SchemasDeployed: logging.INFO,
    events.ContractsUnreadable: logging.ERROR,
    events.TransitionsDropped: logging.WARNING,
    events.Misfit: logging.WARNING,
    events.Opened: logging.INFO,
    events.StillOpening: logging.WARNING,
    events.StoppedBeforeStart: logging.INFO,
    events.Started: logging.INFO,
    events.Stopped: logging.INFO,
    events.Assigned: logging.INFO,
    events.Revoked: logging.INFO,
    events.Lost: logging.WARNING,
    events.StandsStill: logging.ERROR,
    events.GoesOn: logging.INFO,
    events.TimerKept: logging.WARNING,
    events.StrangersMet: logging.ERROR,
    events.DeadlineBehindLog: logging.WARNING,
    events.DeadlinePassedLog: logging.ERROR,
    events.StartInFuture: logging.WARNING,
}
"""Log level of each event. A test checks that no event is missing here."""

ALWAYS = frozenset({events.Handled, events.StepDone})
"""Events whose lines are never suppressed: one for each message, and one for each step."""

_encode = msgspec.json.Encoder(decimal_format="string", enc_hook=str).encode


FRAMES_MAX = 20
"""Maximum number of traceback frames in a line. The innermost ones are written."""
QUOTED = frozenset(" \t=\r\n\"'")
"""Characters that make structlog quote a string."""
TEXT_MAX = 4000
"""Maximum length of a string in a line, in characters. Longer strings are cut."""
ALIKE = ("service", "handler", "type", "step", "topic", "partition", "what", "operation", "why")
"""Fields whose values come from code, not from data. Lines of one event that agree in these fields share a quota."""


class LineFormat(Protocol):
    """Settings for the format of log lines."""

    @property
    def log(self) -> Literal["auto", "json", "text"]: ...

    @property
    def log_level(self) -> str: ...


class EventLog:
    """Log that writes telemetry events as lines to `stream`, by default standard error.

    `settings.log` selects the format (default `auto`), and `settings.log_level` the lowest level (default `info`). Each
    line is written at once and flushed. So lines of several processes are not mixed, and the last line before a crash
    is not lost. Writing never raises an exception, because a service continues even if its log cannot be written.
    """

    def __init__(
        self, stream: IO[str] | None = None, settings: LineFormat | None = None, *, clock: Clock | None = None
    ) -> None:
        stream, clock = stream or sys.stderr, clock or SystemClock()
        assert stream is not None, "a process without standard error has to say where its log goes"
        asked, least = ("auto", "info") if settings is None else (settings.log, settings.log_level)
        form: Literal["json", "text"] = "json"
        if asked == "text" or (asked == "auto" and stream.isatty()):
            form = "text"
        self._level = logging.getLevelNamesMapping()[least.upper()]
        logger = structlog.wrap_logger(
            LineWriter(stream),
            processors=_build_processors(form, clock, colours=stream.isatty()),
            wrapper_class=structlog.make_filtering_bound_logger(self._level),
            cache_logger_on_first_use=True,
        ).bind()
        self._clock, self._quotas = clock, LogQuotas(clock)
        self._write: Mapping[int, Callable[..., None]] = {
            level: getattr(logger, logging.getLevelName(level).lower())
            for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR)
        }
        self._known = {
            kind: (self._write[loud], name_event(kind), _make_encoder(kind), kind not in ALWAYS)
            for kind, loud in LEVELS.items()
            if loud >= self._level
        }

    def report(self, moment: TelemetryEvent) -> None:
        """Write the log line of a telemetry event, unless its level is below the lowest one or its quota is used up.
        This method can be used as a `saga.telemetry.events.Report`."""
        if (line := self._known.get(type(moment))) is not None:
            write, name, read, is_bounded = line
            fields = read(moment)
            has_room = not is_bounded or self._quotas.has_room((name, *((each, fields.get(each)) for each in ALIKE)))
            if self._quotas.held_until_s is not None:
                self._write_suppressed(all_=has_room and type(moment) is events.Stopped)
            if has_room:
                write(name, **fields)

    @contextmanager
    def of_python(self) -> Iterator[None]:
        """Within the block, write records of `logging` and `warnings` in the same format, as event `log`.

        At most 20 lines a minute are written for each place in the code. If the application has configured `logging`
        itself, nothing is changed.
        """
        root, handler = logging.getLogger(), LibraryHandler(self)
        if root.handlers:
            yield
            return
        root.addHandler(handler)
        logging.captureWarnings(True)
        try:
            yield
        finally:
            logging.captureWarnings(False)
            root.removeHandler(handler)
            self._write_suppressed(all_=True)

    def write_record(self, record: logging.LogRecord) -> None:
        """Write the line of a library's log record, unless its level is below the lowest one or its quota is used
        up."""
        level = min(max(record.levelno // 10 * 10, logging.DEBUG), logging.ERROR)
        if level < self._level:
            return
        self._write_suppressed(all_=False)
        if not self._quotas.has_room(("log", ("logger", record.name), ("at", f"{record.pathname}:{record.lineno}"))):
            return
        fields: dict[str, object] = {"logger": record.name, "message": _format_message(record)}
        if record.exc_info is not None and record.exc_info[1] is not None:
            error = record.exc_info[1]
            fields["error"] = _truncate(f"{type(error).__name__}: {error}")
            fields["trace"] = [_truncate(line) for line in _format_traceback(error)]
        self._write[level]("log", **fields)

    def _write_suppressed(self, *, all_: bool) -> None:
        """For each kind of line whose period is over, write how many lines were suppressed. `all_`: do so for all
        kinds."""
        until_s = self._quotas.held_until_s
        if until_s is None or not (all_ or self._clock.monotonic_s() >= until_s):
            return
        for kind, count, within_s in self._quotas.take_suppressed(all_=all_):
            name, *rest = kind if isinstance(kind, tuple) else (kind,)
            fields = {field: value for field, value in rest if value is not None}
            self._write[logging.WARNING]("suppressed", of=name, count=count, within_s=round(within_s, 1), **fields)


class LibraryHandler(logging.Handler):
    """Handler for `logging` that passes the log records of libraries to the event log."""

    def __init__(self, log: EventLog) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        self._log.write_record(record)


def _format_message(record: logging.LogRecord) -> str:
    try:
        return _truncate(record.getMessage())
    except Exception:  # noqa: BLE001 - wrong arguments of a log call must not raise in its caller
        return _truncate(str(record.msg))


def _format_traceback(error: BaseException) -> list[str]:
    """Format the traceback of an exception as one string for each frame, innermost last."""
    frames = traceback.extract_tb(error.__traceback__)[-FRAMES_MAX:]
    return [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]


def _truncate(text: str) -> str:
    return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}... ({len(text)} characters)"


def _shorten(value: object) -> object:
    """Return a value in which every string is cut to the maximum length."""
    if isinstance(value, str):
        return _truncate(value)
    if isinstance(value, list | tuple):
        return [_shorten(each) for each in value]
    return {_shorten(name): _shorten(each) for name, each in value.items()} if isinstance(value, dict) else value


class LineWriter:
    """Writes formatted lines to a stream. Unlike structlog's own loggers it never raises an exception. A line that
    cannot be written, because the disk is full or the stream is closed, is dropped."""

    def __init__(self, stream: IO[str]) -> None:
        self._write, self._flush = stream.write, stream.flush

    def msg(self, line: str) -> None:
        """Write one line and flush it."""
        with suppress(OSError, ValueError):  # disk full, stream closed, or another encoding
            self._write(line + "\n")
            self._flush()

    debug = info = warning = error = critical = msg


def name_event(kind: type[TelemetryEvent]) -> str:
    """Return the name under which an event is logged.

    >>> name_event(events.DeadLettered)
    'dead_lettered'
    """
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


def _make_encoder(kind: type[TelemetryEvent]) -> Callable[[TelemetryEvent], dict[str, object]]:
    """Return a function that converts an event of this class to log fields. Some fields are formatted for readers."""
    names = tuple(field.name for field in msgspec.structs.fields(kind))
    shaped = {name: SHAPES[name] for name in names if name in SHAPES}
    seldom = tuple(name for name in names if name in SELDOM)
    timed = tuple(name for name in names if name.endswith(("_ms", "_s")) or name == "ms")

    def read(moment: TelemetryEvent) -> dict[str, object]:
        fields: dict[str, object] = {name: getattr(moment, name) for name in names}
        for name in timed:
            fields[name] = round(fields[name], 3)  # type: ignore[call-overload]  # times are numbers
        for name, shape in shaped.items():
            fields[name] = shape(fields[name])
        for name in seldom:
            if fields[name] is None:
                del fields[name]
        return fields

    return read


def _encode_outcomes(outcomes: tuple[tuple[str, str, str | None], ...]) -> list[dict[str, str]]:
    return [
        {"handler": handler, "outcome": outcome} | ({"reason": reason} if reason else {})
        for handler, outcome, reason in outcomes
    ]


def _group_partitions(partitions: tuple[Partition, ...]) -> dict[str, list[int]]:
    """Return partition numbers grouped by topic. This is shorter than a list of pairs."""
    numbers: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        numbers.setdefault(topic, []).append(number)
    return numbers


SELDOM = frozenset({"principal"})
"""Fields that are left out of a line when they are `None`."""
SHAPES: Mapping[str, Callable[..., object]] = {"outcomes": _encode_outcomes, "partitions": _group_partitions}


def _build_processors(form: Literal["json", "text"], clock: Clock, *, colours: bool) -> list[Processor]:
    now_ms = clock.now_ms

    def stamp(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
        return {"time": iso(now_ms()), "level": method, "event": event.pop("event"), **event}

    def as_json(logger: WrappedLogger, method: str, event: EventDict) -> str:
        event = stamp(logger, method, event)
        try:
            line = _encode(event)
            if len(line) > TEXT_MAX:
                line = _encode(_shorten(event))
        except UnicodeEncodeError:  # half of a surrogate pair, for example in the message of an exception
            return json.dumps(_shorten(event), default=str)
        if (line.isascii() and b"\x7f" not in line) or (text := line.decode()).isprintable():
            return line.decode()
        return json.dumps(
            msgspec.json.decode(text)
        )  # JSON escapes line ends, but not all control characters of a terminal

    if form == "json":
        return [as_json]
    renderer = structlog.dev.ConsoleRenderer(colors=colours, timestamp_key="time", sort_keys=False)
    return [stamp, _render_text, renderer]


def _render_text(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Prepare fields for a terminal: shorten them, leave out empty ones, and escape control characters, which could
    control the terminal."""
    shortened = {name: _shorten(value) for name, value in event.items()}
    return {
        name: printable(value) if isinstance(value, str) and not _is_quoted(name, value) else value
        for name, value in shortened.items()
        if value not in (None, (), [], {})
    }


def _is_quoted(name: str, text: str) -> bool:
    """Return whether structlog writes this string with `repr`, which escapes control characters. It writes `logger`,
    and strings without characters of `QUOTED`, unchanged."""
    return name != "logger" and not QUOTED.isdisjoint(text)


# -------------------------------------------------------------------- log quotas


LINES_MAX = 20
"""Maximum number of lines of one kind within `WITHIN_S`."""
WITHIN_S = 60.0
KINDS_MAX = 500
"""Maximum number of kinds of lines with a quota of their own."""
OTHERS = "others"
"""Stands for all further kinds, which share one quota."""


class SuppressedLines(NamedTuple):
    """Number of lines of one kind that were not written."""

    kind: Hashable
    lines: int
    within_s: float


@dataclass(slots=True)
class LineQuota:
    """Number of lines of one kind in the current period, including suppressed ones."""

    since_s: float
    lines: int = 0


class LogQuotas:
    """Decides for each line whether it is written. Counts the suppressed lines, and `take_suppressed` returns these
    counts. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._quotas: dict[Hashable, LineQuota] = {}
        self._lock = threading.Lock()
        self.held_until_s: float | None = None
        """Time at which the first period with suppressed lines ends; `None` if no line was suppressed."""

    def has_room(self, kind: Hashable) -> bool:
        """Return whether one more line of this kind may be written now."""
        with self._lock:
            now_s = self._clock.monotonic_s()
            kind = self._choose_quota(kind, now_s)
            quota = self._quotas.setdefault(kind, LineQuota(now_s))
            if now_s - quota.since_s >= WITHIN_S and quota.lines <= LINES_MAX:
                quota.since_s, quota.lines = now_s, 0
            quota.lines += 1
            if quota.lines <= LINES_MAX:
                return True
            ends_s = quota.since_s + WITHIN_S
            if self.held_until_s is None or ends_s < self.held_until_s:
                self.held_until_s = ends_s
            return False

    def take_suppressed(self, *, all_: bool = False) -> list[SuppressedLines]:
        """For each kind whose period is over, return the number of suppressed lines and reset the quota. `all_`: do so
        for all kinds with suppressed lines."""
        with self._lock:
            now_s = self._clock.monotonic_s()
            limited = {kind: quota for kind, quota in self._quotas.items() if quota.lines > LINES_MAX}
            ended = {kind: quota for kind, quota in limited.items() if all_ or now_s - quota.since_s >= WITHIN_S}
            for kind in ended:
                del self._quotas[kind]
            self.held_until_s = min(
                (quota.since_s + WITHIN_S for kind, quota in limited.items() if kind not in ended), default=None
            )
            return [
                SuppressedLines(kind, quota.lines - LINES_MAX, now_s - quota.since_s) for kind, quota in ended.items()
            ]

    def _choose_quota(self, kind: Hashable, now_s: float) -> Hashable:
        """Return the kind itself, or `OTHERS` if there are too many kinds. If there are, kinds whose period is over are
        dropped first."""
        if kind in self._quotas or len(self._quotas) < KINDS_MAX:
            return kind
        for old in [k for k, q in self._quotas.items() if now_s - q.since_s >= WITHIN_S and q.lines <= LINES_MAX]:
            del self._quotas[old]
        return kind if len(self._quotas) < KINDS_MAX else OTHERS
