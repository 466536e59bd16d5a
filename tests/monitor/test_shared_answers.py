"""Answers of a shared monitor: what is missing is named; and refusals of `saga monitor run --shared`."""

import asyncio
import socket
from collections.abc import Collection, Mapping
from pathlib import Path

import httpx
import msgspec
import pytest

from saga.configuration.settings import Settings
from saga.monitor.shared.partitions import PartitionModel
from saga.monitor.shared.server import (
    ASKS,
    QUESTION_BYTES_MAX,
    SharedQueries,
    WorkerQuestion,
    create_shared_app,
    decode_reply,
)
from saga.monitor.shared.worker import MonitorWorker
from saga.support.clock import SystemClock
from saga.testing.servers.server import free_ports
from tests.cli.conftest import Call
from tests.monitor.test_shared_parts import record
from tests.monitor.transition_events import S, make_transition

CLOCK = SystemClock()


async def _no_log_ids(topics: Collection[str]) -> Mapping[str, str]:
    return {}


class Known(MonitorWorker):
    """Worker without Faust: it has one part of four, and others have what the test gives them."""

    def __init__(self, others: dict[str, set[int]]) -> None:
        super().__init__("shop", "127.0.0.1:1", 4, 100, CLOCK, _no_log_ids)
        self.parts, self.ready, self._others = {0: PartitionModel(0)}, True, others
        for each in (
            make_transition("order", 0, 0, "dead", saga="here", open_=True, error="Late"),
            make_transition("payment", 0, S),
        ):
            list(self.parts[0].apply(record(each)))

    def owners(self) -> dict[str, set[int]]:
        return {self.url: set(self.parts), **self._others}


def asked(worker: MonitorWorker, path: str, method: str = "GET", content: bytes = b"") -> httpx.Response:
    """Answer of the application."""

    async def ask() -> httpx.Response:
        made = create_shared_app(SharedQueries(worker, CLOCK), Settings())
        transport = httpx.ASGITransport(made)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:1") as client:
            return await client.request(method, path, content=content, headers={"origin": "http://127.0.0.1:1"})

    return asyncio.run(ask())


def test_partitions_that_move_and_workers_that_do_not_answer_are_named() -> None:
    (port,) = free_ports(1)
    worker = Known({f"http://127.0.0.1:{port}": {1, 2}})
    dead = f"2 partitions of saga.transitions (1, 2) with http://127.0.0.1:{port}, which does not answer: "
    moving = "1 partition of saga.transitions (3): on the way from one worker to another, ask again"
    for path in ("rates", "stuck", "hot", "trace/here"):
        answer = asked(worker, f"/api/{path}")
        assert answer.status_code == 206
        first, second = answer.json()["unanswered"]
        assert (first.startswith(dead), second) == (True, moving)
    errors = asked(worker, "/api/errors")
    assert (errors.status_code, [each["error"] for each in errors.json()]) == (206, ["Late"])
    nowhere = asked(worker, "/api/trace/nowhere")
    assert nowhere.status_code == 503
    assert nowhere.json()["error"].startswith(
        "no worker that answered has transition events of this saga; no answer from: 2 "
    )


def test_a_worker_that_answers_is_not_taken_for_one_whose_address_begins_like_its_own() -> None:
    class Restoring(Known):
        """It owns partition 3 as well, and has not restored it yet."""

        def owners(self) -> dict[str, set[int]]:
            return {**super().owners(), self.url: {0, 3}}

    (port,) = free_ports(1)
    worker = Restoring({f"http://127.0.0.1:{port}": {1, 2}})
    worker.url = f"http://127.0.0.1:{port // 10}"
    moving = "1 partition of saga.transitions (3): on the way from one worker to another, ask again"
    assert asked(worker, "/api/rates").json()["unanswered"][1:] == [moving]


def test_a_worker_that_answers_nonsense_is_one_that_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"

        async def ask() -> tuple[str, ...]:
            answering = asyncio.create_task(SharedQueries(Known({url: {1, 2, 3}}), CLOCK).rates())  # noqa: TID251
            connection, _ = await asyncio.to_thread(listener.accept)
            with connection:
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n\xc1")
            return (await answering).unanswered

        (message,) = asyncio.run(ask())
    assert message.startswith(f"3 partitions of saga.transitions (1, 2, 3) with {url}, which does not answer: ")


def test_where_all_is_there_an_answer_is_whole() -> None:
    worker = Known({})
    worker.partitions = 1
    assert asked(worker, "/api/rates").status_code == 200
    assert asked(worker, "/api/rates").json()["unanswered"] == []
    assert asked(worker, "/api/trace/here").json()["row"]["dead"] is True
    assert asked(worker, "/api/trace/nowhere").status_code == 404
    worker.ready = False
    assert asked(worker, "/api/rates").status_code == 206


def test_a_worker_answers_others_from_its_partitions_and_refuses_what_is_no_question() -> None:
    worker = Known({})
    answer = asked(worker, ASKS, "POST", msgspec.msgpack.encode(WorkerQuestion("sums")))
    assert decode_reply(answer.content).sums[0].taken == 2
    assert asked(worker, ASKS, "POST", b"\xc1").status_code == 400
    assert asked(worker, ASKS, "POST", b"a" * (QUESTION_BYTES_MAX + 1)).status_code == 413


def test_it_has_no_page_and_names_the_command_that_serves_one() -> None:
    assert "The page is served by a monitor that is not shared: saga monitor run." in asked(Known({}), "/").text


def test_on_the_embedded_broker_it_is_refused(saga: Call, folder: Path) -> None:
    result = saga("monitor", "run", "--shared", "shop")
    assert result.exit_code == 2
    assert "several processes share a monitor on Kafka, and SAGA_BROKER is embedded:" in result.stderr
    assert "leave out --shared" in result.stderr


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--shared", "a b"), "it must consist of letters, digits, '.', '_' and '-', at most 200"),
        (("--shared", "shop", "--since", "2h"), "leave out --since and --store"),
        (("--shared", "shop", "--broker", "kafka://b", "--listen", "0.0.0.0:1"), "has no host"),
    ],
)
def test_what_cannot_be_shared_is_refused(saga: Call, folder: Path, given: tuple[str, ...], message: str) -> None:
    result = saga("monitor", "run", *given)
    assert (result.exit_code, message in result.stderr) == (2, True), result.stderr
