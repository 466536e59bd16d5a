"""`saga monitor run` as a process: it answers, may be killed and starts again, and no service is affected."""

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from threading import Timer

import pytest
from msgspec.structs import replace

from saga.messaging.transition_events import TransitionEvent
from saga.support.clock import iso
from tests.cli.conftest import Call
from tests.cli.pottery_service import CLOCK, Pottery
from tests.cli.test_dead import until
from tests.cli.test_missing_topics import command, environment, refused, running
from tests.cli.test_monitor_answers import publish_transitions
from tests.monitor.transition_events import S, make_transition

WITHIN_S = 60.0


@contextmanager
def monitoring(*options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Monitor that runs in the current folder, and its address; it is killed at the end if it has not ended."""
    with (
        Path("monitor.log").open("w") as log,
        subprocess.Popen(
            command("monitor", "run", "--listen", "127.0.0.1:0", *options),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment(),
        ) as process,
    ):
        too_long = Timer(WITHIN_S, process.kill)
        too_long.start()
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("the monitor answers at http://127.0.0.1:"), Path("monitor.log").read_text()
            yield process, line.strip().rpartition("/")[2]
        finally:
            too_long.cancel()
            process.kill()


def dead_letter(saga: str) -> TransitionEvent:
    """Dead letter that is published now."""
    return replace(
        make_transition("payment", 0, 0, "dead", saga=saga, open_=True, error="KeyError"), time=iso(CLOCK.now_ms())
    )


def stuck(saga: Call, address: str) -> list[str]:
    """Sagas that the monitor at an address calls stuck."""
    result = saga("monitor", "stuck", "--monitor", address, "--json")
    assert f"answered by the monitor at {address}" in result.stderr
    return [each["saga"] for each in json.loads(result.stdout)["sagas"]]


def test_the_monitor_serves_page_and_commands_and_stops_on_a_signal(saga: Call, folder: Path) -> None:
    publish_transitions(make_transition("order", 0, 0, emitted=("OrderPlaced",)), make_transition("payment", 0, S))
    with monitoring() as (process, address):
        until(lambda: saga("monitor", "trace", "order-1", "--monitor", address).exit_code == 0)
        publish_transitions(dead_letter("order-2"))
        until(lambda: "order-2" in stuck(saga, address))
        assert saga("monitor", "rates", "--monitor", address).exit_code == 0
        connection = HTTPConnection(address, timeout=WITHIN_S)
        connection.request("GET", "/sagas")
        response = connection.getresponse()
        page = response.read().decode()
        connection.close()
        assert (response.status, "order-2" in page) == (200, True)
        process.send_signal(signal.SIGTERM)
        assert process.wait(WITHIN_S) == 0
    assert (folder / "monitor.log").read_text() == ""


def test_a_killed_monitor_restarts_and_the_service_continues(embedded_pottery: Pottery, saga: Call) -> None:
    assert saga("topics", "apply", embedded_pottery.module).exit_code == 0
    publish_transitions(make_transition("order", 0, 0, saga="before"), dead_letter("dead"))

    def killed_while_a_cup_is_made(cup: str) -> None:
        with monitoring() as (process, address):
            until(lambda: {"before", "dead"} <= {*stuck(saga, address)})
            process.kill()
            assert process.wait(WITHIN_S) == -signal.SIGKILL
        assert saga("publish", "CupOrdered", stdin=json.dumps({"cup_id": cup})).exit_code == 0
        until(lambda: cup in saga("sagas", "list").stdout)

    with running(embedded_pottery.module) as service:
        killed_while_a_cup_is_made("cup-1")
        killed_while_a_cup_is_made("cup-2")
        assert service.poll() is None
        shown = json.loads(saga("offsets", "show", embedded_pottery.service, "--json").stdout)["services"]
        assert [len(each["members"]) for each in shown] == [1]


def test_the_monitor_reads_from_a_given_time_on(saga: Call, folder: Path) -> None:
    publish_transitions(dead_letter("before"))
    published_ms = CLOCK.now_ms()
    until(lambda: CLOCK.now_ms() > published_ms + 5)
    since = iso(CLOCK.now_ms())
    publish_transitions(dead_letter("after"))
    with monitoring("--since", since) as (_, address):
        until(lambda: stuck(saga, address) == ["after"])


def test_an_address_in_use_is_reported(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        message = refused("monitor", "run", "--listen", address)
    assert f"it cannot listen at '{address}': Address already in use" in message
    assert "choose another port, or stop the process that uses it" in message


@pytest.mark.parametrize(
    ("option", "message"), [("--since", "give a time as 90s"), ("--listen", "it must be host:port")]
)
def test_wrong_arguments_are_reported(saga: Call, option: str, message: str) -> None:
    result = saga("monitor", "run", option, "yesterday")
    assert result.exit_code == 2
    assert message in result.stderr


def test_without_its_libraries_it_names_what_to_install(folder: Path) -> None:
    (folder / "uvicorn.py").write_text("raise ImportError('no uvicorn')")
    ended = subprocess.run(
        command("monitor", "run"),
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
        env={**os.environ, "PYTHONPATH": f"{folder}:{os.environ.get('PYTHONPATH', '')}"},
    )
    assert ended.returncode == 2
    assert "no uvicorn; pip install 'saga-choreography[monitor]'" in ended.stderr
