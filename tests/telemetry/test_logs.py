"""Telemetry events become log lines: one each, with a constant name, its data as fields, and a level by importance."""

import gc
import io
import json
import logging
from collections.abc import Callable

import pytest
from msgspec.structs import asdict, fields, replace

from saga.configuration.settings import Settings
from saga.messages import Partition
from saga.support.clock import SystemClock
from saga.telemetry import events
from saga.telemetry.events import (
    Assigned,
    DeadLettered,
    Handled,
    Parked,
    Report,
    Retrying,
    Started,
    StepDone,
    TelemetryEvent,
    Unavailable,
)
from saga.telemetry.logs import LEVELS, EventLog, name_event

HANDLED = Handled(
    service="payment",
    saga="order-1",
    message="OrderPlaced-ab12",
    type="OrderPlaced",
    topic="orders",
    partition=3,
    offset=12,
    outcomes=(("reserve", "handled", None), ("note", "ignored", "closed by OrderCancelled")),
    queued_ms=0.123456,
    handler_ms=1.0,
    persisted_ms=2.0,
    published_ms=3.0,
    total_ms=6.5,
    attempts=1,
)
RETRYING = Retrying(
    service="payment",
    saga="order-1",
    handler="reserve",
    message="OrderPlaced-ab12",
    attempt=1,
    attempts_max=5,
    delay_s=0.5,
    error="BankClosed: come back later",
)
PARKED = Parked(**asdict(RETRYING))
DEAD = DeadLettered(service="payment", reason="no key", remedy="fix its sender")
STEP = StepDone(service="payment", saga="order-1", handler="reserve", step="reserve", ms=4.0)


class FixedClock(SystemClock):
    at_s = 1000.0

    def now_ms(self) -> int:
        return 1_795_270_000_123

    def monotonic_s(self) -> float:
        return self.at_s


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def to(stream: io.StringIO, settings: Settings | None = None) -> Report:
    return EventLog(stream, settings, clock=FixedClock()).report


def test_the_principal_of_the_saga_is_in_the_line_if_there_is_one() -> None:
    to(stream := io.StringIO())(replace(HANDLED, principal="user:4711\nadmin"))
    (line,) = lines(stream)
    assert line["principal"] == "user:4711\nadmin"
    assert stream.getvalue().count("\n") == 1


def test_a_handled_message_is_one_json_object_on_one_line() -> None:
    to(stream := io.StringIO())(HANDLED)
    assert stream.getvalue().endswith("}\n")
    assert lines(stream) == [
        {
            "time": "2026-11-21T14:06:40.123Z",
            "level": "info",
            "event": "handled",
            "service": "payment",
            "saga": "order-1",
            "message": "OrderPlaced-ab12",
            "type": "OrderPlaced",
            "topic": "orders",
            "partition": 3,
            "offset": 12,
            "outcomes": [
                {"handler": "reserve", "outcome": "handled"},
                {"handler": "note", "outcome": "ignored", "reason": "closed by OrderCancelled"},
            ],
            "queued_ms": 0.123,
            "handler_ms": 1.0,
            "persisted_ms": 2.0,
            "published_ms": 3.0,
            "total_ms": 6.5,
            "attempts": 1,
        }
    ]
    assert list(lines(stream)[0])[:3] == ["time", "level", "event"]


def test_every_field_of_a_moment_is_a_field_of_its_line() -> None:
    report = to(stream := io.StringIO(), Settings(log_level="debug"))
    moments: list[TelemetryEvent] = [replace(HANDLED, principal="user:4711"), RETRYING, PARKED, DEAD, STEP]
    for moment in moments:
        report(moment)
    for moment, line in zip(moments, lines(stream), strict=True):
        assert set(line) == {"time", "level", "event"} | {field.name for field in fields(moment)}


def test_partitions_are_logged_by_topic() -> None:
    partitions = (Partition("payments", 1), Partition("orders", 2), Partition("orders", 1))
    to(stream := io.StringIO())(Assigned(service="payment", partitions=partitions))
    assert lines(stream)[0]["partitions"] == {"orders": [1, 2], "payments": [1]}


@pytest.mark.parametrize(
    ("least", "events"),
    [
        ("debug", ["handled", "step_done", "retrying", "dead_lettered"]),
        ("info", ["handled", "retrying", "dead_lettered"]),
        ("warning", ["retrying", "dead_lettered"]),
        ("error", ["dead_lettered"]),
    ],
)
def test_less_than_the_level_is_not_written(least: str, events: list[str]) -> None:
    report = to(stream := io.StringIO(), Settings.read({"SAGA_LOG_LEVEL": least}))
    for moment in (HANDLED, STEP, RETRYING, DEAD):
        report(moment)
    assert [line["event"] for line in lines(stream)] == events


def test_each_moment_has_a_level() -> None:
    kinds = {
        kind
        for kind in vars(events).values()
        if isinstance(kind, type) and issubclass(kind, TelemetryEvent) and kind is not TelemetryEvent
    }
    assert set(LEVELS) == kinds


def test_levels_say_what_a_person_has_to_look_at() -> None:
    assert [kind for kind, level in LEVELS.items() if level >= logging.ERROR] == [
        DeadLettered,
        events.Escalated,
        events.Stuck,
        Unavailable,
        events.Expired,
        events.LogReplaced,
        events.TimersLost,
        events.PublishedLost,
        events.ContractsUnreadable,
        events.StandsStill,
        events.StrangersMet,
        events.DeadlinePassedLog,
    ]


def test_event_names_do_not_depend_on_data() -> None:
    assert [name_event(kind) for kind in (Handled, DeadLettered, StepDone)] == ["handled", "dead_lettered", "step_done"]


def test_a_terminal_gets_text_and_everything_else_json() -> None:
    to(terminal := Terminal())(RETRYING)
    assert "\x1b[" in terminal.getvalue()
    to(piped := io.StringIO())(RETRYING)
    assert lines(piped)[0]["event"] == "retrying"


def test_text_is_readable_and_leaves_out_what_is_not_there() -> None:
    to(stream := io.StringIO(), Settings(log="text"))(DEAD)
    (line,) = stream.getvalue().splitlines()
    assert line.split() == [
        *("2026-11-21T14:06:40.123Z", "[error", "]", "dead_lettered", "service=payment"),
        *("reason='no", "key'", "remedy='fix", "its", "sender'"),
    ]


def test_json_can_be_had_on_a_terminal() -> None:
    to(terminal := Terminal(), Settings(log="json"))(DEAD)
    assert lines(terminal)[0]["event"] == "dead_lettered"


def test_an_exception_text_is_logged_on_one_line() -> None:
    report = to(stream := io.StringIO())
    for error in ("two\nlines", "Grüße ✓", "half a pair \ud800", 'quotes " and \\'):
        report(Unavailable(service="payment", what="store", operation="get", error=error, since_s=0.0))
        assert lines(stream)[-1]["error"] == error
    assert len(stream.getvalue().splitlines()) == 4


@pytest.mark.parametrize("breaks", [io.StringIO.close, lambda stream: setattr(stream, "write", fails)])
def test_a_log_that_cannot_be_written_stops_no_worker(breaks: Callable[[io.StringIO], object]) -> None:
    stream = Terminal()
    breaks(stream)
    EventLog(stream, Settings(log="json")).report(HANDLED)


def fails(line: str) -> int:
    raise BrokenPipeError


def test_the_stream_lives_as_long_as_the_listener(capfd: pytest.CaptureFixture[str]) -> None:
    report = EventLog(open(1, "w", closefd=False)).report  # noqa: SIM115 - the log alone holds it: that is the point
    gc.collect()
    report(Started(service="payment", topics=("orders",)))
    assert json.loads(capfd.readouterr().out)["topics"] == ["orders"]
