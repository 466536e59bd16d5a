"""Moments as log lines: one JSON object a line where machines read, readable ones on a terminal.

The event's name is that of the moment's class in snake case and never changes with the data; these are fields. One
`handled` line for each handled message: `grep` for a saga or a message id finds its whole way through a service.
"""

import json
import logging
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import IO, Literal

import msgspec
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from saga.clock import Clock, SystemClock, iso
from saga.config import Settings
from saga.messages import Partition
from saga.observe.moments import (
    Assigned,
    DeadLettered,
    Escalated,
    Expired,
    GoesOn,
    Handled,
    Lost,
    Moment,
    Recovered,
    Report,
    Retrying,
    Revoked,
    StandsStill,
    Started,
    StepDone,
    Stopped,
    Stuck,
    Unavailable,
    WriteRefused,
)

LEVELS: Mapping[type[Moment], int] = {
    Handled: logging.INFO,
    StepDone: logging.DEBUG,
    Retrying: logging.WARNING,
    WriteRefused: logging.DEBUG,
    DeadLettered: logging.ERROR,
    Escalated: logging.ERROR,
    Stuck: logging.ERROR,
    Unavailable: logging.ERROR,
    Recovered: logging.INFO,
    Expired: logging.ERROR,
    Started: logging.INFO,
    Stopped: logging.INFO,
    Assigned: logging.INFO,
    Revoked: logging.INFO,
    Lost: logging.WARNING,
    StandsStill: logging.ERROR,
    GoesOn: logging.INFO,
}
"""How loud each moment is. A test compares it with the moments there are."""

_encode = msgspec.json.Encoder(decimal_format="string", enc_hook=str).encode


def log_to(stream: IO[str] | None = None, settings: Settings | None = None, *, clock: Clock | None = None) -> Report:
    """A listener that writes a line for each moment to `stream`, by default standard error.

    `settings.log` says how, `settings.log_level` what is the least. Each line is handed to the stream whole and
    flushed, so that lines of several processes do not mix and the last one before a death is there. Never raises: a
    service whose log cannot be written goes on.
    """
    stream, settings, clock = stream or sys.stderr, settings or Settings(), clock or SystemClock()
    form: Literal["json", "text"] = "json"
    if settings.log == "text" or (settings.log == "auto" and stream.isatty()):
        form = "text"
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    logger = structlog.wrap_logger(
        Lines(stream),
        processors=_processors(form, clock, colours=stream.isatty()),
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=True,
    ).bind()
    known = {
        kind: (getattr(logger, logging.getLevelName(loud).lower()), event_name(kind), _reader(kind))
        for kind, loud in LEVELS.items()
        if loud >= level
    }

    def report(moment: Moment) -> None:
        if (line := known.get(type(moment))) is not None:
            write, name, read = line
            write(name, **read(moment))

    return report


class Lines:
    """Where a finished line goes. It holds the stream: structlog's own loggers of this kind hold it weakly."""

    def __init__(self, stream: IO[str]) -> None:
        self._write, self._flush = stream.write, stream.flush

    def msg(self, line: str) -> None:
        """Write one line, whole."""
        with suppress(OSError, ValueError):  # full, gone, closed, or of another encoding
            self._write(line + "\n")
            self._flush()

    debug = info = warning = error = critical = msg


def event_name(kind: type[Moment]) -> str:
    """The name under which a moment is logged.

    >>> event_name(DeadLettered)
    'dead_lettered'
    """
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


def _reader(kind: type[Moment]) -> Callable[[Moment], dict[str, object]]:
    """What of a moment is written: its fields as they are, save those that read better otherwise."""
    names = tuple(field.name for field in msgspec.structs.fields(kind))
    shaped = {name: SHAPES[name] for name in names if name in SHAPES}
    timed = tuple(name for name in names if name.endswith(("_ms", "_s")) or name == "ms")

    def read(moment: Moment) -> dict[str, object]:
        told: dict[str, object] = {name: getattr(moment, name) for name in names}
        for name in timed:
            told[name] = round(told[name], 3)  # type: ignore[call-overload]  # times are numbers
        for name, shape in shaped.items():
            told[name] = shape(told[name])
        return told

    return read


def _outcomes(outcomes: tuple[tuple[str, str, str | None], ...]) -> list[dict[str, str]]:
    return [
        {"handler": handler, "outcome": outcome} | ({"reason": reason} if reason else {})
        for handler, outcome, reason in outcomes
    ]


def _partitions(partitions: tuple[Partition, ...]) -> dict[str, list[int]]:
    """By topic, for people: twelve partitions of five topics are sixty pairs."""
    told: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        told.setdefault(topic, []).append(number)
    return told


SHAPES: Mapping[str, Callable[..., object]] = {"outcomes": _outcomes, "partitions": _partitions}


def _processors(form: Literal["json", "text"], clock: Clock, *, colours: bool) -> list[Processor]:
    now_ms = clock.now_ms

    def stamp(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
        return {"time": iso(now_ms()), "level": method, "event": event.pop("event"), **event}

    def as_json(logger: WrappedLogger, method: str, event: EventDict) -> str:
        event = stamp(logger, method, event)
        try:
            return _encode(event).decode()
        except UnicodeEncodeError:  # half a surrogate pair, say in the message of an exception
            return json.dumps(event, default=str)

    if form == "json":
        return [as_json]
    renderer = structlog.dev.ConsoleRenderer(colors=colours, timestamp_key="time", sort_keys=False)
    return [stamp, _without_nothing, renderer]


def _without_nothing(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """On a terminal there is no room for what is not there."""
    return {name: value for name, value in event.items() if value not in (None, (), [], {})}
