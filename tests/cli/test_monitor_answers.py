"""`saga monitor trace`, `saga monitor stuck` and `saga monitor rates`: what they print, what they end with, and where
it is from."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import NoReturn

import msgspec
import pytest

from saga.configuration.settings import Settings
from saga.errors import BrokerError
from saga.messages import Topic
from saga.messaging.transition_events import TransitionEvent
from saga.monitor.queries import Queries
from saga.support.clock import Clock
from tests.cli.conftest import Call
from tests.cli.pottery_service import Pottery, a_worker, handled, the_broker
from tests.monitor.test_reader import publish
from tests.monitor.transition_events import BEGIN_MS, MINUTE, Monitor, S, make_transition

HISTORY = (
    make_transition("order", 0, 0, handler="place", emitted=("OrderPlaced",)),
    make_transition("shipping", 0, S, "waiting", handler="book", awaits=(("book", ("PaymentReserved",)),)),
    make_transition("payment", 0, 2 * S, "retrying", error="TimeoutError", open_=True),
    make_transition("payment", 1, 3 * S, "dead", error="TimeoutError", open_=True),
    make_transition("order", 0, 0, saga="order-2", result="success", emitted=("OrderConfirmed",)),
)


@pytest.fixture
def history(saga: Call) -> None:
    """Transitions that services have published, in the log of the current folder."""
    publish_transitions(*HISTORY)


def publish_transitions(*transitions: TransitionEvent) -> None:
    asyncio.run(publish(Settings(), *transitions))


def create_broker() -> None:
    """Create the file of the embedded broker, as the first service does that runs."""

    async def create() -> None:
        async with the_broker():
            pass

    asyncio.run(create())


@pytest.mark.usefixtures("history")
def test_a_trace_shows_all_services_by_time_and_what_is_awaited(saga: Call) -> None:
    result = saga("monitor", "trace", "order-1")
    lines = result.stdout.splitlines()
    assert result.exit_code == 0
    assert lines[0] == "saga order-1: no outcome yet; reported by order, payment, shipping"
    assert [line.split()[1:4] for line in lines[2:6]] == [
        ["order", "0", "place"],
        ["shipping", "0", "book"],
        ["payment", "0", "reserve"],
        ["payment", "1", "reserve"],
    ]
    assert "OrderPlaced -> OrderPlaced  [charge]" in lines[2]
    assert "a person: `saga dead replay`" in result.stdout
    assert "shipping.book since 2026-11-21T14:06:41.000Z: PaymentReserved, published to its topic" in result.stdout
    assert "  dead since 2026-11-21T14:06:43.000Z" in lines
    assert "SAGA_MONITOR is not set: read from the topic saga.transitions: 5 transitions" in result.stderr


def test_a_service_without_workers_that_has_something_to_handle_is_reported(
    saga: Call, embedded_pottery: Pottery
) -> None:
    service = embedded_pottery.service
    asyncio.run(handled(embedded_pottery, {0: 1, 1: 0}))

    async def with_commands() -> None:
        async with the_broker() as broker:
            await broker.ensure_topics([Topic(f"{service}.commands", 1)])

    asyncio.run(with_commands())
    stuck = saga("monitor", "stuck")
    assert stuck.exit_code == 1
    down = f"{service} has no running process, and 5 messages to handle: start it"
    assert stuck.stdout.splitlines() == ["nothing is stuck", down]
    assert json.loads(saga("monitor", "stuck", "--json").stdout)["down"] == {service: 5}

    async def with_a_process() -> None:
        async with a_worker(embedded_pottery, {}):
            still = await asyncio.to_thread(saga, "monitor", "stuck")
            assert (still.exit_code, still.stdout) == (0, "nothing is stuck\n")

    asyncio.run(with_a_process())


@pytest.mark.usefixtures("history")
def test_a_saga_without_transition_events_is_not_traced(saga: Call) -> None:
    result = saga("monitor", "trace", "order-9")
    assert result.exit_code == 1
    assert "no transition of saga order-9 was published; `saga sagas show order-9` reads the stores" in result.stderr


@pytest.mark.usefixtures("history")
def test_stuck_sagas_are_listed_with_what_they_wait_for(saga: Call) -> None:
    result = saga("monitor", "stuck")
    assert result.exit_code == 1
    (row,) = [line for line in result.stdout.splitlines() if line.startswith("order-1")]
    assert row.split()[1:4] == ["dead", "2026-11-21T14:06:43.000Z", "payment.reserve"]
    (as_json,) = json.loads(saga("monitor", "stuck", "--json").stdout)["sagas"]
    assert (as_json["saga"], as_json["why"], as_json["awaited"]["handler"]) == ("order-1", "dead", "reserve")


def test_nothing_is_stuck_where_all_has_ended_or_nothing_was_published(saga: Call) -> None:
    create_broker()
    result = saga("monitor", "stuck")
    assert (result.exit_code, result.stdout) == (0, "nothing is stuck\n")
    assert "no service has published a transition yet" in result.stderr
    publish_transitions(HISTORY[-1])
    assert saga("monitor", "stuck").exit_code == 0


@pytest.mark.parametrize("reason", ["no file", "cannot be read: not now"])
def test_stuck_does_not_exit_with_0_if_it_is_not_known_whether_services_run(
    saga: Call, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    async def fail(_: Settings, __: Clock) -> NoReturn:
        raise BrokerError("cannot be read: not now")

    if reason != "no file":
        create_broker()
        monkeypatch.setattr("saga.ops.offsets.read_offsets_of_every_service", fail)
    for transitions, exit_code in ((HISTORY[-1:], 2), (HISTORY, 1)):
        with answering(answers_of(*transitions)) as address:
            result = saga("monitor", "stuck", "--monitor", address)
            as_json = saga("monitor", "stuck", "--monitor", address, "--json")
        assert (result.exit_code, as_json.exit_code) == (exit_code, exit_code), result.output
        assert "whether each service runs is not known: " in result.stderr
        assert reason in result.stderr
        assert json.loads(as_json.stdout)["down"] is None


@pytest.mark.usefixtures("history")
def test_rates_show_handlers_and_failures_by_class(saga: Call) -> None:
    result = saga("monitor", "rates")
    assert result.exit_code == 0
    assert result.stdout.startswith("2 sagas, 1 without an outcome; the 60 minutes up to 2026-11-21T14:06:43.000Z\n")
    assert ["payment", "reserve", "0.00", "2", "0", "1", "1"] in [
        line.split()[:7] for line in result.stdout.splitlines()
    ]
    assert ["2", "payment", "reserve", "TimeoutError"] in [line.split()[:4] for line in result.stdout.splitlines()]
    as_json = json.loads(saga("monitor", "rates", "--json").stdout)
    assert as_json["errors"][0]["error"] == "TimeoutError"
    assert as_json["rates"]["taken"] == 5


def test_hot_sagas_and_partitions_are_named(saga: Call) -> None:
    publish_transitions(
        *(make_transition("order", n, n, partition=4) for n in range(150)),
        *(make_transition("stock", 0, n, saga=f"s{n}", partition=n) for n in range(4)),
    )
    output = saga("monitor", "rates").stdout
    assert "hot saga order-1: 150 transitions\n" in output
    assert "hot partition orders/4: 150 messages, 4.9 times the mean of its topic\n" in output


def test_text_from_the_topic_is_printed_escaped(saga: Call) -> None:
    publish_transitions(
        make_transition(
            "order\x1b[31m", 0, 0, "dead", saga="a\x1b]0;b\nc", handler="h\x07", error="E\x1b[2J", open_=True
        )
    )
    for result in (saga("monitor", "trace", "a\x1b]0;b\nc"), saga("monitor", "stuck"), saga("monitor", "rates")):
        assert not {"\x1b", "\x07"} & set(result.output)


@pytest.mark.parametrize("address", ["nowhere", "host:port", "a:99999"])
def test_an_invalid_address_is_reported_with_what_to_give(saga: Call, address: str) -> None:
    result = saga("monitor", "stuck", "--monitor", address)
    assert result.exit_code == 2
    assert "it must be host:port" in result.stderr


# -------------------------------------------------------------------- a monitor that runs


@contextmanager
def answering(answers: dict[str, bytes], status: int = 200, missing: bytes = b'{"error":"none"}') -> Iterator[str]:
    """Server that answers these paths, and 404 with `missing` to all others, at an address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = answers.get(self.path)
            self.send_response(404 if content is None else status)
            self.end_headers()
            self.wfile.write(content or missing)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def answers_of(*transitions: TransitionEvent) -> dict[str, bytes]:
    """Answers of a monitor that has read these."""
    views: Queries = Monitor().take(*transitions).answers
    now_ms = BEGIN_MS + 60 * MINUTE
    asked = {
        "trace/order-1": views.saga("order-1", now_ms),
        "stuck": views.stuck(now_ms),
        "rates": views.rates(),
        "errors": views.errors(),
        "hot": views.hot(),
    }
    return {f"/api/{path}": msgspec.json.encode(answer) for path, answer in asked.items()}


def test_a_monitor_that_runs_is_asked_and_nothing_is_read(saga: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(answers_of(*HISTORY)) as address:
        monkeypatch.setenv("SAGA_MONITOR", address)
        results = saga("monitor", "trace", "order-1"), saga("monitor", "stuck"), saga("monitor", "rates")
        unknown = saga("monitor", "trace", "order-9")
    assert [result.exit_code for result in results] == [0, 1, 0]
    assert "order-1" in results[1].stdout
    assert all(f"answered by the monitor at {address}\n" in result.stderr for result in results)
    assert unknown.exit_code == 1


def test_without_a_monitor_the_topic_is_read_and_a_note_printed(saga: Call, history: None) -> None:
    with answering({}) as address:
        pass
    result = saga("monitor", "stuck", "--monitor", address)
    assert result.exit_code == 1
    assert "order-1" in result.stdout
    assert f"no monitor answers at {address} (Connection refused): read from the topic" in result.stderr


@pytest.mark.parametrize(
    ("answers", "status", "message"),
    [
        ({}, 200, "is no monitor: it has no /api/stuck; correct SAGA_MONITOR"),
        ({"/api/stuck": b"<html>"}, 200, "is no monitor: JSON is malformed"),
        ({"/api/stuck": b"{}"}, 200, "is no monitor: Object missing required field"),
        ({"/api/stuck": b'{"sagas":[{"saga":"\xff"}]}'}, 200, "is no monitor: "),
        ({"/api/stuck": b'{"error":"\xff"}'}, 503, "cannot answer: it is not ready"),
        ({"/api/stuck": b"{}"}, 500, "answers 500 to /api/stuck; see its log"),
    ],
)
def test_an_address_of_another_server_is_reported(
    saga: Call, answers: dict[str, bytes], status: int, message: str
) -> None:
    with answering(answers, status) as address:
        result = saga("monitor", "stuck", "--monitor", address)
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.parametrize("missing", [b"<html>", b'{"detail":"Not Found"}', b'{"status":404,"error":"Not Found"}'])
def test_a_server_that_is_no_monitor_does_not_say_that_a_saga_is_unknown(saga: Call, missing: bytes) -> None:
    with answering({}, missing=missing) as address:
        result = saga("monitor", "trace", "order-1", "--monitor", address)
    assert result.exit_code == 2
    assert "is no monitor: it has no /api/trace/order-1; correct SAGA_MONITOR" in result.stderr
