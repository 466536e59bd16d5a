"""No log grows without bound: repeated lines are counted, long ones truncated, and hostile text is escaped."""

import asyncio
import gc
import io
import logging
import threading
from collections.abc import Iterator
from typing import get_args

import msgspec
import pytest
from msgspec.structs import fields, replace

from saga.configuration.settings import Settings
from saga.messages import Partition
from saga.policies.retry import Blame
from saga.telemetry import events
from saga.telemetry.events import DeadLettered, Stopped, Stuck, TelemetryEvent, WriteRefused
from saga.telemetry.logs import ALWAYS, FRAMES_MAX, LEVELS, LINES_MAX, TEXT_MAX, WITHIN_S, EventLog
from tests.cli.test_printable import FORGED, HOSTILE
from tests.telemetry.test_logs import DEAD, HANDLED, RETRYING, STEP, FixedClock, Terminal, lines

STUCK = Stuck(service="payment", saga="order-1", message="m-1", error="x", retry_s=0.5)
CONFLICT = WriteRefused(service="payment", saga="order-1", operation="write", why="conflict")

WRITTEN = [kind for kind, level in LEVELS.items() if level != logging.NOTSET]
"""Moments that have a line."""


class LogInMemory:
    """A log in memory, and a clock that moves when a test says so."""

    def __init__(self, level: str = "debug", form: str = "json") -> None:
        self.stream, self.clock = io.StringIO(), FixedClock()
        self.log = EventLog(self.stream, Settings.read({"SAGA_LOG": form, "SAGA_LOG_LEVEL": level}), clock=self.clock)

    def events(self, name: str) -> list[dict[str, object]]:
        return [line for line in lines(self.stream) if line["event"] == name]


@pytest.fixture
def place() -> LogInMemory:
    return LogInMemory()


@pytest.fixture
def of_python(place: LogInMemory) -> Iterator[LogInMemory]:
    """Log to which libraries write, too; handlers of the test runner are put aside."""
    root = logging.getLogger()
    there, root.handlers = root.handlers, []
    try:
        with place.log.of_python():
            yield place
    finally:
        root.handlers = there


# ---------------------------------------------------------------- moments


@pytest.mark.parametrize("moment", [RETRYING, DEAD, STUCK, CONFLICT], ids=lambda moment: type(moment).__name__)
def test_repeated_lines_are_logged_a_few_times_and_then_counted(moment: TelemetryEvent, place: LogInMemory) -> None:
    for number in range(5000):
        place.log.report(replace(moment, **({"saga": f"order-{number}"} if "saga" in moment.__struct_fields__ else {})))
    assert len(lines(place.stream)) == LINES_MAX
    place.clock.at_s += WITHIN_S
    place.log.report(HANDLED)
    (line,) = place.events("suppressed")
    assert (line["of"], line["count"], line["within_s"]) == (
        lines(place.stream)[0]["event"],
        5000 - LINES_MAX,
        WITHIN_S,
    )
    assert line["service"] == "payment"


def test_the_canonical_line_of_each_message_and_step_is_always_written(place: LogInMemory) -> None:
    for _ in range(5000):
        place.log.report(HANDLED)
        place.log.report(STEP)
    assert (len(place.events("handled")), len(place.events("step_done"))) == (5000, 5000)


def test_other_services_handlers_and_types_are_distinguished(place: LogInMemory) -> None:
    for number in range(3):
        for _ in range(100):
            place.log.report(replace(RETRYING, handler=f"h{number}"))
            place.log.report(replace(DEAD, type=f"T{number}"))
            place.log.report(replace(STUCK, service=f"s{number}"))
    assert len(lines(place.stream)) == 9 * LINES_MAX


def test_suppressed_lines_are_summed_up_before_the_service_has_stopped(place: LogInMemory) -> None:
    for _ in range(100):
        place.log.report(STUCK)
    place.log.report(Stopped(service="payment", drained_s=0.1))
    assert [line["event"] for line in lines(place.stream)][-2:] == ["suppressed", "stopped"]
    assert place.events("suppressed")[0]["count"] == 100 - LINES_MAX


def test_every_kind_of_moment_but_the_canonical_one_is_bounded(place: LogInMemory) -> None:
    for kind in WRITTEN:
        stream = LogInMemory()
        for _ in range(1000):
            stream.log.report(an_example(kind))
        assert len(lines(stream.stream)) == (1000 if kind in ALWAYS else LINES_MAX), kind


def an_example(kind: type[TelemetryEvent], text: str = "x") -> TelemetryEvent:
    """With this text wherever one can stand."""
    values: dict[type | object, object] = {
        str: text,
        int: 1,
        bool: True,
        float: 1.0,
        tuple[str, ...]: (text,),
        str | None: text,
        int | None: 1,
        Blame | None: "data",
    }
    given = {field.name: values.get(field.type) or next(iter(get_args(field.type)), text) for field in fields(kind)}
    given |= {"partitions": (Partition(text, 1),)} if "partitions" in given else {}
    given |= {"outcomes": ((text, text, text),)} if "outcomes" in given else {}
    given |= {"spans": ()} if "spans" in given else {}
    return msgspec.convert(given, kind, from_attributes=True)


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("kind", WRITTEN, ids=lambda kind: kind.__name__)
def test_a_long_text_is_truncated_with_its_length(kind: type[TelemetryEvent], form: str) -> None:
    place = LogInMemory(form=form)
    place.log.report(an_example(kind, "x" * 1_000_000))
    written = place.stream.getvalue()
    assert "x" * TEXT_MAX + "... (1000000 characters)" in written
    assert len(written) < 20 * TEXT_MAX
    place.log.report(an_example(kind, "\ud800" * 1_000_000))
    assert len(place.stream.getvalue()) < 150 * TEXT_MAX


# ---------------------------------------------------------------- what libraries say


def test_the_log_of_a_library_has_lines_like_all_others_and_bounded(of_python: LogInMemory) -> None:
    for number in range(5000):
        logging.getLogger("asyncio.somewhere").error("fetch %d of %s failed", number, "orders")
    lines = of_python.events("log")
    assert len(lines) == LINES_MAX
    assert lines[0] | {"time": ""} == {
        **{"time": "", "level": "error", "event": "log", "logger": "asyncio.somewhere"},
        "message": "fetch 0 of orders failed",
    }
    logging.getLogger("another").critical("once")
    assert of_python.events("log")[-1]["level"] == "error"


def test_the_innermost_frames_of_a_deep_trace_are_logged(of_python: LogInMemory) -> None:
    def deep(levels: int) -> None:
        if not levels:
            raise ValueError("at last")
        deep(levels - 1)

    try:
        deep(200)
    except ValueError:
        logging.getLogger("somewhere").exception("it failed")
    (line,) = of_python.events("log")
    trace = line["trace"]
    assert isinstance(trace, list)
    assert len(trace) == FRAMES_MAX
    assert trace[-1].endswith(" deep")
    assert line["error"] == "ValueError: at last"


def test_the_log_of_asyncio_about_tasks_that_are_not_awaited_is_bounded(of_python: LogInMemory) -> None:
    async def fails() -> None:
        raise ValueError("a" * 100_000)

    async def main() -> None:
        for _ in range(200):
            asyncio.get_running_loop().create_task(fails())
        await asyncio.sleep(0)  # noqa: TID251 - one turn of the loop

    asyncio.run(main())
    gc.collect()
    lines = of_python.events("log")
    assert len(lines) == LINES_MAX
    assert str(lines[0]["error"]).startswith("ValueError: aaa")
    assert len(of_python.stream.getvalue()) < 5 * LINES_MAX * TEXT_MAX
    assert any("test_bounded_logs.py" in frame for frame in lines[0]["trace"])  # type: ignore[attr-defined]  # a list


def test_suppressed_lines_of_libraries_are_summed_up_at_the_end(place: LogInMemory) -> None:
    root = logging.getLogger()
    there, root.handlers = root.handlers, []
    with place.log.of_python():
        for _ in range(100):
            logging.getLogger("aiohttp").error("again")
    assert root.handlers == []
    root.handlers = there
    (line,) = place.events("suppressed")
    assert (line["of"], line["count"], line["logger"]) == ("log", 100 - LINES_MAX, "aiohttp")


def test_wrong_log_arguments_and_concurrent_threads_do_not_fail(of_python: LogInMemory) -> None:
    of_python.log.write_record(logging.LogRecord("odd", logging.ERROR, "f", 1, "%d", ("no number",), None))
    assert of_python.events("log")[0]["message"] == "%d"
    threads = [threading.Thread(target=lambda: logging.getLogger("t").error("hello")) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len([line for line in of_python.events("log") if line["logger"] == "t"]) == LINES_MAX


def test_an_existing_logging_configuration_is_kept(place: LogInMemory) -> None:
    assert logging.getLogger().handlers, "the test runner has"
    with place.log.of_python():
        logging.getLogger("mine").error("hello")
    assert place.stream.getvalue() == ""


def test_less_than_the_level_is_not_written_of_libraries_either() -> None:
    place = LogInMemory(level="error")
    place.log.write_record(logging.LogRecord("x", logging.WARNING, "f", 1, "hello", (), None))
    assert place.stream.getvalue() == ""


# ---------------------------------------------------------------- what is hostile


@pytest.mark.parametrize(
    "text",
    [HOSTILE, f"{HOSTILE} with spaces", "\x1b[2J", "\x85\u2028", "\u202egnp.exe", "\x7f"],
    ids=["all", "spaces", "csi", "ends", "bidi", "delete"],
)
@pytest.mark.parametrize("kind", WRITTEN, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("form", ["text", "json"])
def test_no_text_of_a_moment_reaches_a_terminal_as_it_is(form: str, kind: type[TelemetryEvent], text: str) -> None:
    place = LogInMemory(form=form)
    place.log.report(an_example(kind, text))
    is_one_safe_line(place.stream.getvalue())
    if form == "json":
        assert lines(place.stream)[0]["service"] == text


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_hostile_log_record_of_a_library_is_one_escaped_line(form: str) -> None:
    place = LogInMemory(form=form)
    try:
        raise ValueError(HOSTILE)
    except ValueError as why:
        error = (ValueError, why, why.__traceback__)
        place.log.write_record(logging.LogRecord(HOSTILE, logging.ERROR, "f", 1, HOSTILE, (), error))
    is_one_safe_line(place.stream.getvalue())


def is_one_safe_line(written: str) -> None:
    assert written.endswith("\n")
    assert written[:-1].isprintable()
    assert not written.startswith(FORGED)


def test_colours_on_a_terminal_are_ours_alone() -> None:
    terminal = Terminal()
    EventLog(terminal, Settings(), clock=FixedClock()).report(
        DeadLettered(service="payment", reason=HOSTILE, remedy="")
    )
    assert "\x1b[2J" not in terminal.getvalue()
    assert "\x1b[" in terminal.getvalue()


def test_every_field_of_a_moment_that_is_text_is_fed() -> None:
    for kind in vars(events).values():
        if isinstance(kind, type) and issubclass(kind, TelemetryEvent) and kind is not TelemetryEvent:
            example = an_example(kind, "fed")
            assert all(getattr(example, f.name) == "fed" for f in fields(kind) if f.type in (str, str | None))
