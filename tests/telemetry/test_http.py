"""A process answers over HTTP from before its services start until after they have drained."""

import asyncio
import json
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aiohttp import ClientConnectionError, ClientSession
from prometheus_client.parser import text_string_to_metric_families

from saga import Saga, Service
from saga.configuration import wiring
from saga.configuration.settings import Settings
from saga.contracts.library import contract_of
from saga.errors import ConfigurationError
from saga.messaging import envelope
from saga.support.clock import SystemClock, iso
from saga.telemetry.events import Started, TelemetryEvent
from saga.telemetry.http import serve_http
from saga.testing.servers.server import free_ports
from services.order.events import OrderPlaced
from tests.engine.real_worker import an_order, message_of
from tests.telemetry.workers import P0, WatchedWorker

CLOCK = SystemClock()
WITHIN_S = 60.0
LOOK_S = 0.01


class Answer(NamedTuple):
    """Answer of the server."""

    status: int
    content_type: str
    text: str

    @property
    def reasons(self) -> list[str]:
        return [f"{reason['service']}: {reason['reason']}" for reason in json.loads(self.text)["reasons"]]


Get = Callable[[str], Awaitable[Answer]]


@asynccontextmanager
async def asking(host: str, port: int) -> AsyncIterator[Get]:
    async with ClientSession(f"http://{host}:{port}") as session:

        async def get(path: str) -> Answer:
            async with session.get(path) as response:
                return Answer(response.status, response.headers["Content-Type"], await response.text())

        yield get


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async def look() -> None:
        while not await holds():
            await CLOCK.sleep(LOOK_S)

    await CLOCK.within(WITHIN_S, look())


@pytest.fixture
def port() -> int:
    """One at which nobody listens, and that the system gives to no connection of another process meanwhile."""
    (number,) = free_ports(1)
    return number


@pytest.fixture
def settings(tmp_path: Path, port: int) -> Settings:
    return Settings(
        broker=f"embedded:///{tmp_path}/broker.db",
        store=f"sqlite:///{tmp_path}/{{service}}.db",
        http=f"127.0.0.1:{port}",
    )


# ---------------------------------------------------------------- a process


class Doors:
    """Doors that a service waits at, so that a test can look at it meanwhile."""

    def __init__(self) -> None:
        self.opens, self.ends, self.begun = asyncio.Event(), asyncio.Event(), asyncio.Event()


def slow(doors: Doors) -> Service[Any]:
    """A service whose resource opens, and whose handler ends, when a test lets it."""
    payment = Service("payment")

    class Bank:
        pass

    @payment.resource
    async def bank() -> AsyncIterator[Bank]:
        await doors.opens.wait()
        yield Bank()

    @payment.handler
    async def reserve(event: OrderPlaced, saga: Saga, bank: Bank) -> None:
        doors.begun.set()
        await doors.ends.wait()

    return payment


async def test_a_process_answers_while_it_starts_works_and_drains(settings: Settings, port: int) -> None:
    doors, stop, moments = Doors(), asyncio.Event(), list[TelemetryEvent]()
    declared = slow(doors).declared
    async with asking("127.0.0.1", port) as get, asyncio.TaskGroup() as tasks:
        process = tasks.create_task(wiring.run([declared], settings, moments.append, stop))

        async def listens() -> bool:
            try:
                return (await get("/health/live")).status == 200
            except ClientConnectionError:
                return False

        await until(listens)
        starting = await get("/health/ready")
        assert (starting.status, starting.reasons) == (503, ["payment: starting: it opens what it needs"])
        doors.opens.set()

        async def is_ready() -> bool:
            return (await get("/health/ready")).status == 200

        await until(is_ready)
        assert any(isinstance(moment, Started) for moment in moments)  # those who listened before still do

        async with wiring.open_broker(None, CLOCK, settings) as broker:
            message = message_of(an_order(), started=iso(CLOCK.now_ms()))
            await broker.publish([envelope.to_record(message, contract_of(OrderPlaced))])
        await CLOCK.within(WITHIN_S, doors.begun.wait())
        assert await value_of(get, "saga_in_flight_messages") == 1
        assert 'saga_partitions_moved_total{how="assigned",service="payment"} 31.0' in (await get("/metrics")).text
        stop.set()
        await until(lambda: _is_readiness(get, 503, ["payment: draining"]))
        assert (await get("/health/live")).status == 200
        doors.ends.set()
        await CLOCK.within(WITHIN_S, process)
    assert not await _listens(port)


async def _is_readiness(get: Get, status: int, reasons: list[str]) -> bool:
    answer = await get("/health/ready")
    return (answer.status, answer.reasons) == (status, reasons)


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionRefusedError:
        return False
    writer.close()
    return True


async def value_of(get: Get, name: str) -> float:
    """The one sample of that name."""
    page = await get("/metrics")
    families = text_string_to_metric_families(page.text)
    (value,) = [sample.value for family in families for sample in family.samples if sample.name == name]
    return value


# ---------------------------------------------------------------- the pages


async def test_the_pages_are_for_machines_and_nothing_else_is_there() -> None:
    async with (
        serve_http("127.0.0.1:0", ["payment"], asyncio.Event(), CLOCK) as answers,
        asking(answers.host, answers.port) as get,
    ):
        live, page, other = await get("/health/live"), await get("/metrics"), await get("/")
        assert (live.status, json.loads(live.text)) == (200, {"alive": True, "reasons": []})
        assert live.content_type.startswith("application/json")
        assert page.status == 200
        assert page.content_type.startswith("text/plain; version=")
        assert "process_resident_memory_bytes" in page.text
        assert other.status == 404


async def test_the_end_of_a_worker_is_reported_as_not_alive() -> None:
    async with (
        serve_http("127.0.0.1:0", ["payment"], asyncio.Event(), CLOCK) as answers,
        asking(answers.host, answers.port) as get,
    ):
        with answers.watch(WatchedWorker(behind={P0: 0})):
            assert (await get("/health/live")).status == 200
        dead = await get("/health/live")
        assert (dead.status, dead.reasons) == (503, ["payment: its worker has ended"])


async def test_the_time_to_recover_is_measured_between_two_questions() -> None:
    worker = WatchedWorker(behind={P0: 5})
    async with (
        serve_http("127.0.0.1:0", ["payment"], asyncio.Event(), CLOCK) as answers,
        asking(answers.host, answers.port) as get,
    ):
        with answers.watch(worker):
            worker.behind = {P0: 0}

            async def recovery_is_measured() -> bool:
                return "saga_recovery_seconds{" in (await get("/metrics")).text

            await until(recovery_is_measured)
            worker.behind = {P0: 5}
            recovery_s = await value_of(get, "saga_recovery_seconds")
            assert 0 < recovery_s < WITHIN_S


async def test_workers_are_made_to_look_whether_all_can_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("saga.telemetry.http.LOOK_S", 0.01)
    worker, fails = WatchedWorker(name="payment"), Failing(name="order")
    async with serve_http("127.0.0.1:0", ["payment", "order"], asyncio.Event(), CLOCK) as answers:
        with answers.watch(fails), answers.watch(worker):
            await until(lambda: _looked(worker, 3))
            assert fails.looked >= 2  # a failed request does not keep others from being served


class Failing(WatchedWorker):
    async def look(self) -> None:
        await super().look()
        raise RuntimeError("a defect of a driver")


async def _looked(worker: WatchedWorker, times: int) -> bool:
    return worker.looked >= times


# ---------------------------------------------------------------- what cannot be


async def test_a_port_that_is_taken_keeps_the_process_from_starting(settings: Settings, port: int) -> None:
    pattern = f"SAGA_HTTP is '127.0.0.1:{port}'.*in use.*choose another port"
    with socket.create_server(("127.0.0.1", port)), pytest.raises(ConfigurationError, match=pattern):
        await wiring.run([slow(Doors()).declared], settings, lambda _: None, asyncio.Event())


async def test_a_host_that_is_not_ours_keeps_the_process_from_starting(settings: Settings) -> None:
    with pytest.raises(ConfigurationError, match="SAGA_HTTP"):
        async with serve_http("192.0.2.1:0", [], asyncio.Event(), CLOCK):
            pass


async def test_without_the_http_extra_the_error_names_how_to_install_it(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "saga.telemetry.http", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'saga-choreography\[http\]'"):
        await wiring.run([slow(Doors()).declared], settings, lambda _: None, asyncio.Event())
